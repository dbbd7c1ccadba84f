from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tests.errors import raises
from tests.small import asked, cluster, dense, moe, workload

from forescale.errors import SpecError, UnknownNameError
from forescale.explain import Explainer, explain, quantity_names
from forescale.explain.explain import operation_of, tidy
from forescale.face import ask
from forescale.formula import REGISTRY, Term, formula, total
from forescale.presets import load_preset, project_as
from forescale.project import project
from forescale.projection.result import TIME_PARTS
from forescale.spec import Kernels, Layout, Recompute
from forescale.spec.workload import Trainable

N, BYTES = Term(4.0, name="n", unit="1"), Term(8.0, name="size", unit="byte")


@formula(unit="s", source="test")
def larger_of(*, first: float, second: float) -> float:
    """The larger."""
    return max(first, second)


REGISTRY.pop("larger_of")  # the registry holds the formulas of the package only


def test_sums_are_flat_and_without_zeros():
    node = tidy(((0.0 + N) + (0.0 + BYTES) + N).at())
    assert [part.name for _, part in node.inputs] == ["n", "size", "n"]
    assert node.value == 16.0


def test_products_are_flat_and_without_ones():
    node = tidy((1.0 * N * (BYTES * N)).at())
    assert [part.name for _, part in node.inputs] == ["n", "size", "n"]


def test_labelled_parts_of_a_sum_keep_their_labels():
    node = tidy(total({"first": BYTES + N, "second": BYTES}, name="all", unit="byte").at())
    assert [(label, part.value) for label, part in node.inputs] == [("first", 12.0), ("second", 8.0)]


def test_a_product_of_one_thing_is_that_thing():
    assert tidy((1.0 * N / 1.0 - 0.0).at()).name == "n"


def test_a_named_sum_of_one_thing_keeps_its_name():
    node = tidy((0.0 + BYTES).renamed("buffer").at())
    assert (node.name, node.value, node.unit) == ("buffer", 8.0, "byte")


def test_nothing_has_no_inputs():
    assert tidy((0.0 * N).at()).inputs == ()


def test_the_branch_not_taken_keeps_its_value_only():
    node = tidy(larger_of(first=N + N, second=BYTES * N).at())
    assert {label: (part.value, bool(part.inputs)) for label, part in node.inputs} == {
        "first": (8.0, False),
        "second": (32.0, True),
    }


@pytest.mark.parametrize(
    ("term", "unit"), [(BYTES + 1.0, "byte"), (BYTES * N, "byte"), (BYTES / N, "byte"), (N * N, "")]
)
def test_units_follow_where_arithmetic_allows(term, unit):
    assert tidy(term.at()).unit == unit


CASES = [
    (dense(), Layout(dp_shard=16)),
    (dense(), Layout(tp=2, sp=False, pp=4, vpp=2, dp_shard=2)),
    (dense(), Layout(cp=4, cp_kind="ring", dp_shard=4, zero=3)),
    (dense(), Layout(tp=2, cp=4, tp_kind="summa", summa_panels=2, dp_shard=2)),
    (
        dense(),
        Layout(
            pp=2, dp_replicate=2, dp_shard=4, zero=2, recompute=Recompute(granularity="full", num_layers=2)
        ),
    ),
    (moe(), Layout(tp=2, ep=4, pp=2, dp_shard=4)),
    (moe(), Layout(pp=4, vpp=2, microbatch_group=8, ep=4, dp_shard=4)),
    (dense(), Layout(pp=4, vpp=2, microbatch_group=12, dp_shard=4)),
    (dense(), Layout(dp_shard=16, kernels=Kernels(keeps_product_gradients=True))),
    (dense(), Layout(dp_shard=16, zero=3, kernels=Kernels(frees_gradients=True))),
]


