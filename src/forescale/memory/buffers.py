"""Memory that is neither state nor saved activation: gathered parameters, dummy gradients, workspaces."""

from __future__ import annotations

from forescale.files import packaged
from forescale.formula import formula, total
from forescale.graph.operator import NARROWEST_GRADIENT_BYTES
from forescale.graph.sharding import StructuralOptions, several
from forescale.memory.deferred import drain_buffers
from forescale.memory.inputs import EvalContext
from forescale.memory.liveness import largest
from forescale.memory.parameters import (
    NO_ELEMENTS,
    BlockParameters,
    Elements,
    Sharded,
    gathered_bytes,
    head_copies,
)
from forescale.numeric import Numeric, minimum, summed, where
from forescale.spec.cluster import Device
from forescale.spec.layout import Kernels, Reshard, state_shards
from forescale.spec.workload import STORAGE_BYTES
from forescale.struct import Struct


def standing_buffers(setting: EvalContext, sharded: Sharded, least: Numeric, lasting: Numeric) -> Numeric:
    """Return the bytes of buffers that exist during the whole step: the `least` gathered and the `lasting` ones."""
    parts: dict[str, Numeric] = {
        "gathered parameters": least,
        "lasting buffers": lasting,
        "buckets": bucket_bytes(
            elements=setting.choices.kernels.bucket_elements,
            element_bytes=STORAGE_BYTES[setting.workload.precision.gradients],
            zero=sharded.degrees.zero,
            double=setting.choices.kernels.flat_gradients and setting.choices.overlapped.grad_reduce,
        ),
    }
    return total(parts, name="standing buffers", unit="byte")


def lasting_buffers(setting: EvalContext, sharded: Sharded) -> Numeric:
    """Return the bytes of buffers that are never freed: workspaces, dummy gradients, buckets of replicas."""
    choices, kernels, device = setting.choices, setting.choices.kernels, setting.cluster.device
    parts: dict[str, Numeric] = {
        "workspaces of libraries": library_workspace_bytes(device, kernels, grouped=setting.model.is_moe),
    }
    if overlapped := overlap_workspace_bytes(device, choices):
        parts["workspaces of overlapped products"] = several(degree=sharded.degrees.tp) * overlapped
    if kernels.score_buffer and not choices.flash_attention:
        parts["buffer of scores"] = _score_buffer(setting, sharded)
    if kernels.gradient_sum == "in_product" and kernels.dummy_gradients:
        parts["dummy gradients"] = _dummy_gradients(setting, sharded)
    if choices.deferred_head_gradients and choices.sp:
        parts["inputs of deferred weight gradients"] = drain_buffers(setting, sharded)
    if kernels.offloads_gradients and choices.offload.optimizer:
        parts["gradient on its way to the host"] = passing_gradient_bytes(
            parameters=_largest_trained(sharded),
            element_bytes=STORAGE_BYTES[setting.workload.precision.parameters],
            zero=sharded.degrees.zero,
        )
    if kernels.replica_buckets:
        precision = setting.workload.precision
        made = precision.gradients if kernels.gradient_sum == "after_product" else precision.parameters
        parts["buckets of replicas"] = replica_bucket_bytes(
            parameters=sharded.trained.dense + sharded.trained.expert,
            element_bytes=STORAGE_BYTES[made],
            replicas=sharded.degrees.dp,
            zero=sharded.degrees.zero,
        )
    if kernels.keeps_whole_gradients:
        parts["whole gradients"] = whole_gradient_bytes(
            parameters=sharded.trained.dense + sharded.trained.expert,
            element_bytes=STORAGE_BYTES[setting.workload.precision.parameters],
            zero=sharded.degrees.zero,
            microbatches=setting.num_microbatches(sharded.degrees),
        )
    return total(parts, name="lasting buffers", unit="byte")


def _largest_trained(sharded: Sharded) -> Numeric:
    """Return the elements of the largest parameter that is trained."""
    most: Numeric = 0.0
    for block in sharded.block_parameters.all():
        own = block.largest_trained
        for elements in (block.trained.vocabulary, own.dense, own.expert):
            most = largest(first=most, second=elements)
    return most


