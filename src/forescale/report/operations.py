"""The operators of every block of a model with their work, their time and what limits it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias, get_args

from msgspec.structs import replace

from forescale.cost.model import ComputeModel
from forescale.cost.roofline import attention_dtype, peak_rate
from forescale.formula import number_of
from forescale.graph.counts import executed_flops
from forescale.graph.ops import AttentionCore, Collective, Compute, Elementwise
from forescale.inputs import Prepared, prepare
from forescale.numeric import Numeric
from forescale.question import Question
from forescale.report.components import counted_blocks
from forescale.results import Result
from forescale.spec import Device
from forescale.struct import Struct, attributes
from forescale.time.blocks import launch_interval
from forescale.time.price import PricedBlock, PricedOperator

Direction: TypeAlias = Literal["forward", "backward"]
Bound: TypeAlias = Literal["compute", "memory", "launch", "network"]
SCHEMA = "forescale.operations/1"


class OperatorCost(Struct, frozen=True, kw_only=True):
    """One operator of a block in one direction, on one device and for one micro-batch."""

    block: str
    times: int
    """How often the model has the block."""
    name: str
    direction: Direction
    flops: float
    num_bytes: float
    """Bytes that its kernels read from and write to device memory."""
    seconds: float
    """Seconds of its kernels."""
    message_seconds: float
    """Seconds of its messages, before any overlap."""
    launch_seconds: float
    """Seconds of the host to launch its kernels."""
    waits_for_host: bool
    """Whether this direction of the block takes the host longer to launch than the device to run."""
    compute_limit_s: float
    """FLOP over the peak rate of their data types."""
    memory_limit_s: float
    """Bytes over the peak bandwidth of device memory."""

    @property
    def device_seconds(self) -> float:
        """Seconds of its kernels and messages one after another."""
        return self.seconds + self.message_seconds

    @property
    def intensity(self) -> float | None:
        """FLOP per byte; None without bytes."""
        return self.flops / self.num_bytes if self.num_bytes else None

    @property
    def bound(self) -> Bound:
        """What limits it: messages or launches where they take longer than kernels, else the rate or the bandwidth."""
        if self.message_seconds > self.seconds:
            return "network"
        if self.waits_for_host and self.launch_seconds > self.device_seconds:
            return "launch"
        return "compute" if self.compute_limit_s >= self.memory_limit_s else "memory"

    @property
    def reached(self) -> float | None:
        """Share of the peak rate or bandwidth, whichever limits its kernels; None without kernels."""
        limit = max(self.compute_limit_s, self.memory_limit_s)
        return limit / self.seconds if self.seconds else None

    def to_json(self) -> dict[str, Any]:
        """Return the figures, and what follows from them."""
        return attributes(self, *self.__struct_fields__, "device_seconds", "intensity", "bound", "reached")


class OperatorTable(Result, Struct, frozen=True, kw_only=True):
    """Operators by block, in the order in which they run forward."""

    question: Question
    operators: tuple[OperatorCost, ...]

    @property
    def headline(self) -> str:
        """Share of the time of all blocks by what limits it."""
        return ", ".join(f"{share:.1%} {bound}" for bound, share in shares(self.operators).items())

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per operator and direction."""
        return [item.to_json() for item in self.operators]

    def to_json(self) -> dict[str, Any]:
        """Return the `forescale.operations/1` document."""
        return {"schema": SCHEMA, "preset": self.question.preset, "operations": self.rows()}


def shares(operators: Sequence[OperatorCost]) -> dict[Bound, float]:
    """Return the share of the device's seconds by what limits them, each operator as often as the model has it."""
    seconds: dict[Bound, float] = {}
    for item in operators:
        seconds[item.bound] = seconds.get(item.bound, 0.0) + item.times * item.device_seconds
    whole = sum(seconds.values())
    return {bound: value / whole for bound, value in sorted(seconds.items(), key=lambda pair: -pair[1])}


def operators_of(question: Question) -> OperatorTable:
    """Return every operator of every block with its work, its time and what limits it.

    They are priced as for the step time; what is recomputed in backward is not repeated. Raises as `prepare` does.
    """
    prepared = prepare(question)
    rows = (row for priced, times in counted_blocks(prepared) for row in _of_block(prepared, priced, times))
    return OperatorTable(question=question, operators=tuple(rows))


def _of_block(prepared: Prepared, priced: PricedBlock, times: int) -> Iterator[OperatorCost]:
    rows = [
        row
        for name, operator in priced.operators.items()
        for row in _rows(prepared, priced, name, operator, times)
    ]
    waits = {
        direction: sum(
            item.launch_seconds - item.device_seconds for item in rows if item.direction == direction
        )
        > 0
        for direction in get_args(Direction)
    }
    yield from (replace(item, waits_for_host=waits[item.direction]) for item in rows)


def _rows(
    prepared: Prepared, priced: PricedBlock, name: str, operator: PricedOperator, times: int
) -> Iterator[OperatorCost]:
    device = prepared.question.cluster.device
    interval = number_of(launch_interval(priced, prepared.question.layout.overlap))
    launches: dict[Direction, Numeric] = {
        "forward": operator.forward_kernels,
        "backward": operator.backward_kernels,
    }
    repeats = 1.0 if operator.operator.panels is None else number_of(operator.operator.panels)
    for direction, calls in launches.items():
        done = [
            (primitive, number_of(seconds))
            for phase, (primitive, seconds) in zip(operator.passes, operator.primitives, strict=True)
            if phase.partition("_")[0] == direction and number_of(seconds)
        ]
        if not done:
            continue
        work = [
            (*_work(item, priced.pricing.models.compute, device), seconds)
            for item, seconds in done
            if not isinstance(item, Collective)
        ]
        flops, num_bytes, limit_s, seconds = map(sum, zip(*work, strict=True)) if work else (0.0,) * 4
        yield OperatorCost(
            block=priced.block.name,
            times=times,
            name=name,
            direction=direction,
            flops=repeats * flops,
            num_bytes=repeats * num_bytes,
            seconds=seconds,
            message_seconds=sum(seconds for item, seconds in done if isinstance(item, Collective)),
            launch_seconds=interval * number_of(calls),
            waits_for_host=False,
            compute_limit_s=repeats * limit_s,
            memory_limit_s=repeats * num_bytes / device.hbm_bandwidth,
        )


def _work(kernel: Compute, model: ComputeModel, device: Device) -> tuple[float, float, float]:
    """Return the FLOP and the bytes of a kernel, and its FLOP over the peak rate of its type [s]."""
    flops, num_bytes = number_of(executed_flops(kernel)), number_of(model.num_bytes(kernel))
    if isinstance(kernel, Elementwise) or not flops:
        return 0.0, num_bytes, 0.0
    is_attention = isinstance(kernel, AttentionCore)
    dtype = attention_dtype(device, kernel.dtype) if is_attention else kernel.dtype
    return flops, num_bytes, flops / peak_rate(device, dtype)
