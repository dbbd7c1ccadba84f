"""Performance recipes: the closest one, and the settings that suit a layout."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forescale import ask, project
from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.frameworks import load_framework
from forescale.catalogue.models import load_model
from forescale.io.line import project_line
from forescale.io.question import build_question
from forescale.io.question_values import question_values
from forescale.spec import Cluster, Model
from forescale.spec.layout import Layout
from forescale.spec.recipes import Recipe, active_width, closest, kind_of, nearest, settings_of

BRIDGE = load_framework("megatron-bridge@26.04.01")
V3 = {"tp": 1, "pp": 8, "vpp": 2, "ep": 32}


def closest_of(model: Model, cluster: Cluster, compute: str, degrees: dict[str, int]) -> Recipe | None:
    """Return the recipe that a question of these degrees follows."""
    return closest(nearest(BRIDGE.recipes, model, cluster.device), cluster, compute, degrees)


@pytest.mark.parametrize(
    ("model", "kind"),
    [("llama-3-8b", "dense"), ("qwen3-30b-a3b", "moe"), ("deepseek-v3", "mla"), ("nemotron-h-56b", "hybrid")],
)
def test_kinds_of_models(model: str, kind: str) -> None:
    assert kind_of(load_model(model)) == kind


def test_widths_order_models_by_active_parameters() -> None:
    names = ("llama-3-8b", "llama-3-70b", "llama-3.1-405b")
    widths = [active_width(load_model(name)) for name in names]
    assert widths == sorted(widths)
    assert active_width(load_model("qwen3-30b-a3b")) < active_width(load_model("qwen3-32b"))


@pytest.mark.parametrize(
    ("model", "cluster", "compute", "degrees", "expected"),
    [
        ("deepseek-v3", "b200", "mxfp8", V3, "deepseek_v3_pretrain_config_b200_fp8_mx_v2"),
        ("deepseek-v3", "gb300-nvl72", "bf16", {}, "deepseek_v3_pretrain_config_gb300_bf16_v2"),
        # no recipe of this model: the nearest of its kind
        (
            "qwen3-coder-480b-a35b",
            "gb200-nvl72",
            "mxfp8",
            {},
            "qwen3_235b_a22b_pretrain_config_gb200_fp8_mx_v2",
        ),
        # no recipe of this device: the nearest generation
        ("llama-3-70b", "h800-sxm", "fp8", {}, "llama3_70b_pretrain_config_h100_fp8_cs_v2"),
    ],
)
def test_the_closest_recipe(
    model: str, cluster: str, compute: str, degrees: dict[str, int], expected: str
) -> None:
    recipe = closest_of(load_model(model), load_cluster(cluster, 256), compute, degrees)
    assert recipe is not None
    assert recipe.name(compute) == expected


def test_settings_that_do_not_suit_are_left_out() -> None:
    model, cluster = load_model("deepseek-v3"), load_cluster("b200", 256)
    recipe = closest_of(model, cluster, "mxfp8", V3)
    assert recipe is not None
    settings, dropped = settings_of(recipe, model, V3)
    assert dropped == ()
    assert (settings["dispatcher"], settings["graphs"], settings["overlap"]) == (
        "deepep",
        "partial",
        {"expert": True},
    )
    settings, dropped = settings_of(recipe, model, {"pp": 8, "ep": 1, "recompute": {"granularity": "full"}})
    assert set(dropped) == {"dispatcher", "recompute", "stage_layers", "graphs", "overlap.expert"}
    assert settings == {
        "graphs": "none",
        "overlap": {"expert": False},
        "kernels": {"wide_router": True},
    }


def test_a_question_goes_over_the_recipe_which_goes_over_the_defaults() -> None:
    plain = {
        "model": "qwen3-30b-a3b",
        "cluster": "gb200-nvl72",
        "devices": 8,
        "framework": "megatron-bridge@26.04.01",
        "strategy": {"ep": 8, "micro_batch_size": 4},
        "workload": {"seq_len": 4096, "global_batch_size": 512},
    }
    layout = build_question(plain, where="test").layout
    assert (layout.dispatcher, layout.graphs) == ("hybridep", "partial")
    explicit = {**plain, "strategy": {**plain["strategy"], "dispatcher": "all_to_all"}}
    assert build_question(explicit, where="test").layout.dispatcher == "all_to_all"
    assert build_question({**plain, "framework": "megatron-core"}, where="test").layout.graphs == "none"


def test_the_recipe_is_named_in_a_note() -> None:
    result = project(
        "qwen3-30b-a3b", "gb200-nvl72", devices=8, ep=8, micro_batch_size=4, seq_len=4096, global_batch_size=512,
        framework="megatron-bridge@26.04.01",
    )  # fmt: skip
    notes = [note.text for note in result.notes if "qwen3_30b_a3b_pretrain_config_gb200" in note.text]
    assert len(notes) == 1


@pytest.mark.parametrize(
    ("vpp", "expected"), [(4, {0: 3, 31: 3, 1: 4}), (1, {0: 15, 7: 15, 3: 16})], ids=["vpp 4", "vpp 1"]
)
def test_uneven_stages_have_light_ends(vpp: int, expected: dict[int, int]) -> None:
    layers = BRIDGE.stage_layers(load_model("llama-3.1-405b"), 8, vpp)
    assert layers is not None
    assert sum(layers) == 126
    assert {stage: layers[stage] for stage in expected} == expected


def test_degrees_that_are_left_out_are_1() -> None:
    model, cluster = load_model("qwen3-30b-a3b"), load_cluster("gb200-nvl72", 8)
    explicit = {"tp": 1, "pp": 1, "cp": 1, "vpp": 1, "ep": 8, "zero": 1}
    assert closest_of(model, cluster, "mxfp8", {"ep": 8}) == closest_of(model, cluster, "mxfp8", explicit)


@pytest.mark.parametrize(
    ("name", "model", "cluster", "devices", "fields", "seq_len", "expected"),
    [
        ("torchtitan@0.2", "llama-3.1-70b", "h100-sxm", 64, {"tp": 8}, 8192, "full"),
        ("torchtitan@0.2", "llama-3.1-8b", "h100-sxm", 8, {"micro_batch_size": 2}, 8192, "policy"),
        # as many tokens on a device as the page of benchmarks has, whatever cp
        ("torchtitan@0.2", "llama-3.1-8b", "h100-sxm", 8, {"cp": 8}, 262144, "full"),
        ("maxtext", "llama-3.1-8b", "tpu-v6e", 256, {"micro_batch_size": 3}, 8192, "policy"),
        ("maxtext", "llama-3-70b", "h100-sxm", 64, {"micro_batch_size": 4}, 8192, "full"),
        ("megatron-core", "llama-3-70b", "h100-sxm", 64, {"tp": 8}, 8192, "none"),
    ],
)
def test_recompute_follows_the_recipe(name, model, cluster, devices, fields, seq_len, expected) -> None:
    plan = {
        "model": model,
        "cluster": cluster,
        "devices": devices,
        "framework": name,
        "strategy": {"zero": 3, **fields},
        "workload": {"seq_len": seq_len, "global_batch_size": devices * 16},
    }
    assert build_question(plan, where="test").layout.recompute.granularity == expected


def test_a_count_of_recomputed_layers_needs_the_micro_batch_of_the_recipe() -> None:
    plan = {
        "model": "llama-3-70b",
        "cluster": "mi325x",
        "devices": 64,
        "framework": "primus",
        "strategy": {"zero": 3, "micro_batch_size": 3},
        "workload": {"seq_len": 8192, "global_batch_size": 576},
    }
    assert build_question(plan, where="test").layout.recompute.granularity == "full"
    smaller = {**plan, "strategy": {"zero": 3, "micro_batch_size": 1}}
    assert build_question(smaller, where="test").layout.recompute.granularity == "none"


PLAIN = {"seq_len": 4096, "global_batch_size": 512}


@pytest.mark.usefixtures("usual_frameworks")
@pytest.mark.parametrize(
    ("cluster", "devices", "label"),
    [
        ("h100-sxm", 8, "megatron-bridge@26.08"),
        ("gb200-nvl72", 72, "megatron-bridge@26.08"),
        ("mi300x", 8, "primus@2026.08"),
        ("tpu-v5p", 64, "maxtext@2026"),
        ("rtx-4090", 8, "transformers@sdpa"),
        ("h100-sxm", 1, "transformers@sdpa"),
        ("gaudi3", 8, None),
    ],
)
def test_the_usual_framework_of_a_device(cluster: str, devices: int, label: str | None) -> None:
    question = ask("llama-3.1-8b", cluster, devices=devices, seq_len=4096, global_batch_size=504)
    assert (question.framework and question.framework.label) == label
    notes = [note.text for note in question.notes if "--framework" in note.text]
    assert len(notes) == (label is not None)


@pytest.mark.usefixtures("usual_frameworks")
@pytest.mark.parametrize(
    ("model", "cluster", "name"),
    [
        ("llama-3.1-8b", "h100-sxm", "torchtitan"),
        ("llama-3.1-8b", "b200", "megatron-bridge"),
        ("qwen3-30b-a3b", "h100-sxm", "megatron-bridge"),
    ],
)
def test_the_usual_framework_of_sharded_weights(model: str, cluster: str, name: str) -> None:
    question = ask(model, cluster, devices=8, zero=3, **PLAIN)
    assert question.framework is not None
    assert question.framework.name == name


@pytest.mark.usefixtures("usual_frameworks")
@pytest.mark.parametrize(
    ("words", "name"),
    [
        ({"lora_rank": 16}, "transformers"),
        ({"lora_rank": 16, "frozen_dtype": "nf4"}, "transformers"),
        ({"lora_rank": 16, "tp": 2}, "megatron-bridge"),
        ({"lora_rank": 16, "tp": 1}, "transformers"),
        ({}, "megatron-bridge"),
    ],
)
def test_adapters_are_trained_with_transformers(words: dict[str, object], name: str) -> None:
    question = ask("llama-3.1-8b", "h100-sxm", devices=8, **PLAIN, **words)
    assert question.framework is not None
    assert question.framework.name == name


@pytest.mark.usefixtures("usual_frameworks")
def test_none_a_plan_and_a_whole_layout_have_neutral_defaults() -> None:
    plain = ask("llama-3.1-8b", "h100-sxm", devices=8, framework="none", **PLAIN)
    assert plain.framework is None
    assert ask("llama-3.1-8b", "h100-sxm", Layout(dp_replicate=8), devices=8, **PLAIN).framework is None
    assert ask("llama-3.1-8b", "h100-sxm", devices=8, software="torch-eager", **PLAIN).framework is None
    assert build_question(question_values(plain), where="test") == replace(plain, notes=())
    assert "--framework none" in project_line(plain)


@pytest.mark.usefixtures("usual_frameworks")
def test_experts_are_exchanged_as_recipes_do_where_no_framework_is_named() -> None:
    question = ask("qwen3-30b-a3b", "gb200-nvl72", devices=8, ep=8, micro_batch_size=4, **PLAIN)
    assert question.layout.dispatcher == "hybridep"
    assert question.layout.graphs != "none"


@pytest.mark.usefixtures("usual_frameworks")
def test_intervals_are_no_narrower_where_fewer_settings_are_given() -> None:
    plain = {"ep": 8, "micro_batch_size": 4, "devices": 8, **PLAIN}
    more = [
        {},
        {"framework": "megatron-bridge@26.08"},
        {"framework": "megatron-bridge@26.08", "graphs": "partial"},
        {"framework": "megatron-bridge@26.08", "graphs": "partial", "dispatcher": "hybridep"},
    ]
    questions = [ask("qwen3-30b-a3b", "gb200-nvl72", **plain, **words) for words in more]
    assert [len(question.assumed) for question in questions] == [7, 6, 5, 4]
    widths = [(result := project(question)).step_time.high / result.step_time_s for question in questions]
    assert widths == sorted(widths, reverse=True)
    assert len(set(widths)) == 4


def test_whole_layouts_and_presets_assume_nothing() -> None:
    assert ask("llama-3.1-8b", "h100-sxm", Layout(dp_replicate=8), devices=8, **PLAIN).assumed == ()
    assert ask("llama-3.1-8b", "h100-sxm", devices=8, preset="almodel", **PLAIN).assumed == ()


@pytest.mark.parametrize("framework", ["megatron-bridge", "nemo", "primus", "torchtitan", "maxtext"])
def test_a_traced_model_has_no_recipe_and_recomputes_whole_blocks(framework: str) -> None:
    question = ask(
        "mamba-codestral-7b",
        cluster="h100-sxm",
        devices=8,
        seq_len=4096,
        global_batch_size=8,
        framework=framework,
    )
    assert question.model.traces
    assert nearest(load_framework(framework).recipes, question.model, question.cluster.device) == ()
    assert question.layout.recompute.granularity in ("none", "full")


def test_padded_experts_need_all_to_all_and_let_whole_layers_be_captured() -> None:
    values = {
        "devices": 8,
        "seq_len": 4096,
        "global_batch_size": 64,
        "ep": 8,
        "framework": "megatron-bridge@25.09",
    }
    padded = ask("qwen3-30b-a3b", "gb200-nvl72", **values).layout
    assert (padded.routing.capacity_factor, padded.routing.pad_to_capacity, padded.graphs) == (
        1.0,
        True,
        "full",
    )
    other = ask("qwen3-30b-a3b", "gb200-nvl72", **values, dispatcher="deepep").layout
    assert (other.routing.capacity_factor, other.routing.pad_to_capacity, other.graphs) == (
        None,
        False,
        "partial",
    )


def test_a_hybrid_with_experts_is_nearer_to_models_with_experts_than_to_dense_hybrids() -> None:
    recipes = load_framework("megatron-bridge@25.11").recipes
    device = load_cluster("h100-sxm", 8).device
    routed = nearest(recipes, load_model("nemotron-3-super-120b-a12b"), device)
    dense = nearest(recipes, load_model("nemotron-h-56b"), device)
    assert {recipe.model for recipe in routed} == {"qwen3-next-80b-a3b"}
    assert {recipe.model for recipe in dense} == {"nemotron-h-56b"}
    assert (routed[0].routed, dense[0].routed) == (True, False)
    without = nearest(
        load_framework("megatron-bridge@25.09").recipes, load_model("qwen3-next-80b-a3b"), device
    )
    assert {recipe.kind for recipe in without} == {"moe"}


def test_of_equal_widths_the_recipes_of_the_model_itself_are_closest() -> None:
    """Nemotron-3.5 has the widths of Nemotron-3 Nano, and recipes of its own after those."""
    recipes, device = load_framework("megatron-bridge@26.08").recipes, load_cluster("gb200-nvl72", 8).device
    for name in ("nemotron-3-nano-30b-a3b", "nemotron-3.5-lightning-30b-a3b"):
        assert {item.model for item in nearest(recipes, load_model(name), device)} == {name}
    other = replace(load_model("nemotron-3-nano-30b-a3b"), name="mine")
    assert len({item.model for item in nearest(recipes, other, device)}) == 2


def test_a_recipe_has_the_devices_of_its_name() -> None:
    recipes = load_framework("megatron-bridge@26.08").recipes
    named = {name: item.degrees.get("devices") for item in recipes for name in item.names.values()}
    assert named["qwen3_235b_a22b_pretrain_256gpu_h100_bf16_config"] == 256
    assert named["qwen3_235b_a22b_pretrain_128gpu_b300_fp8mx_hybridep_dev_config"] is None
