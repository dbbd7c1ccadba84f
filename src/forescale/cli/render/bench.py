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


def bench_view(found: BenchArtifact) -> Group:
    """Return blocks with their times and what they keep, the step, its memory, and what is to be known."""
    where = found.conditions
    side = f", {where.num_copies} at a time" if where.num_copies > 1 else ""
    side += ", memory tracked on fake tensors: nothing was measured" if where.tracked else ""
    head = Text.assemble(
        (where.device, "bold"),
        f" · {counted(where.num_devices or 1, 'device')}{side} · {where.software} · {where.date}",
    )
    blocks = ("", _blocks(found)) if found.blocks or found.layers else ()
    return Group(head, *_cut(found), *blocks, "", *_lines(found))


def check_view(found: Checked) -> Table:
    """Return what was projected beside what it really took."""
    rows = table("", "projected", "measured", "off by")
    for name, said, took, write in (
        ("step", found.projected_s, found.measured_s, format_seconds),
        ("memory", found.projected_bytes, found.measured_bytes, format_bytes),
        ("allocated", found.projected_allocated_bytes, found.measured_allocated_bytes, format_bytes),
    ):
        rows.add_row(name, write(said), write(took), f"{said / took - 1.0:+.1%}")
    return rows


def next_view(found: Sequence[Proposed]) -> Table | str:
    """Return what to measure next, what is most at stake first."""
    if not found:
        return "nothing is left to time: what a step takes was measured, or lies between what was"
    rows = table("<to time next", "<of", "on", "takes", "of the step", "known within", "at stake")
    for each in found:
        origin = each.provenance
        rows.add_row(
            _words(each.primitive),
            each.operator,
            counted(each.num_ranks, "device"),
            format_seconds(each.seconds),
            f"{each.share:.1%}",
            f"× {origin.low:.2f} to {origin.high:.2f}",
            f"{each.at_stake:.1%}",
        )
    return rows


def next_values(found: Sequence[Proposed]) -> list[dict[str, Any]]:
    """Return proposals as plain values."""
    return [
        {
            "what": type(each.primitive).__name__,
            **asdict(each.primitive),
            **attributes(each, "operator", "num_ranks", "ranks_per_node", "seconds", "share"),
            **attributes(each.provenance, "low", "high"),
            "at_stake": each.at_stake,
        }
        for each in found
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


def _cut(found: BenchArtifact) -> Iterator[str]:
    if found.given_up:
        words = ", ".join(f"{each.dimension} {each.asked} → {each.measured}" for each in found.given_up)
        yield f"cut to what fits here: {words}"


def _blocks(found: BenchArtifact) -> Table:
    rows = table("<block", *(part.replace("_", " ") for part in PARTS), "kept")
    seconds = {(row.kind, row.part): row.seconds for row in found.blocks}
    kept = {row.kind: row.activation_bytes for row in found.layers}
    for kind in dict.fromkeys((*(row.kind for row in found.blocks), *kept)):
        times = [seconds.get((kind, part)) for part in PARTS]
        size = kept.get(kind)
        rows.add_row(
            kind,
            *("" if time is None else format_seconds(time) for time in times),
            "" if size is None else format_bytes(size),
        )
    return rows


def _lines(found: BenchArtifact) -> Iterator[str]:
    for step in found.steps:
        yield f"step      {format_seconds(step.seconds)} of {counted(step.num_microbatches, 'micro-batch')}"
        if step.p90_s is not None and step.p90_s > NOISY * step.seconds:
            yield f"          one in ten takes {format_seconds(step.p90_s)} or more: something else runs here too"
    if found.ranks:
        fullest = max(found.ranks, key=lambda rank: rank.peak_allocated_bytes)
        phases = ", ".join(
            f"{each.phase} {format_bytes(each.peak_allocated_bytes)}" for each in fullest.phases
        )
        yield f"memory    {format_bytes(fullest.peak_reserved_bytes)} at most, of rank {fullest.rank} ({phases})"
    if found.kernels or found.collectives:
        yield f"besides   {counted(len(found.kernels), 'kernel')}, {counted(len(found.collectives), 'message')}"
    if found.conditions.throttled:
        yield f"the device's clock was held down: {', '.join(found.conditions.throttled)}"
    if found.conditions.left_out:
        yield f"not measured: {'; '.join(found.conditions.left_out)} (more with a longer --seconds)"
    if found.conditions.failed:
        yield f"failed: {found.conditions.failed}"
    if found.conditions.interrupted:
        yield "interrupted: only what is shown was measured"
