"""One step in other circumstances: bf16, fp32 accumulation, checkpointing, data parallel, measured against simulated."""

from __future__ import annotations

import torch
from examples.train_pipeline import batches, train
from tests.runtime.worlds import checkpointed, many, products, run_kinds, sleep

from forescale.runtime import launch
from forescale.runtime.job import toy_loss, toy_stage
from forescale.schedule import Request, build_schedule
from forescale.schedule.measured import together, typical

PLAIN = build_schedule("1f1b", Request(pp=2, num_microbatches=4))
ZB = build_schedule("zb-h1", Request(pp=2, num_microbatches=4))


def test_bf16_with_gradients_in_fp32():
    result = launch(run_kinds, 2, ZB, [[0, 1]], True, torch.bfloat16)
    assert max(worst for worst, _ in result) < 0.05


def test_data_parallel_pipelines_average():
    result = launch(run_kinds, 4, ZB, [[0, 1], [2, 3]], False, torch.float64)
    assert max(worst for worst, _ in result) < 1e-12


def test_checkpointing_gives_the_same_gradients():
    result = launch(checkpointed, 2, ZB)
    assert max(worst for worst, _ in result) < 1e-12


def test_many_steps_leave_nothing_behind():
    for early, late in launch(many, 2, ZB, 40):
        assert late[0] <= early[0]


def test_a_measured_step_is_a_timeline_of_every_pass():
    seconds = [(0.004, 0.004, 0.004), (0.008, 0.006, 0.004)]
    result = launch(sleep, 2, ZB, seconds, 3)
    steps = [
        together(ZB, [rank[index][0] for rank in result], [rank[index][1] for rank in result])
        for index in range(3)
    ]
    step = typical(steps)
    assert step.to_json()["simulated_makespan_s"] > 0
    assert [len([item for item in rank if item.action.kind <= 3]) for rank in step.ranks] == [12, 12]
    assert 0.0 < step.idle_share < 0.6
    assert step.times.forward[1] > step.times.forward[0]


def test_products_of_weight_gradients_run_in_w_only():
    """FLOPs of the linear products are twice rows × k × n: in I by the weight's transpose, in W by the input's."""
    expected = 2.0 * 2 * 8 * (16 * 48 + 16 * 16 + 16 * 3) + 2.0 * 2 * 8 * 2 * (16 * 32)
    for kind, flops in launch(products, 2, ZB)[0]:
        if kind == "W":
            assert flops == expected
    whole = sum(flops for kind, flops in launch(products, 2, PLAIN)[0] if kind == "B")
    apart = sum(flops for kind, flops in launch(products, 2, ZB)[0] if kind in "IW")
    assert apart == whole


def test_training_follows_one_process():
    """The example of docs/runtime.md, shortened: losses of four ranks are those of plain autograd."""
    result = launch(train, 4, "zbv", 6)
    assert [
        abs(ours - alone) / alone < 1e-9 for ours, alone in zip(result[0], alone_for(6), strict=True)
    ] == [True] * 6


def alone_for(steps):
    stages = [toy_stage(stage, 8) for stage in range(8)]
    stages[-1].head.weight = stages[0].embedding.weight
    parameters = {id(p): p for stage in stages for p in stage.parameters()}
    optimizer = torch.optim.AdamW(parameters.values(), lr=3e-3)
    losses = []
    for batch in batches(steps):
        scores = batch[:, :-1]
        for stage in stages:
            scores = stage(scores)
        loss = toy_loss(scores, batch[:, 1:])
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses
