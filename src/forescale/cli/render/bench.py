"""What a bench measured, on one screen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from forescale.cost.timings import Part
from forescale.formula import number_of
from forescale.graph.ops import AttentionCore, Collective, EagerKernel, Gemm, GroupedGemm, Primitive
from forescale.io.bench import BenchArtifact
from forescale.report.document import Column, Table, View, facts, line, listed, table
from forescale.struct import attributes
from forescale.units import counted, format_bytes, format_seconds

if TYPE_CHECKING:
    from forescale.bench.measure import Checked
    from forescale.bench.suite import Proposed

PARTS: tuple[Part, ...] = ("forward", "backward", "input_gradient", "weight_gradient", "update")
NOISY = 1.3
"""p90 over the median of a step from which on the machine is said to be busy with something else."""


def bench_view(artifact: BenchArtifact) -> View:
    """Return blocks with their times and what they keep, the step, its memory, and what is to be known."""
    where = artifact.conditions
    side = f", {where.num_copies} at a time" if where.num_copies > 1 else ""
    side += ", memory tracked on fake tensors: nothing was measured" if where.tracked else ""
    cuts = ", ".join(f"{item.dimension} {item.asked} → {item.measured}" for item in artifact.given_up)
    return View(
        title=where.device,
        lead=f"{counted(where.num_devices or 1, 'device')}{side} · {where.software} · {where.date}",
        contents=(
            *([line(f"cut to what fits here: {cuts}")] if cuts else []),
            *([_blocks(artifact)] if artifact.blocks or artifact.layers else []),
            *([facts(rows)] if (rows := list(_facts(artifact))) else []),
            *map(line, _remarks(artifact)),
        ),
    )


def check_view(checked: Checked) -> View:
    """Return what was projected next to what it really took."""
    rows = (
        (name, write(message), write(took), f"{message / took - 1.0:+.1%}")
        for name, message, took, write in (
            ("step", checked.projected_s, checked.measured_s, format_seconds),
            ("memory", checked.projected_bytes, checked.measured_bytes, format_bytes),
            ("allocated", checked.projected_allocated_bytes, checked.measured_allocated_bytes, format_bytes),
        )
    )
    return View(contents=(table("<", "projected", "measured", "off by", rows=rows),))


def next_view(proposeds: Sequence[Proposed]) -> View:
    """Return what to measure next, what is most at stake first."""
    if not proposeds:
        return View(contents=(line("all kernels of this step are measured or interpolated"),))
    return View(contents=(listed(_NEXT, proposeds, gap=1),))


_NEXT: tuple[Column[Proposed], ...] = (
    Column("<to time next", lambda item: _words(item.primitive)),
    Column("<of", lambda item: item.operator),
    Column("on", lambda item: counted(item.num_ranks, "device")),
    Column("takes", lambda item: format_seconds(item.seconds)),
    Column("of the step", lambda item: f"{item.share:.1%}"),
    Column("known within", lambda item: f"× {item.provenance.low:.2f} to {item.provenance.high:.2f}"),
    Column("at stake", lambda item: f"{item.at_stake:.1%}"),
)


def next_values(proposeds: Sequence[Proposed]) -> list[dict[str, Any]]:
    """Return proposals as plain values."""
    return [
        {
            "what": type(item.primitive).__name__,
            **asdict(item.primitive),
            **attributes(item, "operator", "num_ranks", "ranks_per_node", "seconds", "share"),
            **attributes(item.provenance, "low", "high"),
            "at_stake": item.at_stake,
        }
        for item in proposeds
    ]


def _words(op: Primitive) -> str:
    match op:
        case Collective():
            return f"{op.kind} of {format_bytes(number_of(op.num_bytes))}"
        case Gemm():
            return f"gemm {op.batch:g} × {op.m:,.0f} × {op.n:,.0f} × {op.k:,.0f} {op.dtype}"
        case GroupedGemm():
            return f"{op.groups:g} experts' gemm {op.m:,.0f} × {op.n:,.0f} × {op.k:,.0f} {op.dtype}"
        case AttentionCore():
            way = "backward" if op.backward else "forward"
            return f"attention {way} {op.batch:g} × {op.heads:g} heads × {op.q_len:,.0f} {op.dtype}"
        case EagerKernel():
            return f"{op.operator} of {format_bytes(number_of(op.bytes_moved))}"
        case _:
            return f"{op.family} of {format_bytes(number_of(op.bytes_moved))}"


def _blocks(artifact: BenchArtifact) -> Table:
    seconds = {(row.kind, row.part): row.seconds for row in artifact.blocks}
    kept = {row.kind: row.activation_bytes for row in artifact.layers}

    def row(kind: str) -> list[str]:
        times = [seconds.get((kind, part)) for part in PARTS]
        size = kept.get(kind)
        shown = ["" if time is None else format_seconds(time) for time in times]
        return [kind, *shown, "" if size is None else format_bytes(size)]

    kinds = dict.fromkeys((*(block.kind for block in artifact.blocks), *kept))
    return table("<block", *(part.replace("_", " ") for part in PARTS), "kept", rows=map(row, kinds))


def _facts(artifact: BenchArtifact) -> Iterator[tuple[str, str]]:
    for step in artifact.steps:
        yield "step", f"{format_seconds(step.seconds)} of {counted(step.num_microbatches, 'micro-batch')}"
        if step.p90_s is not None and step.p90_s > NOISY * step.seconds:
            yield "", f"one in ten takes {format_seconds(step.p90_s)} or more: something else runs here too"
    if artifact.ranks:
        fullest = max(artifact.ranks, key=lambda rank: rank.peak_allocated_bytes)
        phases = ", ".join(
            f"{phase.phase} {format_bytes(phase.peak_allocated_bytes)}" for phase in fullest.phases
        )
        peak = format_bytes(fullest.peak_reserved_bytes)
        yield "memory", f"{peak} at most, of rank {fullest.rank}{f' ({phases})' if phases else ''}"
    if artifact.kernels or artifact.collectives:
        yield (
            "besides",
            f"{counted(len(artifact.kernels), 'kernel')}, {counted(len(artifact.collectives), 'message')}",
        )


def _remarks(artifact: BenchArtifact) -> Iterator[str]:
    if artifact.conditions.throttled:
        yield f"the device's clock was held down: {', '.join(artifact.conditions.throttled)}"
    if artifact.conditions.left_out:
        yield f"not measured: {'; '.join(artifact.conditions.left_out)} (more with a longer --seconds)"
    if artifact.conditions.failed:
        yield f"failed: {artifact.conditions.failed}"
    if artifact.conditions.interrupted:
        yield "interrupted: only what is shown was measured"
