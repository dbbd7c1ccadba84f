"""Run-level factors: known losses are found again, sources weigh alike, priors hold where runs are silent."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from forescale.cost.calibration import RunFactors
from forescale.cost.run_fit import RUN_PARAMETERS, RunParameter, fit_run, source_folds

PARTS = np.random.default_rng(0).uniform(0.2, 5.0, (60, 3))
"""Seconds of products, attention and traffic of 60 made-up runs."""
MICROBATCHES = np.tile([1.0, 8.0, 64.0], 20)


def predict(run: RunFactors):
    keys = ("bf16", "attention", "memory")
    busy = sum(PARTS[:, i] / run.rate(key) for i, key in enumerate(keys))
    return busy + MICROBATCHES * run.microbatch_overhead_s + run.step_overhead_s


TRUTH = RunFactors(
    sustained={"bf16": 0.72, "attention": 0.6, "memory": 0.8},
    microbatch_overhead_s=4e-3,
    step_overhead_s=0.05,
)


def test_known_factors_are_found_again():
    found = fit_run(RunFactors(), predict, predict(TRUTH), ["a", "b"] * 30).factors
    for key, value in TRUTH.sustained.items():
        assert found.rate(key) == pytest.approx(value, rel=0.03), key
    assert found.microbatch_overhead_s == pytest.approx(4e-3, rel=0.2)


def test_no_factor_leaves_its_bounds():
    fast = fit_run(RunFactors(), predict, predict(RunFactors()) / 2, ["a"] * 60)
    assert max(fast.factors.sustained.values()) <= 1.0
    assert fast.factors.microbatch_overhead_s >= 0.0
    assert np.median(fast.errors) == pytest.approx(np.log(2), rel=0.05)


def test_a_long_table_does_not_outvote_a_short_one():
    measured = predict(RunFactors(sustained={"bf16": 0.9}))
    measured[:6] = predict(RunFactors(sustained={"bf16": 0.6}))[:6]
    one = (RunParameter(name="sustained.bf16", prior=0.8, spread=10.0, low=0.3, high=1.0),)
    rows = fit_run(RunFactors(), predict, measured, ["same"] * 60, one, scale=10.0).factors.rate("bf16")
    sources = fit_run(
        RunFactors(), predict, measured, ["short"] * 6 + ["long"] * 54, one, scale=10.0
    ).factors.rate("bf16")
    assert sources < rows - 0.05


def test_what_the_runs_do_not_tell_stays_at_its_prior():
    silent = RunParameter(name="sustained.fp8", prior=0.77, spread=0.1, low=0.3, high=1.0)
    found = fit_run(RunFactors(), predict, predict(TRUTH), ["a"] * 60, (*RUN_PARAMETERS, silent)).factors
    assert found.rate("fp8") == pytest.approx(0.77, abs=1e-3)


def test_factors_that_are_not_fitted_are_kept():
    start = replace(RunFactors(), sustained={"fp8": 0.5}, straggler=0.01)
    found = fit_run(start, predict, predict(TRUTH), ["a"] * 60).factors
    assert found.rate("fp8") == 0.5
    assert found.straggler == 0.01


def test_folds_keep_sources_whole_and_cover_all():
    sources = ["a"] * 7 + ["b"] * 5 + ["c"] * 4 + ["d"] * 2 + ["e"]
    folds = source_folds(sources, 3)
    assert np.sum(folds, axis=0).tolist() == [1] * len(sources)
    assert [set(np.array(sources)[fold]) for fold in folds] == [{"a"}, {"b", "e"}, {"c", "d"}]
    assert len(source_folds(["a", "b"], 5)) == 2
