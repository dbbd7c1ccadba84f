"""What a bench measured, on one screen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from forescale.cli.render.words import table
from forescale.cost.timings import Part
from forescale.formula import number_of
from forescale.graph.ops import AttentionCore, Collective, Gemm, GroupedGemm, Primitive
from forescale.io.bench import BenchArtifact
from forescale.struct import attributes
from forescale.units import counted, format_bytes, format_seconds

if TYPE_CHECKING:
    from forescale.bench.measure import Checked
    from forescale.bench.suite import Proposed

PARTS: tuple[Part, ...] = ("forward", "backward", "input_gradient", "weight_gradient", "update")
NOISY = 1.3
"""p90 over the median of a step from which on the machine is said to be busy with something else."""


def bench_view(artifact: BenchArtifact) -> Group:
    """Return blocks with their times and what they keep, the step, its memory, and what is to be known."""
    where = artifact.conditions
    side = f", {where.num_copies} at a time" if where.num_copies > 1 else ""
    side += ", memory tracked on fake tensors: nothing was measured" if where.tracked else ""
    head = Text.assemble(
        (where.device, "bold"),
        f" · {counted(where.num_devices or 1, 'device')}{side} · {where.software} · {where.date}",
    )
    blocks = ("", _blocks(artifact)) if artifact.blocks or artifact.layers else ()
    return Group(head, *_cut(artifact), *blocks, "", *_lines(artifact))


def check_view(checked: Checked) -> Table:
    """Return what was projected beside what it really took."""
    rows = table("", "projected", "measured", "off by")
    for name, message, took, write in (
        ("step", checked.projected_s, checked.measured_s, format_seconds),
        ("memory", checked.projected_bytes, checked.measured_bytes, format_bytes),
        ("allocated", checked.projected_allocated_bytes, checked.measured_allocated_bytes, format_bytes),
    ):
        rows.add_row(name, write(message), write(took), f"{message / took - 1.0:+.1%}")
    return rows


def next_view(proposeds: Sequence[Proposed]) -> Table | str:
    """Return what to measure next, what is most at stake first."""
    if not proposeds:
        return "nothing is left to time: what a step takes was measured, or lies between what was"
    rows = table("<to time next", "<of", "on", "takes", "of the step", "known within", "at stake")
    for item in proposeds:
        origin = item.provenance
        rows.add_row(
            _words(item.primitive),
            item.operator,
            counted(item.num_ranks, "device"),
            format_seconds(item.seconds),
            f"{item.share:.1%}",
            f"× {origin.low:.2f} to {origin.high:.2f}",
            f"{item.at_stake:.1%}",
        )
    return rows


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
        case _:
            return f"{op.family} of {format_bytes(number_of(op.bytes_moved))}"


def _cut(artifact: BenchArtifact) -> Iterator[str]:
    if artifact.given_up:
        parts = ", ".join(f"{item.dimension} {item.asked} → {item.measured}" for item in artifact.given_up)
        yield f"cut to what fits here: {parts}"


def _blocks(artifact: BenchArtifact) -> Table:
    rows = table("<block", *(part.replace("_", " ") for part in PARTS), "kept")
    seconds = {(row.kind, row.part): row.seconds for row in artifact.blocks}
    kept = {row.kind: row.activation_bytes for row in artifact.layers}
    for kind in dict.fromkeys((*(row.kind for row in artifact.blocks), *kept)):
        times = [seconds.get((kind, part)) for part in PARTS]
        size = kept.get(kind)
        rows.add_row(
            kind,
            *("" if time is None else format_seconds(time) for time in times),
            "" if size is None else format_bytes(size),
        )
    return rows


def _lines(artifact: BenchArtifact) -> Iterator[str]:
    for step in artifact.steps:
        yield f"step      {format_seconds(step.seconds)} of {counted(step.num_microbatches, 'micro-batch')}"
        if step.p90_s is not None and step.p90_s > NOISY * step.seconds:
            yield f"          one in ten takes {format_seconds(step.p90_s)} or more: something else runs here too"
    if artifact.ranks:
        fullest = max(artifact.ranks, key=lambda rank: rank.peak_allocated_bytes)
        phases = ", ".join(
            f"{phase.phase} {format_bytes(phase.peak_allocated_bytes)}" for phase in fullest.phases
        )
        yield f"memory    {format_bytes(fullest.peak_reserved_bytes)} at most, of rank {fullest.rank} ({phases})"
    if artifact.kernels or artifact.collectives:
        yield f"besides   {counted(len(artifact.kernels), 'kernel')}, {counted(len(artifact.collectives), 'message')}"
    if artifact.conditions.throttled:
        yield f"the device's clock was held down: {', '.join(artifact.conditions.throttled)}"
    if artifact.conditions.left_out:
        yield f"not measured: {'; '.join(artifact.conditions.left_out)} (more with a longer --seconds)"
    if artifact.conditions.failed:
        yield f"failed: {artifact.conditions.failed}"
    if artifact.conditions.interrupted:
        yield "interrupted: only what is shown was measured"