@formula(
    unit="byte",
    source="DeepSpeed, runtime/zero/stage_1_and_2.py: temp_grad_buffer_for_gpu_offload, of the largest parameter",
)
def passing_gradient_bytes(*, parameters: Numeric, element_bytes: float, zero: Numeric) -> Numeric:
    """Parameters × bytes at stages 1 and 2, else 0."""
    return where((zero >= 1) & (zero < 3), parameters * element_bytes, 0.0)


def _score_buffer(setting: EvalContext, sharded: Sharded) -> Numeric:
    """Return the buffer of the layers with most heads, on every stage."""
    sharding = setting.sharding(sharded.degrees)
    heads = [attention.score_heads for attention in setting.model.attentions]
    return score_buffer_bytes(
        queries=sharding.tokens("sequence") * float(max(heads, default=0)) / sharding.split("heads"),
        keys=sharding.seq_len,
        element_bytes=STORAGE_BYTES[setting.workload.precision.activations],
    )


@formula(
    unit="byte",
    source="Megatron-LM, megatron/model/transformer.py @9dc3c42a84 of 2022-05-24: matmul_input_buffer, of which "
    "GlobalMemoryBuffer keeps one",
)
def score_buffer_bytes(*, queries: Numeric, keys: Numeric, element_bytes: float) -> Numeric:
    """Bytes × queries of all heads × keys."""
    return queries * keys * element_bytes


@formula(
    unit="byte",
    source="PyTorch, FullyShardedDataParallel.no_sync; accelerate, Accelerator.no_sync; transformers, Trainer",
)
def whole_gradient_bytes(
    *, parameters: Numeric, element_bytes: float, zero: Numeric, microbatches: Numeric
) -> Numeric:
    """Parameters × bytes from stage 2 on, if a step has several micro-batches."""
    return where((zero >= 2) & (microbatches > 1), parameters * element_bytes, 0.0)


@formula(
    unit="byte",
    source="PyTorch, torch/csrc/distributed/c10d/reducer.cpp: every bucket is one flat tensor that stays",
)
def replica_bucket_bytes(
    *, parameters: Numeric, element_bytes: float, replicas: Numeric, zero: Numeric
) -> Numeric:
    """Parameters × bytes at stage 0 with several replicas, else 0."""
    stands = (zero < 1) & (replicas > 1)
    return where(stands, parameters * element_bytes, 0.0)


@formula(
    unit="byte",
    source="DeepSpeed, runtime/zero/stage_1_and_2.py and stage3.py: a buffer of reduce_bucket_size elements; "
    "stage_1_and_2.py, setup_buckets: two where overlap_comm fills one while the other is reduced",
)
def bucket_bytes(*, elements: float, element_bytes: float, zero: Numeric, double: bool = False) -> Numeric:
    """Elements × bytes from stage 1, twice below stage 3 where they are filled and reduced in turn."""
    buffers = where(zero < 3, 2.0, 1.0) if double else 1.0
    return where(zero >= 1, elements * element_bytes * buffers, 0.0)


def _dummy_gradients(setting: EvalContext, sharded: Sharded) -> Numeric:
    """Return the cached dummy gradients of the distinct weight shapes on each stage."""
    users: dict[str, tuple[int, ...]] = {}
    elements: dict[str, Numeric] = {}
    counts = [*sharded.stages.counts, sharded.stages.first]
    for kind, block in enumerate(sharded.block_parameters.layers):
        for name, size in block.products.items():
            users[name] = (*users.get(name, ()), kind)
            elements.setdefault(name, size)
    for block in sharded.block_parameters.vision_layers:
        for name, size in block.products.items():
            users[f"vision.{name}"] = (len(sharded.block_parameters.layers),)
            elements[f"vision.{name}"] = size
    result: Numeric = 0.0 * sharded.stages.first
    for kinds in dict.fromkeys(users.values()):
        shapes = {name: elements[name] for name, using in users.items() if using == kinds}
        layers = summed(counts[kind] for kind in kinds)
        result = result + dummy_gradient_bytes(
            elements=total(shapes, name="weights of distinct shape", unit="parameter"),
            element_bytes=max(STORAGE_BYTES[setting.workload.precision.parameters], NARROWEST_GRADIENT_BYTES),
            layers=layers,
            zero=sharded.degrees.zero,
        )
    return result


