"""The update, on the device and on the host, and copies between the two."""

from __future__ import annotations

from functools import partial

from forescale.formula import formula
from forescale.graph.ops import EagerKernel, Elementwise
from forescale.memory.buffers import kept_whole
from forescale.memory.inputs import EvalContext, MemoryInputs, StateBytes
from forescale.memory.offload import (
    exposed_copies,
    exposed_update_copies,
    host_update_seconds,
    load_host_rates,
    offloaded_bytes,
)
from forescale.numeric import Numeric, where
from forescale.spec.layout import Kernels
from forescale.spec.workload import STORAGE_BYTES
from forescale.struct import Struct
from forescale.time.data_parallel import Passes
from forescale.time.pipeline import Pipeline
from forescale.time.price import Pricing, launch_gap

GRADIENT = STORAGE_BYTES["fp32"]
"""The update on the host works on fp32 gradients."""
OPTIMIZER_PASSES = 2.0
"""Master copy and moments are read and written once each."""
STEPWISE_PASSES = 6.0
"""The same where every step of AdamW is a kernel: 18 fp32 numbers read or written for each parameter beside its
gradient, over the three of master copy and moments (PyTorch 2.1, optim/adamw.py, _multi_tensor_adamw)."""


def link_bandwidth(setting: EvalContext) -> float:
    """Return what the link between device and host sustains [byte/s]."""
    return setting.cluster.device.host_bandwidth * load_host_rates().link_share


def host_waits(
    setting: EvalContext, inputs: MemoryInputs, pipeline: Pipeline, passes: Passes
) -> Passes | None:
    """Return what one micro-batch's passes show of copies to and from the host; None where nothing is offloaded.

    `passes` are on ranks, or on the virtual stages of a simulated schedule, over which a rank's copies are shared
    out. Where it has them split, what comes back hides behind the input's gradient only, and gradients
    leave behind those of weights.
    """
    offload, states = setting.choices.offload, inputs.states
    if not offload.in_passes:
        return None
    activations = offloaded_bytes(setting, inputs, inputs.stages) if offload.activations else 0.0
    again = (1.0 - kept_whole(pp=inputs.degrees.pp, reshard=setting.choices.reshard)) / float(
        pipeline.in_flight.copies
    )
    activations, weights, gradients = (
        pipeline.per_stage(item)
        for item in (activations, states.host_weights * again, states.host_gradients * again)
    )
    shown = partial(exposed_copies, bandwidth=link_bandwidth(setting), overlapped=offload.overlap)
    forward, backward, weight = passes
    before = shown(out=activations, back=weights, cover=forward)
    if not pipeline.split:
        return before, shown(out=gradients, back=activations + weights, cover=backward), 0.0
    behind = shown(out=0.0, back=activations + weights, cover=backward)
    return before, behind, shown(out=gradients, back=0.0, cover=weight)


@formula(
    unit="byte",
    source="Apex, csrc/multi_tensor_adam.cu; Megatron-LM, optimizer/optimizer.py, _copy_main_params_to_model_params",
)
def update_traffic(
    *, states: Numeric, passes: float, read: Numeric, gradient: float, written: Numeric, weight: float
) -> Numeric:
    """States × passes, gradients read and weights written, each parameters × bytes."""
    return states * passes + read * gradient + written * weight


@formula(
    unit="byte", source="DeepSpeed, runtime/zero/stage3.py, _reassign_or_swap_out_partitioned_parameters"
)
def updated_weight_bytes(*, parameters: Numeric, element_bytes: float) -> Numeric:
    """Parameters that are updated × bytes."""
    return parameters * element_bytes


