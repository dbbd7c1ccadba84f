"""Numbers per stage: one column may stand for all candidates, wherever they are looked up."""

from __future__ import annotations

import numpy as np

from forescale.graph.stages import Picker, StagePlan, stack_plans

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
