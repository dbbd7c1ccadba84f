"""What every result can do in a notebook: a short `repr`, a table with its picture, a data frame, plain values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forescale.errors import empty, extra_missing
from forescale.escaping import xml
from forescale.repr import ReprMixin

if TYPE_CHECKING:
    from forescale.view.axes import Spec
    from forescale.view.bars import Bar, BarChart
    from forescale.view.page import Chart

FRAMES = ("pandas", "polars")
"""Libraries whose data frames are made, the first that is installed."""
VEGA_LITE = "application/vnd.vegalite.v5+json"
SHOWN = 20
"""Rows of a table in a notebook; the rest are counted."""
MOST_COLUMNS = 12
"""Columns of a table in a notebook; a data frame has all."""
MAIN_COLUMNS = frozenset(
    ("rank", "tp", "cp", "pp", "ep", "dp_shard", "zero", "micro_batch_size", "recompute", "step_time_s", "mfu",
     "peak_bytes", "verdict")
)  # fmt: skip
"""Columns that a table keeps where it has too many."""


CALLED = {
    "to_frame()": (
        "to_dataframe",
        "to_pandas",
        "to_df",
        "to_polars",
        "as_dataframe",
        "dataframe",
        "df",
        "frame",
    ),
    "to_dict()": ("asdict", "as_dict", "dict", "model_dump"),
    "plot()": ("show", "draw", "figure", "chart", "charts"),
    "memory.peak_bytes": (
        "peak_memory",
        "peak_memory_bytes",
        "max_memory",
        "peak_bytes",
        "memory_bytes",
        "peak",
        "peak_gb",
        "memory_gb",
    ),
    "peak_bytes": ("peak_gb", "peak_gib", "peak", "total", "total_bytes", "max", "allocated", "reserved"),
    "memory.verdict": ("fits", "verdict", "fit"),
    "step_time_s": ("step_time", "step_seconds", "time", "seconds", "time_per_step"),
    "bubble_rate_makespan": (
        "bubble",
        "bubble_fraction",
        "bubble_ratio",
        "bubble_rate",
        "bubble_time",
        "idle",
    ),
    "makespan": ("makespan_s", "duration", "length"),
    "tokens_per_day": ("tokens_day", "daily_tokens", "tokens_per_24h"),
    "tokens_per_s_per_device": ("tokens_per_second", "throughput", "tokens_per_s", "tps"),
    "best": ("layouts", "results", "top"),
    "rows()": ("to_list", "tolist", "records", "to_records"),
}
"""Methods of a result, and what other libraries call them."""
NAMED = 3
"""Attributes that an error names."""


def missing_attribute(value: object, name: str) -> AttributeError:
    """Return the error for an attribute that a result does not have, with what is called so here."""
    local = next(
        (
            called
            for called, others in CALLED.items()
            if name in others and hasattr(type(value), called.partition(".")[0].removesuffix("()"))
        ),
        None,
    )
    hint = f"; {_alike(value, name)}" if local is None else f"; did you mean {local}?"
    msg = f"{type(value).__name__!r} object has no attribute {name!r}{hint}"
    return AttributeError(msg, name=name, obj=value)


def _alike(value: object, name: str) -> str:
    """Return which attributes of a value, or of the items of a tuple in it, have a name in theirs; else all it has."""
    own = [item for item in dir(type(value)) if not item.startswith("_")]
    items = {
        field: part[0]
        for field in getattr(type(value), "__struct_fields__", ())
        if isinstance(part := getattr(value, field), tuple) and part
    }
    inner = [
        f"{field}[0].{item}" for field, part in items.items() for item in dir(type(part)) if name in item
    ]
    like = [*(item for item in own if name in item), *inner]
    return f"did you mean {' or '.join(like[:NAMED])}?" if like else f"it has {', '.join(own)}"


class Plot:
    """The pictures of a result: a notebook draws them, and `save` writes them to files."""

    def __init__(self, charts: Sequence[Chart]) -> None:
        self.charts = tuple(charts)

    def save(self, path: str | Path) -> None:
        """Write the pictures to a file: .html, .json (Vega-Lite), .svg or .png; of several, each with its number.

        Raises
        ------
        SpecError
            If the name has another ending, or drawing needs the extra `pictures`.
        """
        from forescale.view.page import write_chart

        file = Path(path)
        for place, chart in enumerate(self.charts, 1):
            numbered = file.with_stem(f"{file.stem}-{place}") if len(self.charts) > 1 else file
            write_chart(chart, numbered)

    def to_vega_lite(self) -> Spec:
        """Return all pictures as one Vega-Lite specification with their data inside."""
        from forescale.view.axes import SCHEMA

        charts = [
            {name: part for name, part in chart.spec().items() if name != "$schema"} for chart in self.charts
        ]
        return {"$schema": SCHEMA, "vconcat": charts, "resolve": {"scale": {"color": "independent"}}}

    def _repr_mimebundle_(self, **_: object) -> dict[str, Any]:
        return {"text/plain": repr(self), VEGA_LITE: self.to_vega_lite(), "text/html": self._repr_html_()}

    def _repr_html_(self) -> str:
        from forescale.view.bars import BarChart

        drawn = (_picture(chart) for chart in self.charts if isinstance(chart, BarChart))
        return "".join(drawn) or f"<div>{xml(', '.join(chart.title for chart in self.charts))}</div>"

    def __repr__(self) -> str:
        """Return the titles."""
        return f"Plot({', '.join(chart.title for chart in self.charts)})"


class Result(ReprMixin):
    """Base of what answers a question."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """Return the document that the command prints with --json."""
        raise NotImplementedError

    def rows(self) -> list[dict[str, Any]]:
        """Return the result as flat rows of the same columns: layouts, ranks, figures."""
        raise NotImplementedError

    def pictures(self) -> Sequence[Chart]:
        """Return charts of the result; the `spec` of each is its Vega-Lite specification."""
        return ()

    @property
    def main_columns(self) -> frozenset[str]:
        """Columns that a notebook shows where there are too many."""
        return MAIN_COLUMNS

    def to_vega_lite(self) -> Spec | None:
        """Return all pictures as one Vega-Lite specification with their data inside, None where there are none."""
        charts = self.pictures()
        return Plot(charts).to_vega_lite() if charts else None

    def plot(self) -> Plot:
        """Return the pictures of the result: displayed in a notebook, or written with `save("step.svg")`.

        Raises
        ------
        SpecError
            If the result has no picture.
        """
        charts = self.pictures()
        if not charts:
            raise empty(f"the list of pictures of {type(self).__name__}", "use to_frame() for its numbers")
        return Plot(charts)

    @property
    def headline(self) -> str:
        """The result on one line."""
        return repr(self)

    @property
    def details(self) -> tuple[str, ...]:
        """Lines that `print` shows below the headline: parts, and what was assumed."""
        return ()

    def __str__(self) -> str:
        """Return headline and details, as `print` shows them."""
        return "\n".join((self.headline, *self.details))

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document as plain dictionaries, lists, text and numbers."""
        values: dict[str, Any] = json.loads(json.dumps(self.to_json()))
        return values

    def to_frame(self) -> Any:  # noqa: ANN401 (of whichever library is installed)
        """Return the rows as a data frame, of pandas or else of polars.

        Raises
        ------
        SpecError
            If neither is installed.
        """
        return frame_of(self.rows())

    def __getattr__(self, name: str) -> object:
        """Raise an error that names what other libraries' names of attributes are here."""
        raise missing_attribute(self, name)

    def _repr_mimebundle_(self, **_: object) -> dict[str, Any]:
        """Return what a notebook may show, by kind."""
        bundle = {"text/plain": str(self), "text/html": self._repr_html_(), VEGA_LITE: self.to_vega_lite()}
        return {kind: shown for kind, shown in bundle.items() if shown is not None}

    def _repr_html_(self) -> str:
        from forescale.view.bars import BarChart
        from forescale.view.page import table

        rows = self.rows()
        columns = _columns(rows, self.main_columns)
        more = f"<p>… {len(rows) - SHOWN} more</p>" if len(rows) > SHOWN else ""
        drawn = "".join(_picture(picture) for picture in self.pictures() if isinstance(picture, BarChart))
        cells = [[_shown(row[name]) for name in columns] for row in rows[:SHOWN]]
        places = [place for place, name in enumerate(columns) if isinstance(rows[0][name], str)]
        shown = table(type(self).__name__, columns, cells, words=places) if rows else ""
        return f"<p><strong>{xml(self.headline)}</strong></p>{drawn}{shown}{more}"