class Gathered(Struct, frozen=True, kw_only=True):
    """Whole parameters and gradients beside their shards at stages 2 and 3, (stages, candidates) [byte]."""

    layers: Numeric
    """While a layer is in backward."""
    loss: Numeric
    """While the last stage takes the loss."""
    head: Numeric
    """While the head's gradient is reduced, when the logits are gone."""

    @property
    def least(self) -> Numeric:
        """Return the bytes of gathered weights that exist at every moment."""
        return minimum(minimum(self.layers, self.loss), self.head)


def gathered(setting: EvalContext, sharded: Sharded) -> Gathered:
    """Return what stage 3 gathers and what stages 2 and 3 have to reduce, moment by moment."""
    reshard, degrees, kernels = setting.choices.reshard, sharded.degrees, setting.choices.kernels
    if degrees.keeps_gradients:
        return Gathered(layers=0.0, loss=0.0, head=0.0)
    if kernels.fsdp_unit == "model":
        return _as_one(setting, sharded)
    moments = (_by_weight if kernels.gathers_each_weight else _by_block)(setting, sharded)
    precision = setting.workload.precision
    whole, size = sharded.sent(precision), gathered_bytes(precision)
    reduced = STORAGE_BYTES[precision.gradients]
    of_groups = (
        (whole.dense, sharded.trained.dense, state_shards(degrees, setting.choices.tp_kind)),
        (whole.expert, sharded.trained.expert, degrees.expert_shards),
    )
    if not isinstance(reshard, str):
        ranks, zero = float(reshard), degrees.zero
        copied = summed(
            resharded_copy_bytes(
                parameters=parameters, ranks=ranks, shards=local, zero=zero, element_bytes=size
            )
            for parameters, _, local in of_groups
        )
        return Gathered(**{name: moment + copied for name, moment in moments.items()})
    never = summed(
        whole_parameter_bytes(
            parameters=parameters,
            trained=trained,
            reduced_bytes=reduced,
            shards=local,
            zero=degrees.zero,
            element_bytes=size,
        )
        for parameters, trained, local in of_groups
    )
    kept = kept_whole(pp=degrees.pp, reshard=reshard)
    return Gathered(
        **{name: resharded_bytes(always=moment, never=never, whole=kept) for name, moment in moments.items()}
    )


def _as_one(setting: EvalContext, sharded: Sharded) -> Gathered:
    """Return all parameters, which stay gathered from forward until backward ends, with the gradient of the head."""
    sent = sharded.sent(setting.workload.precision)
    whole = _whole(setting, sharded, 1.0, (sent, NO_ELEMENTS))
    waiting = NO_ELEMENTS, sharded.block_parameters.head.trained
    head = _whole(setting, sharded, sharded.stages.last, waiting, ends=True)
    return Gathered(layers=whole + head, loss=whole, head=whole + head)


def reduced_at_once(setting: EvalContext, sharded: Sharded) -> Numeric:
    """Return what a model that is one unit holds when backward ends: parameters, and gradients before their reduction.

    PyTorch's first FSDP joins gradients to one flat tensor while parameters are gathered; FSDP2 frees these first.
    """
    kernels, degrees = setting.choices.kernels, sharded.degrees
    if kernels.fsdp_unit != "model" or degrees.keeps_gradients:
        return 0.0
    sent, trained = sharded.sent(setting.workload.precision), sharded.trained
    reduced = STORAGE_BYTES[setting.workload.precision.gradients]

    def held(parameters: Elements, copies: float) -> Numeric:
        both = parameters, trained
        return _whole(setting, sharded, 1.0, both, reduced=copies)

    joined = held(sent, 2.0 if kernels.flat_parameters else 0.0)
    return largest(first=joined, second=held(NO_ELEMENTS, reduced))


