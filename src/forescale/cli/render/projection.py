"""A projection on one screen."""

from __future__ import annotations

from collections.abc import Collection

from rich.console import Group
from rich.table import Table
from rich.text import Text

from forescale.cli.render import words
from forescale.cli.render.words import asked, table
from forescale.projection.result import MemorySummary, Projection, StageMemory
from forescale.spec import phrases
from forescale.units import GIB, counted, format_bytes, format_count, format_seconds

MAX_PARTS = 9
MAX_STAGES = 4
MEMORY_STAGES = 12
"""Rows of stages, beside other figures and alone."""
STATE_COLUMNS = {
    "weights": "weights",
    "gradients": "grads",
    "optimizer": "optim",
    "activations": "activ",
    "buffers": "buffers",
    "overhead": "overhead",
    "peak": "peak",
}
"""Header of every part of memory, short enough for 80 columns."""
VERDICT_STYLE = {"FITS": "bold green", "AT RISK": "bold yellow", "OOM": "bold red"}


def projection_view(result: Projection) -> Group:
    """Return assumptions, time by part, key figures and memory by stage."""
    if not result.step_time_s:  # an account of memory only
        return memory_view(result)
    side_by_side = Table.grid(padding=(0, 4))
    side_by_side.add_row(_times(result), _figures(result))
    return Group(
        *header(result),
        "",
        side_by_side,
        *restored_view(result),
        "",
        _memory_table(result.memory),
        *words.notes(result.notes),
    )


CALIBRATED = 0.2
"""Difference up to which models count as calibrated (Primus projection documentation: within about 10 to 20 %)."""


def sides_view(simulated: Projection, restored: Projection, measured: Collection[str]) -> Group:
    """Return what models alone say next to what follows from a measurement, part by part.

    Parameters
    ----------
    measured
        What of "step" and "peak memory" was measured.
    """
    parts = [name for name in simulated.time_s if simulated.time_s[name] or restored.time_s[name]]
    times = table("<seconds", "simulate", "benchmark", "difference", "")
    for name in sorted(parts, key=lambda item: -restored.time_s[item]):
        _side(times, words.time_part(name), simulated.time_s[name], restored.time_s[name])
    _side(times, "step", simulated.step_time_s, restored.step_time_s, style="bold")
    one, other = (
        max(item.memory.stages, key=lambda stage: stage.peak_bytes) for item in (simulated, restored)
    )
    memory = table("<GiB, fullest device", "simulate", "benchmark", "difference", "")
    for name, title in STATE_COLUMNS.items():
        alone, anchored = (getattr(stage, f"{name}_bytes") / GIB for stage in (one, other))
        _side(memory, title, alone, anchored, style="bold" if name == "peak" else None)
    assemble = Text.assemble(
        "simulate: ", _verdict(simulated.memory), "   benchmark: ", _verdict(restored.memory)
    )
    off = {
        "step": simulated.step_time_s / restored.step_time_s - 1.0,
        "peak memory": one.peak_bytes / other.peak_bytes - 1.0,
    }
    judged = [
        _judged(name, share) if name in measured else Text(f"{name}: not measured")
        for name, share in off.items()
    ]
    shown = (times, *restored_view(restored), "", memory, "", assemble, *judged)
    return Group(*header(restored), "", *shown, *words.notes(restored.notes))


def _judged(name: str, share: float) -> Text:
    """Return how far models alone are from what follows from a measurement."""
    return Text(
        f"{name}: models are {words.percent(abs(share))} {'above' if share > 0 else 'below'} the measurement, "
        f"{'calibrated' if abs(share) <= CALIBRATED else 'not calibrated'} (within {words.percent(CALIBRATED, 0)})"
    )


def _side(rows: Table, name: str, simulated: float, restored: float, style: str | None = None) -> None:
    share = words.percent(restored / simulated - 1.0) if simulated else ""
    cells = (f"{simulated:.3f}", f"{restored:.3f}", f"{restored - simulated:+.3f}", share)
    rows.add_row(name, *cells, style=style)


