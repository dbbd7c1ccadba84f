"""Durations that a compiled schedule is timed with: per stage and kind, per link, per candidate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forescale.numeric import Array, Numeric
from forescale.schedule.errors import ScheduleError
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
    forward: Numeric,
    input_grad: Numeric,
    weight_grad: Numeric,
    vpp: float,
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
