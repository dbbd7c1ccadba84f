"""Pictures of a sweep as files, and one page that holds them all; it loads nothing from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from forescale.escaping import xml
from forescale.sweep.labels import say, title, unit_of
from forescale.sweep.pictures import Picture
from forescale.sweep.result import SweepResult
from forescale.units import counted
from forescale.written import write_text, writing

_STYLE = """
body { font-family: ui-sans-serif, Helvetica, Arial, sans-serif; color: #1b2430; margin: 2rem; max-width: 72rem }
h1 { font-size: 1.4rem } h2 { font-size: 1.05rem; margin-top: 2rem } figure { margin: 1.2rem 0 }
svg { max-width: 100%; height: auto } table { border-collapse: collapse; font-size: 0.85rem }
td { white-space: nowrap }
td, th { padding: 0.2rem 0.7rem; text-align: right; border-bottom: 1px solid #e3e6ea }
th:first-child, td:first-child { text-align: left } p { color: #5b6675 }
"""
_SHOWN = (
    "step_time_s",
    "tokens_per_s_per_device",
    "mfu",
    "peak_bytes",
    "communication_share",
    "bubble_share",
)
_DEGREES = (
    "tp",
    "cp",
    "ep",
    "pp",
    "vpp",
    "dp_replicate",
    "dp_shard",
    "zero",
    "micro_batch_size",
    "recompute",
)


def write_pictures(result: SweepResult, pictures: Sequence[Picture], folder: Path) -> tuple[Path, ...]:
    """Write every picture as SVG and as Vega-Lite, and a page of all; return the files."""
    files: list[Path] = []
    place = folder / "plots"
    with writing(place):
        place.mkdir(parents=True, exist_ok=True)
    for picture in pictures:
        vega = json.dumps(picture.vega_lite, indent=1, ensure_ascii=False) + "\n"
        for suffix, text in ((".svg", picture.svg + "\n"), (".vl.json", vega)):
            file = place / f"{picture.name}{suffix}"
            write_text(file, text)
            files.append(file)
    page = folder / "report.html"
    write_text(page, to_html(result, pictures))
    return (*files, page)


def to_html(result: SweepResult, pictures: Sequence[Picture]) -> str:
    """Return a page with the pictures and, for everything varied, the best point of every value."""
    counts = ", ".join(f"{count:,} {status}" for status, count in result.counts.items() if count)
    parts = [
        "<!doctype html>",
        f'<html lang="en"><meta charset="utf-8"><title>{xml(result.sweep.name)}</title>',
        f"<style>{_STYLE}</style>",
        f"<h1>{xml(result.sweep.name)}</h1>",
        f"<p>{counted(len(result.rows), 'point')}: {counts}. Best by {xml(title(result.metric))}.</p>",
        *(f"<figure>{picture.svg}</figure>" for picture in pictures),
        *(_table(result, name) for name in result.sweep.axes.names),
    ]
    return "\n".join([*parts, "</html>", ""])


def _table(result: SweepResult, axis: str) -> str:
    """Return the best point of every value; samples would be a row each, so they have none."""
    if any(item.name == axis for item in result.sweep.axes.ranges):
        return ""
    head = "".join(f"<th>{xml(title(name))}</th>" for name in (axis, *_SHOWN, *_DEGREES))
    rows = []
    for value, best in result.best_by(axis):
        said = f"<td>{xml(say(value, unit_of(result.sweep, axis)))}</td>"
        if best is None:
            said += f'<td colspan="{len(_SHOWN) + len(_DEGREES)}" style="text-align:left">no layout</td>'
        else:
            shown = (say(best[name], unit_of(result.sweep, name)) for name in (*_SHOWN, *_DEGREES))
            said += "".join(f"<td>{xml(cell)}</td>" for cell in shown)
        rows.append(f"<tr>{said}</tr>")
    return f"<h2>Best by {xml(title(axis))}</h2><table><tr>{head}</tr>{''.join(rows)}</table>"