def restored_view(result: Projection) -> list[Table | str]:
    """Return what of the step was measured or restored from what was, and by which ratio of the models."""
    rows = () if result.costs is None else result.costs.restored
    if not rows:
        return []
    title = {"model": "× models' ratio", "primus": "× tp's ratio"}[rows[0].rule]
    results_found = table("<from measured work", "<", "at the bench", title, "here", "<")
    for row in rows:
        cells = (format_seconds(row.measured_s), f"{row.ratio:.4g}", format_seconds(row.seconds), row.kind)
        results_found.add_row(row.block, words.pass_name(row.part), *cells)
    return ["", results_found]


def memory_view(result: Projection) -> Group:
    """Return memory only."""
    memory = result.memory
    on_device = format_count(result.params.per_device_max)
    interval = _peak_interval(memory)
    lines = [
        Text.assemble(_verdict(memory), f", {interval} in 8 cases of 10" if interval else ""),
        Text(f"parameters {_parameters(result)}, {on_device} on the fullest device"),
    ]
    stages = _memory_table(result.memory, most=MEMORY_STAGES)
    return Group(*header(result), "", stages, "", *lines, *words.notes(result.notes))


def header(result: Projection) -> list[Text]:
    """Return the question and its assumptions."""
    return [
        asked(result.model, result.cluster, f"{words.workload(result.workload)} · preset {result.preset}"),
        Text(
            f"{phrases.layout(result.strategy)} · {counted(result.num_microbatches, 'micro-batch')} per step",
            style="cyan",
        ),
        *words.left_out(result.model),
    ]


def _times(result: Projection) -> Table:
    """Return seconds and share by part, largest first, the smallest together."""
    results_found = table("<time by part", "seconds", "share")
    parts = sorted(((value, name) for name, value in result.time_s.items() if value), reverse=True)
    shown, rest = (parts, []) if len(parts) <= MAX_PARTS else (parts[: MAX_PARTS - 1], parts[MAX_PARTS - 1 :])
    rows = [*shown, *([(sum(value for value, _ in rest), f"{counted(len(rest), 'other')}")] if rest else [])]
    for value, name in rows:
        results_found.add_row(
            words.time_part(name), f"{value:.3f}", words.percent(value / result.step_time_s)
        )
    results_found.add_row("step", f"{result.step_time_s:.3f}", words.percent(1.0), style="bold")
    return results_found


def _figures(result: Projection) -> Table:
    """Return the figures that people ask for."""
    step, memory = result.step_time, result.memory
    interval = f" ({step.low:.3g} to {step.high:.3g})" if step.low < step.high else ""
    peak = _peak_interval(memory)
    rows: list[tuple[str, str | Text]] = [
        ("step time", f"{format_seconds(step.expected)}{interval}"),
        ("tokens/s/device", f"{result.tokens_per_s_per_device:,.0f}"),
        ("MFU", f"{words.percent(result.mfu)} causal, {words.percent(result.mfu_full_attention)} full"),
        ("HFU", f"{words.percent(result.hfu)} with recompute"),
        ("model FLOPs", f"{words.prefixed(result.model_flops_per_step, 'FLOP')}/step, causal"),
        ("parameters", _parameters(result)),
        ("fullest device", f"{format_count(result.params.per_device_max)} parameters"),
        *_tower(result),
        *_sites(result),
        ("memory", _verdict(memory)),
        *([("  range", peak)] if peak else []),
    ]
    if result.training_days is not None:
        tokens = format_count(result.workload.tokens or 0.0)
        rows.append(("training", f"{result.training_days:,.1f} days for {tokens} tokens, if nothing failed"))
        rows.append(("", words.calendar(result)))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    for name, text in rows:
        grid.add_row(name, text)
    return grid


def _parameters(result: Projection) -> str:
    params = result.params
    active = f", {format_count(params.active)} active" if result.model.is_moe else ""
    trained = f", {format_count(params.trained)} trained" if not result.workload.trainable.is_all else ""
    return f"{format_count(params.total)}{active}{trained}"


