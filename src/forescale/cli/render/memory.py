"""Memory anchored on a measurement, over one step, and of several layouts."""

from __future__ import annotations

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from forescale.cli.render import words
from forescale.cli.render.projection import STATE_COLUMNS, VERDICT_STYLE, header
from forescale.cli.render.words import table
from forescale.memory.anchored import AnchoredMemory
from forescale.memory.timeline import UPDATE, MemoryTimeline, PeakMoment, RankTimeline
from forescale.projection.result import MEMORY_PARTS, Projection
from forescale.report.memory_compare import MemoryComparison
from forescale.units import GIB, counted, format_seconds

LEVELS = "▁▂▃▄▅▆▇█"
MOST_RANKS, MOST_TENSORS = 8, 10
"""Rows of ranks and of tensors that fit one screen."""
LABEL = 40
"""Columns beside the drawn curve."""


def anchored_view(result: Projection, anchored: AnchoredMemory) -> Group:
    """Return the decomposition, both estimates and the verdict."""
    bench, measured = anchored.bench, anchored.bench.measured
    shown = table("<GiB", "", "<")
    for name, value, remark in _decomposition(anchored):
        shown.add_row(
            name, _gib(value), remark, style="bold" if name in ("point estimate", "upper bound") else None
        )
    way = "tracked" if bench.residual.tracked else "measured"
    corrections = [
        Text(
            f"activations of {correction.kind}: {way} {words.bytes_of(correction.measured_bytes)} a layer, "
            f"× {correction.factor:.3f} of the formulas"
        )
        for correction in bench.corrections
    ]
    reserved = "" if bench.residual.tracked else f", {_gib(measured.peak_reserved_bytes)} reserved"
    there = Text(
        f"{way} on rank {measured.rank} (stage {measured.stage}): {_gib(measured.peak_allocated_bytes)} GiB "
        f"allocated{reserved}; formulas say {_gib(bench.analytical_at_bench_bytes)} allocated"
    )
    return Group(
        *header(result),
        "",
        there,
        *corrections,
        "",
        shown,
        "",
        _verdict(anchored),
        *words.notes(result.notes),
    )


def _decomposition(anchored: AnchoredMemory) -> list[tuple[str, float, str]]:
    """Return name, bytes and remark of everything that the fullest rank's estimate is made of."""
    estimate = anchored.worst.estimate
    residual, share = estimate.residual, words.percent(estimate.residual_share)
    remarks = (
        "measured: reserved − allocated",
        "measured: allocated − formulas there",
        f"{share} of it measured",
        f"residual × {1.0 + estimate.safety_margin:g}",
    )
    if residual.tracked:
        remarks = (
            "formulas: what allocators reserve beyond",
            "tracked: allocated − formulas there",
            "",
            "of the formulas",
        )
    return [
        (f"formulas at rank {anchored.worst.stage} of the target", estimate.analytical_bytes, "all that formulas know"),
        ("framework overhead", residual.framework_overhead_bytes, remarks[0]),
        ("live-tensor excess", residual.live_tensor_excess_bytes, remarks[1]),
        ("point estimate", estimate.point_bytes, remarks[2]),
        ("upper bound", estimate.upper_bytes, remarks[3]),
    ]  # fmt: skip


def deltas_view(result: Projection, anchored: AnchoredMemory) -> Group:
    """Return formulas alone beside the anchored estimate, part by part."""
    rows = table("<GiB", "simulate", "benchmark", "difference", "")
    for name, simulated, measured in _both(result, anchored):
        share = words.percent(measured / simulated - 1.0) if simulated else ""
        cells = [_gib(simulated), _gib(measured), f"{(measured - simulated) / GIB:+.2f}", share]
        rows.add_row(name, *cells, style="bold" if name == "peak" else None)
    simulated_verdict = result.memory.verdict
    assemble = Text.assemble("simulate: ", (simulated_verdict, VERDICT_STYLE[simulated_verdict]))
    return Group(*header(result), "", rows, "", assemble, _verdict(anchored), *words.notes(result.notes))


def _both(result: Projection, anchored: AnchoredMemory) -> list[tuple[str, float, float]]:
    """Return name, simulated and anchored bytes of every part of the fullest anchored rank."""
    worst, residual = anchored.worst, anchored.worst.estimate.residual
    stage = result.memory.stages[worst.stage]
    alike = [
        (name, getattr(stage, f"{name}_bytes"), getattr(stage, f"{name}_bytes"))
        for name in ("weights", "gradients", "optimizer")
    ]
    return [
        *alike,
        ("activations", stage.activations_bytes, worst.activations_bytes),
        ("buffers", stage.buffers_bytes, stage.buffers_bytes),
        ("fragmentation, overhead", stage.fragmentation_bytes, residual.framework_overhead_bytes),
        ("live-tensor excess", 0.0, residual.live_tensor_excess_bytes),
        ("outside the allocator", stage.overhead_bytes - stage.fragmentation_bytes, worst.outside_bytes),
        ("peak", stage.peak_bytes, worst.estimate.point_bytes),
    ]


def _verdict(anchored: AnchoredMemory) -> Text:
    estimate = anchored.worst.estimate
    text = (
        f" {_gib(estimate.point_bytes)} GiB, at most {_gib(estimate.upper_bytes)}, of "
        f"{_gib(estimate.capacity_bytes)}; headroom {_gib(estimate.capacity_bytes - estimate.upper_bytes)}"
    )
    return Text.assemble((estimate.verdict, VERDICT_STYLE[estimate.verdict]), text)


