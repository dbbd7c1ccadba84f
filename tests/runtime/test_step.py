"""One step in other circumstances: bf16, fp32 accumulation, checkpointing, data parallel, measured against simulated."""

from __future__ import annotations

import torch
from tests.runtime.worlds import checkpointed, many, run_kinds, sleep

from forescale.runtime import launch
from forescale.runtime.measure import together, typical
from forescale.schedule import Request, build_schedule

ZB = build_schedule("zb-h1", Request(pp=2, num_microbatches=4))


def test_bf16_with_gradients_in_fp32():
    found = launch(run_kinds, 2, ZB, [[0, 1]], True, torch.bfloat16)
    assert max(worst for worst, _ in found) < 0.05


def test_data_parallel_pipelines_average():
    found = launch(run_kinds, 4, ZB, [[0, 1], [2, 3]], False, torch.float64)
    assert max(worst for worst, _ in found) < 1e-12


def test_checkpointing_gives_the_same_gradients():
    found = launch(checkpointed, 2, ZB)
    assert max(worst for worst, _ in found) < 1e-12


def test_many_steps_leave_nothing_behind():
    for early, late in launch(many, 2, ZB, 40):
        assert late[0] <= early[0]


def test_a_measured_step_is_a_timeline_of_every_pass():
    seconds = [(0.004, 0.004, 0.004), (0.008, 0.006, 0.004)]
    found = launch(sleep, 2, ZB, seconds, 3)
    steps = [
        together(ZB, [rank[index][0] for rank in found], [rank[index][1] for rank in found])
        for index in range(3)
    ]
    step = typical(steps)
    assert step.to_json()["simulated_makespan_s"] > 0
    assert [len([each for each in rank if each.action.kind <= 3]) for rank in step.ranks] == [12, 12]
    assert 0.0 < step.idle_share < 0.6
    assert step.times.forward[1] > step.times.forward[0]
