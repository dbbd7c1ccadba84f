"""Weights, gradients and optimizer states of one device, and the buffers that go with them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial

from msgspec.structs import replace

from forescale.formula import formula
from forescale.graph.counts import own_parameters
from forescale.graph.operator import ParameterGroup
from forescale.graph.stages import over_stages
from forescale.memory.buffers import (
    gathered,
    gathered_aside,
    lasting_buffers,
    reduced_at_once,
    standing_buffers,
)
from forescale.memory.inputs import EvalContext, StateBytes
from forescale.memory.liveness import largest
from forescale.memory.parameters import Elements, Sharded, gathered_bytes
from forescale.numeric import Numeric, floor, maximum, minimum, where
from forescale.spec.cluster import Device
from forescale.spec.layout import Kernels, Offload, state_shards
from forescale.spec.model import Model
from forescale.spec.optimizers import OPTIMIZERS, TWO_MOMENTS, OptimizerName
from forescale.spec.workload import STORAGE_BYTES, Precision, Trainable, moment_bytes, narrow_bytes
from forescale.struct import Struct

ZERO = "Rajbhandari et al. 2020, ZeRO, arXiv:1910.02054, section 5"
ENGINE = (
    "Transformer Engine, pytorch/module/base.py quantize_weight and pytorch/csrc/quantizer.cpp create_tensor"
)


def state_bytes(setting: EvalContext, sharded: Sharded) -> StateBytes:
    """Return all that stands on a device of every stage, each parameter group over its own shards."""
    weights, whole = weights_and_updates(setting, sharded), gathered(setting, sharded)
    least, lasting = whole.least, lasting_buffers(setting, sharded)
    at_loss, at_layers = absent_gradients(setting, sharded, weights.gradients)
    return replace(
        weights,
        update=largest(first=weights.update, second=reduced_at_once(setting, sharded)),
        narrow=narrow_weights(setting, sharded),
        buffers=standing_buffers(setting, sharded, least, lasting),
        at_layers=whole.layers - least - at_layers,
        at_loss=whole.loss - least - at_loss,
        at_head=whole.head - least - at_loss,
        lasting=lasting,
        aside=gathered_aside(setting, sharded),
    )


def frees_gradients(setting: EvalContext) -> bool:
    """Return whether gradients exist only from their layer's backward to the update."""
    return bool(setting.model.traces) or setting.choices.kernels.frees_gradients


def absent_gradients(setting: EvalContext, sharded: Sharded, gradients: Numeric) -> tuple[Numeric, Numeric]:
    """Return the bytes of gradients that do not exist yet at the loss, and when the last layer's backward starts.

    PyTorch frees gradients between steps, and backward makes them layer by layer: with one micro-batch per step none
    exists at its loss. Elsewhere blocks that were not recorded count all gradients at all times.
    """
    if not frees_gradients(setting):
        return 0.0, 0.0
    trained, head, zero = sharded.trained, sharded.block_parameters.head.trained, sharded.degrees.zero
    of_head = sharded.stages.last * (head.dense + head.expert + head.vocabulary)
    absent = absent_bytes(gradients=gradients, microbatches=setting.num_microbatches(sharded.degrees))
    later = absent_below(absent=absent, head=of_head, parameters=trained.dense + trained.expert)
    if not setting.choices.kernels.flat_gradients:
        return absent, later
    return absent_flat(absent=absent, zero=zero, until=3), absent_flat(absent=later, zero=zero, until=2)


@formula(unit="byte", source="PyTorch: backward makes .grad, Optimizer.zero_grad frees it")
def absent_bytes(*, gradients: Numeric, microbatches: Numeric) -> Numeric:
    """Gradients, if a step has one micro-batch; else 0, as they add up over micro-batches."""
    return where(microbatches == 1, gradients, 0.0 * gradients)


@formula(unit="byte", source="PyTorch: backward makes .grad, that of the head first")
def absent_below(*, absent: Numeric, head: Numeric, parameters: Numeric) -> Numeric:
    """Absent × (1 − head / parameters): the head has its gradients when the last layer's backward starts."""
    return absent * (1.0 - head / maximum(parameters, 1.0))


@formula(
    unit="byte",
    source="DeepSpeed, runtime/zero/stage_1_and_2.py, copy_grads_in_partition: one flat tensor from the first gradient "
    "on; stage3.py, _setup_for_real_optimizer: one that is never freed",
)
def absent_flat(*, absent: Numeric, zero: Numeric, until: int) -> Numeric:
    """Absent gradients below the stage `until` which they are made one by one, else 0."""
    return where(zero < until, absent, 0.0 * absent)


