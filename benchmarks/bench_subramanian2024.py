"""All searches of Subramanian et al. 2024, and one of them: `pytest benchmarks/bench_subramanian2024.py`."""

from __future__ import annotations

import itertools

from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.models import load_model
from forescale.errors import InfeasibleError
from forescale.presets.subramanian2024 import search_subramanian2024

MODELS = ("gpt3-1t", "vit-era5")
DEVICES = ("a100", "h200", "b200")
DOMAINS = (4, 8, 64)
SIZES = tuple(2**power for power in range(2, 15))
BATCH = 4096


def everything() -> tuple[int, int]:
    """Run the 54 published studies at all 13 sizes; return the candidates of all, and of the feasible ones."""
    candidates = infeasible = 0
    for model, device, domain, kind in itertools.product(MODELS, DEVICES, DOMAINS, ("1d", "2d", "summa")):
        for size in SIZES:
            cluster = load_cluster(f"{device}-nvs{domain}", size)
            try:
                result = search_subramanian2024(
                    load_model(model), cluster, tensor_parallel=kind, global_batch_size=BATCH
                )
                candidates += result.num_candidates
            except InfeasibleError as error:
                infeasible += 1
                candidates += sum(count for _, count in error.rows)
    return candidates, infeasible


def test_all_published_searches(benchmark):
    candidates, infeasible = benchmark.pedantic(everything, rounds=2)
    assert (candidates, infeasible) == (9_183_444, 342)
    benchmark.extra_info["candidates_per_s"] = round(candidates / benchmark.stats.stats.min)


def test_one_search(benchmark):
    model, cluster = load_model("gpt3-1t"), load_cluster("b200-nvs8", 16384)
    result = benchmark(search_subramanian2024, model, cluster, tensor_parallel="1d", global_batch_size=BATCH)
    assert result.num_candidates == 2027
