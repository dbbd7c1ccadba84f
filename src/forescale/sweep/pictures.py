"""Pictures of a sweep: scaling curves, lines over one parameter, heat maps with iso-lines over two."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from forescale.atomic_write import write_text, writing
from forescale.errors import too_large
from forescale.escaping import xml
from forescale.spec.space import DEGREE_NAMES
from forescale.struct import Struct
from forescale.sweep.columns import COMMUNICATION, FIXED, METRICS, VARIED, Row
from forescale.sweep.definition import Plot, Sweep, varies
from forescale.sweep.parameters import CASE, DEVICES, NODES, SCALING, TimesFactor
from forescale.units import GIB, counted, format_count
from forescale.view.axes import Axis, data_axis, round_step, value_axis, word_axis
from forescale.view.bars import Bar, BarChart
from forescale.view.heat import Cell, HeatMap
from forescale.view.lines import Dot, Line, LineChart
from forescale.view.page import Chart, figure, page, table, written


class Swept(Protocol):
    """What pictures need of a sweep's result, `sweep.result.SweepResult`."""

    @property
    def sweep(self) -> Sweep:
        """What was asked."""

    @property
    def points(self) -> tuple[Row, ...]:
        """The rows of the table."""

    @property
    def counts(self) -> dict[str, int]:
        """Number of points by status."""

    @property
    def feasible(self) -> tuple[Row, ...]:
        """Rows with a layout."""

    @property
    def metric(self) -> str:
        """What points are compared by."""

    def column(self, name: str) -> list[Any]:
        """Return one column."""

    def place(self, name: str) -> str:
        """Return the table's name of a column."""

    def best(self, metric: str | None = None, rows: Iterable[Row] | None = None) -> Row | None:
        """Return the best row."""

    def best_by(self, axis: str, metric: str | None = None) -> list[tuple[Any, Row | None]]:
        """Return every value of what is varied with the best row that has it."""


Unit: TypeAlias = str
"""What a column is measured in: "factor", "share", "count", "text", "plain" or a unit."""
_SCALES = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0))
_SHARES = frozenset(
    {"mfu", "hfu", "mfu_full_attention", "communication_share", "bubble_share", "efficiency", "goodput"}
)


def title(name: str) -> str:
    """Return a column's name for people."""
    plain = name.removeprefix(VARIED)
    message = FIXED[plain].title if plain in FIXED else ""
    return message or (plain if "." in plain else plain.replace("_", " "))


def unit_of(sweep: Sweep, name: str) -> Unit:
    """Return what the values of a column, or of what is varied, are measured in."""
    axes = sweep.axes
    for axis in axes.grid:
        if axis.name == name:
            return _unit(
                axis.parameter.dimension, axis.parameter.kind, isinstance(axis.values[0], TimesFactor)
            )
    for item in axes.ranges:
        if item.name == name:
            return _unit(item.parameter.dimension, item.parameter.kind, item.factors)
    if name in _SHARES:
        return "share"
    for ending, unit in (("_bytes", "byte"), ("_bandwidth", "byte/s"), ("_flops", "FLOP/s"), ("_j", "J")):
        if name.endswith(ending):
            return unit
    if name.endswith("_s") and not name.startswith("tokens_"):
        return "second"
    return (
        "count" if name.startswith(("tokens_", "num_", "global_", "seq_", "scale_up_d", "cost")) else "plain"
    )


