"""Numbers per stage: one column may stand for all candidates, wherever they are looked up."""

from __future__ import annotations

import numpy as np

from forescale.graph.stages import Picker, StagePlan, stack_plans, sum_over_stages

PLAN = StagePlan(
    counts=np.array([[1.0], [2.0]]),
    replayed=np.array([[1.0], [2.0]]),
    heads=np.array([[1.0], [2.0]]),
    first=np.array([1.0, 0.0]),
    last=np.array([0.0, 1.0]),
    index=np.array([0.0, 1.0]),
    multiplicity=np.array([1.0, 1.0]),
)


def test_one_column_stands_for_all_candidates():
    stages = stack_plans([PLAN]).take(np.zeros(3, dtype=np.int64))
    one, many = np.array([[2.0], [5.0]]), np.array([[1.0, 9.0, 1.0], [3.0, 3.0, 3.0]])
    at = Picker.slowest(many, stages)
    assert at(one).tolist() == [5.0, 2.0, 5.0]
    assert at(many).tolist() == [3.0, 9.0, 3.0]
    assert np.broadcast_to(at.maximum(one, stages), 3).tolist() == [5.0, 5.0, 5.0]


def test_a_sum_over_stages_counts_each_as_often_as_it_stands():
    assert summed([3.0, 5.0, 7.0], [2.0, 1.0, 0.0]) == 11.0


def test_a_sum_over_stages_is_of_whole_parts_of_the_largest_that_stands():
    """Of 2^40 parts: a half is rounded away or up, a stage that does not stand is no scale for the others."""
    assert summed([1.0, 2.0**-40], [1.0, 1.0]) == 1.0 + 2.0**-40
    assert summed([1.0, 1.5 * 2.0**-41], [1.0, 1.0]) == 1.0 + 2.0**-40
    assert summed([1.0, 0.5 * 2.0**-41], [1.0, 2.0**10]) == 1.0
    assert summed([1.0, 2.0**-40, 1e30], [1.0, 1.0, 0.0]) == 1.0 + 2.0**-40


def summed(values, multiplicity):
    return float(sum_over_stages(values=np.array(values), multiplicity=np.array(multiplicity)))
