from __future__ import annotations

import json

import pytest
from scripts.accuracy import markdown, table
from scripts.rows.cases import express
from tests.errors import raises
from tests.validation.runs import own_columns_only

from forescale.errors import InfeasibleError, UnknownNameError
from forescale.validation.case import Prediction
from forescale.validation.report import document
from forescale.validation.scoreboard import DIMENSIONS, check_dimension, score


def fixed(seconds, **more):
    return lambda _: Prediction(step_time_s=seconds, **more)


def test_errors_of_time_memory_and_interval(row):
    cases = express([row(measured_peak_mem_gb=20)])
    board = score(cases, fixed(6.0, peak_bytes=15e9, low_s=4.0, high_s=7.0))
    (outcome,) = board.outcomes
    assert outcome.error == pytest.approx(0.2)
    assert outcome.memory_error == pytest.approx(-0.25)
    assert outcome.naive_error == pytest.approx(0.0)
    assert board.total(core=True).coverage == 1.0


def test_a_projector_that_refuses_is_listed_with_its_reason(row):
    def refuse(_):
        raise InfeasibleError("tp 3 does not divide 32 heads")

    board = score(express([row(), row(id="TEST-002", core="n"), row(id="TEST-003", dp=8)]), refuse)
    assert [outcome.skipped for outcome in board.skipped] == [
        "tp 3 does not divide 32 heads",
        "tp 3 does not divide 32 heads",
        "tp x cp x pp x dp is 32, but the row counts 16 devices",
    ]
    assert board.core_skipped_share == 1.0
    assert board.total(core=False).time.count == 0


def test_a_defect_is_not_swallowed(row):
    def broken(_):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        score(express([row()]), broken)


def test_groups_split_the_rows(cases, projector):
    board = score(list(cases.values()), projector)
    everything = board.total(core=False).time.count
    assert everything == len(cases) - len(board.skipped)
    for dimension in DIMENSIONS:
        groups = board.by(dimension, core=False)
        assert sum(group.time.count for group in groups) == everything
    assert sum(group.time.count for group in board.headline()) == board.total(core=True).time.count


@pytest.mark.parametrize(
    ("cells", "dimension", "name"),
    [
        ({}, "parallelism", "tp+pp+dp"),
        ({"tp": 1, "pp": 1, "dp": 16, "zero_or_fsdp": 3}, "parallelism", "fsdp"),
        ({"tp": 1, "pp": 1, "dp": 1, "n_gpus": 1}, "parallelism", "single device"),
        ({}, "scale", "9-64 devices"),
        ({}, "model family", "Llama (dense)"),
        ({}, "hardware", "h100-sxm"),
        ({}, "precision", "bf16"),
        ({}, "source", "TEST"),
    ],
)
def test_labels(row, cells, dimension, name):
    board = score(express([row(**cells)]), fixed(1.0))
    assert [group.name for group in board.by(dimension)] == [name]


@pytest.mark.parametrize(
    ("cells", "name"),
    [
        ({}, "NVIDIA 16-bit"),
        ({"compute_dtype": "mxfp8"}, "NVIDIA 8- and 4-bit"),
        ({"hardware": "GB200", "gpus_per_node": 4}, "NVIDIA GB200/GB300"),
        ({"hardware": "MI300X"}, "AMD"),
        ({"hardware": "TPU v5p", "gpus_per_node": 4}, "TPU"),
    ],
)
def test_headline_labels(row, cells, name):
    board = score(express([row(**cells)]), fixed(1.0))
    assert [group.name for group in board.headline()] == [name]


def test_a_breakdown_that_does_not_exist_is_refused():
    with raises(UnknownNameError, "unknown_name breakdown"):
        check_dimension("hardwares")


def test_the_document_has_every_row_and_is_json(cases, projector):
    board = score(list(cases.values()), projector)
    body = json.loads(json.dumps(document(board), allow_nan=False))
    assert body["schema"] == "forescale.validation/1"
    assert [entry["id"] for entry in body["rows"]] == list(cases)
    assert set(body["rows"][0]) == {
        *("id", "predicted_step_time_s", "measured_step_time_s", "error"),
        *("predicted_step_time_low_s", "predicted_step_time_high_s"),
        *("predicted_peak_bytes", "predicted_peak_low_bytes", "predicted_peak_high_bytes"),
        *("measured_peak_bytes", "peak_measure", "memory_error", "skipped", "verdict", "doubt"),
    }
    assert all(
        (entry["skipped"] is None) == (entry["predicted_step_time_s"] is not None) for entry in body["rows"]
    )
    assert body["summary"]["num_skipped"] == len(board.skipped)
    assert set(body["summary"]["groups"]) == set(DIMENSIONS)


def test_the_document_of_a_corpus_in_which_nothing_works_is_json(row):
    body = document(score(express([row(dp=8)]), fixed(1.0)))
    assert body["summary"]["mean_regret"] is None
    json.dumps(body, allow_nan=False)


def test_the_page_names_every_skipped_row_and_every_source(cases, projector):
    board = score(list(cases.values()), projector)
    page = markdown(board, corpus="runs.csv")
    for outcome in board.skipped:
        assert outcome.case.id in page
        assert outcome.skipped in page
    for source in {outcome.case.source for outcome in board.outcomes if outcome.skipped is None}:
        assert f"| {source} |" in page
    assert "## Choice of layout" in page
    assert "| SMX | allocated |" in page
    assert "The same by architecture." in page
    assert "| blackwell | bf16 | b200, gb200 | all | 714 |" in page
    assert page.count("\n## ") == 14


def test_a_run_that_is_said_not_to_fit_is_named_with_the_doubt_of_its_row(row):
    known, unknown = row(id="T-1"), row(id="T-2", micro_batch="", recompute="")
    board = score(express([known, unknown]), fixed(1.0, peak_bytes=9e9, verdict="OOM"))
    first, second = board.outcomes
    assert first.case.doubt == "" and "micro-batch" in second.case.doubt
    assert document(board)["summary"]["num_refused"] == 2
    assert document(board)["summary"]["num_refused_undoubted"] == 1
    page = markdown(board, corpus="a.csv")
    assert second.case.doubt in page
    assert "| T-1 |" in page.partition("not to fit")[2]


def test_the_page_of_tests(row):
    board = score(express([row()]), fixed(1.0, peak_bytes=9e9))
    page = markdown(board, corpus="a.csv", tests=board)
    assert "1 golden values" in page and "### Tests not projected" in page


def test_the_page_of_an_empty_scoreboard(row):
    page = markdown(score(express([row(dp=8)]), fixed(1.0)), corpus="a.csv")
    assert "No row measured it." in page
    assert "The corpus has no sweep." in page


def test_tables_align_numbers_and_escape_bars():
    assert table(["name", "share"], [["a|b", "−1.0 %"], ["c", "–"]]).splitlines() == [
        "| name | share |",
        "| --- | ---: |",
        "| a\\|b | −1.0 % |",
        "| c | – |",
    ]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ({}, "dense"),
        ({"num_experts": 8, "topk": 2, "moe_ffn": 512, "family": "moe"}, "moe"),
        ({"model": "Moonlight-16B", "mla": "y"}, "mla"),
    ],
)
def test_architectures(row, cells, expected):
    with own_columns_only():
        (case,) = express([row(**cells)])
    assert DIMENSIONS["architecture"](case) == expected
