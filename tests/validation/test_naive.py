from __future__ import annotations

import pytest
from scripts.rows.cases import express

from forescale.validation.scoreboard import naive_rates, naive_seconds, naive_work


def test_the_line_goes_through_the_median_row(row):
    rows = [row(id=f"T-{step}", measured_step_s=step) for step in (4.0, 5.0, 8.0)]
    cases = express(rows)
    rates = naive_rates(cases)
    assert set(rates) == {("h100-sxm", "bf16")}
    assert naive_seconds(cases[0], rates) == pytest.approx(5.0)


def test_core_rows_set_the_rate_where_there_are_any(row):
    cases = express([row(id="T-1", measured_step_s=5.0), row(id="T-2", measured_step_s=50.0, core="n")])
    assert naive_seconds(cases[1], naive_rates(cases)) == pytest.approx(5.0)


def test_the_pipeline_adds_its_bubble(row):
    plain, piped = express([row(id="T-1", pp=1, dp=8), row(id="T-2", pp=2, vpp=2, dp=4)])
    # m = 64 / (2 · 4) = 8 micro-batches: 1 + (2 − 1) / (8 · 2)
    assert naive_work(piped) / naive_work(plain) == pytest.approx(1 + 1 / 16)


def test_full_recompute_runs_the_forward_pass_again(row):
    plain, again = express([row(id="T-1", vocab=1), row(id="T-2", vocab=1, recompute="full")])
    assert naive_work(again) / naive_work(plain) == pytest.approx(4 / 3, rel=1e-6)


def test_each_device_and_type_has_its_own_rate(row):
    cases = express([row(id="T-1"), row(id="T-2", compute_dtype="mxfp8"), row(id="T-3", hardware="B200")])
    rates = naive_rates(cases)
    assert set(rates) == {("h100-sxm", "bf16"), ("h100-sxm", "mxfp8"), ("b200", "bf16")}


def test_a_device_that_no_row_measured_has_no_line(row):
    measured, other = express([row(id="T-1"), row(id="T-2", hardware="B200", measured_step_s="")])
    assert naive_seconds(other, naive_rates([measured, other])) is None
