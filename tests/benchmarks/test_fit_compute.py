"""The fits that come with the package are what the benchmark makes of the published tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.fit_compute import OUT, document, read_rows, recipes

ROOT = Path(__file__).parents[2]
TABLES = ("data/published/kernels.csv", "tests/data/kernels/cdna.csv")


@pytest.fixture(scope="module")
def rows():
    return read_rows([ROOT / path for path in TABLES])


def test_every_packaged_fit_has_a_recipe():
    assert set(recipes()) == {path.stem for path in OUT.glob("*.json")} - {"generic"}


@pytest.mark.parametrize("name", ["gaudi2", "tpu-v6e", "cdna4"])
def test_a_fit_is_reproduced_to_the_last_digit(name, rows):
    made = json.loads(json.dumps(document(name, rows)))
    assert made == json.loads((OUT / f"{name}.json").read_text(encoding="utf-8"))