def expected(result, quantity):
    """The number that `project` reports under the name of a quantity."""
    family, _, part = quantity.partition(".")
    worst = max(result.memory.stages, key=lambda stage: stage.peak_bytes)
    match family:
        case "step_time":
            return result.time_s[part] if part else result.step_time_s
        case "memory":
            return getattr(worst, f"{part}_bytes")
        case "params":
            return getattr(result.params, part)
        case "model_flops" | "hardware_flops":
            return getattr(result, f"{family}_per_step")
        case "model_flops_full_attention":
            return result.model_flops_full_attention_per_step
        case "checkpoint_bytes":
            return result.params.total * 14.0  # bf16 weights, fp32 master copy and two fp32 moments
        case _:
            return getattr(result, family)


@pytest.mark.parametrize(("model", "strategy"), CASES)
def test_every_quantity_is_the_projected_number(model, strategy):
    run = replace(workload(), tokens=1e12)
    result = project(model, cluster(16), strategy, run)
    explainer = Explainer.from_question(asked(model, cluster(16), strategy, run))
    for quantity in quantity_names():
        node = explainer.node(quantity)
        assert node.name == quantity
        assert node.value == pytest.approx(expected(result, quantity), rel=1e-12), quantity


@pytest.mark.parametrize(("model", "strategy"), CASES)
def test_step_time_and_peak_are_bit_for_bit_what_was_ranked(model, strategy):
    result = project(model, cluster(16), strategy, workload())
    explainer = Explainer.from_question(asked(model, cluster(16), strategy, workload()))
    assert explainer.node("step_time").value == result.step_time_s
    assert explainer.node("memory.peak").value == result.memory.peak_bytes


@pytest.mark.parametrize(("model", "strategy"), CASES)
@pytest.mark.parametrize("quantity", ["step_time", "memory.peak", "hfu"])
def test_what_is_left_after_tidying_still_adds_up(model, strategy, quantity):
    waiting, seen = [explain(asked(model, cluster(16), strategy, workload()), quantity)], set()
    while waiting:
        node = waiting.pop()
        if id(node) in seen or isinstance(node.value, tuple):
            continue
        seen.add(id(node))
        values = [part.value for _, part in node.inputs]
        waiting.extend(part for _, part in node.inputs)
        if not values or any(isinstance(value, tuple) for value in values):
            continue
        match operation_of(node):
            case "+":
                assert math.fsum(values) == pytest.approx(node.value, rel=1e-9)
            case "×":
                assert math.prod(values) == pytest.approx(node.value, rel=1e-9)
            case "/" if len(values) == 2:
                assert values[0] / values[1] == pytest.approx(node.value, rel=1e-9)
            case "-" if len(values) == 2:
                assert values[0] - values[1] == pytest.approx(node.value, rel=1e-6, abs=1e-9)
    assert len(seen) > 50


def test_parts_of_the_step_stand_under_it():
    node = explain(asked(dense(), cluster(16), CASES[1][1], workload()), "step_time")
    names = {label for label, _ in node.inputs}
    assert names <= set(TIME_PARTS)
    assert {"attention", "ffn", "tensor_comm", "bubble"} <= names


def test_a_stage_that_was_picked_is_named():
    node = explain(asked(dense(), cluster(16), CASES[1][1], workload()), "memory.peak")
    assert node.stage == 0


def test_sources_are_the_formulas_sources():
    node = explain(asked(dense(), cluster(16), CASES[2][1], workload()), "memory.weights")
    assert any("1910.02054" in source for source in node.sources)


def test_sources_name_the_calibrations_behind_durations():
    sources = explain(asked(dense(), cluster(16), CASES[1][1], workload()), "step_time").sources
    assert any("calibration hopper" in source for source in sources)
    assert any("nccl-tests" in source for source in sources)


def test_the_document_is_cut_at_the_depth_asked_for():
    node = explain(asked(dense(), cluster(16), CASES[1][1], workload()), "step_time")
    tree = node.to_json(depth=1)["tree"]
    assert tree["inputs"]
    assert all(not part["inputs"] for part in tree["inputs"])
    assert node.to_json(depth=0)["tree"]["inputs"] == []


