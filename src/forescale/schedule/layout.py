"""Stage and link times laid out by a compiled schedule's duration and delay classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forescale.numeric import Array
from forescale.schedule.errors import ScheduleError
from forescale.schedule.flat import Ints
from forescale.schedule.model import Schedule
from forescale.schedule.times import LinkTimes, StageTimes
from forescale.units import counted


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Durations:
    """Stage and link times laid out by the classes of one compiled schedule."""

    nodes: Array
    """(num_classes + 1,) or (num_classes + 1, N); the last is zero."""
    delays: Array
    """(num_delays + 1,), or (num_delays + 1, N) where they differ by candidate; the last is zero."""


def lay_out(
    schedule: Schedule, times: StageTimes, links: LinkTimes, *, blocks: Ints, passing: bool
) -> Durations:
    """Return durations by class: single actions (split, kind, stage), blocks, messages, and a final zero.

    `blocks` are pairs of classes that run as one (num_blocks, 2); `passing` messages delay nothing but their
    receiver, so that their transfer is part of the delay.
    """
    stages, replicas = schedule.num_stages, schedule.placement.num_replicas
    shares = _shares(times, schedule.num_splits)
    passes = _spread(times.table(stages), shares, replicas)
    if schedule.num_splits > 1 and (causal := times.causal_table(stages)) is not None:
        squares = np.diff(np.cumsum(shares) ** 2, prepend=0.0)
        passes = _added(passes, _spread(causal, squares - shares, replicas))
    latency, transfer = links.tables(stages)
    sent = _spread(transfer, shares, replicas)
    late = _spread(latency, np.ones_like(shares), replicas)
    forward, backward = passes[blocks[:, 0]], passes[blocks[:, 1]]
    joined = forward + backward - times.overlap_saving * np.minimum(forward, backward)
    delay = _added(late, sent) if passing else late
    tail = np.broadcast_shapes(passes.shape[1:], sent.shape[1:], late.shape[1:])
    if tail:
        passes, joined, sent = (_widen(part, tail[0]) for part in (passes, joined, sent))
    nodes = np.concatenate((passes, joined, sent, np.zeros((1, *tail))))
    return Durations(nodes=nodes, delays=np.concatenate((delay, np.zeros((1, *delay.shape[1:])))))


def _shares(times: StageTimes, num_splits: int) -> Array:
    if times.split_shares is None:
        return np.full(num_splits, 1.0 / num_splits)
    if len(times.split_shares) != num_splits:
        msg = f"split_shares: give {counted(num_splits, 'part')}, one per sequence piece; got {len(times.split_shares)}"
        raise ScheduleError(msg)
    return np.array(times.split_shares)


def _spread(table: Array, shares: Array, replicas: int) -> Array:
    """Return (rows, stages[, N]) as flat classes (splits * rows * stages * replicas[, N])."""
    if replicas > 1:
        table = np.concatenate([table] * replicas, axis=1)
    spread = table[None] * shares.reshape(-1, *([1] * table.ndim))
    flat: Array = spread.reshape(-1, *table.shape[2:])
    return flat


def _added(first: Array, second: Array) -> Array:
    """Return the sum of two class tables, one of which may lack the axis of candidates."""
    if first.ndim != second.ndim:
        first, second = (part if part.ndim == 2 else part[:, None] for part in (first, second))
    return first + second


def _widen(part: Array, width: int) -> Array:
    column = part if part.ndim == 2 else part[:, None]
    return np.broadcast_to(column, (part.shape[0], width))
