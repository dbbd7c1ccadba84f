"""Layouts per second of the search, and one projection: `pytest benchmarks/bench_search.py`."""

from __future__ import annotations

import pytest

from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.models import load_model
from forescale.cost.select import Costs
from forescale.project import project
from forescale.question import Question
from forescale.search import search
from forescale.search.evaluate import score
from forescale.search.tree import enumerate_layouts
from forescale.spec import Layout, Workload
from forescale.spec.space import Space

QUESTIONS = {
    "llama-3.1-70b on 256 h100-sxm": ("llama-3.1-70b", "h100-sxm", 256, 8192, 1024),
    "mixtral-8x22b on 64 h100-sxm": ("mixtral-8x22b-v0.1", "h100-sxm", 64, 4096, 256),
}


MODELS = ("roofline", "tile")


WHOLE = {
    "llama-3.1-405b on 16384 h100-sxm": ("llama-3.1-405b", "h100-sxm", 16384, 8192, 2048),
    "deepseek-v3 on 2048 h800-sxm": ("deepseek-v3", "h800-sxm", 2048, 4096, 15360),
    "llama-3.1-70b on 256 h100-sxm": ("llama-3.1-70b", "h100-sxm", 256, 8192, 1024),
}


SPACES = {"default": Space(), "axis orders": Space(placement=("orders",))}


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("name", WHOLE)
def test_whole_search(benchmark, name, space):
    """At most 3 s on one idle core, and at least 5 million layouts per second with every placement (the default)."""
    model_name, cluster_name, devices, seq_len, batch = WHOLE[name]
    model, cluster = load_model(model_name), load_cluster(cluster_name, devices)
    workload = Workload(seq_len=seq_len, global_batch_size=batch)
    selected = {"space": SPACES[space]}
    result = benchmark.pedantic(search, (model, cluster, workload), selected, rounds=3, warmup_rounds=1)
    assert result.num_evaluated + result.num_over_memory + result.num_beaten == result.num_legal
    benchmark.extra_info["layouts"] = result.num_legal
    benchmark.extra_info["evaluated"] = result.num_evaluated
    benchmark.extra_info["layouts_per_s"] = round(result.num_legal / benchmark.stats.stats.min)


@pytest.mark.parametrize("compute", MODELS)
@pytest.mark.parametrize("name", QUESTIONS)
def test_layouts_per_second(benchmark, name, compute):
    model_name, cluster_name, devices, seq_len, batch = QUESTIONS[name]
    model, cluster = load_model(model_name), load_cluster(cluster_name, devices)
    workload = Workload(seq_len=seq_len, global_batch_size=batch)
    candidates = enumerate_layouts(model, cluster, workload, Space())
    question = Question(model=model, cluster=cluster, workload=workload, costs=Costs(compute=compute))
    benchmark(score, question, candidates)
    benchmark.extra_info["layouts"] = len(candidates)
    benchmark.extra_info["layouts_per_s"] = round(len(candidates) / benchmark.stats.stats.median)


LAYOUTS = {
    "llama-3.1-70b": ("h100-sxm", Layout(tp=4, pp=4, vpp=5, dp_shard=16), 8192, 512),
    "deepseek-v3": ("h800-sxm", Layout(pp=16, ep=64, dp_shard=128), 4096, 15360),
    "mixtral-8x22b-v0.1": ("h100-sxm", Layout(tp=2, pp=4, ep=8, dp_shard=8), 4096, 256),
}


@pytest.mark.parametrize("compute", MODELS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_one_projection(benchmark, name, compute):
    """One layout, warm: at most 5 ms on one idle core for a dense model."""
    cluster_name, layout, seq_len, batch = LAYOUTS[name]
    model, cluster = load_model(name), load_cluster(cluster_name, layout.num_devices)
    workload = Workload(seq_len=seq_len, global_batch_size=batch)
    benchmark(project, model, cluster, layout, workload, costs=Costs(compute=compute))
