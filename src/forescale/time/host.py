"""The update, and offload to the host: what a device no longer holds, what the host does, what copies show."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from forescale.graph.ops import Elementwise
from forescale.memory.offload import (
    exposed_copies,
    exposed_update_copies,
    host_update_seconds,
    in_transit_bytes,
    load_host_rates,
    offloaded_share,
)
from forescale.memory.optimizers import moments_per_parameter
from forescale.memory.states import optimizer_element_bytes
from forescale.numeric import Array, Numeric
from forescale.spec.model import Model
from forescale.spec.workload import STORAGE_BYTES, Workload
from forescale.time.blocks import BlockCost
from forescale.time.data_parallel import Passes, kept_whole
from forescale.time.launches import launch_gap
from forescale.time.pipeline import Pipeline

if TYPE_CHECKING:
    from forescale.evaluate import Inputs, Setting
    from forescale.graph.stages import Stages
    from forescale.memory.peak import StateBytes
    from forescale.time.price import Pricing
    from forescale.time.waiting import Sums

GRADIENT = STORAGE_BYTES["fp32"]
"""The update on the host works on fp32 gradients."""
OPTIMIZER_PASSES = 2.0
"""Master copy and moments are read and written once each."""


def offloaded_bytes(setting: Setting, inputs: Inputs, on: Stages) -> Numeric:
    """Return what goes to the host of the bytes that one micro-batch keeps on decoder layers."""
    offload = setting.choices.offload
    if offload.modules:
        return offload.module_share * _saved_by_modules(setting, inputs, on)
    saved = _saved_by(setting, inputs, on, lambda cost: cost.kept_bytes, on.heads)
    layers = float(offload.activation_layers)
    return offloaded_share(num_layers=layers, layers_on_stage=inputs.stages.num_layers) * saved


def in_transit(setting: Setting, inputs: Inputs, moved: Numeric) -> Numeric:
    """Return what of the bytes that one micro-batch moves to the host is on the device for a while."""
    offload = setting.choices.offload
    layers = np.inf if offload.modules else float(offload.activation_layers)
    return in_transit_bytes(offloaded=moved, num_layers=layers, layers_on_stage=inputs.stages.num_layers)


def layers_kept(inputs: Inputs, on: Stages, sums: Sums) -> Numeric:
    """Return what one micro-batch keeps on layers less what the head does, which lives for a moment only."""
    copies = 1 if inputs.pipeline is None else inputs.pipeline.copies
    return sums.on(on, copies=copies).kept() - on.last * inputs.pieces.head.cost.kept_bytes / float(copies)


def _saved_by(
    setting: Setting,
    inputs: Inputs,
    stages: Stages,
    of: Callable[[BlockCost], Numeric],
    replayed: tuple[Array, ...],
) -> Numeric:
    """Return what decoder layers of `stages` save of one micro-batch [byte], of those `replayed` so often."""
    pieces = inputs.pieces
    moved: Numeric = 0.0 * stages.first
    for kind, piece in enumerate(pieces.layers):
        if setting.choices.recompute.takes_all:
            moved = moved + stages.counts[kind] * of(piece.cost)
        else:
            others = stages.counts[kind] - stages.replayed[kind]
            moved = moved + replayed[kind] * of(piece.cost) + others * of(piece.plain)
    return moved if inputs.pipeline is None else moved / float(inputs.pipeline.copies)


def _saved_by_modules(setting: Setting, inputs: Inputs, on: Stages) -> Numeric:
    """Return what the offloaded modules of every stage save of one micro-batch [byte]."""
    moved = _saved_by(setting, inputs, on, lambda cost: cost.offloaded_bytes, on.replayed)
    if inputs.pieces.mtp is None:
        return moved
    more = float(setting.model.num_mtp_layers) * inputs.pieces.mtp.cost.offloaded_bytes
    return moved + on.last * (more if inputs.pipeline is None else more / float(inputs.pipeline.copies))


def link_bandwidth(setting: Setting) -> float:
    """Return what the link between device and host sustains [byte/s]."""
    return setting.host_bandwidth * load_host_rates().link_share


def host_waits(
    setting: Setting, inputs: Inputs, states: StateBytes, passes: Passes, *, split: bool
) -> Passes | None:
    """Return what one micro-batch's passes show of copies to and from the host; None where nothing is offloaded.

    `passes` are on stages, or on the virtual stages of a simulated schedule, over which a rank's copies are shared
    out. Where a schedule has them `split`, what comes back hides behind the input's gradient only, and gradients
    leave behind those of weights.
    """
    offload = setting.choices.offload
    if not offload.in_passes:
        return None
    activations = offloaded_bytes(setting, inputs, inputs.stages) if offload.activations else 0.0
    again = 1.0 - kept_whole(pp=inputs.degrees.pp, reshard=setting.choices.reshard)
    weights, gradients = (each * again for each in (states.host_weights, states.host_gradients))
    if isinstance(inputs.pipeline, Pipeline):
        ranks, copies = 0.0 * inputs.stages.index, float(inputs.pipeline.copies)
        activations, weights, gradients = (
            inputs.pipeline.per_stage(each + ranks)
            for each in (activations, weights / copies, gradients / copies)
        )
    shown = partial(exposed_copies, bandwidth=link_bandwidth(setting), overlapped=offload.overlap)
    forward, backward, weight = passes
    before = shown(out=activations, back=weights, cover=forward)
    if not split:
        return before, shown(out=gradients, back=activations + weights, cover=backward), 0.0
    behind = shown(out=0.0, back=activations + weights, cover=backward)
    return before, behind, shown(out=gradients, back=0.0, cover=weight)


def host_update(setting: Setting, states: StateBytes) -> tuple[Numeric, Numeric]:
    """Return seconds of the update on the host, and of its copies beside it, per stage."""
    precision, offload = setting.workload.precision, setting.choices.offload
    moments = moments_per_parameter(setting.model, setting.workload.optimizer).dense
    state = OPTIMIZER_PASSES * optimizer_element_bytes(precision, moments) + GRADIENT
    update = host_update_seconds(
        parameters=states.host_updated,
        element_bytes=state,
        bandwidth=load_host_rates().update_bandwidth,
    )
    copies = 2.0 * GRADIENT * states.host_updated / link_bandwidth(setting)
    if offload.parameters:
        copies = 0.0 * copies
    return update, exposed_update_copies(copies=copies, update=update, overlapped=offload.overlap)


def device_update(model: Model, state: Numeric, workload: Workload, pricing: Pricing) -> Numeric:
    """Return the seconds of the update: gradients read, master and moments read and written, weights written."""
    precision = workload.precision
    moments = moments_per_parameter(model, workload.optimizer).dense
    per_state_byte = max(optimizer_element_bytes(precision, moments), 1.0)
    others = (STORAGE_BYTES[precision.gradients] + STORAGE_BYTES[precision.parameters]) / per_state_byte
    return pricing.seconds(Elementwise(bytes_moved=state * (OPTIMIZER_PASSES + others), family="optimizer"))


def update_gap(setting: Setting, tensors: Numeric, update: Numeric) -> Numeric:
    """Return the seconds by which launches of the update, one for each of a share's tensors, outlast it."""
    if setting.choices.kernels.flat_update:
        return 0.0
    interval, blocking = setting.run.kernel_interval_s, setting.choices.kernels.blocking_launches
    return launch_gap(kernels=tensors, interval=interval, busy=update, blocking=blocking)
