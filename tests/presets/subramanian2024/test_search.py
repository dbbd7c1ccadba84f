from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.models import load_model
from forescale.errors import InfeasibleError, SpecError
from forescale.presets.subramanian2024 import search_subramanian2024

DATA = Path(__file__).parents[2] / "data" / "subramanian2024"
KINDS = {"1d": "1d", "2d-seqp": "2d", "2d": "summa"}
MODELS = {"gpt3_1T": "gpt3-1t", "vit_era5": "vit-era5"}
PARTS = {
    "compute": "t_comp",
    "memory": "t_mem_exposed",
    "tensor": "t_tp_comm",
    "data": "t_dp_comm",
    "pipeline": "t_pp_comm",
    "bubble": "t_bubble",
}
HELD = {
    "weights": "wts_mem_gb",
    "gradients": "wts_grad_mem_gb",
    "optimizer": "optimizer_mem_gb",
    "activations": "acts_mem_gb",
}


def rows(name):
    with (DATA / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def label(row):
    return "-".join(row[key] for key in ("model", "strategy", "gpu", "nvs", "n_gpus"))


def search(row, **options):
    cluster = load_cluster(f"{row['gpu'].lower()}-nvs{row['nvs']}", int(row["n_gpus"]))
    model = load_model(MODELS[row["model"]])
    options = {"global_batch_size": 4096} | options
    return search_subramanian2024(model, cluster, tensor_parallel=KINDS[row["strategy"]], **options)


@pytest.mark.parametrize("row", rows("best.csv"), ids=label)
def test_a_published_search_is_reproduced(row):
    result = search(row)
    best = result.best[0]
    configuration = best.configuration
    assert (configuration.tp1, configuration.tp2, configuration.pp, configuration.dp) == tuple(
        int(row[key]) for key in ("n1_tp1", "n2_tp2", "pp", "dp")
    )
    assert configuration.micro_batch_size == int(row["micro_batch"])
    assert configuration.num_microbatches == int(row["n_microbatches"])
    assert configuration.panels == int(row["summa_nb"] or 1)
    near = configuration.placement
    assert (near.tp1, near.tp2, near.dp, near.pp) == tuple(
        int(row[key] or 1) for key in ("nvs_n1", "nvs_n2", "nvs_dp", "nvs_pp")
    )
    assert best.step_time_s == pytest.approx(float(row["iter_time_s"]), rel=1e-12)
    assert best.samples_per_s == pytest.approx(float(row["throughput_samples_per_s"]), rel=1e-12)
    assert best.memory_bytes.total == pytest.approx(float(row["mem_gb"]) * 1e9, rel=1e-12)
    assert best.flops_per_device == pytest.approx(float(row["flops_per_gpu_tflop"]) * 1e12, rel=1e-12)
    for part, column in PARTS.items():
        assert getattr(best.time_s, part) == pytest.approx(float(row[column]), rel=1e-9, abs=1e-12), part
    for part, column in HELD.items():
        assert getattr(best.memory_bytes, part) == pytest.approx(float(row[column]) * 1e9, rel=1e-12), part
    assert len(result.best) == int(row["n_feasible_listed"])
    slowest = float(row["throughput_rank10"]) if row["throughput_rank10"] else None
    if slowest is not None:
        assert result.best[-1].samples_per_s == pytest.approx(slowest, rel=1e-12)


@pytest.mark.parametrize("row", rows("infeasible.csv"), ids=label)
def test_a_search_without_result_has_none_here(row):
    with pytest.raises(InfeasibleError, match=r"fits|no legal configuration"):
        search(row)


def test_figure_1_has_its_minimum_at_config_d():
    """Figure 1: (m, nt, nd, np) = (128, 8, 32, 64), about 40 GB."""
    fixed = {"pp": 64, "micro_batch_size": 1}
    row = {"model": "gpt3_1T", "strategy": "1d", "gpu": "B200", "nvs": "8", "n_gpus": "16384"}
    best = search(row, fixed=fixed).best[0].configuration
    assert (best.num_microbatches, best.tp1, best.dp, best.pp) == (128, 8, 32, 64)


def test_parts_sum_to_the_step_and_to_the_memory():
    row = {"model": "vit_era5", "strategy": "2d", "gpu": "B200", "nvs": "64", "n_gpus": "4096"}
    for one in search(row, top=50).best:
        parts = one.time_s
        total = parts.compute + parts.memory + parts.tensor + parts.data + parts.pipeline + parts.bubble
        assert total == pytest.approx(one.step_time_s, rel=1e-12)
        assert one.memory_bytes.total <= 192e9


def test_json_is_complete_and_ranked():
    row = {"model": "gpt3_1T", "strategy": "2d", "gpu": "A100", "nvs": "4", "n_gpus": "1024"}
    body = json.loads(json.dumps(search(row, top=7).to_json()))
    assert body["schema"] == "forescale.subramanian2024/1"
    times = [one["step_time_s"] for one in body["best"]]
    assert times == sorted(times)
    assert len(times) == 7
    assert body["quirks"]["free_slow_hops"] is True
    assert set(body["best"][0]["configuration"]["placement"]) == {"tp1", "tp2", "dp", "pp"}


def test_top_must_be_positive():
    row = {"model": "gpt3_1T", "strategy": "1d", "gpu": "A100", "nvs": "4", "n_gpus": "1024"}
    with pytest.raises(SpecError, match="1 or more"):
        search(row, top=0)