@pytest.mark.parametrize("quantity", ["step_time", "memory.peak", "hfu", "params.per_device_max"])
@pytest.mark.parametrize("depth", [0, 1, 4])
def test_a_tree_of_few_levels_is_the_top_of_the_whole_tree(quantity, depth):
    question = asked(moe(), cluster(8), Layout(tp=2, pp=2, dp_shard=2, sp=True), workload())
    explainer = Explainer.from_question(question)
    part, whole = explainer.node(quantity, depth=depth), explainer.node(quantity)
    assert part.to_json(depth=depth)["tree"] == whole.to_json(depth=depth)["tree"]
    assert len(list(part.walk())) < len(list(whole.walk())) or quantity.startswith("params")


def test_unknown_quantity_names_the_nearest():
    with raises(UnknownNameError, "unknown_name quantity"):
        explain(asked(dense(), cluster(16), CASES[0][1], workload()), "step_tme")


def test_training_days_need_tokens():
    with raises(SpecError, "required_with the tokens of the whole run (--tokens)"):
        explain(asked(dense(), cluster(16), CASES[0][1], workload()), "training_days")


def test_an_illegal_layout_is_refused():
    with raises(SpecError, "illegal_layout devices"):
        explain(asked(dense(), cluster(16), Layout(tp=2), workload()), "step_time")


def test_a_collective_says_what_whole_runs_reach_of_its_rate():
    explainer = Explainer.from_question(asked(dense(), cluster(16), Layout(dp_shard=16), workload()))
    nodes = [
        node for node in explainer.node("step_time.data_comm").walk() if "rate_share" in dict(node.inputs)
    ]
    assert nodes
    assert all(node.unit == "s" and "whole runs" in node.text for node in nodes)


@pytest.mark.parametrize("count", ["total", "active", "trained"])
@pytest.mark.parametrize("model", [dense(), replace(dense(), tied_embeddings=True), moe(4)])
def test_a_count_of_parameters_is_the_weights_of_its_blocks(model, count):
    work = replace(workload(), trainable=Trainable(frozen=("norm",)))
    question = asked(model, cluster(16), Layout(dp_shard=16), work)
    result = explain(question, f"params.{count}")
    assert math.fsum(block.value for _, block in result.inputs) == result.value
    for _, block in result.inputs:
        parts = dict(block.inputs)
        item = parts.get("each", block)
        assert block.value == parts["blocks"].value * item.value if "blocks" in parts else item is block
        assert math.fsum(weight.value for _, weight in item.inputs) == item.value
        assert all(weight.text for _, weight in item.inputs)
    assert "mtp" not in dict(result.inputs)
    frozen = {"attention.norm.weight"} & {node.name for node in result.walk()}
    assert frozen == (set() if count == "trained" else {"attention.norm.weight"})


def test_weights_of_a_stage_have_their_names():
    question = asked(dense(), cluster(16), Layout(tp=2, dp_shard=8), workload())
    names = {node.name for node in explain(question, "memory.weights").walk()}
    assert {"attention.norm.weight", "ffn.norm.weight", "ffn.up.weight"} <= names


ACCOUNTS = {"primus": {}, "korthikanti2022": {}, "playbook": {}, "almodel": {"zero": 3}}


@pytest.mark.parametrize(("preset", "words"), ACCOUNTS.items())
def test_under_a_preset_it_is_the_account_s_number(preset, words):
    plain = asked(dense(), cluster(16), Layout(dp_shard=16, **words), workload())
    question = replace(plain, preset=preset)
    explicit = project_as(question)
    peak = explain(question, "memory.peak")
    assert peak.value == explicit.memory.peak_bytes
    assert math.fsum(part.value for _, part in peak.inputs) == pytest.approx(peak.value)
    assert peak.source == load_preset(preset).source
    assert explain(question, "params.total").value == explicit.params.total
    if not explicit.step_time.expected:
        with raises(UnknownNameError, "unknown_name"):
            explain(question, "step_time")