def _by_weight(setting: EvalContext, sharded: Sharded) -> dict[str, Numeric]:
    """Return the largest weight and the next, or the head's, whose gradients are reduced as products made them."""
    head = sharded.block_parameters.head
    matrices = (head.sent(setting.workload.precision).vocabulary, head.trained.vocabulary)
    of_head = Elements(dense=matrices[0], expert=0.0), Elements(dense=matrices[1], expert=0.0)
    most = _whole(setting, sharded, sharded.stages.last, of_head)
    for present, block in _units(sharded):
        whole = _whole(setting, sharded, present, (block.largest, block.largest_trained), copies=2.0)
        most = largest(first=most, second=whole)
    return {"layers": most, "loss": most, "head": most}


def _by_block(setting: EvalContext, sharded: Sharded) -> dict[str, Numeric]:
    """Return a block and the next with the block's gradient, beside the ends of the model where its root has them.

    The root stays gathered, and its head's gradient waits, until its backward ends; so does the last block between its
    passes. A head of its own is gathered from its forward on, and reduced beside the last block.
    """
    precision, stages = setting.workload.precision, sharded.stages
    reduced = STORAGE_BYTES[precision.gradients]
    layers: Numeric = 0.0 * stages.first
    block = layers
    for present, unit in _units(sharded):
        sent = unit.sent(precision)
        whole = _whole(setting, sharded, present, (sent, unit.trained), copies=2.0, reduced=reduced)
        layers = largest(first=layers, second=whole)
        block = largest(first=block, second=_whole(setting, sharded, present, (sent, NO_ELEMENTS)))
    head = sharded.block_parameters.head.sent(precision), sharded.block_parameters.head.trained
    alone = _whole(setting, sharded, stages.last, (head[0], NO_ELEMENTS), ends=True)
    if setting.choices.kernels.gathers_ends_apart:
        reducing = _whole(setting, sharded, stages.last, head, ends=True, reduced=reduced)
        return {"layers": layers, "loss": alone, "head": reducing + stages.last * block}
    first = _whole(
        setting, sharded, stages.first, (sharded.block_parameters.embedding.sent(precision), NO_ELEMENTS)
    )
    root = first + alone * head_copies(pp=sharded.degrees.pp, tied=setting.model.tied_embeddings)
    waiting = _whole(setting, sharded, stages.last, (NO_ELEMENTS, head[1]), ends=True)
    at_loss = stages.last * (root + block)
    return {"layers": layers + root + waiting, "loss": at_loss, "head": at_loss}


def _units(sharded: Sharded) -> list[tuple[Numeric, BlockParameters]]:
    """Return every block that is gathered, and where it is."""
    layers: list[tuple[Numeric, BlockParameters]] = [
        (1.0, block) for block in sharded.block_parameters.layers
    ]
    return layers + [(sharded.stages.first, block) for block in sharded.block_parameters.vision_layers]


def _whole(
    setting: EvalContext,
    sharded: Sharded,
    present: Numeric,
    of: tuple[Elements, Elements],
    *,
    copies: float = 1.0,
    reduced: float = 0.0,
    ends: bool = False,
) -> Numeric:
    """Return the bytes of gathered parameters and of gradients that are whole; at `ends` with the vocabulary."""
    degrees, shards = sharded.degrees, state_shards(sharded.degrees, setting.choices.tp_kind)
    sent, trained = of
    size = gathered_bytes(setting.workload.precision)
    both = gathered_parameter_bytes(
        parameters=_with_vocabulary(sent) if ends else sent.dense,
        trained=_with_vocabulary(trained) if ends else trained.dense,
        copies=copies,
        reduced_bytes=reduced,
        shards=shards,
        zero=degrees.zero,
        element_bytes=size,
    ) + gathered_parameter_bytes(
        parameters=sent.expert,
        trained=trained.expert,
        copies=copies,
        reduced_bytes=reduced,
        shards=degrees.expert_shards,
        zero=degrees.zero,
        element_bytes=size,
    )
    return present * both


