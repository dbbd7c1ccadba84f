"""Durations that a schedule is timed with: per stage and kind, per link, per candidate; and by class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forescale.errors import ScheduleError
from forescale.numeric import Array, Numeric
from forescale.schedule.model import Schedule
from forescale.schedule.program import Ints
from forescale.units import counted


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageTimes:
    """Seconds (or any unit) of one pass of one micro-batch through a stage.

    Each is a number, an array over stages (num_stages,), or over stages and candidates (num_stages, N).
    """

    forward: Numeric
    input_grad: Numeric
    weight_grad: Numeric
    recompute: Numeric = 0.0
    """Forward work repeated inside backward, before the input gradient."""
    offload: Numeric = 0.0
    """Copy of a stage's activations to the host."""
    reload: Numeric = 0.0
    overlap_saving: Numeric = 0.0
    """Part of the shorter of F and B that an overlapped F+B block hides; 0 runs them one after the other."""
    split_shares: tuple[float, ...] | None = None
    """Part of a sequence's tokens in each piece; None is equal parts."""
    causal_forward: Numeric = 0.0
    """Part of `forward` spent on causal attention over all earlier tokens: between pieces it goes by the squares
    of where they end, all else by their tokens."""
    causal_backward: Numeric = 0.0
    """The same part of `input_grad` and `recompute`."""

    def table(self, num_stages: int) -> Array:
        """Return passes by kind: (6, num_stages) or (6, num_stages, N), rows F B I W OFFLOAD RELOAD."""
        columns = [
            _per_stage(value, num_stages, name)
            for name, value in (
                ("forward", self.forward), ("input_grad", self.input_grad), ("weight_grad", self.weight_grad),
                ("recompute", self.recompute), ("offload", self.offload), ("reload", self.reload),
            )
        ]  # fmt: skip
        width = max((column.shape[1] for column in columns), default=1)
        forward, inputs, weights, recompute, offload, reload = columns
        rows = (
            forward,
            inputs + weights + recompute,
            inputs + recompute,
            weights,
            offload,
            reload,
        )
        table = np.empty((6, num_stages, width))
        for row, value in zip(table, rows, strict=True):
            row[:] = value
        if not np.all(table >= 0.0):
            msg = "durations must be zero or more"
            raise ScheduleError(msg)
        return table if any(np.ndim(v) == 2 for v in self._given()) else table[:, :, 0]

    def causal_table(self, num_stages: int) -> Array | None:
        """Return what of `table` goes to causal attention, in the same rows; None where there is none."""
        if not (np.any(self.causal_forward) or np.any(self.causal_backward)):
            return None
        forward, backward = (
            _per_stage(value, num_stages, name)
            for value, name in (
                (self.causal_forward, "causal_forward"),
                (self.causal_backward, "causal_backward"),
            )
        )
        table = np.zeros((6, num_stages, max(forward.shape[1], backward.shape[1])))
        table[0], table[1], table[2] = forward, backward, backward
        spread = any(np.ndim(value) == 2 for value in (self.causal_forward, self.causal_backward))
        return table if spread else table[:, :, 0]

    def _given(self) -> tuple[Numeric, ...]:
        return (self.forward, self.input_grad, self.weight_grad, self.recompute, self.offload, self.reload)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinkTimes:
    """Seconds of one message between neighbouring stages: latency, then transfer at the link's bandwidth.

    Each is a number, an array over boundaries (num_stages - 1,), boundary s being between stages s and
    s + 1, or over boundaries and candidates (num_stages - 1, N). The gradient going back costs as much as the
    activation going forward unless `backward_transfer` says otherwise.
    """

    latency: Numeric = 0.0
    transfer: Numeric = 0.0
    backward_transfer: Numeric | None = None

    @classmethod
    def of_bandwidth(cls, *, message_bytes: Numeric, bandwidth: Numeric, latency: Numeric = 0.0) -> LinkTimes:
        """Return link times from bytes, byte/s and seconds; arrays over boundaries give each its tier."""
        return cls(latency=latency, transfer=message_bytes / bandwidth)

    @property
    def free(self) -> bool:
        """Whether messages take no time at all."""
        return not (np.any(self.latency) or np.any(self.transfer) or np.any(self.backward_transfer or 0.0))

    def tables(self, num_stages: int) -> tuple[Array, Array]:
        """Return latency and transfer by direction and sending stage: each (2, num_stages[, N])."""
        transfers = (
            self.transfer,
            self.transfer if self.backward_transfer is None else self.backward_transfer,
        )
        return (
            _directed((self.latency, self.latency), num_stages, "latency"),
            _directed(transfers, num_stages, "transfer"),
        )


FREE = LinkTimes()


def from_share(
    *,
    vpp: float,
    forward: Numeric = 1.0,
    input_grad: Numeric = 1.0,
    weight_grad: Numeric = 1.0,
    recompute: Numeric = 0.0,
    overlap_saving: Numeric = 0.0,
) -> StageTimes:
    """Return stage times from those of one micro-batch through a device's full share: a chunk takes 1/vpp."""
    return StageTimes(
        forward=forward / vpp,
        input_grad=input_grad / vpp,
        weight_grad=weight_grad / vpp,
        recompute=recompute / vpp,
        overlap_saving=overlap_saving,
    )


def _per_stage(value: Numeric, num_stages: int, name: str) -> Array:
    array = np.asarray(value, dtype=np.float64)
    if array.ndim == 0:
        return np.full((num_stages, 1), float(array))
    if array.shape[0] != num_stages:
        msg = f"{name}: give a number or one value per stage; got {array.shape[0]} for {counted(num_stages, 'stage')}"
        raise ScheduleError(msg)
    return array if array.ndim == 2 else array[:, None]


def _directed(values: tuple[Numeric, Numeric], num_stages: int, name: str) -> Array:
    forward, backward = (_per_boundary(value, num_stages, name) for value in values)
    width = max(forward.shape[1], backward.shape[1])
    table = np.zeros((2, num_stages, width))
    table[0, :-1] = forward
    table[1, 1:] = backward
    return table if any(np.ndim(value) == 2 for value in values) else table[:, :, 0]


def _per_boundary(value: Numeric, num_stages: int, name: str) -> Array:
    array = np.asarray(value, dtype=np.float64)
    if array.ndim == 0:
        return np.full((num_stages - 1, 1), float(array))
    if array.shape[0] != num_stages - 1:
        got = f"{array.shape[0]} for {num_stages - 1} boundaries"
        msg = f"{name}: give a number or one value per boundary; got {got}"
        raise ScheduleError(msg)
    return array if array.ndim == 2 else array[:, None]


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
