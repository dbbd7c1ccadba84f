"""Studies run, and write what their pages show."""

import json
import sys
from pathlib import Path

import almodel
import deepseek_v3
import playbook
import pytest
import subramanian2024

from forescale.project import project

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


def test_published_runs_are_projected_within_a_tenth(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["deepseek_v3.py", str(tmp_path)])
    deepseek_v3.main()
    assert {path.stem for path in tmp_path.glob("*.json")} == set(deepseek_v3.PICTURES)
    question = deepseek_v3.published()
    assert deepseek_v3.layer_ms(question) == pytest.approx(deepseek_v3.LAYER_MS, rel=0.1)
    ours = deepseek_v3.kernels(question)
    for name, seconds in deepseek_v3.deepep_seconds(question).items():
        assert ours[f"{name}, forward"] == pytest.approx(1e3 * seconds, rel=0.1)
    for devices, cp, seq_len, batch, rate, _ in deepseek_v3.LLAMA:
        asked = deepseek_v3.llama(devices, cp, seq_len, batch)
        found = project(asked).mfu * asked.cluster.device.matrix_flops.bf16
        assert found == pytest.approx(rate, rel=0.11)