def timeline_view(result: Projection, timeline: MemoryTimeline, *, width: int | None) -> Group:
    """Return every rank's memory over one step as a curve, and what lives at the highest peak; no width, no curve."""
    peak, shown = timeline.peak, _shown(timeline)
    columns = max(20, (width or 0) - LABEL)
    low, high = min(float(rank.allocated.min()) for rank in timeline.ranks), peak.allocated_bytes
    lines = [
        Text.assemble(
            f"rank {rank.rank:<4}",
            (curve(rank, timeline.step_time_s, columns, low, high) if width else "", "cyan"),
            f" {rank.peak.allocated_bytes / GIB:6.1f} GiB at {rank.peak.action}",
        )
        for rank in shown
    ]
    hidden = len(timeline.ranks) - len(shown)
    more = [Text(f"{counted(hidden, 'more rank')} (all with --json)", style="dim")] if hidden else []
    schedule = timeline.schedule
    title = Text(
        f"{schedule.name}, {counted(schedule.num_microbatches, 'micro-batch')}, "
        f"{format_seconds(timeline.step_time_s)}; allocated{', blocks' if width else ''} from {_gib(low)} to "
        f"{_gib(high)} GiB"
    )
    return Group(*header(result), "", title, *lines, *more, "", _named(peak, result), _tensors(peak))


def curve(rank: RankTimeline, step_time_s: float, columns: int, low: float, high: float) -> str:
    """Return the largest allocation in each of `columns` slices of the step, as blocks from `low` to `high`."""
    allocated = rank.allocated
    slices = np.clip((rank.time_s / step_time_s * columns).astype(int), 0, columns - 1)
    first = np.searchsorted(slices, np.arange(columns), side="left")
    carried = allocated[np.maximum(first - 1, 0)]  # what a slice begins with
    most = carried.copy()
    np.maximum.at(most, slices, allocated)
    steps = np.rint((most - low) / max(high - low, 1.0) * (len(LEVELS) - 1)).astype(int)
    return "".join(LEVELS[step] for step in np.clip(steps, 0, len(LEVELS) - 1))


def _shown(timeline: MemoryTimeline) -> list[RankTimeline]:
    """Return the ranks that fit: of too many the first, the last and the fullest."""
    ranks = timeline.ranks
    if len(ranks) <= MOST_RANKS:
        return list(ranks)
    requested = {*range(MOST_RANKS - 3), len(ranks) - 2, len(ranks) - 1, timeline.peak.rank}
    return [rank for rank in ranks if rank.rank in requested]


def _named(peak: PeakMoment, result: Projection) -> Text:
    where = (
        "while the optimizer updates"
        if peak.action == UPDATE
        else f"in {peak.action} (stage {peak.stage}) at {format_seconds(peak.time_s)}, "
        f"{counted(peak.in_flight, 'pass')} held"
    )
    capacity = result.memory.capacity_bytes
    share = words.percent(peak.allocated_bytes / capacity)
    return Text(
        f"peak: rank {peak.rank} {where}: {_gib(peak.allocated_bytes)} GiB allocated, {share} of the device",
        style="bold",
    )


def _tensors(peak: PeakMoment) -> Table:
    rows = table("<what lives there", "GiB", "share")
    for tensor in peak.tensors[:MOST_TENSORS]:
        share = words.percent(tensor.num_bytes / peak.allocated_bytes)
        rows.add_row(f"{tensor.owner}: {tensor.name}", _gib(tensor.num_bytes), share)
    rest = peak.tensors[MOST_TENSORS:]
    if rest:
        size = sum(tensor.num_bytes for tensor in rest)
        share = words.percent(size / peak.allocated_bytes)
        rows.add_row(f"{counted(len(rest), 'other')}", _gib(size), share, style="dim")
    return rows


def comparison_view(memory_comparison: MemoryComparison) -> Group:
    """Return one row per value: the parts of the fullest rank, verdict and step time."""
    first = memory_comparison.rows[0].projection
    title = Text.assemble(
        (first.model.name, "bold"),
        f" on {first.cluster.num_devices:,} × {first.cluster.name}, "
        f"GiB on the fullest device by {memory_comparison.across}",
        f" · preset {first.preset}",
    )
    rows = table(
        f"<{memory_comparison.across}", *(STATE_COLUMNS[name] for name in MEMORY_PARTS), "peak", "", "step"
    )
    for row in memory_comparison.rows:
        stage, verdict = row.fullest, row.projection.memory.verdict
        time = row.projection.step_time_s
        rows.add_row(
            row.value,
            *(words.gib(getattr(stage, f"{name}_bytes")) for name in MEMORY_PARTS),
            words.gib(stage.peak_bytes),
            Text(verdict, style=VERDICT_STYLE[verdict]),
            format_seconds(time) if time else "–",
        )
    refused = [
        Text(f"{value}: {reason}", style="yellow") for value, reason in memory_comparison.refused.items()
    ]
    capacity = Text(f"{first.cluster.device.name} has {_gib(first.memory.capacity_bytes)} GiB", style="dim")
    return Group(title, "", rows, "", capacity, *refused)


def _gib(value: float) -> str:
    return f"{value / GIB:.2f}"