def say(value: object, unit: Unit) -> str:
    """Return a value in few characters."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "–" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    if unit == "factor":
        return f"×{value:.3g}"
    if unit == "share":
        return f"{100.0 * value:.3g} %"
    if unit == "byte":
        return f"{value / GIB:.4g} GiB"
    if unit == "second":
        return _said_seconds(value)
    if unit in ("byte/s", "FLOP/s"):
        return _prefixed(value, unit.replace("byte", "B"))
    return _said_number(value)


def _prefixed(value: float, unit: str) -> str:
    prefix, scale = next(pair for pair in _SCALES if abs(value) >= pair[1] or pair[1] == 1.0)
    return f"{value / scale:.4g} {prefix}{unit}"


def _said_number(value: float) -> str:
    if abs(value) >= 1e5:
        return format_count(value)
    return f"{value:,.0f}" if abs(value) >= 1e3 or float(value).is_integer() else f"{value:.4g}"


def _unit(dimension: str | None, kind: str, factors: bool) -> Unit:
    if factors:
        return "factor"
    return dimension or {"whole": "count", "number": "plain", "text": "text"}[kind]


def _said_seconds(value: float) -> str:
    for name, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)):
        if abs(value) >= scale:
            return f"{value / scale:.4g} {name}"
    return f"{value:g} s"


PARTS: Mapping[str, tuple[str, ...]] = {
    "attention": ("attention",),
    "feed-forward": ("ffn", "moe"),
    "other layers": ("norm", "embedding", "head"),
    "recompute": ("recompute",),
    "communication": COMMUNICATION,
    "bubble": ("bubble",),
    "optimizer and rest": ("optimizer", "overhead"),
}
"""Parts of a step from the start of a bar on, and what each sums up."""
LEVELS = 5
"""Iso-lines drawn at most."""
MOST_CELLS = 40
"""Values of one parameter on a heat map at most."""
MOST_LINES = 8
"""Values of a parameter that lines are told apart by."""
FROM_ZERO = 0.6
"""Heights start at zero where the least is below this share of the greatest."""
LEAST_FOR_LINES = 4
"""Values of each parameter from which on a map has iso-lines."""
LOG_FROM = 4.0
"""An axis is logarithmic where its ends are at least this factor apart."""


class Drawing(Struct, frozen=True):
    """One chart, and the start of its file's name."""

    name: str
    chart: Chart


def draw(result: Swept, plots: Sequence[Plot]) -> tuple[Drawing, ...]:
    """Return the pictures asked for; those that nothing fits in are left out.

    Raises
    ------
    SpecError
        If one is asked of parameters that cannot be drawn so.
    """
    drawings: list[Drawing] = []
    for plot in plots:
        for name, chart in _CHARTS[plot.kind](result, plot):
            drawings.append(Drawing(f"{len(drawings) + 1:02d}-{name}", chart))
    return tuple(drawings)


def usual_plots(result: Swept) -> tuple[Plot, ...]:
    """Return the pictures that suit what is varied: scaling over devices, a map of two grids, else lines."""
    axes = result.sweep.axes
    metric = result.metric
    plots = []
    if {DEVICES, NODES} & set(axes.names):
        plots.append(Plot(kind="scaling", by=_apart(result)))
    numbers = [
        axis.name
        for axis in axes.grid
        if axis.parameter.kind != "text"
        and 1 < len(axis.values) <= MOST_CELLS
        and axis.name not in (DEVICES, NODES)
    ]
    if len(numbers) >= 2:
        plots += [Plot(kind="map", x=numbers[0], y=other, value=metric) for other in numbers[1:3]]
    elif numbers:
        by = _apart(result, numbers[0]) or (DEVICES if DEVICES in axes.names else None)
        plots.append(Plot(kind="line", x=numbers[0], y=metric, by=by))
    plots += [Plot(kind="line", x=item.name, y=metric, by=_apart(result)) for item in axes.ranges[:4]]
    if not plots:
        plots.append(Plot(kind="bars", x=axes.names[0]))
    return tuple(plots)


def _apart(result: Swept, *taken: str) -> str | None:
    """Return what lines are best told apart by: the first of what is varied in words."""
    axes = result.sweep.axes
    names = [SCALING, CASE, *(axis.name for axis in axes.grid if axis.parameter.kind == "text")]
    known = [name for name in names if name in axes.names and name not in taken]
    return next((name for name in known if 1 < len(set(result.column(name))) <= MOST_LINES), None)


