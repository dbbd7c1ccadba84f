from __future__ import annotations

import pickle

import pytest
from tests import small
from tests.errors import raises

from forescale.catalogue.frameworks import load_framework
from forescale.errors import SpecError
from forescale.search import search
from forescale.spec import Layout, Workload
from forescale.spec.framework import Framework, Limits, Variant, check_choice, rule_of, searched
from forescale.spec.layout import Kernels, Overlap, Recompute
from forescale.spec.proposal import Proposal
from forescale.spec.space import Space

WORKLOAD = Workload(seq_len=4096, global_batch_size=32)


def made(**fields) -> Framework:
    return Framework(
        name="own", release="1", title="", date="", source="", **{"software": "torch-eager", **fields}
    )


def defaults(framework, layout=None, workload=None, model=None):
    parts, run = framework.completed(layout or {}, workload or {}, model or small.dense(), small.cluster(16))
    return parts, run["precision"]


def test_words_that_are_given_win_inside_tables_too():
    framework = made(kernels=Kernels(fused=False), allocator="expandable_segments", moments="bf16")
    value = {"kernels": {"fused": True}, "allocator": "segments"}
    layout, types = defaults(framework, value, {"precision": {"moments": "fp32"}})
    assert layout["kernels"]["fused"]
    assert layout["allocator"] == "segments"
    assert layout["kernels"]["dropout"] is False
    assert (types["moments"], types["gradients"]) == ("fp32", "fp32")


def test_a_layout_and_a_workload_are_trained_as_the_framework_does():
    framework = made(
        cp_kind="ring", gradients="bf16", kernels=Kernels(cross_entropy="fused"), stops_early=True
    )
    full = Layout(tp=2, recompute=Recompute(granularity="full"))
    layout, workload = framework.applied(full, WORKLOAD, small.dense(), small.cluster(16))
    assert (layout.tp, layout.cp_kind, layout.software) == (2, "ring", "torch-eager")
    assert layout.kernels.cross_entropy == "fused"
    assert layout.recompute.stops_early
    assert workload.precision.gradients == "bf16"
    assert (workload.seq_len, workload.precision.master) == (4096, "fp32")


@pytest.mark.parametrize(
    ("compute", "expected"),
    [
        ("bf16", {"parameters": "bf16", "gradients": "bf16", "recipe": "none"}),
        ("fp16", {"parameters": "fp16", "gradients": "fp16", "activations": "fp16"}),
        ("fp8", {"parameters": "fp8", "gradients": "bf16", "recipe": "current"}),
        ("mxfp8", {"parameters": "fp8", "recipe": "mxfp8"}),
        ("nvfp4", {"parameters": "bf16", "recipe": "none"}),
        ("tf32", {"parameters": "fp32", "gradients": "fp32", "master": "none"}),
    ],
)
def test_types_follow_the_compute_type(compute, expected):
    framework = made(gradients="bf16", fp8_recipe="current", fp8_parameters=("current", "mxfp8"))
    _, types = defaults(framework, workload={"precision": {"compute": compute}})
    assert {name: types[name] for name in expected} == expected


def test_weights_that_are_not_sharded_stay_in_16_bits():
    framework, run = made(fp8_parameters=("delayed",)), {"precision": {"compute": "fp8"}}
    kept = [defaults(framework, {"zero": zero}, run)[1]["parameters"] for zero in (0, 1, 3)]
    assert kept == ["bf16", "fp8", "fp8"]
    assert defaults(framework, {}, run)[1]["parameters"] == "fp8"


def test_blockwise_fp8_keeps_weights_in_16_bits():
    _, types = defaults(
        made(fp8_parameters=("current",)), workload={"precision": {"compute": "fp8", "recipe": "blockwise"}}
    )
    assert types["parameters"] == "bf16"


def test_tokens_travel_in_8_bits_with_narrow_products_only():
    framework = made(dispatch="fp8")
    assert defaults(framework)[0]["routing"]["dispatch"] == "activations"
    narrow, _ = defaults(framework, workload={"precision": {"compute": "fp8"}})
    assert narrow["routing"]["dispatch"] == "fp8"


def test_kernels_under_some_types_go_over_the_others():
    sums = Variant(
        when={"gradients": ("fp32",), "parameters": ("bf16",)}, kernels={"keeps_product_gradients": True}
    )
    framework = made(gradients="bf16", kernels=Kernels(dropout=True), variants=(sums,))
    usual, _ = defaults(framework)
    summed, _ = defaults(framework, workload={"precision": {"gradients": "fp32"}})
    halved, _ = defaults(framework, workload={"precision": {"compute": "fp16", "gradients": "fp32"}})
    kept = [item["kernels"]["keeps_product_gradients"] for item in (usual, summed, halved)]
    assert kept == [False, True, False]
    assert summed["kernels"]["dropout"]