def weights_and_updates(setting: EvalContext, sharded: Sharded) -> StateBytes:
    """Return weights, gradients and optimizer states, and what of them lies on the host."""
    workload, offload = setting.workload, setting.choices.offload
    precision, trained, kernels = workload.precision, sharded.trained, setting.choices.kernels
    moments = moments_per_parameter(setting.model, workload.optimizer, workload.trainable)
    weight, gradient = STORAGE_BYTES[precision.parameters], STORAGE_BYTES[precision.gradients]
    update = update_element_bytes(precision) + stepwise_element_bytes(setting)
    dense_state = optimizer_element_bytes(precision, moments.dense)
    expert_state = optimizer_element_bytes(precision, moments.expert)
    degrees, zero = sharded.degrees, sharded.degrees.zero
    shards = state_shards(degrees, setting.choices.tp_kind)

    def over_shards(
        function: Callable[..., Numeric], size: float, other: float, elements: Elements = trained
    ) -> Numeric:
        return function(parameters=elements.dense, element_bytes=size, shards=shards, zero=zero) + function(
            parameters=elements.expert, element_bytes=other, shards=degrees.expert_shards, zero=zero
        )

    frozen: Numeric = 0.0
    for elements, size in sharded.not_trained(precision):
        frozen = frozen + over_shards(weight_bytes, size, size, elements)
    if workload.reference == "copy":
        frozen = frozen + over_shards(weight_bytes, weight, weight, sharded)
    present, at_once = _present_gradients(setting, sharded), kernels.sub_group_elements or math.inf
    of_gradients = partial(gradient_bytes, product_bytes=weight if kernels.keeps_product_gradients else 0.0)
    kept = StateBytes(
        weights=over_shards(weight_bytes, weight, weight) + frozen,
        frozen=frozen,
        gradients=over_shards(of_gradients, gradient, gradient, present),
        update=over_shards(partial(update_bytes, at_once=at_once), update, update),
        updated=updated_parameters(parameters=trained.dense, shards=shards, zero=zero)
        + updated_parameters(parameters=trained.expert, shards=degrees.expert_shards, zero=zero),
        received=_received(setting, sharded, weight),
        optimizer=over_shards(optimizer_bytes, dense_state, expert_state),
    )
    if not offload.updates:
        return kept
    left = 0.0 if offload.master else optimizer_element_bytes(precision, 0.0)
    sent = over_shards(optimizer_bytes, 1.0, 1.0, sharded.sent(precision)) if sharded.frozen else kept.updated
    sent = sent * gathered_bytes(precision)
    return on_host(kept, offload, zero, left, sent, gradients=kernels.offloads_gradients)


def _present_gradients(setting: EvalContext, sharded: Sharded) -> Elements:
    """Return the elements whose gradients exist at a time: all that are trained, or the largest parameter's."""
    blocks = sharded.block_parameters
    if not setting.choices.kernels.updates_in_backward:
        return sharded.trained
    dense = maximum(blocks.embedding.trained.vocabulary, blocks.head.trained.vocabulary)
    expert: Numeric = 0.0
    for block in blocks.layers:
        dense = largest(first=dense, second=block.largest_trained.dense)
        expert = largest(first=expert, second=block.largest_trained.expert)
    return Elements(dense=dense, expert=expert)


def _received(setting: EvalContext, sharded: Sharded, size: float) -> Numeric:
    """Return where an update receives parameters of `size` bytes each, if not where they are."""
    kernels, trained = setting.choices.kernels, sharded.trained
    if not kernels.receives_copies:
        return 0.0
    return received_bytes(
        parameters=trained.dense + trained.expert,
        element_bytes=size,
        bucket=kernels.bucket_elements,
        zero=sharded.degrees.zero,
        shards=state_shards(sharded.degrees, setting.choices.tp_kind),
        waits=kernels.blocking_launches,
    )