def _sites(result: Projection) -> list[tuple[str, str]]:
    sites, outer = result.sites, result.workload.outer
    if sites is None or outer is None:
        return []
    kept = f", {format_bytes(sites.host_bytes)} on the host of each device" if sites.host_bytes else ""
    return [
        (
            f"{sites.num_sites} sites",
            f"{outer.method}, {outer.every} steps, {format_bytes(sites.exchanged_bytes)} over "
            f"{words.prefixed(8.0 * sites.bandwidth, 'bit/s')}{kept}",
        ),
        (
            "  computing",
            f"{words.percent(sites.utilisation)} of the time; {format_seconds(sites.site_step_s)} by itself",
        ),
        ("  together", f"{format_seconds(sites.every_step_s)} with gradients reduced in every step"),
    ]


def _tower(result: Projection) -> list[tuple[str, str]]:
    """Return the row of a vision tower, if there is one."""
    if (tower := result.vision) is None:
        return []
    share = words.percent(tower.model_flops_per_step / result.model_flops_per_step)
    text = f"{format_count(tower.parameters)}, {share} of FLOPs, {tower.image_tokens:,} tokens"
    return [("vision tower", text)]


def _peak_interval(memory: MemorySummary) -> str:
    """Return the interval of the peak; "" for a preset, which states a single figure."""
    low, high = memory.peak_low_bytes, memory.peak_high_bytes
    return f"{low / GIB:.1f} to {high / GIB:.1f} GiB" if low < high else ""


def _verdict(memory: MemorySummary) -> Text:
    text = f" {memory.peak_bytes / GIB:.2f} of {memory.capacity_bytes / GIB:.2f} GiB"
    return Text.assemble((memory.verdict, VERDICT_STYLE[memory.verdict]), text)


def _memory_table(memory: MemorySummary, most: int = MAX_STAGES) -> Group:
    """Return bytes by stage and part; equal neighbours share a row, the worst stage is marked."""
    rows = table("<GiB, stage", "layers", *STATE_COLUMNS.values())
    worst = max(memory.stages, key=lambda stage: stage.peak_bytes)
    shown = _grouped(memory.stages, worst, most)
    for group in shown:
        marked = worst in group
        rows.add_row(
            _stage_name(group, marked=marked), *_stage_cells(group[0]), style="bold" if marked else None
        )
    hidden = len(memory.stages) - sum(len(group) for group in shown)
    more = f"{counted(hidden, 'more stage')}, each below the worst (all with --json)"
    frozen = f"of the weights of stage {worst.stage}, {words.gib(worst.frozen_bytes)} GiB are frozen"
    below = [(more, hidden), (frozen, worst.frozen_bytes)]
    return Group(rows, *(Text(text, style="dim") for text, explicit in below if explicit))


def _grouped(stages: tuple[StageMemory, ...], worst: StageMemory, most: int) -> list[list[StageMemory]]:
    """Return runs of equal stages; of too many the first, the last and the fullest."""
    runs: list[list[StageMemory]] = []
    for stage in stages:
        if runs and _stage_cells(runs[-1][0]) == _stage_cells(stage) and worst not in (stage, runs[-1][0]):
            runs[-1].append(stage)
        else:
            runs.append([stage])
    if len(runs) <= most:
        return runs
    by_peak = sorted(runs, key=lambda run: -run[0].peak_bytes)
    requested = {id(run) for run in (runs[0], runs[-1], *[run for run in runs if worst in run])}
    for run in by_peak:
        if len(requested) < most:
            requested.add(id(run))
    return [run for run in runs if id(run) in requested]


def _stage_name(group: list[StageMemory], *, marked: bool) -> str:
    first, last = group[0].stage, group[-1].stage
    return f"{'▶' if marked else ' '} {first}" + (f"–{last}" if last != first else "")


def _stage_cells(stage: StageMemory) -> list[str]:
    return [str(stage.num_layers), *(words.gib(getattr(stage, f"{name}_bytes")) for name in STATE_COLUMNS)]
