"""Questions about models that a CPU runs in no time."""

from __future__ import annotations

from forescale.question import Question
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
    Precision,
    Tier,
    Workload,
)

FULL = FullAttention(num_heads=4, num_kv_heads=2, head_dim=8)
LATENT = LatentAttention(
    num_heads=4, q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=8
)
DENSE, MOE = DenseFfn(ffn_hidden_size=48), MoeFfn(num_experts=4, top_k=2, ffn_hidden_size=16)
FP32 = Precision(compute="fp32", parameters="fp32", master="none", activations="fp32")
CPU = Device(
    name="cpu-core",
    vendor="cpu",
    architecture="x86",
    matrix_flops=MatrixRates(fp32=6e10, bf16=6e10),
    vector_flops=2e10,
    hbm_bytes=8e9,
    hbm_bandwidth=1e10,
    num_cores=1,
    clock_hz=2.5e9,
)
HOST = Tier(name="host", size=0, bandwidth=4e9, latency=2e-5)


def question(attention=FULL, ffn=DENSE, *, tp=1, layers=2, microbatches=2, types=FP32, **layout):
    """Return a question; without sp, experts are split as all else is."""
    whole = {"etp": tp if isinstance(ffn, MoeFfn) else 1, "sp": False}
    strategy = Layout(tp=tp, **{**whole, **layout})
    return Question(
        model=Model(
            name="tiny", hidden_size=32, layers=(Layer(attention=attention, ffn=ffn),) * layers, vocab_size=64
        ),
        cluster=Cluster(
            name="this", device=CPU, num_devices=strategy.num_devices, devices_per_node=strategy.num_devices, tiers=(HOST,)
        ),
        workload=Workload(
            seq_len=16,
            global_batch_size=microbatches * strategy.dp * strategy.micro_batch_size,
            precision=types,
        ),
        strategy=strategy,
    )  # fmt: skip