def on_host(
    kept: StateBytes,
    offload: Offload,
    zero: Numeric,
    left: float,
    sent: Numeric,
    *,
    gradients: bool = False,
) -> StateBytes:
    """Return the states with those that are offloaded on the host.

    Of each parameter `left` bytes of states stay, a master copy; `sent` are bytes on their way. If `gradients`, sharded
    gradients follow the optimizer, and the host keeps them in addition to the fp32 ones of its update.
    """
    weights = at_stage_3(zero=zero, sharded=1.0, otherwise=0.0) if offload.parameters else 0.0
    whole = weights if offload.states else 0.0
    share = largest(first=offload.optimizer, second=whole)
    updated, moved = share * kept.updated, kept.optimizer - left * kept.updated
    fp32_copies = STORAGE_BYTES["fp32"] * (1.0 if offload.master else 2.0)
    follow = sharded_gradients(zero=zero) if gradients and offload.optimizer else 0.0
    reduced = largest(first=whole, second=follow)
    return StateBytes(
        weights=kept.weights * (1.0 - weights),
        frozen=kept.frozen * (1.0 - weights),
        gradients=kept.gradients * (1.0 - reduced),
        optimizer=kept.optimizer - share * moved,
        update=kept.update * (1.0 - share),
        updated=kept.updated * (1.0 - share),
        copied=updated if left else 0.0,
        host=share * moved + fp32_copies * updated + weights * kept.weights + follow * kept.gradients,
        host_updated=updated,
        host_optimizer=share * kept.optimizer,
        host_weights=weights * sent,
        host_gradients=reduced * kept.gradients,
    )


def narrow_weights(setting: EvalContext, sharded: Sharded) -> Numeric:
    """Return the bytes that 8- or 4-bit weights add on every stage: their copies, less those of the wider type."""
    precision, degrees = setting.workload.precision, sharded.degrees
    narrow = over_stages(
        sharded.stages,
        sharded.block_parameters,
        lambda block: block.narrow,
        num_mtp=setting.model.num_mtp_layers,
    )
    size = narrow_weight_bytes(setting.cluster.device, precision, setting.choices.kernels)
    added = added_weight_bytes(parameters=narrow, element_bytes=size, zero=degrees.zero)
    wide = wide_weight_bytes(precision)
    if wide == 0.0:
        return added
    others = sharded.dense + sharded.expert - narrow
    shards = state_shards(degrees, setting.choices.tp_kind)
    return added + weight_bytes(parameters=others, element_bytes=wide, shards=shards, zero=degrees.zero)


@formula(unit="s", source="definition")
def at_stage_3(*, zero: Numeric, sharded: Numeric, otherwise: Numeric) -> Numeric:
    """With ZeRO 3, the input sharded; with ZeRO 0 to 2, the input otherwise."""
    return where(zero >= 3, sharded, otherwise)


@formula(
    unit="1",
    source="DeepSpeed, runtime/zero/stage3.py, partition_grads, and stage_1_and_2.py, copy_grads_in_partition",
)
def sharded_gradients(*, zero: Numeric) -> Numeric:
    """1 from stage 2 on, where a rank has gradients of its own shard alone, else 0."""
    return where(zero >= 2, 1.0, 0.0)


@formula(unit="byte", source=ZERO)
def weight_bytes(*, parameters: Numeric, element_bytes: float, shards: Numeric, zero: Numeric) -> Numeric:
    """Parameters × bytes, over the shards at stage 3."""
    return parameters * element_bytes / where(zero >= 3, shards, 1.0)


@formula(unit="byte", source=ZERO)
def gradient_bytes(
    *, parameters: Numeric, element_bytes: float, shards: Numeric, zero: Numeric, product_bytes: Numeric = 0.0
) -> Numeric:
    """Parameters × bytes, over the shards from stage 2; below it with the gradients of products kept in addition."""
    whole = parameters * (element_bytes + product_bytes)
    return where(zero >= 2, parameters * element_bytes / shards, whole)


@formula(unit="byte", source=ZERO)
def optimizer_bytes(*, parameters: Numeric, element_bytes: float, shards: Numeric, zero: Numeric) -> Numeric:
    """Parameters × (master + moments), over the shards from stage 1."""
    return parameters * element_bytes / where(zero >= 1, shards, 1.0)


@formula(unit="parameter", source=ZERO)
def updated_parameters(*, parameters: Numeric, shards: Numeric, zero: Numeric) -> Numeric:
    """Parameters, over the shards from stage 1."""
    return parameters / where(zero >= 1, shards, 1.0)


@formula(
    unit="byte",
    source="DeepSpeed, Megatron-LM: an fp32 copy of this rank's share of gradients kept in less; DeepSpeed, "
    "runtime/zero/stage3.py, step: one sub-group after the other",
)
def update_bytes(
    *,
    parameters: Numeric,
    element_bytes: float,
    shards: Numeric,
    zero: Numeric,
    at_once: float = math.inf,
) -> Numeric:
    """Parameters × bytes of the copy that the update makes, over the shards from stage 1; `at_once` most at stage 3."""
    local = parameters / where(zero >= 1, shards, 1.0)
    return element_bytes * where(zero >= 3, minimum(local, at_once), local)


