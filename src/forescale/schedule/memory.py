"""How much each rank holds along its order of actions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forescale.numeric import Array
from forescale.schedule.actions import Kind
from forescale.schedule.flat import Flat, flatten
from forescale.schedule.model import Schedule


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ActivationSizes:
    """What one micro-batch leaves on a stage, in bytes or any unit; numbers or arrays (num_stages,)."""

    saved: float | Array
    """Kept from forward until backward."""
    weight_part: float | Array = 1.0
    """Part of `saved` that the input gradient leaves for the weight gradient: M_W / M_B."""


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


def peak_memory(schedule: Schedule, sizes: ActivationSizes | None = None) -> Array:
    """Return the most each rank holds at once; shape (num_ranks,), in the unit of `sizes`."""
    flat = flatten(schedule.orders)
    curve = memory_curve(schedule, sizes, flat)
    return np.array(
        [
            max(0.0, float(curve[low:high].max(initial=0.0)))
            for low, high in zip(flat.bounds[:-1], flat.bounds[1:], strict=True)
        ]
    )


def peak_activations(schedule: Schedule) -> Array:
    """Return the most micro-batches (of a device's full share) each rank holds; shape (num_ranks,)."""
    return np.round(peak_memory(schedule), 9)
