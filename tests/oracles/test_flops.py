"""FLOP of whole blocks against torch's own counter, on real models of transformers.

The counter's convention: attention counts every query-key pair, masked or not; flash attention has two products
forward and five backward, unfused attention two and four. CPU flash attention has no formula of its own there, so
it gets the one that the counter uses for the same operator on other devices.
"""

from __future__ import annotations

import pytest

from forescale.frameworks.huggingface.reader import read_huggingface
from forescale.graph.counts import block_flops, model_flops
from forescale.graph.layer import head_block, layer_block
from forescale.graph.sharding import ShardingRules, split_layout
from forescale.spec import Layout, Model
from forescale.spec.workload import Precision

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
counter = pytest.importorskip("torch.utils.flop_counter")

BATCH, SEQ_LEN = 2, 64
SIZES = {
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "vocab_size": 512,
    "num_attention_heads": 8,
    "intermediate_size": 640,
}
MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 96}
CONFIGS = {
    "llama": {"num_key_value_heads": 2},
    "mixtral": {"num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {"num_key_value_heads": 2, "head_dim": 32, "num_experts": 8, "norm_topk_prob": True, **MOE},
    "deepseek_v3": {
        "num_key_value_heads": 8,
        "q_lora_rank": 96,
        "kv_lora_rank": 64,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 32,
        "n_routed_experts": 8,
        "n_group": 2,
        "topk_group": 1,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        **MOE,
    },
}


def all_heads(query: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of keys or values with one head for every query head, as the counter wants it."""
    return (shape[0], query[1], *shape[2:])


def flash_forward(query, key, value, *_, **__):
    return counter.sdpa_flop_count(query, all_heads(query, key), all_heads(query, value))


def flash_backward(gradient, query, key, value, *_, **__):
    key, value = all_heads(query, key), all_heads(query, value)
    return counter.sdpa_backward_flop_count(gradient, query, key, value)


FLASH = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: flash_forward,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: flash_backward,
}


def language_model(kind: str) -> Model:
    return read_huggingface({"model_type": kind, **SIZES, **CONFIGS[kind]}, name=kind, where="test").model


def counted(kind: str) -> tuple[int, int]:
    """Return forward and backward FLOP of a causal language model of `kind`, as torch counts them."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **SIZES, **CONFIGS[kind])
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="sdpa", experts_implementation="eager", dtype=torch.bfloat16
    )
    tokens = torch.randint(0, SIZES["vocab_size"], (BATCH, SEQ_LEN))
    passes = [counter.FlopCounterMode(display=False, custom_mapping=FLASH) for _ in range(2)]
    with passes[0]:
        logits = model(tokens, use_cache=False).logits
    with passes[1]:
        logits.float().sum().backward()
    return passes[0].get_total_flops(), passes[1].get_total_flops()


def ours(kind: str) -> tuple[float, float]:
    model = language_model(kind)
    latent = kind == "deepseek_v3"  # unequal head sizes: torch runs the unfused products
    degrees, choices = split_layout(Layout(micro_batch_size=BATCH, flash_attention=not latent))
    layout = ShardingRules(degrees=degrees, choices=choices, precision=Precision(), seq_len=float(SEQ_LEN))
    blocks = [*(layer_block(model, layer, layout) for layer in model.layers), head_block(model, layout)]
    flops = [block_flops(block, "full") for block in blocks]
    return sum(f.forward for f in flops), sum(f.backward for f in flops)


@pytest.mark.parametrize("kind", CONFIGS)
def test_equal_to_torch(kind: str) -> None:
    assert ours(kind) == counted(kind)


def test_model_flops_are_three_times_forward() -> None:
    model = language_model("llama")
    forward, _ = ours("llama")
    assert model_flops(model, SEQ_LEN).full * BATCH == 3 * forward


def test_causal_attention_counts_half() -> None:
    model = language_model("llama")
    flops = model_flops(model, SEQ_LEN)
    products = 2 * 2 * SIZES["hidden_size"] * SIZES["num_hidden_layers"]
    pairs = SEQ_LEN**2 - SEQ_LEN * (SEQ_LEN + 1) / 2
    assert flops.full - flops.masked == 3 * products * pairs