@formula(
    unit="byte",
    source="DeepSpeed, runtime/zero/stage_1_and_2.py and bf16_optimizer.py: rounds of at least allgather_bucket_size; "
    "nanotron, distributed.py, all_gather_coalesced: one round; "
    "PyTorch, ProcessGroupNCCL::allgather: a list of outputs is received in one flat tensor and copied out; it is "
    "recorded on NCCL's stream, so the allocator has it back when that stream is through (CUDACachingAllocator)",
)
def received_bytes(
    *,
    parameters: Numeric,
    element_bytes: float,
    bucket: float,
    zero: Numeric,
    shards: Numeric,
    waits: bool,
) -> Numeric:
    """Parameters × bytes under stages 1 and 2, else 0; of one round only where the host `waits` for each.

    Nothing is received where nobody shares the states. Rounds are parameters // bucket, but one at least, and one
    without buckets. A host that does not wait queues them all before the first is over, and each holds its tensor until
    it is.
    """
    rounds = maximum(floor(parameters / (bucket or math.inf)), 1.0)
    kept = parameters * element_bytes / (rounds if waits else 1.0)
    return where((zero >= 1) & (zero < 3) & (shards > 1), kept, 0.0)


def update_element_bytes(precision: Precision) -> float:
    """Return bytes per parameter of the fp32 gradients that the update needs in addition to the accumulated ones."""
    stored = STORAGE_BYTES[precision.gradients]
    return STORAGE_BYTES["fp32"] if precision.master == "fp32" and stored < STORAGE_BYTES["fp32"] else 0.0


def stepwise_element_bytes(setting: EvalContext) -> float:
    """Return bytes per parameter of the square roots of second moments that an update of single kernels makes at once.

    PyTorch, optim/adam.py and adamw.py: _multi_tensor_adam takes the roots of all parameters, _foreach_sqrt.
    """
    workload = setting.workload
    if not setting.choices.kernels.updates_together or workload.optimizer not in TWO_MOMENTS:
        return 0.0
    return STORAGE_BYTES[workload.precision.second_moments or workload.precision.moments]


def optimizer_element_bytes(precision: Precision, moments: float = 2.0) -> float:
    """Return bytes per parameter of master copy and moments; AdamW has two moments per parameter."""
    master = 0.0 if precision.master == "none" else STORAGE_BYTES[precision.master]
    return master + moment_bytes(precision, moments)


def narrow_weight_bytes(device: Device, precision: Precision, kernels: Kernels) -> float:
    """Return the bytes that narrow products add to each element of their weights.

    Scales of blocks differ between rows and columns, so blockwise, MXFP8 and NVFP4 weights are kept along both;
    with one scale per tensor a transposed copy is kept where the device's products need it. Kernels that transpose
    weights as they need them keep one.
    """
    instead = precision.is_narrow and precision.parameters == "fp8"
    if not precision.is_narrow or not (instead or kernels.caches_narrow_weights):
        return 0.0
    per_tensor = precision.compute == "fp8" and precision.recipe not in ("rowwise", "blockwise")
    one = kernels.transposes_weights or (per_tensor and not device.needs_transposes)
    copies = 1.0 if one else 2.0
    stored = STORAGE_BYTES["fp8"] if instead else 0.0
    return copies * narrow_bytes(precision) - stored


def wide_weight_bytes(precision: Precision) -> float:
    """Return the bytes that parameters of other operators have beyond 8 bits, where weights are kept in these.

    Embeddings, head, router and norms stay in the activations' type (Megatron-LM --fp8-param-gather).
    """
    if not precision.is_narrow or precision.parameters != "fp8":
        return 0.0
    return STORAGE_BYTES[precision.activations] - STORAGE_BYTES["fp8"]


@formula(unit="byte", source=ENGINE)
def added_weight_bytes(*, parameters: Numeric, element_bytes: float, zero: Numeric) -> Numeric:
    """Parameters × bytes, below stage 3: gathered weights are narrowed again each time."""
    return where(zero < 3, parameters * element_bytes, 0.0)


class Moments(Struct, frozen=True, kw_only=True):
    """Elements of moments per parameter, averaged over each group of a model."""

    dense: float
    expert: float


@cache
def moments_per_parameter(model: Model, optimizer: OptimizerName, trainable: Trainable) -> Moments:
    """Return the moments that `optimizer` keeps per parameter of `model` that is trained."""
    moments = OPTIMIZERS[optimizer].moments
    trained = [(item, times) for _, item, times in own_parameters(model, trainable) if not item.frozen]

    def average(group: ParameterGroup) -> float:
        ours = [(item, times) for item, times in trained if item.group == group]
        elements = sum(item.elements * times for item, times in ours)
        return sum(moments(item) * times for item, times in ours) / elements if ours else 0.0

    return Moments(dense=average("dense"), expert=average("expert"))
