"""A sweep: the best point of every value of everything that is varied."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forescale.cli.render import words
from forescale.projection.result import left_out
from forescale.report.document import Cell, Content, Table, TextLine, View, line, styled, table
from forescale.sweep import Sweep, SweepResult
from forescale.sweep.columns import METRICS, VARIED, Row
from forescale.sweep.definition import Range, in_column, varies
from forescale.sweep.pictures import say, title, unit_of
from forescale.units import counted, format_count, format_seconds

MOST_VALUES = 10
"""Values of one parameter that are shown."""
MOST_POINTS = 20
"""Points that are all shown."""
TOP = 5
"""Best points of a sampled sweep that are shown."""
_USUAL = frozenset({"step_time_s", "tokens_per_s_per_device", "mfu", "peak_bytes"})
"""Metrics that every table has a column for."""
_RUN = {"calendar_days": "days", "calendar_cost": "cost"}
"""Columns of the whole run and how they are headed."""
_DEGREES = {
    "tp": "tp", "cp": "cp", "ep": "ep", "pp": "pp", "vpp": "vpp", "dp_replicate": "dp", "dp_shard": "shard",
    "zero": "zero", "micro_batch_size": "mbs",
}  # fmt: skip
"""Degrees of a layout and how they are spelt where there is little room."""


def sweep_view(result: SweepResult, files: Sequence[Path] = ()) -> View:
    """Return what was asked, the best per value, how the metric follows the parameters, and where files are."""
    return _view(result.sweep, [*_tables(result), *_basis(result, files)])


def _tables(result: SweepResult) -> list[Content]:
    metric, axes = result.metric, result.sweep.axes
    if not result.feasible:
        violation = result.points[0]["problem"]
        return [line(f"nothing fits at any point; the first: {violation}", style="bold")]
    if len(result.points) <= MOST_POINTS and not axes.ranges:
        return [_every(result, metric), *_follows(result, metric)]
    varied = (name for name in axes.names if varies(result.column(name)) and not _sampled(result.sweep, name))
    best = [_best(result, metric)] if axes.ranges else []
    return [*(_table(result, name, metric) for name in varied), *best, *_follows(result, metric)]


def _view(sweep: Sweep, contents: Sequence[Content]) -> View:
    model = sweep.base.model
    notes = () if model is None else left_out(model)
    return View(title=sweep.name, lead=" · ".join(_facts(sweep)), contents=tuple(contents), notes=notes)


def plan_view(sweep: Sweep) -> View:
    """Return what a sweep would ask."""
    rows = [("case", ", ".join(case.name for case in sweep.axes.cases))] if sweep.axes.cases else []
    for axis in sweep.axes.grid:
        unit = unit_of(sweep, axis.name)
        rows.append((axis.name, ", ".join(say(in_column(value), unit) for value in axis.values)))
    rows += [(item.name, _span(sweep, item)) for item in sweep.axes.ranges]
    count = line(counted(sweep.axes.num_points, "point"), style="bold")
    return _view(sweep, [table("<varied", "<values", rows=rows), count])


def _span(sweep: Sweep, item: Range) -> str:
    unit = unit_of(sweep, item.name)
    spread = "evenly in the logarithm" if item.log else "evenly"
    return f"{say(item.low, unit)} to {say(item.high, unit)}, {counted(sweep.axes.num_samples, 'sample')} {spread}"


def _facts(sweep: Sweep) -> list[str]:
    base = sweep.base
    assert base.model is not None
    varied = set(sweep.axes.names) | {kind.name for case in sweep.axes.cases for kind, _ in case.settings}
    devices = f"{base.num_devices:,} × " if not {"devices", "nodes"} & varied else ""
    return [
        *([] if "model" in varied else [base.model.name]),
        *([] if "cluster" in varied else [f"{devices}{base.cluster['name']}"]),
        *(
            f"{name} {base.workload[name]:,}"
            for name in ("seq_len", "global_batch_size")
            if not {name, f"workload.{name}"} & varied
        ),
        *([f"{base.scaling} scaling"] if "scaling" not in varied and devices == "" else []),
    ]


def _sampled(sweep: Sweep, name: str) -> bool:
    return any(item.name == name for item in sweep.axes.ranges)


def _table(result: SweepResult, axis: str, metric: str) -> Table:
    """Return the best point of every value, the best of all marked."""
    others = [name for name in result.sweep.axes.names if name != axis and varies(result.column(name))]
    ranked = result.best_by(axis, metric)
    best = result.best(metric)
    shown = ranked if len(ranked) <= MOST_VALUES else _thinned(ranked, best)
    rows: list[tuple[Cell, ...]] = []
    headings = (title(axis), *_figures(result, metric), *(title(name) for name in others), "<layout")
    for value, row in shown:
        label = say(value, unit_of(result.sweep, axis))
        if row is None:
            rows.append(_without([label], "nothing fits", len(headings)))
            continue
        rows.append(_marked([label, *_cells(result, row, metric, others)], chosen=row is best))
    left = len(ranked) - len(shown)
    caption = f"{counted(left, 'value')} not shown" if left else ""
    return table(*headings, rows=rows, gap=1, caption=caption)


def _marked(cells: list[str], *, chosen: bool) -> tuple[Cell, ...]:
    return styled("bold" if chosen else "", [f"{'▶' if chosen else ' '} {cells[0]}", *cells[1:]])


def _without(values: list[str], why: str, columns: int) -> tuple[Cell, ...]:
    """Return the row of a point without a layout."""
    cells = [f"  {values[0]}", *values[1:], "–", why]
    return styled("dim", [*cells, *[""] * (columns - len(cells))])


def _every(result: SweepResult, metric: str) -> Table:
    """Return every point, the best marked."""
    names = [
        name for name in result.sweep.axes.names if varies(result.column(name))
    ] or result.sweep.axes.names[:1]
    headings = (*(title(name) for name in names), *_figures(result, metric), "<layout")
    best = result.best(metric)
    rows: list[tuple[Cell, ...]] = []
    for row in result.points:
        values = [say(row[VARIED + name], unit_of(result.sweep, name)) for name in names]
        if row["status"] != "ok":
            rows.append(_without(values, row["status"], len(headings)))
        else:
            rows.append(_marked([*values, *_cells(result, row, metric, ())], chosen=row is best))
    return table(*headings, rows=rows, gap=1)


def _best(result: SweepResult, metric: str) -> Table:
    """Return the best points of a sampled sweep."""
    names = [name for name in result.sweep.axes.names if varies(result.column(name))]
    sign = 1.0 if METRICS[metric] == "least" else -1.0
    ranked = sorted(
        (row for row in result.feasible if row[metric] is not None),
        key=lambda row: (sign * row[metric], row["index"]),
    )
    rows = (
        [str(place), *_cells(result, row, metric, names)] for place, row in enumerate(ranked[:TOP], start=1)
    )
    headings = ("#", *_figures(result, metric), *(title(name) for name in names), "<layout")
    return table(*headings, rows=rows, gap=1)


def _thinned(values: list[tuple[Any, Row | None]], best: Row | None) -> list[tuple[Any, Row | None]]:
    """Return evenly spaced values, ends and the best among them."""
    last = len(values) - 1
    kept = {round(step * last / (MOST_VALUES - 1)) for step in range(MOST_VALUES)}
    kept |= {place for place, (_, row) in enumerate(values) if row is not None and row is best}
    return [values[place] for place in sorted(kept)]


def _figures(result: SweepResult, metric: str) -> list[str]:
    usual = ["step", *(heading for _, heading in _of_run(result, metric)), "tok/s/dev", "MFU", "GiB"]
    return usual if metric in _USUAL else [title(metric), *usual]


def _of_run(result: SweepResult, metric: str) -> list[tuple[str, str]]:
    """Return columns of the whole run and their headings, where its tokens, and a price, are known."""
    known = {name for row in result.feasible for name in _RUN if row[name] is not None}
    return [(name, heading) for name, heading in _RUN.items() if name in known and name != metric]


def _cells(result: SweepResult, row: Row, metric: str, others: Sequence[str]) -> list[str]:
    extra = [] if metric in _USUAL else [say(row[metric], unit_of(result.sweep, metric))]
    return [
        *extra,
        format_seconds(row["step_time_s"]),
        *("–" if row[name] is None else _amount(row[name]) for name, _ in _of_run(result, metric)),
        f"{row['tokens_per_s_per_device']:,.0f}",
        words.percent(row["mfu"]),
        words.gib(row["peak_bytes"]) + (" " if row["verdict"] == "FITS" else "!"),
        *(say(row[VARIED + name], unit_of(result.sweep, name)) for name in others),
        _layout(row),
    ]


def _amount(value: float) -> str:
    return format_count(value) if value >= 1e4 else f"{value:,.1f}"


def _layout(row: Row) -> str:
    degrees = " ".join(
        f"{short} {row[name]}" for name, short in _DEGREES.items() if row[name] > 1 or name == "zero"
    )
    recompute = row["recompute_modules"].replace("+", " ") or row["recompute"]
    return degrees if recompute == "none" else f"{degrees}, {recompute.replace('full', 'full recompute')}"


def _follows(result: SweepResult, metric: str) -> list[TextLine]:
    """Return how the metric follows the numbers that are varied."""
    exponents = result.exponents(metric)
    if exponents is None:
        return []
    ranked = sorted(exponents.of.items(), key=lambda item: -abs(item[1]))
    factors = " · ".join(f"{title(name)}^{power:+.2f}" for name, power in ranked)
    return [line(f"{title(metric)} ∝ {factors} (explains {exponents.r_squared:.0%} of its variance)")]


def _basis(result: SweepResult, files: Sequence[Path]) -> list[TextLine]:
    """Return how many points there were, what became of the others, and where everything is."""
    counts = result.counts
    message = [f"{counted(len(result.points), 'point')}, {counts['ok']:,} with a layout"]
    message += [f"{counts[name]:,} {name}" for name in ("infeasible", "impossible", "defect") if counts[name]]
    message += [f"{result.num_resumed:,} known before"] if result.num_resumed else []
    lines = [line(", ".join(message), style="dim")]
    for status in ("infeasible", "impossible", "defect"):
        first = next((row for row in result.points if row["status"] == status), None)
        if first is not None and (status != "infeasible" or result.feasible):
            style = "red" if status == "defect" else "dim"
            lines.append(line(f"{status} at point {first['index']}: {first['problem']}", style=style))
    lines += [
        line(f"endless at point {row['index']}: {row['problem']}", style="dim")
        for row in [item for item in result.feasible if item["problem"]][:1]
    ]
    if any(row["verdict"] not in (None, "FITS") for row in result.feasible):
        lines.append(line(words.RISKY, style="dim"))
    if result.table is not None:
        pictures = sum(file.name.endswith(".vl.json") for file in files)
        page = f"; {counted(pictures, 'picture')} in {files[-1]}" if files else ""
        lines.append(line(f"table in {result.table}{page}", style="dim"))
    return lines
