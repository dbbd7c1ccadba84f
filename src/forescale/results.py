"""What every result can do in a notebook: a short `repr`, a table with its picture, a data frame, plain values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from forescale.errors import extra_missing
from forescale.escaping import xml
from forescale.repr import ReprMixin
from forescale.view.axes import SCHEMA, Spec, colour
from forescale.view.bars import Bar, BarChart
from forescale.view.page import Chart, table

FRAMES = ("pandas", "polars")
"""Libraries whose data frames are made, the first that is installed."""
VEGA_LITE = "application/vnd.vegalite.v5+json"
SHOWN = 20
"""Rows of a table in a notebook; the rest are counted."""


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

    def to_vega_lite(self) -> Spec | None:
        """Return all pictures as one Vega-Lite specification with their data inside, None where there are none."""
        charts = [
            {name: part for name, part in picture.spec().items() if name != "$schema"}
            for picture in self.pictures()
        ]
        if not charts:
            return None
        return {"$schema": SCHEMA, "vconcat": charts, "resolve": {"scale": {"color": "independent"}}}

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
        name = next((item for item in FRAMES if find_spec(item) is not None), None)
        if name is None:
            raise extra_missing("a data frame", "pandas or polars", "frame")
        return import_module(name).DataFrame(self.rows())

    def _repr_mimebundle_(self, **_: object) -> dict[str, Any]:
        """Return what a notebook may show, by kind."""
        bundle = {"text/plain": repr(self), "text/html": self._repr_html_(), VEGA_LITE: self.to_vega_lite()}
        return {kind: shown for kind, shown in bundle.items() if shown is not None}

    def _repr_html_(self) -> str:
        rows = self.rows()
        columns = [name for name in (rows[0] if rows else ()) if len(rows) == 1 or _varies(rows, name)]
        more = f"<p>… {len(rows) - SHOWN} more</p>" if len(rows) > SHOWN else ""
        drawn = "".join(_picture(picture) for picture in self.pictures() if isinstance(picture, BarChart))
        cells = [[_shown(row[name]) for name in columns] for row in rows[:SHOWN]]
        places = [place for place, name in enumerate(columns) if isinstance(rows[0][name], str)]
        return f"{drawn}{table(type(self).__name__, columns, cells, words=places)}{more}"


def _varies(rows: list[dict[str, Any]], name: str) -> bool:
    return any(row[name] != rows[0][name] for row in rows)


def _picture(chart: BarChart) -> str:
    """Return one row of coloured parts per bar, all to one scale, and the legend; a notebook runs no script of ours."""
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