def test_tensor_overlap_is_of_dense_models_and_not_of_nvfp4():
    framework = made(overlap=Overlap(tensor=True))
    assert defaults(framework)[0]["overlap"]["tensor"]
    assert not defaults(framework, model=small.moe())[0]["overlap"]["tensor"]
    assert not defaults(framework, workload={"precision": {"compute": "nvfp4"}})[0]["overlap"]["tensor"]


def test_experts_over_tp_take_its_degree():
    framework = made(experts_over_tp=True)
    assert defaults(framework, {"tp": 4}, model=small.moe())[0]["etp"] == 4
    assert defaults(framework, {"tp": 4, "etp": 1}, model=small.moe())[0]["etp"] == 1
    assert "etp" not in defaults(framework, {"tp": 4})[0]
    assert "etp" not in defaults(made(), {"tp": 4}, model=small.moe())[0]


def test_micro_batches_follow_from_accumulation():
    once = made(accumulation=1)
    assert defaults(once, workload={"global_batch_size": 64})[0]["micro_batch_size"] == 4
    assert "micro_batch_size" not in defaults(once, {"pp": 2}, {"global_batch_size": 64})[0]
    piped = made(microbatches_per_stage=1)
    assert defaults(piped, {"pp": 2}, {"global_batch_size": 64})[0]["micro_batch_size"] == 4


def test_words_of_the_wrong_kind_are_left_to_the_checks():
    layout, types = defaults(
        made(accumulation=1), {"tp": "two", "kernels": 3, "pp": None}, {"precision": "bf16"}
    )
    assert types == "bf16"
    assert layout["kernels"] == 3


def test_stages_by_cost_end_where_their_share_of_the_weights_does():
    layers = made(stages="by_cost").stage_layers(small.dense(), 2, 1)
    assert sum(layers) == small.dense().num_layers
    assert layers[0] > layers[1]
    assert made().stage_layers(small.dense(), 2, 1) is None


def test_limits_become_a_space_and_refuse_other_values():
    limits = Limits(
        source="its page", values={"zero": (1,)}, others={"zero": (3,)}, rules={"equal stages": "they are"}
    )
    framework = made(limits=limits)
    space = searched(framework, Space(), limited=True)
    assert space.zero == (1,)
    assert [rule.name for rule in space.rules] == ["own: equal stages"]
    check_choice(framework, "zero", (3,))
    with raises(SpecError, "not_one_of zero of own"):
        check_choice(framework, "zero", (2,))
    with raises(SpecError, "unsupported_by --to"):
        searched(made(), Space(), limited=True)
    runnable = searched(framework, Space(), limited=False)
    assert (runnable.zero, runnable.rules) == ((1, 3), space.rules)
    assert searched(framework, Space(zero=(2,)), limited=False).zero == (2,)
    assert searched(made(), Space(), limited=False) == Space()
    assert searched(made(always_sp=True), Space(), limited=False).sp == (True,)
    local = searched(load_framework("primus"), Space(), limited=False)
    assert (local.schedule, local.dispatcher) == ((None, "zb-h1", "zbv"), (None, "deepep"))
    assert local.tp_kind == Space().tp_kind


def test_rules_of_a_framework_reach_other_processes() -> None:
    rule = rule_of("megatron-core", "equal stages", "stages are equal")
    again = pickle.loads(pickle.dumps(rule))
    assert again.name == rule.name == "megatron-core: equal stages"
    assert again.holds is rule.holds


@pytest.mark.parametrize(
    ("kind", "tp", "cp", "inner", "legal"),
    [
        ("ulysses", 1, 4, None, True),  # 4 key/value heads
        ("ulysses", 2, 2, None, True),
        ("ulysses", 2, 4, None, False),  # 2 heads on each tensor-parallel rank
        ("ulysses", 8, 2, None, False),  # one, as tp repeats them
        ("ulysses", 8, 1, None, True),
        ("hierarchical", 2, 4, 2, True),  # two ranks exchange heads
        ("hierarchical", 4, 4, 2, False),
        ("ring", 8, 8, None, True),
    ],
)
def test_exchanged_heads_of_keys_are_whole_under_transformer_engine(kind, tp, cp, inner, legal):
    """Transformer Engine asserts that the heads of queries, keys and values are divisible by the ranks of its a2a."""
    layout = Layout(tp=tp, cp=cp, cp_kind=kind, cp_inner=inner, dp_shard=max(1, 64 // (tp * cp)))
    proposal = Proposal(model=small.dense(), cluster=small.cluster(64), workload=WORKLOAD, degrees=layout)
    broken = [text for text in load_framework("megatron-core").cannot(proposal) if "a2a" in text]
    assert bool(broken) is not legal
    assert not [text for text in load_framework("maxtext").cannot(proposal) if "a2a" in text]


def test_a_search_leaves_out_exchanged_heads_that_are_not_whole():
    framework = load_framework("megatron-core")
    space = searched(framework, Space(tp=(2,), cp=(2, 4), pp=(1,), cp_kind=("ulysses",)), limited=False)
    result = search(small.dense(), small.cluster(64), WORKLOAD, space=space, top=200)
    assert {row.strategy.cp for row in result.best} == {2}
