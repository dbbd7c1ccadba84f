"""Every study computes what its committed page, tables and pictures show."""

import json
import re
from functools import cache
from pathlib import Path
from statistics import median

import deepseek_v3
import playbook
import pytest
from subramanian2024_engine import validation, validation_table
from update import STUDIES, computed, differing
from winners import Winners, known_layouts

from forescale.cost.run_calibration import load_run_calibration
from forescale.project import project

PAGES = Path(__file__).parents[2] / "docs" / "studies"
SEARCHED = {
    "almodel": ("600 GB/s (nominal)",),
    "deepseek-v3": ("DeepSeek's stack",),
    "million": ("H100, 16,384",),
    "playbook": (
        "nanotron, 1.34 B, 1 nodes",
        "nanotron, 8.86 B, 4 nodes",
        "llama-3.1-8b, 64 devices, 8192 tokens",
    ),
    "subramanian2024": ("gpt3-175b, 512 A100, NVS 4", "vit-era5, 256 B200, NVS 8"),
}
"""Searches that are cheap enough to repeat; the best layouts of the others are projected."""


@cache
def found(name):
    return computed(STUDIES[name], Winners(known_layouts(name), searched=SEARCHED[name]))


@pytest.mark.parametrize("name", STUDIES)
def test_every_file_of_a_study_is_what_it_computes(name):
    assert differing(found(name)[1]) == []


@pytest.mark.parametrize("name", STUDIES)
def test_claims_of_a_page_hold(name):
    claims = found(name)[0].claims
    assert claims
    assert [parts for parts, holds in claims.items() if not holds] == []


def test_every_picture_of_a_study_describes_what_it_shows():
    for page in PAGES.glob("*.md"):
        for parts, name in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
            assert len(parts) > 15, f"{page.name}: {name}"
            assert (PAGES / name).exists()
    for path in PAGES.glob("*/*.json"):
        assert json.loads(path.read_text(encoding="utf-8")).get("description"), path
        assert path.with_suffix(".svg").exists()


def test_the_measured_benchmark_is_whole_and_consistent():
    cells = playbook.measured_cells()
    assert len(cells) == 26
    for cell in cells:
        assert int(cell["dp"]) * int(cell["tp"]) * int(cell["pp"]) == 8 * int(cell["nodes"])
        assert int(cell["dp"]) * int(cell["grad_accum"]) * int(cell["micro_batch"]) == 256


def test_the_fastest_configuration_that_fits_is_marked():
    panels = found("subramanian2024")[0].charts["figure-2b"]["vconcat"]
    step = {row["label"]: row["step (s)"] for row in panels[1]["layer"][1]["data"]["values"]}
    fitting = {label: seconds for label, seconds in step.items() if not label.endswith("over")}
    assert min(fitting, key=fitting.get).endswith("best")
    assert sum(label.endswith("best") for label in step) == 1


def test_gathers_are_priced_as_they_were_measured():
    rows = found("subramanian2024")[0].charts["figure-A1"]["data"]["values"]
    ours = {(row["ranks"], row["MB"]): row["ms"] for row in rows if row["of"] == "Forescale"}
    misses = [ours[row["ranks"], row["MB"]] / row["ms"] for row in rows if row["of"] == "measured"]
    assert len(misses) == 29
    assert median(abs(miss - 1.0) for miss in misses) < 0.2


def test_the_configuration_that_the_paper_measured_is_its_best():
    paper, _ = validation(Winners(known_layouts("subramanian2024")))
    measured, best = validation_table(paper, {}).splitlines()[2:4]
    assert measured.split("|")[2:] == best.split("|")[2:]
    at = paper["its best"].configuration
    assert {name: getattr(at, name) for name in ("tp1", "pp", "micro_batch_size")} == {
        "tp1": 4,
        "pp": 16,
        "micro_batch_size": 1,
    }


def test_a_layer_of_deepseek_v3_is_projected_within_a_tenth():
    layer = deepseek_v3.layer_ms(deepseek_v3.published())
    assert layer == pytest.approx(deepseek_v3.LAYER_MS, rel=0.1)


def test_published_runs_are_projected_within_a_tenth():
    question = deepseek_v3.published()
    ours = deepseek_v3.kernels(question)
    for name, seconds in deepseek_v3.deepep_seconds(question).items():
        # DeepEP timed them alone; ours are those of a run, which reaches a share of that.
        alone = ours[f"{name}, forward"] * load_run_calibration().shared.dispatch
        assert alone == pytest.approx(1e3 * seconds, rel=0.1)
    for devices, cp, seq_len, batch, rate, _ in deepseek_v3.LLAMA:
        llama = deepseek_v3.llama(devices, cp, seq_len, batch)
        assert project(llama).mfu * llama.cluster.device.matrix_flops.bf16 == pytest.approx(rate, rel=0.11)