def host_update(setting: EvalContext, states: StateBytes) -> tuple[Numeric, Numeric]:
    """Return seconds of the update on the host, and of its copies beside it, per stage.

    Weights on the host that the device updates are copied there once they are updated.
    """
    offload = setting.choices.offload
    if offload.parameters and not offload.states:
        written = updated_weight_bytes(
            parameters=states.updated, element_bytes=STORAGE_BYTES[setting.workload.precision.parameters]
        )
        bandwidth = link_bandwidth(setting)
        return 0.0 * written, exposed_copies(
            out=written, back=0.0, bandwidth=bandwidth, cover=0.0, overlapped=offload.overlap
        )
    moved = update_traffic(
        states=states.host_optimizer,
        passes=OPTIMIZER_PASSES,
        read=states.host_updated,
        gradient=GRADIENT,
        written=0.0,
        weight=GRADIENT,
    )
    update = host_update_seconds(num_bytes=moved, bandwidth=load_host_rates().update_bandwidth)
    copies = 2.0 * GRADIENT * states.host_updated / link_bandwidth(setting)
    if offload.parameters:
        copies = 0.0 * copies
    return update, exposed_update_copies(copies=copies, update=update, overlapped=offload.overlap)


def device_traffic(setting: EvalContext, states: StateBytes) -> Numeric:
    """Return the bytes that a device's update moves: gradients read, master and moments both, weights written.

    Where master copies stay of what the host updates, weights are written from them.
    """
    precision = setting.workload.precision
    return update_traffic(
        states=states.optimizer,
        passes=OPTIMIZER_PASSES if setting.choices.kernels.fused_update else STEPWISE_PASSES,
        read=states.updated,
        gradient=STORAGE_BYTES[precision.gradients],
        written=states.updated + states.copied,
        weight=STORAGE_BYTES[precision.parameters],
    )


def device_update(moved: Numeric, pricing: Pricing, recorded: Update | None = None) -> Numeric:
    """Return the seconds of an update that moves so many bytes; of `recorded` operators by PyTorch's own kernel."""
    seconds = pricing.seconds(Elementwise(bytes_moved=moved, family="optimizer"))
    if recorded is not None:
        kernel = EagerKernel(
            operator="_fused_adamw_",
            kind="update",
            dtype=recorded.dtype,
            elements=recorded.elements,
            bytes_moved=moved + recorded.elements * STORAGE_BYTES[recorded.dtype],
        )
        seconds = pricing.seconds(kernel)
    anchor = pricing.models.anchor
    return seconds if anchor is None or anchor.update is None else anchor.update.restored(seconds)


class Update(Struct, frozen=True, kw_only=True):
    """Parameters that an update of a model of recorded operators changes."""

    elements: Numeric
    dtype: str


def recorded_update(setting: EvalContext, elements: Numeric) -> Update | None:
    """Return what the update of a model of recorded operators changes; None of other models."""
    if not setting.model.traces:
        return None
    return Update(elements=elements, dtype=setting.workload.precision.parameters)


def accumulation(setting: EvalContext, elements: Numeric, pricing: Pricing) -> Numeric:
    """Return the seconds in which a micro-batch's gradients are added to the sum, for a model of recorded operators."""
    size = STORAGE_BYTES[setting.workload.precision.gradients]
    kernel = EagerKernel(
        operator="add_",
        kind="vector",
        dtype=setting.workload.precision.gradients,
        elements=elements,
        bytes_moved=3.0 * size * elements,
    )
    return pricing.seconds(kernel)


def update_gap(setting: EvalContext, tensors: Numeric, update: Numeric, pricing: Pricing) -> Numeric:
    """Return the seconds by which launches of the update, one for each of a share's tensors, outlast it.

    A measured update holds them.
    """
    anchor = pricing.models.anchor
    if anchor is not None and anchor.update is not None:
        return 0.0
    interval, blocking = setting.run.kernel_interval_s, setting.choices.kernels.blocking_launches
    return launch_gap(kernels=tensors, interval=interval, busy=update, blocking=blocking)


@formula(
    unit="1",
    source="Megatron-LM, optimizer/distrib_optimizer.py: a rank copies each tensor that its share of the flat "
    "gradients reaches into back by itself; elsewhere one kernel takes many tensors",
)
def updated_tensors(*, zero: Numeric, sharded: Numeric, flat_from: float) -> Numeric:
    """`sharded` from stage 1 to the stage from which one kernel takes them, else 0."""
    return where((zero >= 1) & (zero < flat_from), sharded, 0.0)


def flat_from(kernels: Kernels) -> float:
    """Return the ZeRO stage from which the optimizer update takes all tensors in one kernel."""
    if not kernels.flat_update:
        return 3.0
    return 2.0 if kernels.keeps_product_gradients else 1.0
