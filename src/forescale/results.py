"""What every result can do in a notebook: a short `repr`, a table with its picture, a data frame, plain values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeAlias

from forescale.brief import Brief
from forescale.errors import SpecError
from forescale.escaping import xml

Picture: TypeAlias = Mapping[str, Mapping[str, float]]
"""Bars by label, each with its parts by name."""
FRAMES = ("pandas", "polars")
"""Libraries whose data frames are made, the first that is installed."""
VEGA_LITE = "application/vnd.vegalite.v5+json"
SHOWN = 20
"""Rows of a table in a notebook; the rest are counted."""
COLOURS = (
    "#4e79a7",
    "#f28e2b",
    "#59a14f",
    "#e15759",
    "#76b7b2",
    "#edc948",
    "#b07aa1",
    "#9c755f",
    "#bab0ac",
    "#ff9da7",
)


class Result(Brief):
    """Base of what answers a question."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """Return the document that the command prints with --json."""
        raise NotImplementedError

    def rows(self) -> list[dict[str, Any]]:
        """Return the result as flat rows of the same columns: layouts, ranks, figures."""
        raise NotImplementedError

    def pictures(self) -> Sequence[Picture]:
        """Return pictures, each the parts of some bars on one scale."""
        return ()

    def scatter(self) -> tuple[str, str] | None:
        """Return the columns of the rows that are drawn against each other as points: across and up."""
        return None

    def to_vega_lite(self) -> dict[str, Any] | None:
        """Return the pictures as a Vega-Lite specification with their data inside, None where there are none."""
        charts = [_bars(bars) for bars in self.pictures()]
        if (columns := self.scatter()) is not None:
            charts.append(_points(self.rows(), *columns))
        if not charts:
            return None
        separate = {"resolve": {"scale": {"color": "independent"}}}
        return {"$schema": "https://vega.github.io/schema/vega-lite/v5.json", "vconcat": charts, **separate}

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document as plain dictionaries, lists, text and numbers."""
        found: dict[str, Any] = json.loads(json.dumps(self.to_json()))
        return found

    def to_frame(self) -> Any:  # noqa: ANN401 (of whichever library is installed)
        """Return the rows as a data frame, of pandas or else of polars.

        Raises
        ------
        SpecError
            If neither is installed.
        """
        name = next((each for each in FRAMES if find_spec(each) is not None), None)
        if name is None:
            raise SpecError(
                "a data frame needs pandas or polars; install one with: pip install 'forescale[frame]'"
            )
        return import_module(name).DataFrame(self.rows())

    def _repr_mimebundle_(self, **_: object) -> dict[str, Any]:
        """Return what a notebook may show, by kind."""
        bundle = {"text/plain": repr(self), "text/html": self._repr_html_(), VEGA_LITE: self.to_vega_lite()}
        return {kind: shown for kind, shown in bundle.items() if shown is not None}

    def _repr_html_(self) -> str:
        rows = self.rows()
        columns = [name for name in (rows[0] if rows else ()) if len(rows) == 1 or _varies(rows, name)]
        more = f"<p>… {len(rows) - SHOWN} more</p>" if len(rows) > SHOWN else ""
        drawn = "".join(_picture(bars) for bars in self.pictures())
        return f"{drawn}{_table(rows[:SHOWN], columns)}{more}"


def _varies(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    return any(row[name] != rows[0][name] for row in rows)


def _table(rows: list[dict[str, Any]], columns: list[str]) -> str:
    head = "".join(f"<th>{xml(name)}</th>" for name in columns)
    body = "".join(
        f"<tr>{''.join(f'<td>{xml(_shown(row[name]))}</td>' for name in columns)}</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _bars(bars: Picture) -> dict[str, Any]:
    """Return lying bars of coloured parts as a chart; labels such as "stage 0 [GiB]" keep their order."""
    rows = [
        {"bar": label, "part": name, "value": value}
        for label, parts in bars.items()
        for name, value in parts.items()
        if value > 0
    ]
    names = list(dict.fromkeys(row["part"] for row in rows))
    colours = {"domain": names, "range": [COLOURS[place % len(COLOURS)] for place in range(len(names))]}
    return {
        "data": {"values": rows},
        "width": 480,
        "mark": "bar",
        "encoding": {
            "y": {"field": "bar", "type": "nominal", "sort": list(bars), "title": None},
            "x": {"field": "value", "type": "quantitative", "title": None},
            "color": {"field": "part", "type": "nominal", "scale": colours, "title": None},
            "tooltip": [{"field": "bar"}, {"field": "part"}, {"field": "value", "format": ".4~g"}],
        },
    }


def _points(rows: Sequence[Mapping[str, Any]], x: str, y: str) -> dict[str, Any]:
    """Return rows as points over two of their columns; the mouse shows what else differs between them."""
    told = [name for name in (rows[0] if rows else ()) if name in (x, y) or _varies(rows, name)]
    axis = {"type": "quantitative", "scale": {"zero": False}}
    return {
        "data": {"values": [{name: row[name] for name in told} for row in rows]},
        "width": 480,
        "mark": {"type": "point", "filled": True, "size": 60},
        "encoding": {
            "x": {"field": x, **axis},
            "y": {"field": y, **axis},
            "tooltip": [{"field": name} for name in told],
        },
    }


def _picture(bars: Picture) -> str:
    """Return one row of coloured parts per bar, all to one scale, and the legend."""
    names = list(dict.fromkeys(name for parts in bars.values() for name, value in parts.items() if value > 0))
    colours = {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(names)}
    longest = max(sum(parts.values()) for parts in bars.values()) or 1.0
    lines = "".join(
        f'<div style="display:flex;margin:2px 0"><span style="width:12em">{xml(label)}</span>'
        f"{_bar(parts, colours, longest)}</div>"
        for label, parts in bars.items()
    )
    legend = "".join(
        f'<span style="border-left:1em solid {colour};padding:0 .8em 0 .3em">{xml(name)}</span>'
        for name, colour in colours.items()
    )
    return f"<div>{lines}</div><div>{legend}</div>"


def _bar(parts: Mapping[str, float], colours: Mapping[str, str], longest: float) -> str:
    return "".join(
        f'<span title="{xml(f"{name}: {value:.4g}")}" style="height:1.2em;width:{36 * value / longest:.2f}em;'
        f'background:{colours[name]}"></span>'
        for name, value in parts.items()
        if value > 0
    )


def _shown(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else "" if value is None else str(value)
