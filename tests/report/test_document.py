"""Reports as Markdown, HTML and JSON."""

from __future__ import annotations

import html.parser
import json

from forescale.cli.formats.html import to_html
from forescale.cli.formats.markdown import to_markdown
from forescale.report.document import (
    Bullets,
    Column,
    Report,
    Section,
    legend,
    line,
    properties,
    ranking,
)

COLUMNS = (
    Column("tp", lambda one: str(one["tp"]), "degrees"),
    Column("dp", lambda one: str(one["dp"]), "degrees"),
    Column("<name", lambda one: one["name"], "what it | is called"),
)
ENTRIES = ({"tp": 1, "dp": 8, "name": "a_b*c"}, {"tp": 8, "dp": 1, "name": "<b>"})
REPORT = Report(
    title="Layouts of a<b",
    contents=(
        Section("Model", (properties([("Layers", "2")]), line("two `words`"))),
        Section("Ranking", (ranking(COLUMNS, ENTRIES), legend(COLUMNS)), 2),
        Section("Summary", (Bullets(("first", "second")),)),
    ),
)


class Tags(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.texts, self.rows = [], [], []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta",):
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1].append(data)


def test_rows_are_numbered_and_the_legend_joins_equal_meanings():
    assert ranking(COLUMNS, ENTRIES).rows == (("1", "1", "8", "a_b*c"), ("2", "8", "1", "<b>"))
    assert legend(COLUMNS).rows == (("tp / dp", "degrees"), ("name", "what it | is called"))


def test_markdown():
    text = to_markdown(REPORT)
    assert text.startswith("# Layouts of a\\<b\n\n## Model\n\n| Property | Value |\n| --- | --- |\n")
    assert "### Ranking\n\n| # | tp | dp | name |\n| ---: | ---: | ---: | --- |\n" in text
    assert "| 1 | 1 | 8 | a_b\\*c |\n| 2 | 8 | 1 | \\<b> |" in text
    assert "what it \\| is called" in text
    assert "two \\`words\\`" in text
    assert text.endswith("- first\n- second\n")


def test_html_is_well_formed_and_says_the_same():
    tags = Tags()
    tags.feed(to_html(REPORT))
    assert tags.open == []
    assert ["1", "1", "8", "a_b*c"] in tags.rows
    assert ["2", "8", "1", "<b>"] in tags.rows
    assert "Layouts of a<b" in tags.texts
    assert "http" not in to_html(REPORT)


def test_json():
    body = json.loads(json.dumps(REPORT.to_json()))
    assert body["schema"] == "forescale.report/1"
    assert [section["title"] for section in body["sections"]] == ["Model", "Ranking", "Summary"]
    assert body["sections"][1]["contents"][0]["rows"][1] == ["2", "8", "1", "<b>"]
