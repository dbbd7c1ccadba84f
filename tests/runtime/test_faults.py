"""What goes wrong ends the job on all ranks, with rank, action and reason."""

from __future__ import annotations

import multiprocessing

import pytest
from tests.runtime.worlds import break_at

from forescale.runtime import RunError, launch
from forescale.schedule import Request, build_schedule

ZB = build_schedule("zb-h1", Request(pp=2, num_microbatches=4))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("forward", r"rank 1, 1F2: ValueError: no forward"),
        ("backward", r"rank 1, 1I2: ValueError: no backward"),
        ("weight", r"rank 1, 1W0: ValueError: no weight gradient"),
        ("nan", r"rank 1, 1F2: the loss is nan"),
        ("kill", r"rank 1 died \(killed by SIGKILL\)"),
    ],
)
def test_a_rank_that_fails_ends_all(how, said):
    with pytest.raises(RunError, match=said):
        launch(break_at, 2, ZB, how)
    assert not multiprocessing.active_children()


def test_a_stage_whose_output_changes_shape_is_named():
    deep = build_schedule("1f1b", Request(pp=3, num_microbatches=4))
    with pytest.raises(RunError, match=r"rank 1, 1F1: stage 1 gave \(1, 2\) of torch.float32; .* \(1, 4\)"):
        launch(break_at, 3, deep, "shape")


def test_a_schedule_that_deadlocks_is_refused_before_anything_starts():
    from forescale.runtime.runner import lowered
    from forescale.schedule import from_actions

    stuck = from_actions([["0B0", "0F0"], ["1F0", "1B0"]])
    with pytest.raises(RunError, match="cannot run"):
        lowered(stuck)
