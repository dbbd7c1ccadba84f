"""Pages that are one file: drawn, readable on a phone and on a wall, light and dark, usable without a pointer."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.browser.conftest import Opened, serious

from forescale.cli.app import run

LAYOUT = "llama-3.1-8b --cluster h100-sxm --devices 32 --seq-len 4096 --global-batch-size 128 --tp 2 --pp 4"
RUN = str(Path(__file__).parents[1] / "data/schedules")
COMMANDS = {
    "project": f"project {LAYOUT} --html",
    "memory": f"memory {LAYOUT} --timeline --html",
    "draw": "pipeline draw -s 1f1b -s zbv --pp 4 -m 8 -f html -o",
    "trace": f"pipeline draw --trace {RUN} -f html -o",
}


@pytest.fixture(params=COMMANDS)
def written(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    assert run([*COMMANDS[request.param].split(), str(tmp_path / "page.html")]) == 0
    return f"file://{tmp_path}/page.html"


def test_a_file_is_readable_and_accessible(opened: Opened, written: str):
    for width, scheme in ((360, "dark"), (1400, "light"), (3840, "dark")):
        page = opened(written, width=width, scheme=scheme)
        page.wait_for_selector("svg, canvas")
        page.wait_for_function("document.querySelector('[data-spec]') === null")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert serious(page) == []


@pytest.mark.parametrize("written", ["draw"], indirect=True)
def test_passes_are_reached_by_the_keyboard(opened: Opened, written: str):
    page = opened(written)
    page.focus("canvas >> nth=0")
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "+"):
        page.keyboard.press(key)
    assert str(page.text_content("#told")).startswith("1F0, rank 1\nstart 1")
    assert page.is_visible("#tip")
    page.keyboard.press("Escape")
    assert not page.is_visible("#tip")


@pytest.mark.parametrize("written", ["trace"], indirect=True)
def test_the_table_of_passes_is_sorted_by_a_button(opened: Opened, written: str):
    page = opened(written)
    column = "[...document.querySelectorAll('tbody tr')].map((row) => Number(row.cells[6].textContent))"
    page.click("th >> nth=6 >> button")
    falling = page.evaluate(column)
    assert falling == sorted(falling, reverse=True)
    assert page.get_attribute("th >> nth=6", "aria-sort") == "descending"
    page.click("th >> nth=6 >> button")
    assert page.evaluate(column) == sorted(falling)
