"""What a framework fills in: the recompute that a layout needs, and the values of its recipes in a search."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from forescale.catalogue.frameworks import load_framework
from forescale.catalogue.models import load_model
from forescale.io.question import build_question
from forescale.io.recipes import WAITING, as_set_up, recomputed_to_fit
from forescale.project import project
from forescale.spec.framework import searched, with_recipes
from forescale.spec.layout import Layout
from forescale.spec.space import Space


def asked(**strategy):
    values = {
        "model": "llama-3.1-8b",
        "cluster": "h100-sxm",
        "devices": 8,
        "framework": "megatron-bridge",
        "strategy": {"zero": 1, "micro_batch_size": 4, **strategy},
        "workload": {"seq_len": 8192, "global_batch_size": 32, "precision": {"compute": "bf16"}},
    }
    return recomputed_to_fit(build_question(values, where="test"))


def test_a_layout_that_does_not_fit_recomputes_unless_told_not_to():
    question = asked()
    assert question.layout.recompute.granularity != "none"
    assert project(question).memory.verdict != "OOM"
    assert any("does not fit" in note.text for note in question.notes)
    told = asked(recompute={"granularity": "none"})
    assert told.layout.recompute.granularity == "none"
    assert project(told).memory.verdict == "OOM"


@pytest.mark.parametrize(
    ("precision", "master"), [({}, "fp16"), ({"master": "fp32"}, "fp32")], ids=["open", "given"]
)
def test_a_layout_that_no_recompute_lets_fit_takes_compact_master_weights(precision, master):
    values = {
        "model": "llama-2-70b",
        "cluster": "h100-sxm",
        "devices": 16,
        "framework": "megatron-bridge",
        "strategy": {"tp": 4, "pp": 4},
        "workload": {"seq_len": 4096, "global_batch_size": 32, "precision": {"compute": "fp8", **precision}},
    }
    question = recomputed_to_fit(build_question(values, where="test"))
    assert question.workload.precision.master == master
    assert ("master" in question.assumed) == (not precision)
    assert (project(question).memory.verdict == "OOM") == bool(precision)
    again = recomputed_to_fit(question)
    assert again.layout == question.layout


def waiting(cluster="gb200-nvl72", model="qwen2.5-32b", **strategy):
    values = {
        "model": model,
        "cluster": cluster,
        "devices": 64,
        "framework": "megatron-bridge@26.08",
        "strategy": {"tp": 4, "pp": 2, **strategy},
        "workload": {"seq_len": 4096, "global_batch_size": 256, "precision": {"compute": "bf16"}},
    }
    return build_question(values, where="test")


def test_a_recipe_of_another_model_takes_graphs_where_the_device_would_wait_for_the_host():
    before, after = waiting(), as_set_up(waiting())
    assert (before.layout.graphs, after.layout.graphs) == ("none", "full")
    assert project(after).step_time_s < (1.0 - WAITING) * project(before).step_time_s
    assert len(after.notes) == len(before.notes) + 1


@pytest.mark.parametrize(
    "question",
    [
        waiting(graphs="none"),
        waiting(cluster="h100-sxm"),
        waiting(model="llama-3.1-70b"),
    ],
    ids=["given", "hardly waits", "own recipe"],
)
def test_graphs_stay_as_given_as_in_the_own_recipe_and_where_they_spare_little(question):
    assert as_set_up(question).layout.graphs == question.layout.graphs == "none"


def test_recompute_that_is_assumed_changes_no_setting_that_is_given():
    open_graphs, given = (
        asked(**parts, micro_batch_size=2) for parts in ({"overlap": {}}, {"graphs": "partial"})
    )
    assert "graphs" in open_graphs.assumed
    assert given.layout.graphs == "partial"
    assert given.layout.recompute.granularity == "selective"


def test_a_layout_that_fits_keeps_what_its_recipe_says():
    question = asked(micro_batch_size=1, tp=8)
    assert question.layout.recompute.granularity == "none"
    assert not any("does not fit" in note.text for note in question.notes)


@pytest.mark.parametrize(
    ("name", "left_open", "graphs", "overlap"),
    [
        ("qwen3-30b-a3b", (), (None, "partial"), (None, ("expert",))),
        ("qwen3-30b-a3b", ("recompute",), (None,), (None,)),
        ("llama-3.1-8b", (), (None,), (None,)),
    ],
)
def test_a_search_tries_what_recipes_of_such_models_and_devices_set(name, left_open, graphs, overlap):
    framework, cluster = load_framework("megatron-bridge"), asked(tp=8).cluster
    space = searched(framework, Space(), limited=False)
    space = with_recipes(framework, space, load_model(name), cluster, left_open)
    assert (space.graphs, space.overlap) == (graphs, overlap)
    assert ("hybridep" in space.dispatcher) == (name != "llama-3.1-8b")


@pytest.mark.parametrize(
    ("framework", "strategy", "zero"),
    [
        ("torchtitan", {}, 3),
        ("torchtitan", {"zero": 0}, 0),
        ("torchtitan", {"dp_replicate": 2}, 3),
        ("torchtitan", {"dp_replicate": 8}, 0),
        ("torchtitan", {"tp": 8}, Layout().zero),  # nobody to share states with
        ("torchtitan", {"tp": 4, "cp": 2}, 3),
        ("torchtune", {}, 3),
        ("transformers", {}, 3),
        ("maxtext", {}, 3),
        ("megatron-lm", {}, Layout().zero),
    ],
)
def test_states_are_shared_as_the_framework_does_where_nothing_else_is_said(framework, strategy, zero):
    values = {
        "model": "llama-3.1-8b",
        "cluster": "h100-sxm",
        "devices": 8,
        "framework": framework,
        "strategy": strategy,
        "workload": {"seq_len": 8192, "global_batch_size": 64},
    }
    assert build_question(values, where="test").strategy.zero == zero


def test_the_fewest_layers_that_let_a_layout_fit_are_replayed():
    question = asked(micro_batch_size=2, zero=1)
    replayed = question.layout.recompute
    assert replayed.num_layers
    fewer = replace(question.layout, recompute=replace(replayed, num_layers=replayed.num_layers - 1))
    assert project(question).memory.verdict != "OOM"
    assert project(question.with_layout(fewer)).memory.peak_bytes > question.memory_limit


@pytest.mark.usefixtures("usual_frameworks")
@pytest.mark.parametrize(
    ("strategy", "name"),
    [
        ({"zero": 3}, "torchtitan"),
        ({"zero": 3, "offload": {"optimizer": 1.0}}, "deepspeed-zero"),
        ({"zero": 2, "offload": {"optimizer": 0.5}}, "deepspeed-zero"),
        ({"zero": 1, "offload": {"optimizer": 1.0}}, "megatron-bridge"),
    ],
)
def test_states_of_zero_on_the_host_are_deepspeeds(strategy, name):
    values = {
        "model": "llama-3.1-8b",
        "cluster": "a100-sxm-80gb",
        "devices": 8,
        "strategy": strategy,
        "workload": {"seq_len": 4096, "global_batch_size": 32},
    }
    assert build_question(values, where="test", default_framework=True).framework.name == name