def _scaling(result: Swept, plot: Plot) -> list[tuple[str, LineChart]]:
    """Return throughput and what is left of it per device, over devices; dashed: without losses."""
    series = _series(result, "num_devices", plot.by, "tokens_per_s")
    if not series:
        return []
    counts = [row["num_devices"] for rows in series.values() for row in rows]
    note = _note(result, "num_devices", plot.by, "tokens_per_s")
    x = data_axis("devices", counts, log=True, say=partial(say, unit="count"))
    ideal, real, kept = [], [], []
    for colour, (name, rows) in enumerate(series.items()):
        first = rows[0]
        label = name or "best layouts"
        item = first["tokens_per_s"] / first["num_devices"]
        dots = [Dot(x=row["num_devices"], y=row["tokens_per_s"], remark=_remark(result, row)) for row in rows]
        share = [
            Dot(x=dot.x, y=dot.y / (dot.x * item), remark=f"{dot.y / (dot.x * item):.1%} · {dot.remark}")
            for dot in dots
        ]
        without = tuple(Dot(x=row["num_devices"], y=item * row["num_devices"]) for row in rows)
        ideal.append(Line(name=f"{label}, ideal", dots=without, colour=colour, ideal=True))
        real.append(Line(name=label, dots=tuple(dots), colour=colour))
        kept.append(Line(name=label, dots=tuple(share), colour=colour))
    top = [dot.y for line in (*real, *ideal) for dot in line.dots]
    shares = [dot.y for line in kept for dot in line.dots]
    y = value_axis("tokens/s", top, log=True, say=partial(say, unit="count"))
    below = value_axis(
        "tokens/s per device, of the fewest devices", [0.0, *shares], log=False, zero=True,
        say=partial(say, unit="share"),
    )  # fmt: skip
    heading = plot.title or f"{result.sweep.name}: scaling"
    return [
        ("scaling", LineChart(title=heading, note=note, x=x, y=y, lines=(*real, *ideal))),
        ("efficiency", LineChart(title=f"{heading}, efficiency", note=note, x=x, y=below, lines=tuple(kept))),
    ]


def _line(result: Swept, plot: Plot) -> list[tuple[str, LineChart]]:
    """Return one column over another."""
    assert plot.x is not None
    assert plot.y is not None
    sampled = any(item.name == plot.x for item in result.sweep.axes.ranges)
    series = _series(result, plot.x, plot.by, plot.y, every=sampled)
    rows = [row for item in series.values() for row in item]
    if not rows:
        return []
    place, height = result.place(plot.x), result.place(plot.y)
    column = [value for value in dict.fromkeys(result.column(plot.x)) if isinstance(value, str)]
    unit, tall = unit_of(result.sweep, plot.x), unit_of(result.sweep, plot.y)
    x = (
        word_axis(title(plot.x), column)
        if column
        else _number_axis(plot.x, [row[place] for row in rows], unit)
    )
    drawn = [
        Line(
            name=name or title(plot.y),
            dots=tuple(
                Dot(
                    x=float(column.index(row[place]) if column else row[place]),
                    y=float(row[height]),
                    remark=f"{say(row[place], unit)}: {say(row[height], tall)} · {_remark(result, row)}",
                )
                for row in item
            ),
            colour=colour,
            joined=not (sampled or column),
        )
        for colour, (name, item) in enumerate(series.items())
    ]
    heights = [dot.y for line in drawn for dot in line.dots]
    zero = 0.0 <= min(heights) < FROM_ZERO * max(heights)
    y = value_axis(title(plot.y), heights, log=False, say=partial(say, unit=tall), zero=zero)
    note = "every point" if sampled else _note(result, plot.x, plot.by, plot.y)
    heading = plot.title or f"{result.sweep.name}: {title(plot.y)} over {title(plot.x)}"
    name = f"{plot.y}-over-{plot.x}"
    return [(name, LineChart(title=heading, note=note, x=x, y=y, lines=tuple(drawn)))]


def _bars(result: Swept, plot: Plot) -> list[tuple[str, BarChart]]:
    """Return the parts of the best step of every value."""
    assert plot.x is not None
    unit = unit_of(result.sweep, plot.x)
    best = [(say(value, unit), row) for value, row in result.best_by(plot.x) if row is not None]
    if not best or len(best) > MOST_CELLS:
        return []
    scale, name = (1.0, "s") if max(row["step_time_s"] for _, row in best) >= 1.0 else (1e-3, "ms")
    chart = BarChart(
        title=plot.title or f"{result.sweep.name}: the step by {title(plot.x)}",
        note=_note(result, plot.x, None, result.metric),
        axis=title(plot.x),
        unit=name,
        bars=tuple(
            Bar(
                label=label,
                values={part: _seconds(row, item) / scale for part, item in PARTS.items()},
                remark=f"MFU {row['mfu']:.1%}",
            )
            for label, row in best
        ),
    )
    return [(f"step-by-{plot.x}", chart)]


