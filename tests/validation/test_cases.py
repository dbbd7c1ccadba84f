"""Tables of runs with explicit columns."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.errors import raises

from forescale.errors import ReaderError
from forescale.io.named import cluster_of
from forescale.validation.case import projector_of
from forescale.validation.cases import COLUMNS, load_cases

HEADER = "id,model,cluster,devices,seq_len,global_batch_size"
RUN = "A-1,llama-3.1-8b,h100-sxm,16,8192,64"


@pytest.fixture
def cases(tmp_path):
    def load(header, *rows, **options):
        path = tmp_path / "runs.csv"
        path.write_text("\n".join((header, *rows)) + "\n", encoding="utf-8")
        return load_cases(path, **options)

    return load


def test_a_row_is_a_plan(cases):
    (case,) = cases(
        f"{HEADER},tp,strategy.kernels.dropout,precision,measured_step_time_s", f"{RUN},2,y,fp8,5.21"
    )
    assert (case.strategy.tp, case.strategy.dp, case.strategy.kernels.dropout) == (2, 8, True)
    assert (case.workload.seq_len, case.workload.precision.compute) == (8192, "fp8")
    assert (case.measured.step_time_s, case.measured.step_time_from) == (5.21, "step time")
    assert (case.source, case.skipped_reason) == ("A", None)


def test_column_names_of_the_first_version_are_read(cases):
    old = (
        "id,model,hardware,n_gpus,tp,dp,seq_len,micro_batch,global_batch,compute_dtype,measured_step_s,notes"
    )
    (case,) = cases(old, "A-1,llama-3.1-8b,H100 SXM,16,2,8,8192,1,64,bf16,5.21,first run")
    assert case.skipped_reason is None
    assert (case.cluster.name, case.cluster.num_devices, case.strategy.dp) == ("h100-sxm", 16, 8)
    assert (case.measured.step_time_s, case.remarks) == (5.21, "first run")


def test_speeds_become_step_times(cases):
    columns = "measured_tokens_per_s,measured_tflops,measured_mfu_percent,flops_attention,mfu_peak_tflops"
    rows = [
        f"A-{n},{RUN.split(',', 1)[1]},{cells}"
        for n, cells in enumerate(("4096,,,,", ",400,,half,", ",,40,full,1000"))
    ]
    tokens, rate, mfu = cases(f"{HEADER},{columns}", *rows)
    assert tokens.measured.step_time_s == pytest.approx(64 * 8192 / 16 / 4096)
    assert [case.measured.step_time_from for case in (tokens, rate, mfu)] == ["tokens/s", "TFLOP/s", "MFU"]
    assert rate.measured.step_time_s < mfu.measured.step_time_s < 1.2 * rate.measured.step_time_s


@pytest.mark.parametrize(("column", "expected"), [("bytes", 5.0), ("gb", 5e9), ("gib", 5 * 2**30)])
def test_peaks_have_units(cases, column, expected):
    (case,) = cases(f"{HEADER},measured_peak_{column},peak_measure", f"{RUN},5,reserved")
    assert (case.measured.peak_bytes, case.measured.peak_measure) == (expected, "reserved")


def test_a_framework_is_named_or_assumed(cases):
    named, assumed = cases(
        f"{HEADER},framework,assumed", f"{RUN},torchtitan,", f'B-2,{RUN[4:]},torchtitan,"[""framework""]"'
    )
    assert named.question.framework.name == "torchtitan"
    assert assumed.question.framework is None
    assert named.strategy == assumed.strategy


def test_another_cluster_for_all_rows(cases):
    (case,) = cases(HEADER, RUN, cluster=cluster_of("h200-sxm"))
    assert (case.cluster.name, case.cluster.num_devices) == ("h200-sxm", 16)


@pytest.mark.parametrize(
    ("header", "cells", "reason"),
    [
        ("tp", "3", "tp"),
        ("strategy.kernels.dropuot", "true", "dropuot"),
        ("dp", "3", "dp 3"),
        ("zero", "4", "zero"),
    ],
)
def test_a_row_that_cannot_be_projected_says_why(cases, header, cells, reason):
    good, bad = cases(f"{HEADER},{header}", f"{RUN},", f"B-2,{RUN[4:]},{cells}")
    assert good.skipped_reason is None
    assert reason in bad.skipped_reason


@pytest.mark.parametrize(
    ("header", "row", "wanted", "value"),
    [
        ("id,model,clutser", "A,m,c", "unknown_key clutser", None),
        ("id,tp,strategy.tp", "A,1,1", "given_twice the column strategy.tp", "strategy.tp"),
        ("model", "m", "wrong_format a table of runs", "it lacks the column id"),
        ("id,measured_step_time_s", "A,-1", "out_of_range measured_step_time_s (line 2)", "-1"),
        ("id,measured_step_time_s", "A,nan", "wrong_type measured_step_time_s (line 2)", "nan"),
        ("id,measured_peak_gb", "A,0", "out_of_range measured_peak_gb (line 2)", "0"),
        ("id,published", "A,strategy.tp", "wrong_type published (line 2)", "strategy.tp"),
        ("id,core", "A,perhaps", "not_one_of core (line 2)", "perhaps"),
        ("id,zero", "A,fsdp", "wrong_type zero (line 2)", "fsdp"),
        ("id,measured_peak_gb,peak_measure", "A,5,virtual", "not_one_of peak_measure (line 2)", "virtual"),
    ],
)
def test_a_table_that_cannot_be_read_is_refused(cases, header, row, wanted, value):
    with raises(ReaderError, wanted, value=value):
        cases(header, row)


def test_ids_are_unique_and_there_are_rows(cases):
    with pytest.raises(ReaderError):
        cases(HEADER)
    with pytest.raises(ReaderError):
        cases(HEADER, RUN, RUN)


def test_the_page_lists_every_column():
    page = (Path(__file__).parents[2] / "docs" / "runs.md").read_text(encoding="utf-8")
    assert dict(re.findall(r"^\| `(\w+)` \| (.+?) \|$", page, re.MULTILINE)) == COLUMNS


def test_a_case_is_projected(cases):
    (case,) = cases(f"{HEADER},tp,measured_step_time_s", f"{RUN},2,5.21")
    prediction = projector_of()(case)
    assert prediction.low_s < prediction.step_time_s < prediction.high_s
