from __future__ import annotations

import math

import pytest

from forescale.validation.metrics import coverage, regret, relative_error, spearman, summarise


def test_relative_error_is_above_zero_where_too_slow():
    assert relative_error(1.2, 1.0) == pytest.approx(0.2)
    assert relative_error(0.5, 1.0) == -0.5


def test_summary_by_hand():
    summary = summarise([0.1, -0.2, 0.3, -0.4, 0.05])
    assert summary.count == 5
    assert summary.median_abs == pytest.approx(0.2)
    assert summary.p90_abs == pytest.approx(0.36)  # between 0.3 and 0.4 at rank 3.6
    assert summary.mean_abs == pytest.approx(0.21)
    assert summary.bias == pytest.approx(-0.03)
    assert summary.worst == -0.4


def test_summary_of_nothing_has_no_figures():
    summary = summarise([])
    assert (summary.count, summary.median_abs, summary.bias) == (0, None, None)


def test_coverage_counts_both_ends():
    assert coverage([1.0, 2.0, 3.0, 4.0], [1.0, 2.1, 0.0, 0.0], [9.0, 9.0, 3.0, 3.9]) == 0.5
    assert coverage([], [], []) is None


def test_spearman_by_hand():
    assert spearman([1, 2, 3], [10, 20, 30]) == pytest.approx(1.0)
    assert spearman([1, 2, 3], [30, 20, 10]) == pytest.approx(-1.0)
    # ranks 1 2 3 4 5 against 2 1 4 3 5: 1 - 6·4 / (5·24)
    assert spearman([1, 2, 3, 4, 5], [2, 1, 4, 3, 5]) == pytest.approx(0.8)


def test_spearman_gives_ties_their_mean_rank():
    # ranks 1.5 1.5 3 against 1 2 3: 1.5 / sqrt(1.5 · 2)
    assert spearman([7, 7, 9], [1, 2, 3]) == pytest.approx(math.sqrt(3) / 2)


def test_spearman_without_variation():
    assert spearman([1, 1, 1], [1, 2, 3]) == 0.0
    assert spearman([1, 2, 3], [1, 1, 1]) is None


def test_regret_of_the_layout_that_would_be_picked():
    assert regret([1.0, 2.0, 3.0], [5.0, 6.0, 4.0]) == pytest.approx(0.25)
    assert regret([3.0, 2.0, 1.0], [5.0, 6.0, 4.0]) == 0.0


def test_regret_of_a_tie_is_the_mean():
    assert regret([1.0, 1.0, 3.0], [4.0, 6.0, 4.0]) == pytest.approx(0.25)
