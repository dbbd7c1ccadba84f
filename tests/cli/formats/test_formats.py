"""Every format writes every kind of content, and every command prints every format."""

from __future__ import annotations

import csv
import io
import json

import pytest
from tests.cli.questions import DENSE, LAYOUT

from forescale.cli.formats import FORMATS, Answer, write
from forescale.cli.formats.fitting import fitting
from forescale.errors import SpecError, UnknownNameError
from forescale.question import Note
from forescale.report.document import (
    Beside,
    Bullets,
    Code,
    Column,
    Section,
    Sketch,
    Table,
    TreeNode,
    View,
    facts,
    line,
    listed,
    styled,
    table,
)

WORDS = (
    "title",
    "lead",
    "styled cell",
    "fact",
    "bullet",
    "sketch",
    "beside",
    "branch",
    "code",
    "inner",
    "caption",
)
ROWS = [{"name": "a_b", "step_s": 1.5}, {"name": "<c>", "step_s": 2.5}]
COLUMNS = (Column("<name", lambda row: row["name"]), Column("step", lambda row: f"{row['step_s']:.2f} s"))
VIEW = View(
    title="title",
    lead="lead",
    contents=(
        line("plain ", ("styled", "bold")),
        listed(COLUMNS, ROWS),
        table("<one", "two", rows=[styled("dim", ("styled cell", "7"))], caption="caption"),
        facts([("fact", "3 s")]),
        Bullets(("bullet",)),
        Sketch(lambda width: [line(f"sketch {'▇' * min(width, 3)}")]),
        Beside((table("beside", rows=[("8",)]), table("other", rows=[("9",)]))),
        TreeNode(line("branch"), (TreeNode(line("twig")),)),
        Code("code", "forescale project"),
        Section("inner", (line("inside"),), 2),
    ),
    notes=(Note(topic="layout", text="no effect"), Note(topic="left out", text="audio")),
)
ANSWER = Answer(view=lambda: VIEW, document=lambda: {"schema": "s", "rows": ROWS}, rows=lambda: ROWS)
OF_VIEW = [name for name, _ in FORMATS if name not in ("json", "csv")]


@pytest.mark.parametrize("name", OF_VIEW)
def test_a_format_of_the_view_writes_all_of_it(name):
    text = write(ANSWER, name)
    assert [
        word for word in (*WORDS, "1.50 s", "twig", "inside", "no effect", "audio") if word not in text
    ] == []
    assert ("▇▇▇" in text) == (name == "text")


def test_rows_and_documents_are_plain_values():
    assert list(csv.DictReader(io.StringIO(write(ANSWER, "csv")))) == [
        {name: str(value) for name, value in row.items()} for row in ROWS
    ]
    assert json.loads(write(ANSWER, "json"))["rows"] == ROWS


def test_rows_of_a_view_are_those_of_its_first_table():
    shown = Answer(view=lambda: VIEW, document=dict)
    assert write(shown, "csv").splitlines() == ["name,step", "a_b,1.50 s", "<c>,2.50 s"]
    with pytest.raises(SpecError):
        write(Answer(view=lambda: View(contents=(line("nothing"),)), document=dict), "csv")


def test_an_unknown_format_is_refused():
    with pytest.raises(UnknownNameError):
        write(ANSWER, "markdwn")


COMMANDS = {
    "project": ("project", *DENSE, *LAYOUT),
    "memory": ("memory", *DENSE, *LAYOUT),
    "fit": ("fit", *DENSE, "--no-pairs"),
    "explain": ("explain", DENSE[0], *DENSE[1:]),
    "network": ("network", "--cluster", "h100-sxm", "--sizes", "1MiB"),
    "catalogue": ("catalogue", "models", "llama"),
    "pipeline": ("pipeline", "list"),
}


@pytest.mark.parametrize("name", [name for name, _ in FORMATS])
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_every_command_prints_every_format(forescale, command, name):
    ran = forescale(*command, "--as", name)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == forescale(*command, *{"json": ["--json"], "text": []}.get(name, ["--as", name])).out
    if name == "text":
        assert max(map(len, ran.out.splitlines())) <= 100


def test_two_formats_are_refused(forescale):
    ran = forescale("catalogue", "models", "--json", "--as", "csv")
    assert ran.code == 2
    assert "--as csv" in ran.err


def test_no_column_of_numbers_is_narrower_than_its_cells():
    wide = table("<name", "first", "?spare", "last", rows=[("n" * 40, "1" * 20, "2" * 20, "3" * 20)])
    [whole] = fitting(wide, 200)
    assert whole == wide
    subset, below = fitting(wide, 60)
    assert isinstance(subset, Table)
    assert subset.labels == ["name", "first", "last"]
    assert "spare" in below.text
    parts = [item for item in fitting(wide, 40) if isinstance(item, Table)]
    assert [part.labels for part in parts] == [["name", "first"], ["name", "last"]]


def test_an_unknown_format_is_refused_before_anything_is_computed(forescale):
    ran = forescale("project", "no-such-model", "--as", "toml")
    assert (ran.code, ran.out) == (2, "")
    assert "unknown format 'toml'" in ran.err
