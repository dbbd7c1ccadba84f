"""Components of the blocks of a model, and the collectives of a step, against what the layers consist of."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests import small
from tests.small import asked

from forescale.catalogue.clusters import load_cluster
from forescale.project import project
from forescale.report.components import collectives_of, components_of
from forescale.spec import Layout, Recompute, Workload

WORK = Workload(seq_len=2048, global_batch_size=32)


def question(layout, model=None, devices=8, **more):
    return asked(
        small.dense() if model is None else model, load_cluster("h100-sxm", devices), layout, WORK, **more
    )


def test_parameters_of_a_dense_layer():
    """Query and output 1024², keys and values of 4 heads of 64, three matrices of 1024 × 4096, two norms."""
    embedding, layer, head = components_of(question(Layout(dp_shard=8)))
    attention = 2 * 1024**2 + 2 * 1024 * 256
    parts = {part.name: part for part in layer.below}
    assert (embedding.parameters, layer.times) == (1024 * 32000, 8)
    assert parts["attention"].parameters == attention + 1024
    assert parts["ffn"].parameters == 3 * 1024 * 4096 + 1024
    assert head.parameters == 1024 * 32000 + 1024
    assert {part.name: part.parameters for part in parts["attention"].below}["query"] == 1024**2
    total = embedding.parameters + 8 * layer.parameters + head.parameters
    assert project(question(Layout(dp_shard=8))).params.per_stage == (total,)


def test_kept_bytes_are_those_of_a_micro_batch_without_recomputation():
    plain, replayed = (
        components_of(question(Layout(dp_shard=8, recompute=Recompute(granularity=kind))))
        for kind in ("none", "full")
    )
    assert plain == replayed
    ffn = {part.name: part for part in plain[1].below}["ffn"]
    kept = {part.name: part.kept_bytes for part in ffn.below}
    tokens = 2048
    assert kept["activation"] == 2 * tokens * 2 * 4096
    assert kept["down"] == tokens * 2 * 4096


def test_degrees_divide_parameters():
    whole, split = (
        components_of(question(layout)) for layout in (Layout(dp_shard=8), Layout(tp=4, dp_shard=2))
    )
    norms = 2 * 1024
    assert split[1].parameters - norms == (whole[1].parameters - norms) / 4


def test_every_kind_of_block_is_listed():
    names = [part.name for part in components_of(question(Layout(dp_shard=8), small.moe()))]
    assert names == ["embedding", "mla+dense", "mla+moe", "head", "mtp"]
    seen = components_of(question(Layout(dp_shard=8), small.sees()))
    assert [part.times for part in seen][-2:] == [5, 1]


def calls(layout, **more):
    return {item.name: item for item in collectives_of(question(layout, **more))}


def test_collectives_of_tensor_and_pipeline_parallelism():
    """32 micro-batches through a stage of 4 layers; sequence parallelism gathers and scatters around each half."""
    rows = calls(Layout(tp=4, pp=2, dp_shard=1))
    assert {item.part for item in rows.values()} == {"tensor_comm", "pipeline_comm"}
    gather = rows["attention.gather forward all_gather"]
    assert (gather.num_ranks, gather.num_bytes, gather.calls) == (4, 2048 * 1024 * 2, 4 * 32)
    stage = rows["stage p2p"]
    assert (stage.num_bytes, stage.calls) == (2048 * 1024 * 2 / 4, 2 * 32)
    again = calls(Layout(tp=4, pp=2, dp_shard=1, recompute=Recompute(granularity="full")))
    assert again["attention.gather forward all_gather"].calls == 2 * 4 * 32


@pytest.mark.parametrize(
    ("zero", "names"),
    [
        (0, ["gradients all_reduce"]),
        (1, ["gradients reduce_scatter", "parameters all_gather"]),
        (
            3,
            [
                "layer all_gather before forward",
                "layer all_gather before backward",
                "layer gradients reduce_scatter",
            ],
        ),
    ],
)
def test_collectives_of_data_parallelism(zero, names):
    rows = calls(Layout(dp_shard=8, zero=zero))
    assert list(rows) == names
    assert {item.num_ranks for item in rows.values()} == {8}
    assert all(item.seconds > 0 for item in rows.values())
    elements = project(question(Layout(dp_shard=8, zero=zero))).params.total
    if zero < 3:
        assert next(iter(rows.values())).num_bytes == 4 * elements
        assert {item.calls for item in rows.values()} == {1}
    else:
        assert {item.calls for item in rows.values()} == {8 * 4}


def test_collectives_are_those_of_the_stage_that_sends_longest():
    """The first stage has the dense layers, which send nothing to experts; only the first layer of each is replayed."""
    layout = Layout(ep=2, pp=2, dp_shard=4, recompute=Recompute(granularity="full", num_layers=1))
    rows = {item.name: item.calls for item in collectives_of(question(layout, small.moe()))}
    microbatches = 32 // 4
    assert rows["moe.dispatch backward all_to_all"] == 4 * microbatches  # 3 on the first stage
    assert rows["moe.dispatch forward all_to_all"] == (4 + 1) * microbatches


def test_one_device_has_no_collectives():
    assert collectives_of(question(replace(Layout(), dp_shard=1), devices=1)) == ()


def test_accounts_that_list_none_have_none():
    asked_of = question(Layout(dp_shard=8), preset="playbook")
    assert components_of(asked_of) == collectives_of(asked_of) == ()
