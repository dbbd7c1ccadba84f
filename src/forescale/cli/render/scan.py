"""The best layout per number of devices or per global batch as a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from forescale.cli.render import words
from forescale.cli.render.search import layout_columns, legend_of
from forescale.projection.result import Projection
from forescale.report.document import Column, Table, TextLine, View, line, styled, table
from forescale.search import ScanResult
from forescale.search.scan import Point, Target, days_of
from forescale.units import counted, format_count, format_seconds

Found: TypeAlias = tuple[Point, Projection]
VARIED = {"num_devices": "devices", "global_batch_size": "batch"}


def scan_view(result: ScanResult) -> View:
    """Return the assumptions, one row per point, what was found, and what the figures stand for."""
    points = [(point, point.best) for point in result.points if point.best is not None]
    without = [point for point in result.points if point.best is None]
    lines = [*legend_of(one for _, one in points), line(_conclusion(result), style="bold")]
    if without:
        values = ", ".join(f"{getattr(point, result.varied):,}" for point in without)
        text = f"nothing at {VARIED[result.varied]} {values}; at the last: {without[-1].problem}"
        lines.append(line(text, style="dim"))
    if not points:
        return View(contents=tuple(lines))
    first, run = points[0][1], points[0][1].workload
    devices = f"{first.cluster.num_devices:,} × " if result.varied == "global_batch_size" else ""
    batch = "" if devices else f" · global_batch_size {run.global_batch_size:,}"
    types = f"{words.precision(run.precision)} · {run.optimizer}"
    return View(
        title=words.asked(first.model, first.cluster, devices),
        lead=f"seq_len {run.seq_len:,}{batch} · {types}",
        contents=(_table(result, points), *lines, *_basis(result, first)),
        notes=first.notes,
    )


def _table(result: ScanResult, founds: list[Found]) -> Table:
    """Return figures and layout of every point; the chosen one is marked, those that miss a target are dim."""
    figures = {name: of for name, of in _FIGURES.items() if any(of(*pair) is not None for pair in founds)}
    layouts: list[Column[Found]] = layout_columns(
        [one.strategy for _, one in founds], lambda pair: pair[1].strategy
    )
    rows = []
    for point, one in founds:
        selected = point is result.chosen
        cells = [
            f"{'▶ ' if selected else ''}{getattr(point, result.varied):,}",
            *(of(point, one) or "–" for of in figures.values()),
            *(column.show((point, one)) for column in layouts),
        ]
        rows.append(styled("bold" if selected else "dim" if point.meets_target is False else "", cells))
    headings = (VARIED[result.varied], *figures, *(column.heading for column in layouts))
    return table(*headings, rows=rows, gap=1)


_FIGURES: dict[str, Callable[[Point, Projection], str | None]] = {
    "step": lambda _, one: format_seconds(one.step_time_s),
    "tok/s/dev": lambda _, one: f"{one.tokens_per_s_per_device:,.0f}",
    "?MFU": lambda _, one: words.percent(one.mfu),
    "comm": lambda _, one: words.percent(one.communication_share),
    "?bubble": lambda _, one: words.percent(one.bubble_share) if one.strategy.pp > 1 else None,
    "GiB": lambda _, one: words.gib(one.memory.peak_bytes) + (" " if one.memory.verdict == "FITS" else "!"),
    "?days": lambda _, one: None if one.training_days is None else f"{one.training_days:,.1f}",
    "calendar": lambda _, one: None if one.training_days is None else words.ends(one),
    "cost": lambda point, _: None if point.cost is None else format_count(point.cost),
    "per Mtok": lambda point, _: (
        None
        if point.cost is not None or point.cost_per_million_tokens is None
        else f"{point.cost_per_million_tokens:.4g}"
    ),
    "?≤ J/tok": lambda point, _: (
        None if point.energy_per_token_max_j is None else f"{point.energy_per_token_max_j:.3g}"
    ),
}
"""Columns that any point has a figure for."""


def _conclusion(result: ScanResult) -> str:
    """Return what was found in one sentence."""
    selected, tried = result.chosen, len(result.points)
    if result.target is None:
        assert selected is not None
        most = counted(
            getattr(selected, result.varied), "device" if result.varied == "num_devices" else "sequence"
        )
        what = most if result.varied == "num_devices" else f"a global batch of {most}"
        return f"the most out of each device, of the {tried} tried: {what}"
    question = _asked(result.target)
    if selected is None:
        steps = [(point.best.step_time_s, point) for point in result.points if point.best is not None]
        fastest = min(steps, key=lambda pair: pair[0], default=None)
        of = (
            ""
            if fastest is None
            else f"; the fastest, {fastest[1].num_devices:,}, takes {_taken(fastest[1])}"
        )
        return f"no number of devices, of the {tried} tried, reaches {question}{of}"
    text = f"{counted(selected.num_devices, 'device')}: the fewest of the {tried} tried to reach {question}"
    return text + _cheapest(result, selected)


def _cheapest(result: ScanResult, point: Point) -> str:
    """Return who reaches the target for less, if anybody does."""
    cheapest = result.cheapest
    if cheapest is None or cheapest is point or point.best is None or cheapest.best is None:
        return ""
    less = 1.0 - point.best.tokens_per_s_per_device / cheapest.best.tokens_per_s_per_device
    return f"; the cheapest: {cheapest.num_devices:,}, {words.percent(less)} less device time and cost"


def _asked(target: Target) -> str:
    step = [] if target.step_time_s is None else [f"a step of {format_seconds(target.step_time_s)}"]
    days = [] if target.days is None else [counted(target.days, "day")]
    return " and ".join([*step, *days])


def _taken(point: Point) -> str:
    assert point.best is not None
    days = days_of(point.best)
    step = f"{format_seconds(point.best.step_time_s)} per step"
    return step if days is None else f"{step}, {days:,.1f} days"


def _basis(result: ScanResult, first: Projection) -> list[TextLine]:
    """Return what cost and energy count."""
    lines = []
    if result.price_per_device_hour is not None:
        price = f"{result.price_per_device_hour:g} per device-hour"
        tokens = first.workload.tokens
        lines.append(f"cost at {price}" + ("" if tokens is None else f" for {format_count(tokens)} tokens"))
    power = first.cluster.device.power_w
    if power:
        lines.append(
            f"J/tok: devices at their rated {power:g} W throughout, an upper bound; nothing else counted"
        )
    searched = f"{counted(len(result.points), 'search')} in {result.elapsed_s:.2f} s"
    return [line(" · ".join([searched, *lines, words.COMMUNICATION]), style="dim")]
