"""A projection on one screen."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec.structs import replace

from forescale.cli.render import words
from forescale.formula import number_of
from forescale.projection.result import MemorySummary, Projection, StageMemory
from forescale.report.document import Beside, Cell, Content, Table, TextLine, View, facts, line, styled, table
from forescale.spec import phrases
from forescale.units import GB, GIB, counted, format_bytes, format_count, format_prefixed, format_seconds

MAX_PARTS = 9
MAX_STAGES = 4
MEMORY_STAGES = 12
"""Rows of stages, next to other figures and alone."""
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
SIDES = ("simulate", "benchmark", "difference", "")
CALIBRATED = 0.2
"""Difference up to which models count as calibrated (Primus projection documentation: within about 10 to 20 %)."""


def projection_view(result: Projection) -> View:
    """Return assumptions, time by part, key figures and memory by stage."""
    if not result.step_time_s:  # an account of memory only
        view = memory_view(result)
        return replace(view, contents=(*view.contents, *_communication(result)))
    tables = Beside((_times(result), facts(_figures(result))))
    return headed(result, [tables, *restored_table(result), *_memory_table(result.memory)])


def _communication(result: Projection) -> tuple[Table, ...]:
    """Return the ratios of an account, with what a rank sends."""
    if not result.communication:
        return ()
    rows = [
        (item.part, item.name, f"{item.ratio:.3g}", *map(_size, (item.payload_bytes, item.volume_bytes)))
        for item in result.communication
    ]
    return (table("<communication", "<to compute", "ratio", "one message", "rank and step", rows=rows),)


def _size(value: float | None) -> str:
    return "–" if value is None else f"{value / GB:.3g} GB"


def headed(result: Projection, contents: Iterable[Content]) -> View:
    """Return a view of a projection: the question, its assumptions, contents and notes."""
    layout = line(
        f"{phrases.layout(result.strategy)} · {counted(result.num_microbatches, 'micro-batch')} per step",
        style="cyan",
    )
    return View(
        title=words.asked(result.model, result.cluster),
        lead=words.lead(result.workload, result.preset),
        contents=(layout, *contents),
        notes=result.notes,
    )


def sides_view(simulated: Projection, restored: Projection, measured: Collection[str]) -> View:
    """Return what models alone say next to what follows from a measurement, part by part.

    Parameters
    ----------
    measured
        What of "step" and "peak memory" was measured.
    """
    parts = [name for name in simulated.time_s if simulated.time_s[name] or restored.time_s[name]]
    parts.sort(key=lambda name: -restored.time_s[name])
    one, other = (
        max(item.memory.stages, key=lambda stage: stage.peak_bytes) for item in (simulated, restored)
    )
    times = [
        *(side(words.time_part(name), simulated.time_s[name], restored.time_s[name]) for name in parts),
        styled("bold", side("step", simulated.step_time_s, restored.step_time_s)),
    ]
    states = [
        side(title, *(getattr(stage, f"{name}_bytes") / GIB for stage in (one, other)))
        for name, title in STATE_COLUMNS.items()
    ]
    message = line(
        "simulate: ", *_verdict(simulated.memory).parts, "   benchmark: ", *_verdict(restored.memory).parts
    )
    off = {
        "step": simulated.step_time_s / restored.step_time_s - 1.0,
        "peak memory": one.peak_bytes / other.peak_bytes - 1.0,
    }
    return headed(
        restored,
        [
            table("<seconds", *SIDES, rows=times),
            *restored_table(restored),
            table("<GiB, fullest device", *SIDES, rows=[*states[:-1], styled("bold", states[-1])]),
            message,
            *(
                _judged(name, share) if name in measured else line(f"{name}: not measured")
                for name, share in off.items()
            ),
        ],
    )


def _judged(name: str, share: float) -> TextLine:
    """Return how far models alone are from what follows from a measurement."""
    return line(
        f"{name}: models are {words.percent(abs(share))} {'above' if share > 0 else 'below'} the measurement, "
        f"{'calibrated' if abs(share) <= CALIBRATED else 'not calibrated'} (within {words.percent(CALIBRATED, 0)})"
    )


def side(name: str, simulated: float, measured: float, digits: int = 3) -> tuple[str, ...]:
    """Return the row of one part under `SIDES`."""
    share = words.percent(measured / simulated - 1.0) if simulated else ""
    values = (f"{simulated:.{digits}f}", f"{measured:.{digits}f}", f"{measured - simulated:+.{digits}f}")
    return (name, *values, share)


def restored_table(result: Projection) -> list[Table]:
    """Return what of the step was measured or restored from what was, and by which ratio of the models."""
    rows = () if result.costs is None else result.costs.restored
    if not rows:
        return []
    title = {"model": "× models' ratio", "primus": "× tp's ratio"}[rows[0].rule]
    cells = (
        (
            row.block,
            words.pass_name(row.part),
            format_seconds(row.measured_s),
            f"{row.ratio:.4g}",
            format_seconds(row.seconds),
            row.kind,
        )
        for row in rows
    )
    return [table("<from measured work", "<", "at the bench", title, "here", "<", rows=cells)]


def memory_view(result: Projection) -> View:
    """Return memory only."""
    memory = result.memory
    on_device = format_count(result.params.per_device_max)
    interval = _peak_interval(memory)
    rest = f", {interval} (80 % interval)" if interval else ""
    lines = (
        line(*_verdict(memory).parts, rest),
        line(f"parameters {_parameters(result)}, {on_device} on the fullest device; {_checkpoint(result)}"),
        *_tower_memory(result),
    )
    return headed(result, [*_memory_table(memory, most=MEMORY_STAGES), *lines])


def _checkpoint(result: Projection) -> str:
    """Return the bytes of a checkpoint with weights and optimizer states."""
    from forescale.goodput.operations import checkpoint_of
    from forescale.graph.counts import count_saved

    saved = count_saved(result.model, result.workload.trainable)
    size = number_of(checkpoint_of(saved, result.workload.precision))
    return f"a checkpoint has {words.decimal_bytes(size)}"


def _times(result: Projection) -> Table:
    """Return seconds and share by part, largest first, the smallest together."""
    parts = sorted(((value, name) for name, value in result.time_s.items() if value), reverse=True)
    if len(parts) > MAX_PARTS:
        rest = parts[MAX_PARTS - 1 :]
        parts = [*parts[: MAX_PARTS - 1], (sum(value for value, _ in rest), f"{counted(len(rest), 'other')}")]
    rows = [
        (words.time_part(name), f"{value:.3f}", words.percent(value / result.step_time_s))
        for value, name in parts
    ]
    last = styled("bold", ("step", f"{result.step_time_s:.3f}", words.percent(1.0)))
    return table("<time by part", "seconds", "share", rows=[*rows, last])


def _figures(result: Projection) -> list[tuple[str, Cell]]:
    """Return the figures that people ask for."""
    step, memory = result.step_time, result.memory
    interval = f" ({step.low:.3g} to {step.high:.3g})" if step.low < step.high else ""
    peak = _peak_interval(memory)
    rows: list[tuple[str, Cell]] = [
        ("step time", f"{format_seconds(step.expected)}{interval}"),
        ("tokens/s/device", f"{result.tokens_per_s_per_device:,.0f}"),
        ("tokens/day", format_count(result.tokens_per_day)),
        ("MFU", f"{words.percent(result.mfu)} causal, {words.percent(result.mfu_full_attention)} full"),
        ("HFU", f"{words.percent(result.hfu)} with recompute"),
        ("model FLOPs", f"{format_prefixed(result.model_flops_per_step, 'FLOP')}/step, causal"),
        ("parameters", _parameters(result)),
        ("fullest device", f"{format_count(result.params.per_device_max)} parameters"),
        *_tower(result),
        *_sites(result),
        ("memory", _verdict(memory)),
        *([("  range", peak)] if peak else []),
    ]
    if result.training_days is not None:
        tokens = format_count(result.workload.tokens or 0.0)
        rows.append(("training", f"{result.training_days:,.1f} days for {tokens} tokens, without failures"))
        rows += [("", words.calendar(result))] if words.ends(result) else []
    return rows


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
            f"{format_prefixed(8.0 * sites.bandwidth, 'bit/s')}{kept}",
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


def _tower_memory(result: Projection) -> list[TextLine]:
    """Return the memory of a vision tower on the first stage, if there is one."""
    if (tower := result.vision) is None:
        return []
    states, activations = format_bytes(tower.states_bytes), format_bytes(tower.activations_bytes)
    text = f"vision tower {format_count(tower.parameters)} parameters of these, on stage 0"
    return [line(f"{text}: {states} of states, {activations} of activations per micro-batch")]


def _peak_interval(memory: MemorySummary) -> str:
    """Return the interval of the peak; "" for a preset, which states a single figure."""
    low, high = memory.peak_low_bytes, memory.peak_high_bytes
    return f"{low / GIB:.1f} to {high / GIB:.1f} GiB" if low < high else ""


def _verdict(memory: MemorySummary) -> TextLine:
    text = f" {memory.peak_bytes / GIB:.2f} of {memory.capacity_bytes / GIB:.2f} GiB"
    return words.verdict(memory.verdict, text + words.over_host(memory) + words.over(memory))


def _memory_table(memory: MemorySummary, most: int = MAX_STAGES) -> list[Content]:
    """Return bytes by stage and part; equal neighbours share a row, the worst stage is marked."""
    worst = max(memory.stages, key=lambda stage: stage.peak_bytes)
    shown = _grouped(memory.stages, worst, most)
    rows = [
        styled(
            "bold" if worst in group else "",
            (_stage_name(group, marked=worst in group), *_stage_cells(group[0])),
        )
        for group in shown
    ]
    hidden = len(memory.stages) - sum(len(group) for group in shown)
    more = f"{counted(hidden, 'more stage')}, each below the worst (all with --json)"
    frozen = f"of the weights of stage {worst.stage}, {words.gib(worst.frozen_bytes)} GiB are frozen"
    below = [(more, hidden), (frozen, worst.frozen_bytes)]
    return [
        table("<GiB, stage", "layers", *STATE_COLUMNS.values(), rows=rows),
        *(line(text, style="dim") for text, shown_if in below if shown_if),
    ]


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
