"""Verdicts on runs whose end is published."""

from __future__ import annotations

from dataclasses import replace

from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.models import load_model
from forescale.project import project
from forescale.spec import Layout, Workload
from forescale.spec.layout import Kernels, Offload, Recompute
from forescale.spec.workload import Precision


def test_fragmentation_broke_a_fine_tuning_run_and_growing_segments_mended_it():
    """Megatron-Bridge, skills/nemo-mbridge-perf-memory-tuning @067f987: Llama-3-70B on 32 H100, tp 4, pp 4, vpp 5."""
    layout = Layout(tp=4, pp=4, vpp=5, dp_shard=2, zero=1, kernels=Kernels(cross_entropy="fused"))
    precision = Precision(compute="fp8", recipe="current", parameters="fp8", gradients="bf16")
    work = Workload(seq_len=4096, global_batch_size=32, precision=precision, varied_lengths=True)
    model, cluster = load_model("llama-3-70b"), load_cluster("h100-sxm", 32)
    memory = project(model, cluster, layout, work).memory
    mended = project(model, cluster, replace(layout, allocator="expandable_segments"), work).memory
    assert memory.verdict == "AT RISK"
    assert mended.verdict == "FITS"


def test_recipes_of_maxtext_fit_on_tpus_because_of_the_host():
    """TPU recipes for Trillium: Llama-3.1-8B, 4 sequences of 8,192 tokens on each of 256 v6e, projections on the host."""
    kept = ("query_proj", "key_proj", "value_proj", "out_proj")
    layout = Layout(
        dp_shard=256,
        zero=3,
        micro_batch_size=4,
        recompute=Recompute(granularity="policy", policy="custom", kept=kept),
        kernels=Kernels(cross_entropy="compiled", gathers_each_weight=True),
    )
    work = Workload(seq_len=8192, global_batch_size=1024)
    model, cluster = load_model("llama-3.1-8b"), load_cluster("tpu-v6e", 256)
    moved = replace(layout, offload=Offload(modules=("decoder_layer_input", *kept)))
    assert project(model, cluster, moved, work).memory.verdict == "FITS"
    assert project(model, cluster, layout, work).memory.verdict == "OOM"
