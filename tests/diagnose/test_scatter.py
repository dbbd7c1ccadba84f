"""The lower quartile of steps, and when it is above those that were expected."""

from __future__ import annotations

import itertools

import pytest

from forescale.diagnose.scatter import ERROR, excess, usual

EIGHT = (1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 9.0)


def test_the_usual_step_is_the_lower_quartile():
    assert usual(EIGHT) == 1.1
    assert usual((2.0,)) == 2.0
    assert usual(()) == 0.0


def test_work_of_some_steps_counts_by_their_share():
    assert usual((0.0, 0.0, 0.0, 4.0)) == 1.0


def test_steps_that_only_scatter_are_not_longer():
    assert excess(EIGHT, EIGHT) < 0.0
    assert excess((5.0, *EIGHT[1:]), EIGHT) < 0.0
    assert excess(tuple(0.5 + step for step in EIGHT), EIGHT) == pytest.approx(0.1)


def test_few_steps_are_expected_to_reach_as_far_again():
    assert excess((3.0,), (1.0, 2.0)) == 0.0
    assert excess((3.1,), (1.0, 2.0)) == pytest.approx(0.1)
    assert excess((1.5,), (1.0,)) == 0.5


@pytest.mark.parametrize("number", [4, 5])
def test_the_error_is_that_of_all_orders(number):
    orders = list(itertools.combinations(range(2 * number), number))
    above = sum(
        excess(tuple(map(float, order)), tuple(float(n) for n in range(2 * number) if n not in order)) > 0.0
        for order in orders
    )
    assert 0 < above <= ERROR * len(orders)
