"""Questions cut to the devices at hand; the examples are those of Primus' projection documentation."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.errors import raises
from tests.small import cluster, dense, moe, workload

from forescale.bench.reduce import reduce
from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.models import load_model
from forescale.errors import SpecError
from forescale.io.bench import GivenUp
from forescale.project import project
from forescale.question import Question
from forescale.spec import Layout, Recompute, Workload
from forescale.spec.model import MoeFfn


def asked(model, strategy, *, seq_len=2048, global_batch_size=None):
    size = global_batch_size or 8 * strategy.dp * strategy.micro_batch_size
    return Question(
        model=model,
        cluster=cluster(strategy.num_devices),
        workload=Workload(seq_len=seq_len, global_batch_size=size),
        strategy=strategy,
    )


def degrees(reduced):
    layout = reduced.question.layout
    return {name: getattr(layout, name) for name in ("tp", "cp", "pp", "vpp", "ep", "dp")}


MIXTRAL = Question(
    model=load_model("mixtral-8x22b"),
    cluster=load_cluster("mi355x", 64),
    workload=Workload(seq_len=8192, global_batch_size=128),
    strategy=Layout(
        pp=4, vpp=2, ep=8, dp_shard=16, micro_batch_size=2, recompute=Recompute(granularity="full")
    ),
)


def test_the_example_of_eight_stages_on_one_node_keeps_its_experts():
    result = reduce(MIXTRAL, 8)
    assert degrees(result) == {"tp": 1, "cp": 1, "pp": 1, "vpp": 1, "ep": 8, "dp": 8}
    assert result.question.model.layers[0].ffn.num_experts == 8
    assert result.question.layout.micro_batch_size == 2
    assert result.question.layout.recompute == Recompute(granularity="full")
    assert result.given_up == (
        GivenUp(dimension="pp", asked=4, measured=1),
        GivenUp(dimension="dp", asked=16, measured=8),
        GivenUp(dimension="layers", asked=56, measured=2),
        GivenUp(dimension="sequences", asked=128, measured=32),
    )
    assert result.sentences[0] == "pp 4 -> 1"


def test_the_example_on_one_device_gives_up_every_degree():
    model = replace(
        moe(16), layers=tuple(replace(layer, ffn=replace(layer.ffn, num_experts=64)) if isinstance(layer.ffn, MoeFfn) else layer for layer in moe(16).layers)
    )  # fmt: skip
    result = reduce(asked(model, Layout(tp=8, pp=4, ep=8, dp_shard=8)), 1)
    assert degrees(result) == {"tp": 1, "cp": 1, "pp": 1, "vpp": 1, "ep": 1, "dp": 1}
    assert {"tp", "pp", "ep", "experts"} <= {item.dimension for item in result.given_up}
    assert [layer.ffn.num_experts for layer in result.question.model.layers[1:]] == [8, 8]


def test_experts_are_never_fewer_than_a_token_chooses():
    result = reduce(asked(moe(4), Layout(ep=16, dp_shard=16)), 2)
    assert result.question.layout.ep == 2
    assert result.question.model.moe.num_experts == result.question.model.moe.top_k == 4


def test_experts_go_before_tensor_parallelism_and_that_to_the_largest_degree_that_fits():
    question = asked(moe(4), Layout(tp=4, ep=16, dp_shard=4))
    assert degrees(reduce(question, 8)) == {"tp": 4, "cp": 1, "pp": 1, "vpp": 1, "ep": 8, "dp": 2}
    assert degrees(reduce(question, 4))["tp"] == 4
    result = reduce(question, 2)
    assert (degrees(result)["tp"], degrees(result)["ep"]) == (2, 2)


def test_context_parallelism_is_never_cut():
    question = asked(dense(4), Layout(tp=2, cp=4, dp_replicate=2))
    assert degrees(reduce(question, 4)) == {"tp": 1, "cp": 4, "pp": 1, "vpp": 1, "ep": 1, "dp": 1}
    with raises(SpecError, "not_enough_devices cp 4", value=4, allowed=2):
        reduce(question, 2)


def test_each_kind_of_layer_is_shown_twice_and_no_more():
    layers = reduce(asked(moe(8), Layout(pp=2)), 1).question.model.layers
    assert [isinstance(layer.ffn, MoeFfn) for layer in layers] == [False, True, True]


def test_what_fits_stays_as_it_is():
    question = asked(dense(2), Layout(tp=2), global_batch_size=2)
    result = reduce(question, 2)
    assert result.question == question
    assert result.given_up == ()


def test_recompute_takes_no_more_layers_than_are_left():
    partly = Recompute(granularity="full", num_layers=6)
    result = reduce(asked(dense(8), Layout(recompute=partly)), 1)
    assert result.question.layout.recompute.num_layers == 2


def test_a_device_does_what_it_would_do_at_the_target():
    whole = asked(dense(8), Layout(tp=2, pp=4, dp_replicate=2, micro_batch_size=2))
    cut = reduce(whole, 2).question
    before, after = project(whole), project(cut)
    assert cut.layout.tp == 2
    per_layer = [item.memory.stages[0].weights_bytes for item in (before, after)]
    assert per_layer[1] == pytest.approx(per_layer[0] + 32000 * 1024 / 2 * 2, rel=1e-2)


def test_a_cut_that_does_not_fit_is_refused():
    small = replace(asked(dense(8), Layout(pp=2)), max_memory=1e9)
    with pytest.raises(SpecError, match=r"the cut of small-dense needs .* GiB on each of 1 device"):
        reduce(small, 1)


def test_an_illegal_layout_is_refused_before_it_is_cut():
    with pytest.raises(SpecError, match="tp"):
        reduce(replace(asked(dense(8), Layout(tp=2)), cluster=cluster(4), workload=workload()), 1)


def test_a_step_of_the_cut_keeps_the_micro_batches_that_the_whole_has():
    layout = Layout(pp=2, micro_batch_size=4)
    result = reduce(asked(dense(8), layout, global_batch_size=4), 1)
    assert (result.question.workload.global_batch_size, result.question.layout.micro_batch_size) == (4, 4)
    assert "sequences" not in {item.dimension for item in result.given_up}
