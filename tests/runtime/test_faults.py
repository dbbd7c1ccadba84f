"""What goes wrong ends the job on all ranks, with rank, action and reason."""

from __future__ import annotations

import multiprocessing

import pytest
from tests.runtime.worlds import break_at, break_in, die

from forescale.runtime import RunError, launch
from forescale.schedule import Kind, Request, build_schedule

ZB = build_schedule("zb-h1", Request(pp=2, num_microbatches=4))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("backward", r"rank 1, 1I2: ValueError: no backward"),
        ("nan", r"rank 1, 1F2: the loss is nan"),
    ],
)
def test_a_rank_that_fails_ends_all(how, said):
    with pytest.raises(RunError, match=said):
        launch(break_at, 2, ZB, how)
    assert not multiprocessing.active_children()


WHOLE = build_schedule("1f1b", Request(pp=2, num_microbatches=4))
OFFLOADING = build_schedule("pipeoffload", Request(pp=2, num_microbatches=4), vpp=2)


@pytest.mark.parametrize("kind", list(Kind)[: Kind.RECV_B + 1], ids=str)
def test_an_exception_in_any_action_ends_all(kind):
    schedule = {Kind.OFFLOAD: OFFLOADING, Kind.RELOAD: OFFLOADING, Kind.B: WHOLE}.get(kind, ZB)
    where = 0 if kind in (Kind.SEND_F, Kind.RECV_B) else 1
    with pytest.raises(RunError, match=rf"rank {where}, \d{kind.name}\d: ValueError: on purpose"):
        launch(break_in, 2, schedule, kind, where)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("rank", range(3))
def test_a_rank_that_is_killed_ends_all(rank):
    with pytest.raises(RunError, match=rf"rank {rank} died \(killed by SIGKILL\)"):
        launch(die, 3, build_schedule("zb-h1", Request(pp=3, num_microbatches=4)), rank)
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
