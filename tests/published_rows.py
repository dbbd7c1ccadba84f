"""Fixtures for tests of published rows: the excerpt, a maker of rows, and a stub of a projection."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from scripts.rows.cases import load_rows
from tests.validation.runs import own_columns_only

from forescale.files import Row
from forescale.validation.case import Case, Prediction
from forescale.validation.published import published_flops

EXCERPT = Path(__file__).parent / "data" / "runs" / "excerpt.csv"
COLUMNS = tuple(next(csv.reader(EXCERPT.read_text(encoding="utf-8").splitlines())))


@pytest.fixture(scope="session")
def cases() -> dict[str, Case]:
    """The excerpt, models built from the rows' own columns only."""
    with own_columns_only():
        return {case.id: case for case in load_rows(EXCERPT)}


@pytest.fixture
def row():
    """A maker of rows: a plain Llama-like run, with cells replaced by keyword."""

    def make(**cells: object) -> Row:
        plain = {
            "id": "TEST-001",
            "source": "torchtitan",
            "model": "Llama-3.1-8B",
            "family": "dense",
            "layers": 32,
            "hidden": 4096,
            "ffn": 14336,
            "heads": 32,
            "kv_heads": 8,
            "head_dim": 128,
            "vocab": 128256,
            "mla": "n",
            "hardware": "H100 SXM",
            "gpus_per_node": 8,
            "n_gpus": 16,
            "tp": 2,
            "sp": "y",
            "cp": 1,
            "pp": 2,
            "vpp": 1,
            "ep": 1,
            "etp": 1,
            "dp": 4,
            "zero_or_fsdp": 1,
            "seq_len": 4096,
            "micro_batch": 2,
            "global_batch": 64,
            "recompute": "none",
            "compute_dtype": "bf16",
            "measured_step_s": 5.0,
            "core": "y",
        }
        text = dict.fromkeys(COLUMNS, "") | {name: str(value) for name, value in (plain | cells).items()}
        return Row(path="runs.csv", line=2, cells=text)

    return make


@pytest.fixture
def projector():
    """A stub: FLOPs at 40 % of 1 PFLOP/s, and 10 GB."""

    def predict(case: Case) -> Prediction:
        model, _, layout, workload = case.question.parts
        flops = published_flops(model, workload.seq_len, layout, {}) * case.tokens_per_step
        seconds = flops / layout.num_devices / 0.4e15
        return Prediction(step_time_s=seconds, peak_bytes=10e9, low_s=0.5 * seconds, high_s=2.0 * seconds)

    return predict
