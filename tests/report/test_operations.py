"""Operators with their work, their time and what limits them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests import small
from tests.small import asked

from forescale.catalogue.clusters import load_cluster
from forescale.inputs import prepare
from forescale.report.operations import operators_of, shares
from forescale.spec import Layout, Workload

WORK = Workload(seq_len=2048, global_batch_size=32)


def question(layout=None, model=None, devices=8, **more):
    machine = load_cluster("h100-sxm", devices)
    return asked(model or small.dense(), machine, layout or Layout(dp_shard=8), WORK, **more)


def rows_of(asked_of):
    return {(item.name, item.direction): item for item in operators_of(asked_of).operators}


def test_a_product_has_its_operands_and_output_and_2mnk_flop():
    """Down projection of 2,048 tokens, 4096 to 1024, in 16 bits."""
    row = rows_of(question())["ffn.down", "forward"]
    tokens, inner, hidden = 2048, 4096, 1024
    flops = 2 * tokens * inner * hidden
    num_bytes = 2 * (tokens * inner + inner * hidden + tokens * hidden)
    assert (row.flops, row.num_bytes, row.times) == (flops, num_bytes, 8)
    device = load_cluster("h100-sxm", 8).device
    assert row.compute_limit_s == flops / device.matrix_flops.bf16
    assert row.memory_limit_s == num_bytes / device.hbm_bandwidth
    assert row.intensity == flops / num_bytes
    assert row.reached == pytest.approx(max(row.compute_limit_s, row.memory_limit_s) / row.seconds)


def test_what_limits_an_operator():
    rows = rows_of(question(Layout(tp=8, sp=True)))
    assert rows["attention.gather", "forward"].bound == "network"
    row = rows["ffn.down", "forward"]
    ready = replace(row, waits_for_host=False, compute_limit_s=1.0, memory_limit_s=0.5)
    assert (ready.bound, replace(ready, compute_limit_s=0.0).bound) == ("compute", "memory")
    waiting = replace(ready, waits_for_host=True, launch_seconds=2.0 * row.device_seconds)
    assert waiting.bound == "launch"
    assert replace(waiting, launch_seconds=0.0).bound == "compute"


@pytest.mark.parametrize("model", [small.dense(), small.moe()])
def test_seconds_are_those_that_the_step_is_made_of(model):
    asked_of = question(model=model)
    priced = prepare(asked_of).priced.priced.layers[0]
    rows = [item for item in operators_of(asked_of).operators if item.block == priced.block.name]
    assert sum(item.seconds for item in rows if item.direction == "forward") == pytest.approx(
        priced.compute("forward")
    )
    both = priced.compute("backward_input") + priced.compute("backward_weight")
    assert sum(item.seconds for item in rows if item.direction == "backward") == pytest.approx(both)


def test_shares_add_up_and_rows_have_what_the_document_has():
    result = operators_of(question())
    assert sum(shares(result.operators).values()) == pytest.approx(1.0)
    assert result.to_json()["operations"] == result.rows()
    assert {"bound", "intensity", "reached", "device_seconds"} <= result.rows()[0].keys()
