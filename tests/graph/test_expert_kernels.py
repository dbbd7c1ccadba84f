"""How experts and latent attention are computed: type, kernels, fused rotary embedding."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests import small

from forescale.graph.layer import layer_block
from forescale.graph.operator import Block
from forescale.graph.ops import Elementwise, GroupedGemm
from forescale.graph.sharding import ShardingRules, split_layout
from forescale.spec import FullAttention, Kernels, Layer, Layout, Precision
from forescale.spec.rope import GPT_OSS_ROPE, PLAIN_ROPE
from forescale.time.price import calls_of

TOKENS = 512
FP8 = Precision(compute="fp8", recipe="delayed")


def block(precision: Precision = FP8, **kernels: object) -> Block:
    degrees, choices = split_layout(Layout(sp=False, kernels=Kernels(**kernels)))
    layout = ShardingRules(degrees=degrees, choices=choices, precision=precision, seq_len=float(TOKENS))
    return layer_block(small.moe(), small.MOE_LAYER, layout)


def operator(one: Block, name: str):
    return next(item for item in one.operators if item.name == name)


def products(one: Block) -> list[GroupedGemm]:
    return [
        op
        for item in one.operators
        for op in (*item.forward, *item.backward_input, *item.backward_weight)
        if isinstance(op, GroupedGemm)
    ]


def casts(one: Block, name: str) -> list[Elementwise]:
    return [op for op in operator(one, name).forward if isinstance(op, Elementwise) and op.family == "cast"]


def test_wide_experts_multiply_in_the_type_of_activations():
    narrow, wide = block(), block(narrow_experts=False)
    assert {op.dtype for op in products(narrow)} == {"fp8"}
    assert {op.dtype for op in products(wide)} == {"bf16"}
    assert casts(narrow, "moe.up") and not casts(wide, "moe.up")
    assert operator(wide, "attention.output").forward == operator(narrow, "attention.output").forward


def test_wide_experts_keep_wide_inputs_and_weights():
    narrow, wide = block(), block(narrow_experts=False)
    for name in ("moe.dispatched", "moe.activated"):
        assert wide.tensors[name].num_bytes == 2.0 * narrow.tensors[name].num_bytes
    kept = {parameter.name: parameter.narrow for parameter in wide.parameters}
    assert not kept["moe.up.weight"]
    assert kept["shared.up.weight"]


def test_experts_of_16_bit_models_are_the_same_either_way():
    assert products(block(Precision())) == products(block(Precision(), narrow_experts=False))


def test_one_kernel_for_all_experts_is_launched_once():
    item, one = (products(block(expert_kernels=kind)) for kind in ("each", "one"))
    assert [float(op.kernels) for op in one] == [1.0] * len(item)
    assert all(calls_of(op, {}) > 1.0 for op in item)
    assert {calls_of(op, {}) for op in one} == {1.0}
    assert [op.flops for op in one] == [op.flops for op in item]
    assert [op.kernels for op in casts(block(expert_kernels="one"), "moe.up")] == [1.0]


def test_fused_rotary_embedding_touches_only_the_rotary_part_of_queries():
    """Megatron-LM, fused_apply_mla_rope_for_q works in place on the last qk_pos_emb_head_dim elements of a head."""
    spec = small.MLA
    width, whole = spec.qk_nope_head_dim + spec.qk_rope_head_dim, block(Precision())
    fused = block(Precision(), fused_rotary=True)
    queries = whole.tensors["attention.query"].num_bytes
    (plain,), (local,) = (operator(one, "attention.rotary").forward for one in (whole, fused))
    assert local.bytes_moved == pytest.approx(2.0 * queries * spec.qk_rope_head_dim / width)
    assert plain.bytes_moved > 2.0 * queries
    assert operator(fused, "attention.split_kv").forward == operator(whole, "attention.split_kv").forward


def test_layouts_of_an_array_keep_their_experts_type():
    degrees, choices = split_layout(Layout(sp=False, kernels=Kernels(narrow_experts=False)))
    degrees = replace(degrees, ep=np.array([1.0, 2.0, 4.0]))
    layout = ShardingRules(degrees=degrees, choices=choices, precision=FP8, seq_len=float(TOKENS))
    grouped = products(layer_block(small.moe(), small.MOE_LAYER, layout))
    assert all(op.dtype == "bf16" and np.shape(op.groups) == (3,) for op in grouped)


def biased(**kernels: object) -> Block:
    return with_experts({"bias": True}, **kernels)


def with_experts(fields: dict[str, object], **kernels: object) -> Block:
    layer = replace(small.MOE_LAYER, ffn=replace(small.MOE_LAYER.ffn, **fields))
    degrees, choices = split_layout(Layout(sp=False, kernels=Kernels(**kernels)))
    layout = ShardingRules(degrees=degrees, choices=choices, precision=Precision(), seq_len=float(TOKENS))
    return layer_block(small.moe(), layer, layout)


def test_biases_of_experts_are_added_expert_by_expert_in_fp32():
    """Megatron-LM, TEGroupedMLP._apply_bias: torch.cat([t + b * p for ...]).to(t.dtype), p in fp32."""
    one, spec = biased(), small.MOE_LAYER.ffn
    elements = one.tensors["moe.output"].elements
    (forward,), (backward,) = (
        getattr(operator(one, "moe.bias"), name) for name in ("forward", "backward_input")
    )
    assert forward.bytes_moved == (4 + 10 + 8 + 6) * elements
    assert backward.bytes_moved == (6 + 6 + 4 + 12 + 12) * elements
    assert (forward.kernels, backward.kernels) == (2.0 * spec.num_experts, 6.0 * spec.num_experts)
    assert one.tensors["moe.bias.sums"].num_bytes == 4.0 * elements


def test_one_kernel_adds_the_biases_of_all_experts():
    one = biased(expert_kernels="one")
    (forward,) = operator(one, "moe.bias").forward
    assert forward.bytes_moved == 4.0 * one.tensors["moe.output"].elements
    assert forward.kernels == 1.0


def test_experts_without_biases_add_none():
    assert "moe.bias" not in {item.name for item in block().operators}


def test_products_that_do_not_accumulate_make_the_gradients_of_all_experts_or_of_one():
    def made(**kernels: object) -> float:
        one = block(Precision(compute="bf16"), **kernels)
        names = operator(one, "moe.down").backward_temporaries
        return sum(one.tensors[name].num_bytes for name in names)

    ffn = small.MOE_LAYER.ffn
    matrix = 2.0 * ffn.ffn_hidden_size * small.moe().hidden_size
    assert made() == 0.0
    assert made(gradient_sum="after_product") == ffn.num_experts * matrix
    assert made(gradient_sum="after_product", grouped_experts=False) == matrix


def test_limited_activations_are_clamped_and_joined_before_the_fused_kernel():
    """Megatron-LM, weighted_bias_quick_geglu_impl: torch.cat((gate.clamp(), value.clamp())), then its kernel."""
    one = with_experts({"limited": True}, limits_within=False)
    size, limit = one.tensors["moe.up"].num_bytes, operator(one, "moe.limit")
    (forward,), (backward,) = limit.forward, limit.backward_input
    assert forward.bytes_moved == (1 + 1 + 2) * size  # halves read and written, joined
    assert backward.bytes_moved == (1.5 + 1.5 + 2) * size  # gradient, what was clamped, result; joined
    assert (forward.kernels, limit.saves, limit.modules[-1]) == (3.0, ("moe.up",), "moe_act")
    assert operator(one, "moe.activation").reads == ("moe.limited",) == operator(one, "moe.activation").saves


def test_activations_without_a_limit_or_with_it_in_their_kernel_are_one_step():
    for one in (with_experts({"limited": True}), block(Precision(), limits_within=False)):
        assert "moe.limit" not in {item.name for item in one.operators}


def test_a_rotary_embedding_with_a_factor_goes_step_by_step():
    """Megatron-LM, _apply_rotary_pos_emb_bshd: 12 times queries and keys forward, 14 backward, instead of 2 each."""
    scaled = FullAttention(num_heads=16, num_kv_heads=4, head_dim=64, rope=GPT_OSS_ROPE)

    def steps(spec: FullAttention, **kernels: bool) -> list[tuple[float, float]]:
        degrees, choices = split_layout(Layout(sp=False, kernels=Kernels(**kernels)))
        layout = ShardingRules(degrees=degrees, choices=choices, precision=Precision(), seq_len=float(TOKENS))
        layer = Layer(attention=spec, ffn=small.MOE_LAYER.ffn)
        local = operator(layer_block(small.moe(), layer, layout), "attention.rotary")
        return [(item.bytes_moved, item.kernels) for item in (*local.forward, *local.backward_input)]

    tensors = 2.0 * TOKENS * (16 + 4) * 64
    assert steps(scaled, scales_rotary=False) == [(12 * tensors, 12.0), (14 * tensors, 12.0)]
    fused = [(2 * tensors, 1.0)] * 2
    assert steps(scaled) == steps(replace(scaled, rope=PLAIN_ROPE), scales_rotary=False) == fused
