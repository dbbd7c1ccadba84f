"""A chart as a file: a Vega-Lite specification, a page, or a picture where vl-convert is installed."""

from __future__ import annotations

import json
from pathlib import Path

from forescale.errors import SpecError
from forescale.view.page import Chart, figure, page
from forescale.view.theme import CONFIG
from forescale.written import replacing, write_text

SUFFIXES = (".html", ".json", ".svg", ".png")
_SHARPNESS = 2
"""Pixels of a PNG per point."""


def write_chart(chart: Chart, path: Path) -> None:
    """Write a chart in the form that its file's name says.

    Raises
    ------
    SpecError
        If the name ends otherwise, or a picture is wanted and nothing that draws it is installed.
    """
    match path.suffix:
        case ".html":
            write_text(path, page(chart.title, figure(chart)))
        case ".json":
            write_text(path, written(chart))
        case ".svg" | ".png":
            with replacing(path) as place:
                place.write_bytes(_picture(chart, path.suffix))
        case _:
            raise SpecError(f"a chart is a file that ends in {', '.join(SUFFIXES)}; got {path.name}")


def written(chart: Chart) -> str:
    """Return a chart as the text of a Vega-Lite file."""
    return json.dumps(chart.spec(), indent=1, ensure_ascii=False) + "\n"


def _picture(chart: Chart, suffix: str) -> bytes:
    try:
        import vl_convert
    except ModuleNotFoundError:
        raise SpecError(
            f"{suffix} needs vl-convert; install it with: pip install 'forescale[pictures]', "
            "or write .html and save the picture from the page"
        ) from None
    spec = {**chart.spec(), "config": {**CONFIG, "background": "white"}}
    if suffix == ".svg":
        return str(vl_convert.vegalite_to_svg(spec)).encode() + b"\n"
    return bytes(vl_convert.vegalite_to_png(spec, scale=_SHARPNESS))
