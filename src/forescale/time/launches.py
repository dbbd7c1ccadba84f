"""What launching kernels costs: calls of the host, and the device's wait for them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from forescale.cost.placement import Group
from forescale.formula import formula
from forescale.graph.layout import several
from forescale.graph.ops import Collective, Elementwise, MeshAxis, Primitive
from forescale.numeric import Numeric, larger, smaller
from forescale.spec.strategy import Kernels

FURTHER_LAUNCH = 0.15
"""A kernel that one call launches beside its first, over the call: a launch alone takes about 5 us (grouped products
and casts in Transformer Engine loop over experts in C++), a call from Python tens of them. A choice within these, not
a measurement; the intervals of calls were fitted beside it."""


@formula(
    unit="s",
    source="kernels start in order: the device waits for the host where launches take longer than kernels",
)
def launch_gap(*, kernels: Numeric, interval: Numeric, busy: Numeric, blocking: bool = False) -> Numeric:
    """max(0, kernels · interval − busy); kernels · interval where every launch waits for its kernel."""
    launches = kernels * interval
    return launches if blocking else larger(launches - busy, 0.0)


def calls_of(primitive: Primitive, groups: Mapping[MeshAxis, Group]) -> Numeric:
    """Return what launching a primitive costs the host, in calls from the framework.

    A message within one rank and a step that moves nothing are not launched.
    """
    calls = 1.0 + FURTHER_LAUNCH * (getattr(primitive, "kernels", 1.0) - 1.0)
    if isinstance(primitive, Collective):
        return calls * several(degree=groups[primitive.axis].num_ranks)
    return calls * smaller(primitive.bytes_moved, 1.0) if isinstance(primitive, Elementwise) else calls


def calls_of_steps(calls: Numeric, steps: Numeric | None) -> Numeric:
    """Return what the host pays for steps of `calls` each: the first is called, it launches those of the others."""
    return calls if steps is None else calls * (1.0 + FURTHER_LAUNCH * (steps - 1.0))


@formula(
    unit="1",
    source="Megatron-LM, optimizer/distrib_optimizer.py: a rank copies each tensor that its share of the flat "
    "gradients reaches into back by itself; elsewhere one kernel takes many tensors",
)
def updated_tensors(*, zero: Numeric, sharded: Numeric) -> Numeric:
    """`sharded` under zero 1 and 2, else 0."""
    stage = np.asarray(zero)
    return np.where((stage >= 1) & (stage < 3), sharded, 0.0)


@formula(unit="s", source="Megatron-LM, pipeline schedules: the engine steps once per micro-batch and chunk")
def engine_time(*, overhead: Numeric, vpp: Numeric) -> Numeric:
    """Overhead · chunks: host work per micro-batch and rank."""
    return overhead * vpp


@formula(
    unit="s",
    source="kernels start in order: what the engine does for a micro-batch delays the device where the host is behind",
)
def engine_gap(*, overhead: Numeric, busy: Numeric, launches: Numeric) -> Numeric:
    """max(0, overhead − (busy − launches)): of the engine's own work, what the device's lead does not cover."""
    return larger(overhead - (busy - launches), 0.0)


def engine_seconds(
    kernels: Kernels, *, overhead: Numeric, vpp: Numeric, busy: Numeric, launches: Numeric
) -> Numeric:
    """Return what the pipeline engine adds to a micro-batch's passes, which keep the device busy so long.

    An engine that runs ahead works while the device does, unless every launch waits for its kernel.
    """
    own = engine_time(overhead=overhead, vpp=vpp)
    if kernels.blocking_launches or not kernels.runs_ahead:
        return own
    return engine_gap(overhead=own, busy=busy, launches=launches)
