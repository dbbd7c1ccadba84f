"""The shape of `forescale.validation/1`: a change here is a change of the schema, and needs a new version."""

from __future__ import annotations

import json
from pathlib import Path

from forescale.validation.case import Prediction
from forescale.validation.peers import compare_peers
from forescale.validation.report import document
from forescale.validation.scoreboard import score

GOLDEN = Path(__file__).parents[1] / "golden" / "validation.json"
ROWS = ("SMX-001", "SMX-002", "SMX-004", "BSGPT2-009")


def test_the_document_is_the_golden_one(cases):
    selected = [cases[name] for name in ROWS]
    times = {"SMX-001": 0.8, "SMX-002": 1.0, "SMX-004": 0.75}
    board = score(
        selected,
        lambda case: Prediction(step_time_s=times[case.id], peak_bytes=64e9, low_s=0.7, high_s=1.1),
    )
    result = json.loads(json.dumps(document(board, compare_peers(board)), allow_nan=False))
    assert rounded(result) == json.loads(GOLDEN.read_text(encoding="utf-8"))


def rounded(value):
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    return [rounded(part) for part in value] if isinstance(value, list) else value
