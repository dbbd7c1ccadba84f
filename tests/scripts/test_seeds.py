"""The tables of published accounts: their commands are run, and the figures compared."""

from pathlib import Path

import pytest
from scripts.pages import workplace

from scripts import seeds


def row(**values: str) -> seeds.Row:
    """Return a row, empty but for some of its columns."""
    return seeds.Row(**{**dict.fromkeys(seeds.Row.__slots__, ""), **values})


@pytest.mark.parametrize("path", seeds.tables(), ids=lambda path: path.stem)
def test_commands_print_the_figures_of_the_tables(path: Path) -> None:
    """Run every command of a table in a folder that only has the examples."""
    with workplace():
        problems = {f"{row.section}: {row.what}": seeds.violations(row) for row in seeds.rows(path)}
    assert {key: value for key, value in problems.items() if value} == {}


def test_the_page_is_generated() -> None:
    """Fails after a change of a table: `python scripts/seeds.py` writes it anew."""
    rows = [row for path in seeds.tables() for row in seeds.rows(path)]
    assert seeds.PAGE.read_text("utf-8") == seeds.page(rows)


@pytest.mark.parametrize(
    ("expression", "value"),
    [(".a.b", 4), (".a.rows[1].x", 7), (".a.b / 8", 0.5), (".a.b * 2.5", 10.0), ('."c d"', "text")],
)
def test_expressions_of_jq(expression: str, value: object) -> None:
    """Paths, indices, and one factor."""
    document = {"a": {"b": 4, "rows": [{}, {"x": 7}]}, "c d": "text"}
    assert seeds.value_at(document, expression) == value


@pytest.mark.parametrize(
    ("changed", "number"),
    [
        ({}, 0),
        ({"ours": "forescale 0.0.0.0"}, 1),
        ({"seed_value": "forescale", "tolerance": "exact"}, 0),
        ({"seed_value": "other", "tolerance": "exact"}, 1),
        ({"seed_value": "other", "remark": ""}, 1),
        ({"command": "", "ours": ""}, 0),
        ({"command": "", "remark": ""}, 1),
    ],
)
def test_a_row_that_disagrees_is_reported(changed: dict[str, str], number: int) -> None:
    """A text that is not printed, figures that differ, and a row that states nothing."""
    usual = {
        "command": "forescale --version",
        "seed_value": "forescale",
        "ours": "forescale",
        "remark": "a text",
    }
    assert len(seeds.violations(row(**{**usual, **changed}))) == number


@pytest.mark.parametrize(("ours", "limit", "number"), [("10.4", "5%", 0), ("10.6", "5 %", 1)])
def test_the_tolerance_is_relative_to_the_seed(ours: str, limit: str, number: int) -> None:
    """A share of the published figure."""
    tested = row(seed_value="10", ours=ours, tolerance=limit, remark="stated")
    assert len(seeds.violations(tested)) == number
