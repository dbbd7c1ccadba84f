"""How much each rank holds along its order of actions."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from forescale.graph.stage import greatest
from forescale.numeric import Array
from forescale.schedule.actions import KIND_BITS, STAGE_SHIFT, Kind
from forescale.schedule.flat import Flat, flatten
from forescale.schedule.model import Schedule


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ActivationSizes:
    """What one micro-batch leaves on a stage, in bytes or any unit; numbers or arrays (num_stages,)."""

    saved: float | Array
    """Kept from forward until backward."""
    weight_part: float | Array = 1.0
    """Part of `saved` that the input gradient leaves for the weight gradient: M_W / M_B."""
    working: float | Array = 0.0
    """Held only while a backward or input gradient runs: what recompute brings back, gradients in flight."""


def unit_sizes(schedule: Schedule) -> ActivationSizes:
    """Return sizes that count in micro-batches of a device's full share; all is kept until W."""
    return ActivationSizes(saved=1.0 / schedule.placement.vpp)


def memory_curve(schedule: Schedule, sizes: ActivationSizes | None = None, flat: Flat | None = None) -> Array:
    """Return what each rank holds after each of its actions, rank after rank; shape (num_actions,).

    An action allocates before it frees, and an offloaded activation is free when its copy is issued. F adds
    the saved activations, I leaves the part that W needs, W or B frees the rest.
    """
    flat = flatten(schedule.orders) if flat is None else flat
    sizes = unit_sizes(schedule) if sizes is None else sizes
    stages = schedule.num_stages
    saved = np.broadcast_to(np.asarray(sizes.saved, dtype=np.float64), (stages,)) / schedule.num_splits
    part = np.broadcast_to(np.asarray(sizes.weight_part, dtype=np.float64), (stages,))
    change = np.zeros((13, stages))
    change[Kind.F] = change[Kind.RELOAD] = saved
    change[Kind.B] = change[Kind.OFFLOAD] = -saved
    change[Kind.I], change[Kind.W] = -saved * (1.0 - part), -saved * part
    total = np.cumsum(change[flat.kind, flat.stage % stages])
    before = np.concatenate(([0.0], total))[flat.bounds[:-1]]
    curve: Array = total - np.repeat(before, np.diff(flat.bounds))
    return curve


def memory_during(
    schedule: Schedule, sizes: ActivationSizes | None = None, flat: Flat | None = None
) -> Array:
    """Return the most each rank holds during each of its actions, rank after rank; shape (num_actions,).

    While a backward or input gradient runs, it holds its working memory beside all that it frees at its end.
    """
    flat = flatten(schedule.orders) if flat is None else flat
    sizes = unit_sizes(schedule) if sizes is None else sizes
    curve = memory_curve(schedule, sizes, flat)
    start = np.concatenate(([0.0], curve[:-1])) if curve.size else curve
    start[flat.bounds[:-1][flat.bounds[:-1] < curve.size]] = 0.0
    working = np.broadcast_to(np.asarray(sizes.working, dtype=np.float64), (schedule.num_stages,))
    backward = (flat.kind == Kind.B) | (flat.kind == Kind.I)
    during = start + np.where(backward, working[flat.stage % schedule.num_stages], 0.0)
    return np.asarray(np.maximum(curve, during))


def peak_memory(schedule: Schedule, sizes: ActivationSizes | None = None) -> Array:
    """Return the most each rank holds at once; shape (num_ranks,), in the unit of `sizes`."""
    by_rank = (memory_during(schedule, sizes, flatten((order,))) for order in schedule.orders)
    return np.array([highest.max(initial=0.0) for highest in by_rank])


def live_passes(schedule: Schedule) -> Array:
    """Return (moments, ranks, chunks) passes whose activations ranks hold, at moments that differ.

    Chunks are a rank's stages in ascending order. Ranks with fewer moments repeat the first. All is kept until W.
    """
    flat = flatten(schedule.orders)
    step = np.isin(flat.kind, (Kind.F, Kind.RELOAD)) * 1.0 - np.isin(
        flat.kind, (Kind.B, Kind.W, Kind.OFFLOAD)
    )
    found = []
    for low, high in pairwise(flat.bounds.tolist()):
        stages = np.unique(flat.stage[low:high])
        held = np.cumsum((flat.stage[low:high, None] == stages) * step[low:high, None], axis=0)
        distinct = np.unique(held[step[low:high] > 0], axis=0)[::-1]
        found.append(distinct[greatest(distinct[:, None])[:, 0]])
    most = max(map(len, found))
    live = [np.concatenate([each, np.repeat(each[:1], most - len(each), axis=0)]) for each in found]
    return np.stack(live, axis=1) / schedule.num_splits


def peak_receive_buffers(schedule: Schedule) -> Array:
    """Return the most messages each rank holds between their receipt and their use; shape (num_ranks,).

    Multiply by a boundary's tensor size for bytes. A receive is posted where the lowering places it.
    """
    from forescale.schedule.lowering import lower

    peaks = np.zeros(schedule.num_ranks)
    for rank, order in enumerate(lower(schedule).orders):
        waiting: set[tuple[bool, int]] = set()
        for code in order:
            kind, where = code & KIND_BITS, code >> STAGE_SHIFT
            if kind in (Kind.RECV_F, Kind.RECV_B):
                waiting.add((kind == Kind.RECV_F, where))
                peaks[rank] = max(peaks[rank], len(waiting))
            elif kind in (Kind.F, Kind.B, Kind.I):
                waiting.discard((kind == Kind.F, where))
    return peaks


def peak_activations(schedule: Schedule, weight_part: float | Array = 1.0) -> Array:
    """Return the most micro-batches (of a device's full share) each rank holds; shape (num_ranks,).

    `weight_part` of each stays from the input gradient to the weight gradient.
    """
    sizes = ActivationSizes(saved=1.0 / schedule.placement.vpp, weight_part=weight_part)
    return np.round(peak_memory(schedule, sizes), 9)
