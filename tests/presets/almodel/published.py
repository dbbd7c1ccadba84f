"""The tables of the analysis, and their rows as layouts."""

from __future__ import annotations

import csv
from pathlib import Path

from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.models import load_model
from forescale.spec import Layout, Recompute, Workload

FOLDER = Path(__file__).parents[2] / "data" / "almodel"
MODEL = load_model("almodel")
CLUSTER = load_cluster("almodel-pod", 128)
WORKLOAD = Workload(seq_len=4096, global_batch_size=5120)
GB = 2.0**30
POLICIES = {
    "out_proj": "save_out_proj",
    "qkv_proj": "save_qkv_proj",
    "dot-mlp": "save_dot_except_mlp",
}


def rows(name):
    with (FOLDER / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def remat(text):
    if text == "save_all":
        return Recompute()
    if text == "full":
        return Recompute(granularity="full")
    return Recompute(granularity="policy", policy=POLICIES.get(text, text))


def layout(row):
    return Layout(
        tp=int(row["tp"]),
        dp_replicate=int(row["dp"]),
        pp=int(row["pp"]),
        ep=int(row["ep"]),
        dp_shard=int(row["fsdp"]) * int(row["ep"]),
        cp=int(row["cp"]),
        micro_batch_size=int(row["mb"]),
        zero=3,
        recompute=remat(row["remat"]),
    )


def key(row):
    return tuple(int(row[name]) for name in ("tp", "dp", "pp", "ep", "fsdp", "cp", "mb", "ga"))


def key_of(ranked):
    strategy = ranked.strategy
    return (
        strategy.tp,
        strategy.dp_replicate,
        strategy.pp,
        strategy.ep,
        ranked.fsdp,
        strategy.cp,
        strategy.micro_batch_size,
        ranked.projection.num_microbatches,
    )


def columns(ranked):
    """Return what the two tables of the analysis print, by column."""
    memory, step = ranked.memory, ranked.step
    return {
        "weights_gb": memory.weights / GB,
        "optimizer_gb": memory.optimizer / GB,
        "gradients_gb": memory.gradients / GB,
        "buffer_gb": memory.buffers / GB,
        "activations_gb": memory.activations / GB,
        "reserve_gb": memory.overhead / GB,
        "total_gb": memory.total / GB,
        "training_pflop": ranked.projection.model_flops_full_attention_per_step / 1e15,
        "remat_percent": 100 * ranked.flops.overhead,
        "compute_s": step.compute,
        "tp_s": step.tp.seconds,
        "ep_s": step.ep.seconds,
        "fsdp_s": step.fsdp_exposed,
        "dp_s": step.dp.seconds,
        "cp_s": step.cp.seconds,
        "pp_s": step.pp.seconds,
        "bubble_s": step.bubble,
        "optimizer_s": step.optimizer.seconds,
        "step_s": step.total,
        "mfu_percent": 100 * ranked.projection.mfu_full_attention,
    }
