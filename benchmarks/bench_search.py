"""Layouts per second of the search, and one projection: `pytest benchmarks/bench_search.py`."""

from __future__ import annotations

import pytest

from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.models import load_model
from forescale.cost.select import Costs
from forescale.project import project
from forescale.search import Space
from forescale.search.evaluate import Question, score
from forescale.search.cells import enumerate_layouts
from forescale.spec import Strategy, Workload

QUESTIONS = {
    "llama-3.1-70b on 256 h100-sxm": ("llama-3.1-70b", "h100-sxm", 256, 8192, 1024),
    "mixtral-8x22b on 64 h100-sxm": ("mixtral-8x22b-v0.1", "h100-sxm", 64, 4096, 256),
}


MODELS = ("roofline", "tile")


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


@pytest.mark.parametrize("compute", MODELS)
def test_one_projection(benchmark, compute):
    model, cluster = load_model("llama-3.1-70b"), load_cluster("h100-sxm", 64)
    strategy = Strategy(tp=4, pp=4, vpp=5, dp_shard=4)
    workload = Workload(seq_len=8192, global_batch_size=128)
    benchmark(project, model, cluster, strategy, workload, costs=Costs(compute=compute))
