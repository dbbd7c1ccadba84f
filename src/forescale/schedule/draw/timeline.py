"""What every picture draws: bars on ranks, memory steps and messages, in one unit of time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forescale.schedule.actions import Kind
from forescale.schedule.flat import crossing
from forescale.schedule.simulation import Simulation
from forescale.schedule.traces import MeasuredStep
from forescale.units import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One action on a rank."""

    rank: int
    start: float
    end: float
    kind: Kind
    microbatch: int
    chunk: int
    """Which of the rank's chunks, 0 first."""
    name: str
    """Torch's notation."""
    overlapped: bool = False
    """Part of an F+B block; the block's bars share its time in proportion to their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A step as a picture shows it."""

    title: str
    num_ranks: int
    makespan: float
    bars: tuple[Bar, ...]
    memory: tuple[tuple[tuple[float, float], ...], ...]
    """Per rank, (time, held) at each change; empty where unknown."""
    messages: tuple[tuple[int, int], ...] = ()
    """Pairs (index of the sending bar, index of the receiving bar)."""
    note: str = ""

    def busy(self, rank: int) -> float:
        """Return the time a rank computes."""
        return sum(b.end - b.start for b in self.bars if b.rank == rank and b.kind <= Kind.W)

    def bubble(self, rank: int) -> float:
        """Return a rank's idle share of the makespan."""
        return 1.0 - self.busy(rank) / self.makespan if self.makespan else 0.0


def of_simulation(simulation: Simulation) -> Timeline:
    """Return the picture of a simulated step."""
    schedule, flat = simulation.schedule, simulation.compiled.program.flat
    starts, ends = _split_blocks(simulation)
    chunk = _chunks(schedule.placement.rank_of_stage)
    joined = flat.joined | np.concatenate(([False], flat.joined[:-1]))
    pieces = schedule.num_splits
    bars = tuple(
        Bar(
            rank=int(flat.rank[i]),
            start=float(starts[i]),
            end=float(ends[i]),
            kind=Kind(int(flat.kind[i])),
            microbatch=int(flat.unit[i]),
            chunk=chunk[int(flat.stage[i])],
            name=flat.label(i).split(" ")[0]
            + (f" (piece {flat.unit[i] % pieces} of {pieces})" if pieces > 1 else ""),
            overlapped=bool(joined[i]),
        )
        for i in range(flat.code.size)
    )
    at = np.nonzero(crossing(flat, simulation.compiled.program.source))[0]
    messages = tuple(zip(simulation.compiled.program.source[at].tolist(), at.tolist(), strict=True))
    note = (
        f"makespan {simulation.makespan:.6g}, bubble {simulation.bubble_rate_makespan:.1%} "
        f"(longest span {simulation.longest_span:.6g}, {simulation.bubble_rate_span:.1%}), "
        f"peak {counted(float(simulation.peak_activations.max()), 'micro-batch')}"
    )
    return Timeline(
        title=f"{schedule.name}, pp {schedule.num_ranks}, {counted(schedule.num_microbatches, 'micro-batch')}",
        num_ranks=schedule.num_ranks,
        makespan=simulation.makespan,
        bars=bars,
        memory=_memory_steps(simulation),
        messages=messages,
        note=note,
    )


def of_trace(step: MeasuredStep) -> Timeline:
    """Return the picture of a measured step."""
    bars = tuple(
        Bar(
            rank=rank,
            start=start,
            end=end,
            kind=kind,
            microbatch=unit,
            chunk=chunk,
            name=f"{kind.name}{unit}",
        )
        for rank, row in enumerate(step.passes)
        for kind, unit, chunk, start, end in row
    )
    held = ", ".join(f"{memory:.1f}" for memory in step.memory_gib)
    return Timeline(
        title=f"measured, iteration {step.iteration}",
        num_ranks=len(step.passes),
        makespan=step.total_ms,
        bars=bars,
        memory=tuple(() for _ in step.passes),
        note=f"{step.total_ms:.1f} ms on rank 0; memory by rank in GiB: {held}",
    )


def _split_blocks(simulation: Simulation) -> tuple[np.ndarray, np.ndarray]:
    """Return starts and ends with each overlapped block shared by its two actions."""
    flat = simulation.compiled.program.flat
    starts, ends = simulation.start.copy(), simulation.end.copy()
    classes = simulation.compiled.sizes.compute_class(flat)
    own = simulation.laid.nodes[classes]
    for i in np.nonzero(flat.joined)[0].tolist():
        total = own[i] + own[i + 1]
        share = own[i] / total if total else 0.5
        ends[i] = starts[i + 1] = starts[i] + share * (ends[i] - starts[i])
    return starts, ends


def _chunks(rank_of_stage: tuple[int, ...]) -> list[int]:
    seen: dict[int, int] = {}
    chunks = []
    for rank in rank_of_stage:
        chunks.append(seen.get(rank, 0))
        seen[rank] = chunks[-1] + 1
    return chunks


def _memory_steps(simulation: Simulation) -> tuple[tuple[tuple[float, float], ...], ...]:
    flat, curve = simulation.compiled.program.flat, simulation.memory
    rows = []
    for rank in range(simulation.schedule.num_ranks):
        low, high = int(flat.bounds[rank]), int(flat.bounds[rank + 1])
        before, steps = 0.0, [(0.0, 0.0)]
        for i in range(low, high):
            held = float(curve[i])
            if held != before:
                when = simulation.start[i] if held > before else simulation.end[i]
                steps.append((float(when), held))
                before = held
        rows.append(tuple(steps))
    return tuple(rows)
