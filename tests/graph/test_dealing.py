from __future__ import annotations

import json

import pytest

from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.models import load_model
from forescale.graph import recorded
from forescale.graph.dealing import deals_experts, with_dealt_experts, with_whole_experts
from forescale.graph.parallel import NO_PLAN, Plan
from forescale.graph.recorded import recorded_traces, traced_model
from forescale.project import project
from forescale.question import Question
from forescale.spec import Layout, Recompute, Workload


def traced(monkeypatch: pytest.MonkeyPatch, name: str, plan: Plan):
    """Return the recorded model of a catalogue model's configuration under a plan."""
    monkeypatch.setattr(recorded, "plan_of", lambda _: plan)
    traces = recorded_traces(json.loads(load_model(name).config), seq_len=4096)
    return traced_model(traces, name=name, hidden_size=1)


@pytest.mark.parametrize("name", ["mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2-lite"])
def test_dealt_experts_are_those_of_a_type_with_a_plan(monkeypatch, name):
    planned = traced(monkeypatch, name, Plan(experts=True))
    dealt = with_dealt_experts(traced(monkeypatch, name, NO_PLAN))
    assert planned.traces[0].ep > 1
    for one, other in zip(planned.traces, dealt.traces, strict=True):
        assert one == other


def question(name: str, ep: int) -> Question:
    return Question(
        model=load_model(name),
        cluster=load_cluster("h100-sxm", 64),
        workload=Workload(seq_len=4096, global_batch_size=64),
        strategy=Layout(dp_shard=64, zero=2, ep=ep, recompute=Recompute(granularity="full")),
    )


@pytest.mark.parametrize("name", ["deepseek-v4-flash", "mimo-v2-flash", "gemma-4-26b-a4b", "lfm2-8b-a1b"])
def test_a_rank_has_its_part_of_the_experts(name):
    """Their weights and states are what ranks divide, and tokens go to them and back."""
    whole, dealt = (project(question(name, ep)) for ep in (1, 8))
    model = load_model(name)
    of_experts = sum(
        parameter.elements
        for layer in model.traces[0].layers
        for parameter in model.traces[0].blocks[layer].parameters
        if parameter.split == "experts"
    )
    least = 2 * (1 - 1 / 8) * of_experts  # weights alone
    assert whole.memory.peak_bytes - dealt.memory.peak_bytes >= least
    assert of_experts > 0.5 * model.traces[0].num_parameters


def test_without_experts_nothing_is_dealt():
    model = load_model("smollm3-3b")
    assert with_dealt_experts(model) == model


def test_transformers_deals_the_experts_of_types_with_a_plan():
    assert deals_experts(load_model("ernie-4.5-21b-a3b"))
    model = load_model("gemma-4-26b-a4b")
    assert not deals_experts(model)
    assert {trace.ep for trace in model.traces} == {128}
    assert {trace.ep for trace in with_whole_experts(model).traces} == {1}
