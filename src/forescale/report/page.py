"""A report as one HTML page that loads nothing."""

from __future__ import annotations

from forescale.escaping import xml
from forescale.report.document import Bullets, Content, Paragraph, Report, Section, Table

_STYLE = """
:root{color-scheme:light dark;--ink:#1b2430;--soft:#5b6673;--line:#dfe3e8;--band:#f5f7f9;--paper:#fff}
@media(prefers-color-scheme:dark){:root{--ink:#e4e8ed;--soft:#9aa5b1;--line:#343c46;--band:#20262d;--paper:#171b20}}
body{font:14px/1.5 ui-sans-serif,system-ui,Helvetica,Arial,sans-serif;color:var(--ink);background:var(--paper);
margin:0 auto;padding:24px;max-width:1600px}
h1{font-size:24px}h2{font-size:18px;margin-top:36px}h3{font-size:15px;margin-top:28px}
h4{font-size:14px;margin:18px 0 6px;color:var(--soft)}p,ul{max-width:80ch}
nav{color:var(--soft)}nav a{color:inherit;margin-right:14px}
.wide{overflow-x:auto;margin:10px 0}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:3px 9px;text-align:left;white-space:nowrap}.r{text-align:right}
.few td{white-space:normal}thead th{border-bottom:2px solid var(--line)}
tbody tr+tr td{border-top:1px solid var(--line)}tbody tr:nth-child(even){background:var(--band)}
.many{font-size:11.5px}.many th,.many td{padding:3px 5px}
.many th:first-child,.many td:first-child{position:sticky;left:0;background:var(--paper)}
""".strip()
_MANY = 12
"""Columns from which a table is set smaller and never wraps."""


def to_html(report: Report) -> str:
    """Return the report as a page with a table of contents; wide tables scroll by themselves."""
    parts = [
        f"<a href='#s{number}'>{xml(section.title)}</a>"
        for number, section in enumerate(report.sections)
        if section.level == 1
    ]
    body = "\n".join(_section(number, section) for number, section in enumerate(report.sections))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{xml(report.title)}</title><style>{_STYLE}</style></head><body>\n"
        f"<h1>{xml(report.title)}</h1>\n<nav>{''.join(parts)}</nav>\n{body}\n</body></html>\n"
    )


def _section(number: int, section: Section) -> str:
    tag = f"h{section.level + 1}"
    inner = "\n".join(_content(content) for content in section.contents)
    return f'<section><{tag} id="s{number}">{xml(section.title)}</{tag}>\n{inner}</section>'


def _content(content: Content) -> str:
    match content:
        case Paragraph(text=text):
            return f"<p>{xml(text)}</p>"
        case Bullets(items=items):
            return "<ul>" + "".join(f"<li>{xml(item)}</li>" for item in items) + "</ul>"
        case Table():
            return _table(content)


def _table(table: Table) -> str:
    kinds = [' class="r"' if heading.align == "right" else "" for heading in table.headings]
    head = "".join(
        f'<th scope="col"{kind}>{xml(heading.text)}</th>'
        for kind, heading in zip(kinds, table.headings, strict=True)
    )
    rows = "\n".join(
        "<tr>"
        + "".join(f"<td{kind}>{xml(cell)}</td>" for kind, cell in zip(kinds, row, strict=True))
        + "</tr>"
        for row in table.rows
    )
    size = "many" if len(table.headings) >= _MANY else "few"
    return (
        f'<div class="wide"><table class="{size}"><thead><tr>{head}</tr></thead>'
        f"<tbody>\n{rows}\n</tbody></table></div>"
    )
