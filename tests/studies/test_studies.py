"""Studies run, and write what their pages show."""

import json
import sys
from pathlib import Path

import almodel
import playbook
import pytest
import subramanian2024

PAGES = Path(__file__).parents[2] / "docs" / "studies"


def test_playbook_writes_its_pictures_and_a_row_per_case(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["playbook.py", str(tmp_path)])
    monkeypatch.setattr(playbook, "CASES", (("llama-3.1-8b", 16, 8192, 64),))
    playbook.main()
    for name in playbook.PICTURES:
        assert (tmp_path / f"{name}.json").read_text() == (PAGES / "playbook" / f"{name}.json").read_text()
    *_, row = (tmp_path / "tables.md").read_text().splitlines()
    assert row.startswith("| llama-3.1-8b | 16 | 8,192 | 64 | ")


def test_quirks_of_almodel():
    assert "\n".join(almodel.quirk_table()) in (PAGES / "almodel" / "tables.md").read_text()


@pytest.mark.parametrize("number", ["1", "2a", "3b"])
def test_figures_of_subramanian2024(number):
    figure = subramanian2024.FIGURES[number]
    chart = {**figure.chart(), "title": f"Figure {number}. {figure.caption}"}
    page = PAGES / "subramanian2024" / f"figure-{number}.json"
    assert json.loads(page.read_text()) == chart


def test_a_table_of_subramanian2024():
    rows = subramanian2024.scaling_table(subramanian2024.GPT, "1d", 8)
    assert rows in (PAGES / "subramanian2024" / "tables.md").read_text()
