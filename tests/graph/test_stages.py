"""Numbers per stage: one column may stand for all candidates, wherever they are looked up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from forescale.graph.parts import Parts
from forescale.graph.stages import Picker, StagePlan, greatest, over_stages, stack_plans, sum_over_stages

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


PARTS = Parts(
    layers=(2.0, 3.0), embedding=10.0, head=20.0, mtp=7.0, vision=((1, 100.0), (5, 1000.0), (1, 10000.0))
)


def test_ends_stand_on_the_first_and_the_last_stage():
    """Layers of two kinds on two stages; the tower of 1 + 5 + 1 blocks before them, two tokens more behind them."""
    plan = replace(PLAN, counts=np.array([[1.0, 2.0], [3.0, 4.0]]))
    found = over_stages(plan, PARTS, lambda each: each, num_mtp=2)
    assert np.asarray(found).tolist() == [10 + (2 + 9) + (100 + 5000 + 10000), 20 + (4 + 12) + 2 * 7]
    ends = over_stages(plan, PARTS, lambda each: each, num_mtp=2, layers=False)
    assert np.asarray(ends).tolist() == [10 + 15100, 20 + 14]


def test_a_tower_has_an_end_on_either_side_of_its_layers():
    found = PARTS.map_vision(layer=lambda each: f"layer {each:g}", end=lambda each: f"end {each:g}")
    assert found == ((1, "end 100"), (5, "layer 1000"), (1, "end 10000"))


def test_moments_that_no_other_exceeds():
    """Of equal moments the first; a rank with fewer than others repeats its first."""
    first = [[1.0, 2.0], [2.0, 1.0], [1.0, 1.0], [2.0, 1.0]]
    second = [[1.0, 1.0], [1.0, 2.0], [3.0, 3.0], [3.0, 2.0]]
    held = np.stack([first, second], axis=1)
    assert greatest(held).tolist() == [[0, 2], [1, 2]]
