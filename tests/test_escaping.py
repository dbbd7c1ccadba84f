"""No name is taken for an instruction where it goes."""

from __future__ import annotations

import csv
import io
import json
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forescale.escaping import csv_text, markdown, printable, script, xml

EVIL = "a\x1b[2J\x9b31m\u202eb\x00"


def test_a_terminal_is_not_steered():
    assert printable(EVIL) == r"a\x1b[2J\x9b31m\u202eb\x00"
    assert printable("größer\t×\nשלום") == "größer\t×\nשלום"


@settings(max_examples=60, deadline=None)
@given(text=st.text(alphabet=st.characters(), max_size=20))
def test_any_text_is_text_in_xml(text):
    read = ElementTree.fromstring(f'<a b="{xml(text)}">{xml(text)}</a>').text or ""
    assert read == printable(text).replace("\r", "\n")
    printable(text).encode()


@pytest.mark.parametrize("text", ["</script>", "<!--<script>", EVIL])
def test_a_script_element_ends_where_it_ends(text):
    assert "<" not in script({"name": text})
    assert json.loads(script({"name": text})) == {"name": text}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("<script>", "\\<script>"),
        ("[a](b)", "[a]\\(b)"),
        ("a|b\nc", "a\\|b c"),
        ("`x` *y* \\z", "\\`x\\` \\*y\\* \\\\z"),
        ("\x1b]0;", "\\x1b]0;"),
        ("save_out_proj", "save_out_proj"),
    ],
)
def test_nothing_is_markup_in_markdown(text, shown):
    assert markdown(text) == shown


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "\t=1", "\r=1"])
def test_no_text_is_a_formula_in_a_spreadsheet(text):
    written = csv_text([{"name": text, "value": -1.5}], ["name", "value", "missing"])
    assert list(csv.reader(io.StringIO(written, newline=""))) == [
        ["name", "value", "missing"],
        [f"'{printable(text)}", "-1.5", ""],
    ]
