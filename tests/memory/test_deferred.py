"""Weight gradients of the output layer that wait for the pipeline flush, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests import toy
from tests.errors import raises
from tests.memory.test_peak import HIDDEN, KEPT, MODEL, PIPELINE, TOKENS, VOCAB, WORK, of, stages

from forescale.errors import SpecError
from forescale.explain import explain
from forescale.memory.deferred import deferred_products
from forescale.project import memory_timeline, project
from forescale.question import Question
from forescale.search import search
from forescale.spec import Kernels
from forescale.spec.space import Space

ONE = TOKENS * (2 * HIDDEN + 2 * VOCAB)
"""Input of the output layer and the gradient of its logits, 16 bits each, of one of three micro-batches."""


def deferring(limit, **layout):
    return replace(PIPELINE, kernels=Kernels(deferred_head_gradients=limit), **layout)


@pytest.mark.parametrize(("limit", "at_layers", "at_loss"), [(0, 0, 0), (1, 1, 1), (2, 2, 2), (3, 3, 2), (99, 3, 2)])  # fmt: skip
def test_the_last_stage_keeps_inputs_and_gradients_until_the_flush(limit, at_layers, at_loss):
    """The last micro-batch's own are part of its loss, and wait while its layers are in backward."""
    working = TOKENS * (2 * HIDDEN + 2 * 3 * 160 - 2 * 160)
    ends = 2 * HIDDEN + 2 * HIDDEN + 4
    loss = max(TOKENS * (ends + 6 * VOCAB), TOKENS * (ends + 2 * VOCAB + 2 * HIDDEN) + 2 * HIDDEN * VOCAB)
    *others, last = of(stages(deferring(limit)), "activations")
    assert last == pytest.approx(2 * KEPT + max(working + at_layers * ONE, loss + at_loss * ONE))
    assert others == of(stages(), "activations")[:-1]


def test_the_flush_gathers_into_two_buffers_that_stay():
    layout = replace(PIPELINE, tp=2, dp_shard=1)
    work = replace(WORK, global_batch_size=6)
    for limit, buffers in ((1, 1), (3, 2)):
        kernels = Kernels(deferred_head_gradients=limit)
        plain, waits = (
            stages(replace(layout, kernels=kernels), work=work) for kernels in (Kernels(), kernels)
        )
        more = [b - a for a, b in zip(of(plain, "buffers"), of(waits, "buffers"), strict=True)]
        assert more == pytest.approx([0, 0, buffers * 2 * TOKENS * HIDDEN])


def test_output_layers_of_predicted_tokens_count():
    assert deferred_products(limit=5.0, microbatches=2.0, heads=3.0) == 5.0
    assert deferred_products(limit=9.0, microbatches=2.0, heads=3.0) == 6.0
    assert deferred_products(limit=9.0, microbatches=0.0, heads=3.0) == 0.0


def test_a_named_schedule_places_weight_gradients_itself():
    layout = deferring(3, schedule="zb-h1")
    assert of(stages(layout), "peak") == of(stages(replace(layout, kernels=Kernels())), "peak")


def test_what_waits_is_explained_and_found_by_a_search():
    layout = deferring(2)
    fabric = toy.cluster(layout.num_devices)
    result = project(MODEL, fabric, layout, WORK, costs=toy.costs())
    question = Question(model=MODEL, cluster=fabric, workload=WORK, strategy=layout, costs=toy.costs())
    tree = explain(question, "memory.peak")
    assert tree.value == result.memory.peak_bytes
    best = search(MODEL, fabric, WORK, space=Space(base=layout, zero=(1,)), top=3, costs=toy.costs()).best
    for item in best:
        alone = project(MODEL, fabric, item.strategy, WORK, costs=toy.costs())
        assert (item.step_time_s, item.memory.peak_bytes) == (alone.step_time_s, alone.memory.peak_bytes)
    with raises(SpecError, "unsupported_by a memory timeline"):
        memory_timeline(MODEL, fabric, layout, WORK)
