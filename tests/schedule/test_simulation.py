"""What comes around the pipeline, and what pictures show of it, worked out by hand."""

import numpy as np
import pytest

from forescale.schedule import Request, StageTimes, StepCosts, family, from_actions, simulate
from forescale.schedule.actions import unpack
from forescale.schedule.simulation import shared_blocks

UNIT = StageTimes(forward=1.0, input_grad=1.0, weight_grad=1.0)


def starts(simulation):
    codes = simulation.compiled.program.flat.code.tolist()
    return {str(unpack(code)): start for code, start in zip(codes, simulation.start.tolist(), strict=True)}


@pytest.mark.parametrize(
    ("overlap", "expected", "makespan"),
    [(True, {"0F0": 1, "2F1": 1, "3F1": 6, "1F0": 6}, 11), (False, {"0F0": 6, "2F1": 6, "3F1": 7, "1F0": 7}, 12)],
)  # fmt: skip
def test_a_rank_gathers_its_stages_one_after_the_other_in_the_order_in_which_it_runs_them(
    overlap, expected, makespan
):
    """Chimera on two ranks: the second starts with stage 2, the first of the other way, and runs stage 1 after it.

    The model's first stage takes 1 to gather, its second 5: either rank has them at 1 and 6. Both backwards follow.
    """
    schedule = family("chimera").build(Request(pp=2, num_microbatches=2))
    costs = StepCosts(param_gather=np.array([1.0, 5.0]), overlap=overlap)
    result = simulate(schedule, UNIT, step=costs)
    assert {name: starts(result)[name] for name in expected} == expected
    assert result.makespan == makespan


def test_a_stage_is_reduced_after_its_last_backward_and_the_one_before_it():
    """Two stages a rank and two micro-batches: rank 0 is done with stage 2 at 20, with stage 0 at 24.

    Stage 2 is reduced from 20 to 25, and stage 0 from then on.
    """
    rows = [
        ["0F0", "2F0", "2B0", "0B0", "0F1", "2F1", "2B1", "0B1"],
        ["1F0", "3F0", "3B0", "1B0", "1F1", "3F1", "3B1", "1B1"],
    ]
    result = simulate(from_actions(rows), UNIT, step=StepCosts(grad_reduce=np.array([1.0, 0.0, 5.0, 0.0])))
    assert result.makespan == 2 * (4 + 8)
    assert result.step_time == 20 + 5 + 1


def test_an_overlapped_block_is_shared_by_the_times_of_its_parts():
    """A forward of 1 and a backward of 3 of which 1 is hidden: three quarters of 1, and of 3."""
    schedule = from_actions([["0F0", "(0F1;0B0)OVERLAP_F_B", "0B1"]])
    times = StageTimes(forward=1.0, input_grad=1.0, weight_grad=2.0, overlap_saving=1.0)
    begin, end = shared_blocks(simulate(schedule, times))
    assert begin.tolist() == [0, 1, 1.75, 4]
    assert end.tolist() == [1, 1.75, 4, 7]


def test_memory_of_a_picture_rises_as_a_forward_starts_and_falls_as_a_backward_ends():
    schedule = from_actions([["0F0", "0F1", "0B0", "0B1"]])
    assert simulate(schedule, UNIT).timeline.memory == (((0, 0), (0, 1), (1, 2), (4, 1), (6, 0)),)
