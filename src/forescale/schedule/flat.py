"""A schedule's actions as flat arrays, and where each action's input comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from forescale.schedule.actions import (
    JOINED,
    KIND_BITS,
    MICROBATCH_SHIFT,
    STAGE_BITS,
    STAGE_SHIFT,
    Kind,
    as_codes,
    unpack,
)
from forescale.schedule.errors import ScheduleError
from forescale.schedule.model import Schedule

Ints: TypeAlias = NDArray[np.int64]
ABSENT = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Flat:
    """All actions of all ranks, rank after rank; arrays of shape (num_actions,)."""

    code: Ints
    rank: Ints
    kind: Ints
    stage: Ints
    unit: Ints
    """Micro-batch, or piece of one under sequence splits."""
    joined: NDArray[np.bool_]
    """True where the next action belongs to the same block."""
    bounds: Ints
    """Where each rank begins, and the end; shape (num_ranks + 1,)."""

    def label(self, index: int) -> str:
        """Return one action with its place, for messages."""
        rank = int(self.rank[index])
        return f"{unpack(int(self.code[index]))} (rank {rank}, position {index - int(self.bounds[rank])})"


def flatten(orders: Sequence[Sequence[int]]) -> Flat:
    """Return packed actions as flat arrays."""
    lengths = [len(order) for order in orders]
    bounds = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    code = np.empty(int(bounds[-1]), dtype=np.int64)
    for rank, order in enumerate(orders):
        code[bounds[rank] : bounds[rank + 1]] = as_codes(order)
    return Flat(
        code=code,
        rank=np.repeat(np.arange(len(orders)), lengths),
        kind=code & KIND_BITS,
        stage=code >> STAGE_SHIFT & STAGE_BITS,
        unit=code >> MICROBATCH_SHIFT,
        joined=(code & JOINED) != 0,
        bounds=bounds,
    )


def check_ids(schedule: Schedule, flat: Flat) -> Ints:
    """Return the actions whose stage or micro-batch does not exist."""
    num_stages = len(schedule.placement.rank_of_stage)
    return np.nonzero((flat.stage >= num_stages) | (flat.unit >= schedule.num_units))[0]


def sources(schedule: Schedule, flat: Flat) -> Ints:
    """Return, for each action, the index of the action whose output it needs; ABSENT where none is.

    Raises
    ------
    ScheduleError
        If an id is out of range or the producer of an input is missing.
    """
    if (bad := check_ids(schedule, flat)).size:
        msg = f"{schedule.name}: {flat.label(int(bad[0]))} names a stage or micro-batch that does not exist"
        raise ScheduleError(msg)
    num_stages, logical = len(schedule.placement.rank_of_stage), schedule.num_stages
    table = {
        kind: np.full((num_stages, schedule.num_units), ABSENT, dtype=np.int64)
        for kind in (Kind.F, Kind.I, Kind.OFFLOAD)
    }
    backward = (flat.kind == Kind.B) | (flat.kind == Kind.I)
    for kind, mask in (
        (Kind.F, flat.kind == Kind.F),
        (Kind.I, backward),
        (Kind.OFFLOAD, flat.kind == Kind.OFFLOAD),
    ):
        where = np.nonzero(mask)[0]
        table[kind][flat.stage[where], flat.unit[where]] = where
    source = np.full(flat.code.size, ABSENT, dtype=np.int64)
    needs = np.zeros(flat.code.size, dtype=bool)
    place = flat.stage % logical
    rules = (
        ((flat.kind == Kind.F) & (place > 0), Kind.F, -1),
        (backward & (place == logical - 1), Kind.F, 0),
        (backward & (place < logical - 1), Kind.I, 1),
        (flat.kind == Kind.W, Kind.I, 0),
        (flat.kind == Kind.OFFLOAD, Kind.F, 0),
        (flat.kind == Kind.RELOAD, Kind.OFFLOAD, 0),
    )
    for mask, kind, step in rules:
        where = np.nonzero(mask)[0]
        source[where] = table[kind][flat.stage[where] + step, flat.unit[where]]
        needs[where] = True
    missing = np.nonzero(needs & (source == ABSENT))[0]
    if missing.size:
        msg = f"{schedule.name}: nothing produces the input of {flat.label(int(missing[0]))}"
        raise ScheduleError(msg)
    return source


def reload_sources(schedule: Schedule, flat: Flat) -> Ints:
    """Return, for each backward or weight-gradient action, the reload it waits for; ABSENT where none is."""
    source = np.full(flat.code.size, ABSENT, dtype=np.int64)
    where = np.nonzero(flat.kind == Kind.RELOAD)[0]
    if where.size:
        table = np.full((len(schedule.placement.rank_of_stage), schedule.num_units), ABSENT, dtype=np.int64)
        table[flat.stage[where], flat.unit[where]] = where
        users = np.nonzero((flat.kind == Kind.B) | (flat.kind == Kind.I) | (flat.kind == Kind.W))[0]
        source[users] = table[flat.stage[users], flat.unit[users]]
    return source


def crossing(flat: Flat, source: Ints) -> NDArray[np.bool_]:
    """Return where an action's input comes from another rank: the messages of the schedule."""
    data = (flat.kind == Kind.F) | (flat.kind == Kind.B) | (flat.kind == Kind.I)
    mask: NDArray[np.bool_] = data & (source != ABSENT) & (flat.rank[source] != flat.rank)
    return mask