def _with_vocabulary(elements: Elements) -> Numeric:
    return elements.dense + elements.vocabulary


def gathered_aside(setting: EvalContext, sharded: Sharded) -> Numeric:
    """Return the bytes of two receive buffers of gathered groups: one is copied out after the next has arrived.

    A group is a block but for its experts, these, or what stands at the root of the model.
    """
    kernels = setting.choices.kernels
    if not kernels.gathers_aside:
        return 0.0
    if kernels.fsdp_unit == "model":
        sent = sharded.sent(setting.workload.precision)
        return _whole(setting, sharded, 1.0, (sent, NO_ELEMENTS))
    stages, degrees = sharded.stages, sharded.degrees
    kept = sharded.block_parameters.map(lambda block: block.sent(setting.workload.precision))
    shards = state_shards(degrees, setting.choices.tp_kind)
    size = gathered_bytes(setting.workload.precision)

    def received(parameters: Numeric, ranks: Numeric = shards) -> Numeric:
        return gather_stream_bytes(parameters=parameters, shards=ranks, zero=degrees.zero, element_bytes=size)

    dense: Numeric = 0.0 * stages.first
    pair = dense
    for present, item in [(1.0, layer) for layer in kept.layers] + [
        (stages.first, vision_layer) for vision_layer in kept.vision_layers
    ]:
        local = present * received(item.dense)
        after = largest(first=local, second=present * received(item.expert, degrees.expert_shards))
        dense, pair = largest(first=dense, second=local), largest(first=pair, second=local + after)
    ends = [kept.embedding.dense, *(item.dense for _, item in (*kept.vision[:1], *kept.vision[-1:]))]
    copies = head_copies(pp=degrees.pp, tied=setting.model.tied_embeddings)
    roots: list[Numeric] = [
        stages.first * summed(ends),
        stages.last * (kept.head.dense + kept.head.vocabulary * copies),
    ]
    if not kernels.gathers_ends_apart:
        roots = [summed(roots)]
    for root in roots:
        pair = largest(first=pair, second=received(root) + dense)
    return pair


@formula(unit="1", source="torchtitan: parallelism.fsdp_reshard_after_forward")
def kept_whole(*, pp: Numeric, reshard: Reshard) -> Numeric:
    """1 where gathered parameters stay until the step ends: under never, and by default with several stages."""
    if reshard == "default":
        return where(pp > 1, 1.0, 0.0)
    return 1.0 if reshard == "never" else 0.0


@formula(
    unit="byte",
    source="Transformer Engine, module/base.py get_dummy_wgrad: one cached tensor per shape of a weight "
    "whose gradient is accumulated elsewhere",
)
def dummy_gradient_bytes(
    *, elements: Numeric, element_bytes: float, layers: Numeric, zero: Numeric
) -> Numeric:
    """Elements × bytes, where a layer on the stage has the shape and gradients accumulate (stage < 3)."""
    return minimum(layers, 1.0) * where(zero < 3, elements * element_bytes, 0.0)


@formula(
    unit="byte",
    source="PyTorch FSDP2, torch/distributed/fsdp/_fully_shard: parameters of this block and the one prefetched; "
    "its gradients in the compute type, copied to the type and order of the reduction",
)
def gathered_parameter_bytes(
    *,
    parameters: Numeric,
    trained: Numeric,
    copies: float,
    reduced_bytes: float,
    shards: Numeric,
    zero: Numeric,
    element_bytes: float = 2.0,
) -> Numeric:
    """Parameters × bytes·copies at stage 3, and trained × (bytes + those of the reduction) from 2, else 0.

    With one shard 0. Parameters count as numbers of the type that travels.
    """
    gathered = where(zero >= 3, element_bytes * copies, 0.0)
    needed = (zero >= 2) & (shards > 1)
    return where(needed, parameters * gathered + trained * (element_bytes + reduced_bytes), 0.0)


