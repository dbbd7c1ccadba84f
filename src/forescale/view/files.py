"""A chart as a file: a Vega-Lite specification, a page, or a picture where vl-convert is installed."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Mapping
from html import unescape
from io import BytesIO
from pathlib import Path

from forescale.errors import SpecError
from forescale.view.page import Chart, figure, page
from forescale.view.theme import CONFIG, Spec
from forescale.written import replacing, write_text

SUFFIXES = (".html", ".json", ".svg", ".png")
FONT = "Source Sans Pro"
"""Of pictures; SVG carries its glyphs (SIL Open Font Licence)."""
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
                place.write_bytes(picture(chart.spec(), path.suffix))
        case _:
            raise SpecError(f"a chart is a file that ends in {', '.join(SUFFIXES)}; got {path.name}")


def written(chart: Chart) -> str:
    """Return a chart as the text of a Vega-Lite file."""
    return json.dumps(chart.spec(), indent=1, ensure_ascii=False) + "\n"


def picture(spec: Spec, suffix: str) -> bytes:
    """Return a specification drawn on white, as `.svg` or `.png`.

    Raises
    ------
    SpecError
        If nothing that draws it is installed.
    """
    try:
        import vl_convert
        from font_source_sans_pro import font_directory, font_files_ttf
        from fontTools import ttLib  # noqa: F401 (what sets the glyphs in)
    except ModuleNotFoundError as error:
        raise SpecError(
            f"{suffix} needs {error.name}; install it with: pip install 'forescale[pictures]', "
            "or write .html and save the picture from the page"
        ) from None
    vl_convert.register_font_directory(font_directory)
    style = {**CONFIG, **spec.get("config", {}), "background": "white", "font": FONT}
    whole = {**spec, "config": style}
    if suffix == ".svg":
        faces = {"normal": font_files_ttf["SourceSansPro"], "bold": font_files_ttf["SourceSansProBold"]}
        return with_glyphs(str(vl_convert.vegalite_to_svg(whole)), faces).encode() + b"\n"
    return bytes(vl_convert.vegalite_to_png(whole, scale=_SHARPNESS))


def with_glyphs(svg: str, faces: Mapping[str, str]) -> str:
    """Return a picture that carries the glyphs of its text, from the file of each weight of its font."""
    style = ""
    for weight, file in faces.items():
        from fontTools import subset
        from fontTools.ttLib import TTFont

        font, cut = TTFont(file, recalcTimestamp=False), subset.Subsetter(subset.Options(hinting=False))
        cut.populate(text=unescape("".join(re.findall(r">([^<]+)<", svg))))
        cut.subset(font)
        font.flavor = "woff"
        font.save(kept := BytesIO())
        source = f"url(data:font/woff;base64,{b64encode(kept.getvalue()).decode()})"
        style += f"@font-face{{font-family:'{FONT}';font-weight:{weight};src:{source}}}"
    head, rest = svg.split(">", 1)
    return f"{head}><style>{style}</style>{rest}"
