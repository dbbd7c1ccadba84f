"""Plain command lines are parsed by the table as typer parses them; others are left to typer."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache, wraps
from typing import Any

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from scripts.flags import commands

from forescale.cli.advice import rows_of, table
from forescale.cli.help import Commands
from forescale.cli.typed import _function
from forescale.cli.words import parsed, values_of
from forescale.errors import ForescaleError

FUNCTIONS = dict(commands())
PATHS = sorted(FUNCTIONS)
TEXTS = {
    "text": ("a", "x,y", "-5", "80GiB", "a b", "A.B=1", "2"),
    "whole": ("8", "1,024", "0", "-3", "8.5", "07", " 8", "1e3", "9" * 20, "x"),
    "number": ("0.5", "-1", "1e3", "+2", "nan", "inf", "1_000", "x", "5."),
    "length": ("8192", "128k", "1M", "8kk", "-1"),
    "money/h": ("2.50", "$2.50", "2.50 USD/hr", "1K", "-1", "x"),
    "money/kWh": ("0.1", "$0.1/kWh", "0.1/h", "-1"),
    "file": ("a.toml", "out.html", "/no/such/folder/x.json", "-x"),
    "other": ("a",),
}
ODD = ("--", "--bogus", "-q", "--bogus=1", "-", "-5", "", " ", "--json=1", "--help-all", "word")


def texts_of(row: Mapping[str, Any]) -> tuple[str, ...]:
    kind = row["kind"]
    return (*kind, kind[0].upper(), "zzz") if isinstance(kind, list) else TEXTS[kind]


@cache
def parser(path: str) -> tuple[Any, list[Any]]:
    """Return typer's command, which notes the groups that it is called with."""
    noted: list[Any] = []
    function = FUNCTIONS[path]

    @wraps(function)
    def call(**values: object) -> None:
        noted.append(values)

    app = Commands()
    app.command("command")(_function(call))
    return typer.main.get_command(app), noted


def by_typer(path: str, words: list[str]) -> Any:
    """Return what typer makes of the words; None if it refuses them."""
    command, noted = parser(path)
    noted.clear()
    try:
        command(words, prog_name="forescale", standalone_mode=False)
    except (ForescaleError, typer.BadParameter.__mro__[2]):  # type: ignore[misc]
        return None
    return noted[-1] if noted else None


@st.composite
def lines(draw: st.DrawFn, path: str) -> list[str]:
    """Return words of a command: options in all their spellings, arguments, and what is odd."""
    rows = dict(rows_of(table()["commands"][path]))
    words: list[str] = []
    for name in draw(st.lists(st.sampled_from(sorted(rows)), max_size=5)):
        row = rows[name]
        flag = draw(st.sampled_from([*row.get("on", [""]), *row.get("off", [])]))
        text = "" if row["kind"] == "switch" else draw(st.sampled_from(texts_of(row)))
        if row["kind"] == "switch" or not flag:
            words.append(flag or text)
        else:
            words += [f"{flag}={text}"] if draw(st.booleans()) else [flag, text]
    for odd in draw(st.lists(st.sampled_from(ODD), max_size=1)):
        words.insert(draw(st.integers(0, len(words))), odd)
    return words


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_values_are_those_of_typer(path: str, data: st.DataObject) -> None:
    words = data.draw(lines(path))
    if (values := values_of(path, words)) is not None:
        assert repr(values) == repr(by_typer(path, words)), words


@pytest.mark.parametrize("path", PATHS)
def test_plain_options_need_no_typer(path: str) -> None:
    rows = dict(rows_of(table()["commands"][path]))
    needed = [texts_of(row)[0] for row in rows.values() if row.get("required") and "on" not in row]
    for row in rows.values():
        if "on" in row and row.get("required"):
            needed += [row["on"][0], texts_of(row)[0]]
    if any(row.get("required") and row.get("check", {}) is None for row in rows.values()):
        return
    for name, row in rows.items():
        plain = row["kind"] != "other" and row.get("check", {}) is not None
        if "on" not in row or name == "written_as" or not plain:
            continue
        flag, texts = row["on"][0], () if row["kind"] == "switch" else texts_of(row)
        taken = [text for text in texts if by_typer(path, [*needed, flag, text]) is not None]
        words = [flag, *taken[:1]]
        assert values_of(path, [*needed, *words]) is not None, words


def test_the_parameters_are_those_of_the_function() -> None:
    for path, function in FUNCTIONS.items():
        assert list(table()["commands"][path]) == list(inspect.signature(function).parameters)


@pytest.mark.parametrize(
    "words",
    [
        ("project", "m", "--help"),
        ("project", "m", "n"),
        ("project", "m", "--devices", "x"),
        ("project", "m", "--devices"),
        ("project", "m", "--json=1"),
        ("project", "--", "m"),
        ("catalogue",),
        ("pipeline", "bogus"),
    ],
)
def test_what_is_not_plain_is_left_to_typer(words: tuple[str, ...]) -> None:
    assert parsed(words) is None


def test_a_share_may_be_a_percentage() -> None:
    question = ("m", "--cluster", "h100-sxm", "--devices", "8", "--global-batch-size", "8")
    values = values_of("run", (*question, "--stragglers", "10%"))
    assert values is not None
    assert values["operated"].stragglers == 0.1  # type: ignore[attr-defined]
    assert values_of("run", (*question, "--stragglers", "110%")) is None  # more than all