def _seconds(row: Row, parts: Sequence[str]) -> float:
    return float(sum(row[f"{part}_s"] for part in parts))


def _map(result: Swept, plot: Plot) -> list[tuple[str, HeatMap]]:
    """Return a value over two parameters."""
    assert plot.x is not None
    assert plot.y is not None
    value = plot.value or result.metric
    across, up = _values(result, plot.x), _values(result, plot.y)
    by = value if value in METRICS else None
    px, py, pv = (result.place(name) for name in (plot.x, plot.y, value))
    cells = []
    for high, wide in product(up, across):
        best = result.best(by, [row for row in result.points if row[px] == wide and row[py] == high])
        number = None if best is None else best[pv]
        remark = "nothing fits" if best is None else _remark(result, best)
        cells.append(Cell(value=None if number is None else float(number), remark=remark))
    grid = tuple(tuple(cells[start : start + len(across)]) for start in range(0, len(cells), len(across)))
    unit = unit_of(result.sweep, value)
    numeric = not any(isinstance(item, str) for item in (*across, *up))
    chart = HeatMap(
        title=plot.title or f"{result.sweep.name}: {title(value)}",
        note=_note(result, plot.x, plot.y, value),
        x_name=title(plot.x),
        y_name=title(plot.y),
        value_name=title(value),
        x_labels=tuple(say(item, unit_of(result.sweep, plot.x)) for item in across),
        y_labels=tuple(say(item, unit_of(result.sweep, plot.y)) for item in up),
        cells=grid,
        levels=_levels(cells) if min(len(across), len(up)) >= LEAST_FOR_LINES and numeric else (),
        say=partial(say, unit=unit),
        dark_is_high=METRICS.get(value, "most") == "most",
    )
    return (
        [(f"{value}-over-{plot.x}-and-{plot.y}", chart)]
        if any(cell.value is not None for cell in cells)
        else []
    )


def _values(result: Swept, name: str) -> list[Any]:
    """Return the values of one side of a map: numbers ascending, words as they come."""
    column = [value for value in dict.fromkeys(result.column(name)) if value is not None]
    if len(column) > MOST_CELLS:
        fix = "give it steps, or draw a line over it"
        raise too_large(f"a map over {name}", counted(len(column), "value"), MOST_CELLS, fix)
    return column if any(isinstance(value, str) for value in column) else sorted(column)


