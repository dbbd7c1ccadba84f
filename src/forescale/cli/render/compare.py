"""Two projections side by side."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from forescale.cli.render import words
from forescale.cli.render.search import verdict_legend
from forescale.projection.result import MemorySummary
from forescale.question import Note
from forescale.report.document import Beside, Cell, Code, Content, TextLine, View, line, styled, table
from forescale.search.compare import Change, Comparison, Difference
from forescale.search.machines import Machine, Machines
from forescale.spec.phrases import layout
from forescale.units import GIB, counted, format_seconds
from forescale.whole_run.prices import published_prices

SIDES = ("A", "B", "B − A")
STATES = frozenset(
    ("optimizer", "zero", "moment-dtype", "second-moment-dtype", "master-dtype", "offload-optimizer")
)
"""Options that change the bytes of the optimizer, which then have a column."""
SAME = 5e-4
"""Share below which a lead is shown as none."""
CHEAP = 100.0
"""Cost below which its hundredths are shown."""
_PATH = re.compile(r"\bcluster\.(?:device\.|tiers\.)?")
"""What a key of the cluster begins with, which a table leaves out."""
MAX_REASONS, MAX_PARTS, SMALLEST = 3, 4, 0.02
"""Rows whose differences are shown, parts of the step of each, and the least share of the difference of a part."""
NAMED = 3
"""Models that a title names."""
MAX_CHANGES = 8
"""Choices shown; the rest are counted."""


def comparison_view(result: Comparison) -> View:
    """Return what was chosen differently, then time and memory part by part, then the outcome."""
    memory = result.memory
    times = table("<seconds", *SIDES, rows=_times(result))
    states = table(f"<GiB, stage {memory.stage_a} | {memory.stage_b}", *SIDES, rows=_memory(result))
    return View(
        contents=(
            line(("A ", "bold"), result.name_a, ("   B ", "bold"), result.name_b),
            *(
                line(f"not only the layout differs: {_arrow(change)}", style="yellow")
                for change in result.question
            ),
            _changed(result.layout),
            Beside((times, states)),
            _outcome(result),
        )
    )


def _changed(changes: tuple[Change, ...]) -> TextLine:
    if not changes:
        return line("the layouts are the same", style="dim")
    rest = len(changes) - MAX_CHANGES
    more = [f"{rest} more (all with --json)"] if rest > 0 else []
    return line(" · ".join([*map(_arrow, changes[:MAX_CHANGES]), *more]), style="cyan")


def _arrow(change: Change) -> str:
    return f"{change.name.removeprefix('strategy.')} {words.plain(change.a)} → {words.plain(change.b)}"


def _times(result: Comparison) -> Iterator[tuple[Cell, ...]]:
    """Yield seconds by part, the largest difference first."""
    for part in sorted(result.time_parts, key=lambda part: -abs(part.difference or 0.0)):
        yield _row(words.time_part(part.name), part, "{:.3f}".format)
    yield styled("bold", _row("step", result.step_time, "{:.3f}".format))


def _memory(result: Comparison) -> Iterator[tuple[Cell, ...]]:
    """Yield GiB by part on the fullest stage of each."""
    memory = result.memory
    for part in memory.parts:
        if part.a or part.b:
            yield _row(part.name, part, _gib)
    yield styled("bold", _row(memory.peak.name, memory.peak, _gib))
    yield ("verdict", memory.verdict_a, memory.verdict_b, "")
    for figure in result.figures:
        if figure.name in ("mfu", "hfu"):
            yield _row(figure.name, figure, words.percent)


def _gib(value: float) -> str:
    return f"{value / GIB:.2f}"


def _row(name: str, part: Difference, text: Callable[[float], str]) -> tuple[str, ...]:
    shown = ["–" if value is None else text(abs(value)) for value in (part.a, part.b, part.difference)]
    if part.difference and shown[2] != text(0.0):
        shown[2] = f"{'+' if part.difference > 0.0 else '−'}{shown[2]}"
    return (name, *shown)


def _outcome(result: Comparison) -> TextLine:
    """Return which is faster, by how much, and what contributes most."""
    a, b = result.step_time.a or 0.0, result.step_time.b or 0.0
    if a == b:
        return line("both take the same time")
    faster, slower, sign = ("B", "A", -1.0) if b < a else ("A", "B", 1.0)
    part = max(result.time_parts, key=lambda part: sign * (part.difference or 0.0))
    most = format_seconds(abs(part.difference or 0.0))
    share = words.percent(abs(b - a) / max(a, b))
    return line(
        (f"{faster} is faster", "bold"),
        f" by {format_seconds(abs(b - a))} ({share} of {slower}); the largest part of it is "
        f"{words.time_part(part.name)}: {most}",
    )


def machines_view(result: Machines, again: str = "") -> View:
    """Return one row per machine or value, which is the fastest and the cheapest, and the line that asks it again."""
    columns = _columns(result)
    contents: list[Content] = [table(*columns, rows=_machines(result), gap=1 if "comm" in columns else 2)]
    best = result.fastest
    if best is not None:
        rate = "" if best.projection is None else words.rate(best.projection)
        contents.append(line(("fastest", "bold"), f": {_place(best)}, {rate}{_lead_over(result)}"))
        contents += verdict_legend(item.projection for item in result.fitting if item.projection is not None)
    priced = {item.cost_per_million_tokens: item for item in result.fitting if item.cost_per_million_tokens}
    if priced:
        cost, cheapest = min(priced.items())
        unit = "per million tokens" if result.priced else "USD per million tokens at list prices"
        unpriced = {item.cluster for item in result.fitting if item.cost_per_million_tokens is None}
        others = f" ({', '.join(unpriced)} not counted: no list price, --price)" if unpriced else ""
        text = f": {_place(cheapest)}, {cost:.3g} {unit}{others}"
        contents.append(line(("cheapest", "bold"), text))
        contents += [] if result.priced else _list_prices(result)
    if best is None:
        is_given = all(item.chosen == "given" and not item.problem for item in result.machines)
        fix = "leave options of the layout out for the best one of each, or ask" if is_given else "ask"
        text = f"nothing fits: {fix} forescale fit on one cluster for changes, such as offloading"
        contents.append(line(text))
    if _varies(result) and len(result.reasons) <= MAX_REASONS:
        contents += [_reason(*item) for item in result.reasons if any(part.difference for part in item[2])]
    if "comm" in columns:
        contents.append(line(words.COMMUNICATION, style="dim"))
    if result.combined is not None:
        clusters, sizes = result.combined
        pairs = ",".join(f"{item.devices}x{item.cluster}" for item in _diagonal(result))
        text = f"{clusters} clusters × {sizes} numbers of devices: every combination; --cluster {pairs} compares pairs"
        contents.append(line(text, style="dim"))
    if _layouts_differ(result):
        contents.append(line("each row has its own best layout; degrees such as --tp 8 hold one in all"))
    if any(item.chosen == "smallest" for item in result.machines if item.projection is not None):
        contents.append(line("OOM: no layout fits on this machine; the row has the smallest"))
    illegal = (item for item in result.machines if item.problem and item.projection is None)
    contents += [line(f"{_place(item)}: {item.problem}") for item in illegal]
    contents += [Code("to reproduce the fastest", again)] if again else []
    return View(title=_title(result), lead=_lead(result), contents=tuple(contents), notes=_assumed(result))


def _list_prices(result: Machines) -> list[TextLine]:
    """Return the list prices of the devices, with sources and dates; nothing of prices that files give."""
    clusters = [
        item.projection.cluster
        for item in result.machines
        if item.projection and item.cost_per_million_tokens
    ]
    devices = dict.fromkeys(item.device.name for item in clusters if not item.device.price_per_hour)
    texts = [f"{name} {published_prices().listed(name)}" for name in devices]
    return [line(f"list prices in USD per device-hour: {', '.join(texts)}", style="dim")] if texts else []


def _reason(first: Machine, machine: Machine, parts: Sequence[Difference]) -> TextLine:
    """Return how the step of a row differs from that of the first, and the parts of the step that contribute most."""
    whole = sum(part.difference or 0.0 for part in parts)
    largest = [part for part in parts if abs(part.difference or 0.0) >= SMALLEST * abs(whole)][:MAX_PARTS]
    terms = ", ".join(f"{words.time_part(part.name)} {_signed(part.difference or 0.0)}" for part in largest)
    name, base = (_PATH.sub("", item.varied or _place(item)) for item in (machine, first))
    text = f"{name} against {base}: step {_signed(whole)}; {terms or 'no part differs'}"
    return line(("difference", "bold"), f": {text}")


def _signed(seconds: float) -> str:
    sign = "+" if seconds > 0.0 else "−" if seconds < 0.0 else ""
    return f"{sign}{format_seconds(abs(seconds))}"


def _diagonal(result: Machines) -> list[Machine]:
    """Return the first machine of each cluster with another number of devices than those before, as an example."""
    shown: dict[str, Machine] = {}
    for item in result.machines:
        if item.cluster not in shown and item.devices not in {one.devices for one in shown.values()}:
            shown[item.cluster] = item
    return list(shown.values())


def _lead_over(result: Machines) -> str:
    """Return by how much the fastest is faster than the next one, in words."""
    if result.lead is None:
        return ""
    share, after = result.lead
    more = f"{words.percent(share)} more than" if share >= SAME else "as many as"
    return f": {more} {after.varied or _place(after)}"


def _layouts_differ(result: Machines) -> bool:
    """Return whether the best layouts of rows differ in a degree of parallelism other than that of data."""
    layouts = [item.projection.strategy for item in result.fitting if item.projection is not None]
    degrees = {(one.tp, one.cp, one.ep, one.pp) for one in layouts}
    return len(degrees) > 1 and any(item.chosen != "given" for item in result.fitting)


def _assumed(result: Machines) -> tuple[Note, ...]:
    """Return what rows assume of the run because nothing gives it, and that its compilation has no effect.

    Each topic has one note, that of the first row, which says how many others differ.
    """
    topics: dict[str, dict[Note, None]] = {}
    for note in (note for item in result.machines if item.projection for note in item.projection.notes):
        if note.topic in ("length", "compile", "compared", "framework"):
            topics.setdefault(note.topic, {})[note] = None
    return tuple(
        first
        if not others
        else replace(
            first, text=f"{first.text} (first row; {counted(len(others), 'variant')} in other rows: --json)"
        )
        for first, *others in topics.values()
    )


def _title(result: Machines) -> str:
    names = (item.projection.model.name for item in result.machines if item.projection is not None)
    models = [*dict.fromkeys(names)]
    title = ", ".join(models) if 0 < len(models) <= NAMED else "machines"
    return f"{title} on {result.machines[0].cluster}" if _of_one_cluster(result) else title


def _of_one_cluster(result: Machines) -> bool:
    """Return whether rows differ in the number of devices of one cluster, which the title then names."""
    sizes = {(item.cluster, item.devices) for item in result.machines}
    return len(sizes) > 1 and len({cluster for cluster, _ in sizes}) == 1


def _lead(result: Machines) -> str:
    """Return the run that all have in common."""
    runs = [item.projection.workload for item in result.machines if item.projection is not None]
    figures = {"seq_len": {run.seq_len for run in runs}}
    figures["global_batch_size"] = {run.global_batch_size for run in runs}
    return " · ".join(f"{name} {min(each):,}" for name, each in figures.items() if len(each) == 1)


def _columns(result: Machines) -> list[str]:
    """Return the columns: what varies, then machine and layout where they are not the same in all rows, or given."""
    columns = ["|with"] if _varies(result) else []
    if not _varies(result) or len({(item.cluster, item.devices) for item in result.machines}) > 1:
        columns += [*([] if _of_one_cluster(result) else ["|cluster"]), "devices"]
    if not _varies(result) or any(item.chosen != "given" for item in result.machines):
        columns.append("<layout")
    is_scaled = len({item.devices for item in result.machines}) > 1
    is_priced = any(item.cost_per_million_tokens is not None for item in result.machines)
    days = [item.days for item in result.machines if item.days is not None]
    has_run, time = bool(days), "hours" if max(days, default=0.0) < words.SHORT else "days"
    return [
        *columns,
        "step",
        "tok/s/dev" if is_scaled else "tok/s",
        *(("scaling",) if any(map(result.scaling, result.machines)) else ()),
        "MFU",
        *(("comm",) if is_scaled else ()),
        *(("?bubble",) if is_scaled and any(_bubble(item) for item in result.machines) else ()),
        "GiB",
        *(
            ("optim GiB",)
            if STATES & _varied_options(result) and not (has_run and "|cluster" in columns)
            else ()
        ),
        "|fit",
        *(("calendar",) if result.operated else (time,) if has_run else ()),
        *(("cost",) if has_run else ("per M tokens",) if is_priced else ()),
    ]


def _bubble(machine: Machine) -> str:
    one = machine.projection
    return words.percent(one.bubble_share) if one is not None and one.strategy.pp > 1 else ""


def _varies(result: Machines) -> bool:
    return any(item.varied for item in result.machines)


def _varied_options(result: Machines) -> set[str]:
    """Return the options of which rows have several values."""
    return {
        pair.partition(" ")[0].replace("_", "-")
        for item in result.machines
        for pair in item.varied.split(" · ")
    }


def _optimizer_bytes(memory: MemorySummary) -> float:
    """Return the bytes of optimizer states on the fullest stage."""
    return max(memory.stages, key=lambda stage: stage.peak_bytes).optimizer_bytes


def _place(machine: Machine) -> str:
    """Return which row a machine is, in words."""
    text = f"{machine.devices:,} × {machine.cluster}"
    return f"{text} with {machine.varied}" if machine.varied else text


def _calendar(machine: Machine) -> str:
    """Return the days of a run with its failures and checkpoints."""
    days = machine.calendar_days
    if days is not None:
        return words.days(days)
    return "endless" if machine.projection is not None and machine.projection.endless else ""


def _machines(result: Machines) -> Iterator[Sequence[Cell]]:
    columns = [name.lstrip("|<?") for name in _columns(result)]
    for item in result.machines:
        one, cost = item.projection, item.cost_per_million_tokens
        cells: dict[str, Cell] = {"with": _PATH.sub("", item.varied), "cluster": item.cluster}
        cells |= {"devices": f"{item.devices:,}", "layout": "none"}
        if one is not None:
            cells |= {
                "layout": layout(one.strategy),
                "step": format_seconds(one.step_time_s),
                "tok/s": f"{item.tokens_per_s:,.0f}",
                "tok/s/dev": f"{one.tokens_per_s_per_device:,.0f}",
                "scaling": words.percent(scaling) if (scaling := result.scaling(item)) else "",
                "MFU": words.percent(one.mfu),
                "comm": words.percent(one.communication_share),
                "bubble": _bubble(item),
                "GiB": f"{one.memory.peak_bytes / GIB:.1f}",
                "optim GiB": f"{_optimizer_bytes(one.memory) / GIB:.1f}" if one.memory.stages else "",
                "fit": words.verdict(one.memory.verdict),
                "per M tokens": "" if cost is None else f"{cost:.3g}",
                "days": "" if item.days is None else words.days(item.days),
                "hours": "" if item.days is None else f"{words.HOURS * item.days:.2f}",
                "calendar": _calendar(item),
                "cost": "" if item.cost is None else f"{item.cost:,.{2 if item.cost < CHEAP else 0}f}",
            }
        yield tuple(cells.get(name, "") for name in columns)