@pytest.mark.parametrize(
    ("preset", "words"),
    {
        "korthikanti2022": ("korthikanti_layer", "in_flight", "sequence_ranks"),
        "playbook": ("num_heads", "scores", "num_layers"),
        "primus": ("base", "one layer", "self_attention", "penalty"),
        "primus-2026": ("base", "one layer", "residual_add", "penalty"),
    }.items(),
)
def test_an_account_says_what_its_formulas_made_of_what(preset, words):
    layout = Layout(dp_shard=8, pp=2)
    question = replace(asked(dense(), cluster(16), layout, workload()), preset=preset)
    peak = explain(question, "memory.peak")
    assert peak.value == project_as(question).memory.peak_bytes
    labels = {label for node in peak.walk() for label, _ in node.inputs} | {node.name for node in peak.walk()}
    assert labels >= set(words)


@pytest.mark.parametrize(
    ("preset", "model", "layout", "words"),
    [
        ("almodel", "llama-3.1-8b", {"zero": 3}, ("almodel_compute_time", "bus_bytes", "dp_shard", "bandwidth")),
        ("subramanian2024", "gpt3-175b", {"tp": 4}, ("two_level_ring", "linear_forward_flops", "near_tp1", "rate")),
    ],
)  # fmt: skip
def test_a_step_of_an_account_says_what_its_formulas_made_of_what(preset, model, layout, words):
    sizes = {"devices": 16, "seq_len": 2048, "global_batch_size": 64, "pp": 2}
    question = ask(model, "h100-sxm", preset=preset, **sizes, **layout)
    explicit, step = project_as(question), explain(question, "step_time")
    assert step.value == explicit.step_time.expected
    for part, node in step.inputs:
        assert node.value == explicit.time_s[part]
        assert node.inputs, f"{part} says nothing of what it is made of"
    labels = {label for node in step.walk() for label, _ in node.inputs} | {node.name for node in step.walk()}
    assert labels >= set(words)
    assert all(node.source for node in step.walk() if node.name in words and node.inputs)


def test_a_replayed_layer_of_an_account_is_its_input():
    """Korthikanti et al. 2022, Table 2: 2sbh of each layer, for as many micro-batches as the first stage holds."""
    layout = Layout(dp_shard=8, pp=2, recompute=Recompute(granularity="full"))
    question = replace(asked(dense(), cluster(16), layout, workload()), preset="korthikanti2022")
    node = next(
        item
        for item in explain(question, "memory.activations").walk()
        if item.name == "korthikanti_replayed_layer"
    )
    inputs = {label: part.value for label, part in node.inputs}
    assert node.value == 2.0 * inputs["seq_len"] * inputs["micro_batch_size"] * inputs["hidden_size"]


def test_a_step_of_an_account_is_its_parts():
    question = replace(asked(dense(), cluster(16), Layout(dp_shard=16, zero=3), workload()), preset="almodel")
    explicit = project_as(question)
    mfu = explain(question, "mfu")
    step = dict(mfu.inputs)["step_time"]
    assert (mfu.value, step.value) == (explicit.mfu, explicit.step_time.expected)
    assert {name: part.value for name, part in step.inputs} == pytest.approx(
        {name: value for name, value in explicit.time_s.items() if value > 1e-12}
    )
    with raises(SpecError, "required_with memory or one of its parts (memory.activations, ...)"):
        explain(question, "mfu", stage=0)
    with raises(SpecError, "not_one_of stage"):
        explain(question, "memory.peak", stage=3)


def test_the_flop_of_a_token_are_those_of_a_sequence_over_its_length():
    question = asked(dense(), cluster(8), Layout(dp_shard=8), workload())
    node, step = explain(question, "model_flops_per_token"), explain(question, "model_flops")
    assert node.value == pytest.approx(step.value / question.workload.tokens_per_step)
    assert [part.name for _, part in node.inputs] == ["FLOP of one sequence", "seq_len"]
