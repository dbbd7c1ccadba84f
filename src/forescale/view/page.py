"""The components of every page: figures, tables, sections, and the page that holds its style, script and library."""

from __future__ import annotations

import gzip
import json
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from html import unescape
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias

from forescale.atomic_write import replacing, write_text
from forescale.errors import needing, wrong_suffix
from forescale.escaping import script, xml
from forescale.view.axes import CONFIG, Spec
from forescale.view.bars import BarChart
from forescale.view.heat import HeatMap
from forescale.view.lines import LineChart
from forescale.view.spans import SpanChart

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
            raise wrong_suffix("a chart", path.name, SUFFIXES)


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
    vl_convert, font_files_ttf = _painter(suffix)
    style = {**CONFIG, **spec.get("config", {}), "background": "white", "font": FONT}
    whole = {**spec, "config": style}
    if suffix == ".svg":
        faces = {"normal": font_files_ttf["SourceSansPro"], "bold": font_files_ttf["SourceSansProBold"]}
        return with_glyphs(str(vl_convert.vegalite_to_svg(whole)), faces).encode() + b"\n"
    return bytes(vl_convert.vegalite_to_png(whole, scale=_SHARPNESS))


def rasterised(svg: str) -> bytes:
    """Return a picture as PNG, a pixel per point; raises where nothing that draws it is installed."""
    painter, _ = _painter(".png")
    return bytes(painter.svg_to_png(svg, scale=1))


def _painter(suffix: str) -> tuple[Any, Any]:
    """Return what draws pictures, with its font registered, and the files of the font."""
    with needing("pictures", suffix, fix="or write .html and save the picture from the page"):
        import vl_convert
        from font_source_sans_pro import font_directory, font_files_ttf
        from fontTools import ttLib  # noqa: F401 (what sets the glyphs in)
    vl_convert.register_font_directory(font_directory)
    return vl_convert, font_files_ttf


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


Chart: TypeAlias = BarChart | LineChart | HeatMap | SpanChart
FOLDER = Path(__file__).parent / "static"
LIBRARY = ("vega.min.js", "vega-lite.min.js")
"""What draws charts, in the order in which it is loaded."""


def figure(chart: Chart, *, table: str = "") -> str:
    """Return a chart under its title; `table` holds its numbers for who cannot see it."""
    parts = xml(f"{chart.title}. {chart.note}")
    below = f"<details><summary>Table</summary>{table}</details>" if table else ""
    return (
        f"<figure><figcaption>{xml(chart.title)} <small>{xml(chart.note)}</small></figcaption>"
        f'<div class="chart" role="img" aria-label="{parts}" data-spec="{xml(script(chart.spec()))}"></div>'
        f"{below}</figure>"
    )


def drawing(svg: str, title: str, note: str = "") -> str:
    """Return a picture that is drawn already; one that is wide scrolls by itself."""
    return (
        f'<figure class="whole"><figcaption>{xml(title)} <small>{xml(note)}</small></figcaption>'
        f"{wide(svg, title, kind='drawing')}</figure>"
    )


def gallery(figures: Iterable[str]) -> str:
    """Return figures beside each other where there is room."""
    return f'<div class="pictures">{"".join(figures)}</div>'


def wide(inner: str, name: str, *, kind: str = "") -> str:
    """Return what may be wider than the page, in a region of its own that the keyboard can move."""
    rstrip = f"wide {kind}".rstrip()
    return f'<div class="{rstrip}" tabindex="0" role="region" aria-label="{xml(name)}">{inner}</div>'


def table(
    name: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    words: Iterable[int] = (0,),
    crowded: bool = False,
) -> str:
    """Return rows of text under headings, which may be none.

    Parameters
    ----------
    words
        Columns that hold words, which stand at the left; numbers stand at the right.
    crowded
        Whether it is set smaller, and never wraps.
    """
    left, lines = set(words), list(rows)
    columns = max(map(len, [headings, *lines]))
    kinds = ["" if place in left else ' class="number"' for place in range(columns)]
    head = "".join(
        f'<th scope="col"{kind}>{xml(heading)}</th>' for kind, heading in zip(kinds, headings, strict=False)
    )
    top = f"<thead><tr>{head}</tr></thead>" if head else ""
    body = "\n".join(
        f"<tr>{''.join(f'<td{kind}>{xml(cell)}</td>' for kind, cell in zip(kinds, row, strict=True))}</tr>"
        for row in lines
    )
    size = ' class="crowded"' if crowded else ""
    return wide(f"<table{size}>{top}<tbody>\n{body}\n</tbody></table>", name)


def bullets(items: Iterable[str]) -> str:
    """Return a list."""
    return f"<ul>{''.join(f'<li>{xml(item)}</li>' for item in items)}</ul>"


def page(title: str, *parts: str, command: str = "") -> str:
    """Return one page of these parts, which loads nothing; where it has charts it holds what draws them.

    It ends with the command line that asks the same, where there is one.
    """
    head = "<h2>The same on the command line</h2>"
    question = f'{head}<pre tabindex="0">{xml(command)}</pre>' if command else ""
    body = "\n".join([*parts, question] if question else parts)
    scripts = _scripts() if "data-spec=" in body else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{xml(title)}</title><style>{text('style.css')}</style></head>\n"
        f'<body class="report"><main><h1>{xml(title)}</h1>\n{body}\n</main>{scripts}</body></html>\n'
    )


def text(name: str) -> str:
    """Return a file that pages hold or load."""
    return (FOLDER / name).read_text(encoding="utf-8")


def _scripts() -> str:
    """Return the library, packed to a third of its size, and what unpacks it and draws."""
    packed = gzip.compress("\n".join(text(f"vendor/{name}") for name in LIBRARY).encode(), mtime=0)
    return (
        "<noscript><p>The charts need scripts; the tables hold the same numbers.</p></noscript>\n"
        f'<script type="application/json" id="chart-config">{script(CONFIG)}</script>\n'
        f'<script type="text/plain" id="library">{b64encode(packed).decode()}</script>\n'
        f"<script>{text('draw.js')}</script>"
    )