@formula(
    unit="byte",
    source="PyTorch 2.13, distributed/pipelining/stage.py: FSDP2 neither reduces nor reshards before a stage's last "
    "backward (set_requires_gradient_sync, set_reshard_after_backward); gradients add up in the reduction's type",
)
def whole_parameter_bytes(
    *,
    parameters: Numeric,
    trained: Numeric,
    reduced_bytes: float,
    shards: Numeric,
    zero: Numeric,
    element_bytes: float = 2.0,
) -> Numeric:
    """Parameters × bytes at stage 3, and trained × bytes of accumulated gradients from 2, with several shards, else 0.

    Of gradients what is beyond their shards, which come to be as the whole ones go. Parameters count as numbers of the
    type that travels.
    """
    gathered = where(zero >= 3, element_bytes, 0.0)
    needed = (zero >= 2) & (shards > 1)
    return where(needed, parameters * gathered + trained * (reduced_bytes * (1.0 - 1.0 / shards)), 0.0)


@formula(
    unit="byte", source="PyTorch FSDP2: reshard_after_forward as a number of ranks; ZeRO++, arXiv:2306.10209"
)
def resharded_copy_bytes(
    *, parameters: Numeric, ranks: float, shards: Numeric, zero: Numeric, element_bytes: float = 2.0
) -> Numeric:
    """Bytes × parameters / min(ranks, shards): what stays of a stage's parameters between forward and backward."""
    needed = (zero >= 3) & (shards > 1)
    return where(needed, element_bytes * parameters / minimum(ranks, shards), 0.0)


@formula(unit="byte", source="torchtitan: parallelism.fsdp_reshard_after_forward")
def resharded_bytes(*, always: Numeric, never: Numeric, whole: Numeric) -> Numeric:
    """`never` where gathered parameters stay whole through the step, else `always`."""
    return where(whole > 0, never, always)


@formula(
    unit="byte",
    source="PyTorch FSDP2, torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py: gathers are received in memory "
    "of their own stream and copied out; the allocator keeps streams apart",
)
def gather_stream_bytes(
    *, parameters: Numeric, shards: Numeric, zero: Numeric, element_bytes: float = 2.0
) -> Numeric:
    """Bytes × parameters of the largest group at stage 3 with several shards, else 0."""
    needed = (zero >= 3) & (shards > 1)
    return where(needed, element_bytes * parameters, 0.0)


def library_workspace_bytes(device: Device, kernels: Kernels, *, grouped: bool) -> float:
    """Return the workspaces of one process [byte]; with experts, its `grouped` products have streams.

    Devices whose software allocates none through PyTorch (TPUs, Gaudi, Trainium) have none.
    """
    table = packaged("calibrations/memory/workspaces")
    if device.vendor not in table["vendors"]:
        return 0.0
    torch, engine = table["pytorch"], table["transformer_engine"]
    usual = torch["bytes"].get(device.architecture, torch["other"])
    fused = engine["bytes"].get(device.architecture, engine["other"])
    return workspace_bytes(
        handle_bytes=max(usual, torch["deterministic"]) if kernels.deterministic else usual,
        handles=torch["handles"],
        stream_bytes=fused if kernels.fused else 0.0,
        streams=1 + (engine["streams"] if grouped and kernels.grouped_experts else 0),
    )


def overlap_workspace_bytes(device: Device, choices: StructuralOptions) -> float:
    """Return the workspaces of products that run in chunks beside their tensor-parallel collective [byte]."""
    table = packaged("calibrations/memory/workspaces")
    if device.vendor not in table["vendors"] or not (choices.overlapped.tensor and choices.kernels.fused):
        return 0.0
    engine = table["transformer_engine"]
    return workspace_bytes(
        handle_bytes=0.0,
        handles=0.0,
        stream_bytes=engine["bytes"].get(device.architecture, engine["other"]),
        streams=engine["overlap_streams"],
    )


@formula(
    unit="byte",
    source="PyTorch CublasHandlePool.cpp; Transformer Engine module/base.py get_multi_stream_cublas_workspace",
)
def workspace_bytes(*, handle_bytes: float, handles: float, stream_bytes: float, streams: float) -> float:
    """Bytes per handle × handles + bytes per stream × streams."""
    return handle_bytes * handles + stream_bytes * streams