def frame_of(rows: Sequence[Mapping[str, Any]]) -> Any:  # noqa: ANN401 (of the library that is installed)
    """Return rows as a data frame, of pandas or else of polars; raises if neither is installed."""
    name = next((item for item in FRAMES if find_spec(item) is not None), None)
    if name is None:
        raise extra_missing("a data frame", "pandas or polars", "frame")
    return import_module(name).DataFrame(rows)


def _columns(rows: list[dict[str, Any]], most: frozenset[str]) -> list[str]:
    """Return the columns of a table: those that vary, and the main ones where there are too many."""
    columns = [name for name in (rows[0] if rows else ()) if len(rows) == 1 or _varies(rows, name)]
    if len(columns) > MOST_COLUMNS:
        unusual = [name for name in columns if any(row[name] not in (None, "", 0, 1) for row in rows)]
        main = sorted(unusual, key=lambda name: name not in most)[:MOST_COLUMNS]
        columns = [name for name in columns if name in main]
    return columns


def _varies(rows: list[dict[str, Any]], name: str) -> bool:
    return any(row[name] != rows[0][name] for row in rows)


def _picture(chart: BarChart) -> str:
    """Return one row of coloured parts per bar, all to one scale, and the legend; a notebook runs no script of ours."""
    from forescale.view.axes import colour

    colours = {name: colour(name, place) for place, name in enumerate(chart.parts)}
    longest = max(bar.total for bar in chart.bars) or 1.0
    lines = "".join(
        f'<div style="display:flex;margin:2px 0"><span style="width:12em">{xml(bar.label)}</span>'
        f"{_bar(bar, colours, longest)}</div>"
        for bar in chart.bars
    )
    legend = "".join(
        f'<span style="border-left:1em solid {local};padding:0 .8em 0 .3em">{xml(name)}</span>'
        for name, local in colours.items()
    )
    return f"<div>{xml(chart.title)} [{xml(chart.unit)}]</div><div>{lines}</div><div>{legend}</div>"


def _bar(bar: Bar, colours: Mapping[str, str], longest: float) -> str:
    return "".join(
        f'<span title="{xml(f"{name}: {value:.4g}")}" style="height:1.2em;width:{36 * value / longest:.2f}em;'
        f'background:{colours[name]}"></span>'
        for name, value in bar.values.items()
        if value > 0
    )


def _shown(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else "" if value is None else str(value)