def _levels(cells: Sequence[Cell]) -> tuple[float, ...]:
    result = [cell.value for cell in cells if cell.value is not None]
    low, high = min(result, default=0.0), max(result, default=0.0)
    if high <= low:
        return ()
    step = round_step(high - low, LEVELS)
    first = int(low // step) + 1
    return tuple(step * index for index in range(first, first + LEVELS + 1) if low < step * index < high)


def _series(result: Swept, x: str, by: str | None, y: str, *, every: bool = False) -> dict[str, list[Row]]:
    """Return per value of `by` the best row of every x (or every row), by ascending x."""
    across, height = result.place(x), result.place(y)
    apart = None if by is None else result.place(by)
    unit = "text" if by is None else unit_of(result.sweep, by)
    metric = y if y in METRICS else None
    grouped: dict[str, dict[Any, list[Row]]] = {}
    for row in result.feasible:
        if row[across] is not None and row[height] is not None:
            name = "" if apart is None else say(row[apart], unit)
            grouped.setdefault(name, {}).setdefault(row[across], []).append(row)
    number: dict[str, list[Row]] = {}
    for name, columns in grouped.items():
        best = [rows if every else [result.best(metric, rows)] for rows in columns.values()]
        kept = [row for rows in best for row in rows if row is not None]
        parts = any(isinstance(row[across], str) for row in kept)
        number[name] = kept if parts else sorted(kept, key=lambda row: row[across])
    return dict(sorted(number.items(), key=lambda item: _order(result, by, item[0])))


def _order(result: Swept, by: str | None, name: str) -> int:
    """Return where a line stands in the order in which the sweep lists its values."""
    if by is None:
        return 0
    listed = [say(value, unit_of(result.sweep, by)) for value in dict.fromkeys(result.column(by))]
    return listed.index(name)


def _number_axis(name: str, values: Sequence[float], unit: str) -> Axis:
    low, high = min(values), max(values)
    log = low > 0 and high >= LOG_FROM * low
    return data_axis(title(name), [float(value) for value in values], log=log, say=partial(say, unit=unit))


def _note(result: Swept, x: str, by: str | None, y: str) -> str:
    """Return what every mark is the best of."""
    named = {x, by, *((DEVICES, NODES) if x == "num_devices" else ())}
    rest = [
        title(name) for name in result.sweep.axes.names if name not in named and varies(result.column(name))
    ]
    best = title(y if y in METRICS else result.metric)
    over = f" and every {', '.join(rest)}" if rest else ""
    return f"the best of all layouts{over} by {best}"


def _remark(result: Swept, row: Row) -> str:
    """Return the layout of a row and what else was varied."""
    degrees = [
        f"{name} {row[name]}" for name in ("tp", "cp", "ep", "pp", "vpp", "dp_replicate", "dp_shard")
        if row[name] > 1
    ]  # fmt: skip
    shown = [
        f"{title(name)} {say(row[result.place(name)], unit_of(result.sweep, name))}"
        for name in result.sweep.axes.names
    ]
    return " · ".join([*shown, " ".join([*degrees, f"zero {row['zero']}"])])


_CHARTS: Mapping[str, Callable[[Swept, Plot], Sequence[tuple[str, Chart]]]] = {
    "scaling": _scaling,
    "line": _line,
    "bars": _bars,
    "map": _map,
}


_SHOWN = (
    "step_time_s",
    "tokens_per_s_per_device",
    "mfu",
    "peak_bytes",
    "communication_share",
    "bubble_share",
)
_DEGREES = (*(name for name in DEGREE_NAMES if name != "etp"), "recompute")


def write_pictures(
    result: Swept, pictures: Sequence[Drawing], folder: Path, *, command: str = ""
) -> tuple[Path, ...]:
    """Write every picture as Vega-Lite, and a page of all with the command line that asks; return the files."""
    files: list[Path] = []
    place = folder / "plots"
    with writing(place):
        place.mkdir(parents=True, exist_ok=True)
    for picture in pictures:
        files.append(place / f"{picture.name}.vl.json")
        write_text(files[-1], written(picture.chart))
    report = folder / "report.html"
    write_text(report, to_html(result, pictures, command=command))
    return (*files, report)


def to_html(result: Swept, pictures: Sequence[Drawing], *, command: str = "") -> str:
    """Return a page with the pictures and, for everything varied, the best point of every value."""
    counts = ", ".join(f"{count:,} {status}" for status, count in result.counts.items() if count)
    sampled = {item.name for item in result.sweep.axes.ranges}  # samples would be a row each
    return page(
        result.sweep.name,
        f"<p>{counted(len(result.points), 'point')}: {counts}. Best by {xml(title(result.metric))}.</p>",
        *(figure(picture.chart) for picture in pictures),
        *(_best_table(result, name) for name in result.sweep.axes.names if name not in sampled),
        command=command,
    )


def _best_table(result: Swept, axis: str) -> str:
    """Return the best point of every value."""
    columns = (*_SHOWN, *_DEGREES)
    rows = []
    for value, best in result.best_by(axis):
        none = ["no layout", *[""] * (len(columns) - 1)]
        shown = none if best is None else [say(best[name], unit_of(result.sweep, name)) for name in columns]
        rows.append([say(value, unit_of(result.sweep, axis)), *shown])
    name = f"Best by {title(axis)}"
    return f"<h2>{xml(name)}</h2>{table(name, [title(column) for column in (axis, *columns)], rows, crowded=True)}"
