"""What of a layer goes to the host: by Megatron-LM's modules, and by MaxText's names."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.small import DENSE_LAYER, dense, moe

from forescale.graph.layer import layer_block
from forescale.graph.recompute import keep, offloaded_bytes
from forescale.graph.sharding import ShardingRules, split_layout
from forescale.spec import Layout, LinearAttention
from forescale.spec.layout import Recompute
from forescale.spec.workload import Precision

TOKENS = 1024.0
NOTHING = Recompute()


def block_of(model):
    degrees, choices = split_layout(Layout())
    layout = ShardingRules(degrees=degrees, choices=choices, precision=Precision(), seq_len=TOKENS)
    return layer_block(model, model.layer_kinds[-1], layout)


def moved(model, *names, recompute=NOTHING):
    block = block_of(model)
    return offloaded_bytes(block, keep(block, recompute), names)


def size_of(model, *tensors):
    block = block_of(model)
    return sum(float(block.tensors[name].num_bytes) for name in tensors)


def test_core_attention_saves_its_inputs_and_statistics_but_the_output_is_saved_twice():
    """Its output is the projection's input: it stays while the projection is not offloaded, too."""
    inputs = ("attention.query", "attention.key", "attention.value", "attention.softmax_statistics")
    assert moved(dense(), "core_attn") == size_of(dense(), *inputs)
    assert moved(dense(), "core_attn", "attn_proj") == size_of(dense(), *inputs, "attention.core_output")


@pytest.mark.parametrize(
    ("name", "tensors"),
    [
        ("attn_norm", ("input", "attention.input.statistics")),
        ("qkv_linear", ("attention.input",)),
        ("mlp_norm", ("attention.residual", "ffn.input.statistics")),
        ("expert_fc1", ("moe.dispatched",)),
        ("moe_act", ("moe.up",)),
    ],
)
def test_modules_offload_what_they_save(name, tensors):
    model = moe() if name.startswith(("expert", "moe")) else dense()
    assert moved(model, name) == size_of(model, *tensors)


def test_what_is_made_again_needs_no_room_on_the_host():
    full = Recompute(granularity="full")
    assert moved(dense(), "core_attn", "attn_proj", recompute=full) == 0.0
    assert moved(dense(), "decoder_layer_input", recompute=full) == size_of(dense(), "input")


def test_results_by_maxtexts_names():
    policy = Recompute(granularity="policy", policy="custom", kept=("query_proj", "context", "mlpwo"))
    assert moved(dense(), "query_proj", recompute=policy) == size_of(dense(), "attention.query")
    assert moved(dense(), "key_proj", recompute=policy) == 0.0
    assert moved(dense(), "context", "mlpwo", recompute=policy) == size_of(
        dense(), "attention.core_output", "attention.softmax_statistics", "ffn.result"
    )


@pytest.mark.parametrize("conv_kernel", [4, 0])
def test_linear_attention_has_none_of_attention_s_modules(conv_kernel):
    """Megatron-LM's gated delta nets offload nothing inside; the norm before is any layer's."""
    spec = LinearAttention(
        num_heads=8, num_key_heads=8, key_head_dim=64, value_head_dim=64, conv_kernel=conv_kernel
    )
    model = replace(dense(), layers=(replace(DENSE_LAYER, attention=spec),))
    assert moved(model, "qkv_linear", "core_attn", "attn_proj") == 0.0
    assert moved(model, "attn_norm", "core_attn") == size_of(model, "input", "attention.input.statistics")
    assert moved(model, "mlp_norm") == size_of(model, "attention.residual", "ffn.input.statistics")


def test_a_model_without_experts_has_none_to_offload():
    assert moved(dense(), "expert_fc1", "moe_act") == 0.0
    assert moved(dense()) == 0.0
