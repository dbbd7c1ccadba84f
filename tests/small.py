"""Small models and clusters for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from forescale.question import Question, question_of
from forescale.spec import (
    Cluster,
    DenseFfn,
    Device,
    FullAttention,
    LatentAttention,
    Layer,
    Layout,
    MatrixRates,
    Model,
    MoeFfn,
    Patches,
    Tier,
    Workload,
)
from forescale.spec.model import Vision

DENSE_LAYER = Layer(
    attention=FullAttention(num_heads=16, num_kv_heads=4, head_dim=64), ffn=DenseFfn(ffn_hidden_size=4096)
)
MLA = LatentAttention(
    num_heads=16, q_lora_rank=256, kv_lora_rank=128, qk_nope_head_dim=64, qk_rope_head_dim=32, v_head_dim=64
)
MOE_LAYER = Layer(
    attention=MLA, ffn=MoeFfn(num_experts=16, top_k=4, ffn_hidden_size=512, shared_ffn_hidden_size=512)
)


def dense(num_layers: int = 8) -> Model:
    return Model(name="small-dense", hidden_size=1024, layers=(DENSE_LAYER,) * num_layers, vocab_size=32000)


def moe(num_layers: int = 8) -> Model:
    first = Layer(attention=MLA, ffn=DenseFfn(ffn_hidden_size=2048))
    return Model(
        name="small-moe",
        hidden_size=1024,
        layers=(first,) + (MOE_LAYER,) * (num_layers - 1),
        vocab_size=32000,
        num_mtp_layers=1,
    )


TOWER_LAYER = Layer(
    attention=FullAttention(num_heads=8, num_kv_heads=8, head_dim=64, causal=False),
    ffn=DenseFfn(ffn_hidden_size=2048, gated=False),
)


def sees(num_layers: int = 8) -> Model:
    """Return the dense model with a tower of 5 layers before it: 1,024 patches an image, 256 tokens."""
    encoder = Model(
        name="vision",
        hidden_size=512,
        layers=(TOWER_LAYER,) * 5,
        norm="layer",
        learned_positions=1024,
        patches=Patches(patch_elements=588),
    )
    tower = Vision(encoder=encoder, patch_size=14, image_size=448, merge=2, projector=(2048, 1024))
    return replace(dense(num_layers), name="small-seeing", vision=tower)


def device(hbm_gb: float = 80.0) -> Device:
    return Device(
        name="test-device",
        vendor="nvidia",
        architecture="hopper",
        matrix_flops=MatrixRates(bf16=989e12, fp16=989e12, fp8=1979e12),
        vector_flops=67e12,
        hbm_bytes=hbm_gb * 1e9,
        hbm_bandwidth=3.35e12,
        num_cores=132,
        clock_hz=1.83e9,
    )


def cluster(num_devices: int, hbm_gb: float = 80.0) -> Cluster:
    return Cluster(
        name="test-cluster",
        device=device(hbm_gb),
        num_devices=num_devices,
        devices_per_node=8,
        tiers=(
            Tier(name="nvlink", size=8, bandwidth=450e9, latency=2e-6),
            Tier(name="infiniband", size=0, bandwidth=50e9, latency=5e-6),
        ),
    )


def workload(seq_len: int = 2048, global_batch_size: int = 64) -> Workload:
    return Workload(seq_len=seq_len, global_batch_size=global_batch_size)


def asked(model: Model, cluster: Cluster, strategy: Layout, workload: Workload, **more: Any) -> Question:
    """The question of one layout, from what `project` takes."""
    return question_of(model, cluster, workload, strategy=strategy, **more)
