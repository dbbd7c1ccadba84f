"""What one micro-batch keeps of a layer, tensor by tensor, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests import toy

from forescale.graph.layer import head_block, layer_block
from forescale.graph.recompute import keep
from forescale.memory.in_flight import in_flight
from forescale.memory.liveness import block_moments
from forescale.memory.peak import stage_output_bytes
from forescale.spec import (
    DenseFfn,
    FullAttention,
    Kernels,
    LatentAttention,
    Layer,
    Layout,
    Model,
    MoeFfn,
    Precision,
    Recompute,
)

TOKENS, HIDDEN = 5 * 462, 130
DENSE = Layer(
    attention=FullAttention(num_heads=12, num_kv_heads=4, head_dim=38), ffn=DenseFfn(ffn_hidden_size=46)
)
LATENT = LatentAttention(
    num_heads=6, q_lora_rank=74, kv_lora_rank=58, qk_nope_head_dim=22, qk_rope_head_dim=10, v_head_dim=26
)
ROUTED = Layer(
    attention=LATENT, ffn=MoeFfn(num_experts=20, top_k=6, ffn_hidden_size=34, shared_ffn_hidden_size=58)
)
MODEL = Model(name="by-hand", hidden_size=HIDDEN, layers=(DENSE,), vocab_size=950, vocab_multiple=1)
RESIDUAL = TOKENS / 2
"""Tokens of a rank between blocks, over tp 2 with its sequence."""


def rules(precision=None, **layout):
    return toy.layout(Layout(micro_batch_size=5, tp=2, **layout), 462.0, precision)


def kept(layer, recompute=None, precision=None, **layout):
    block = layer_block(replace(MODEL, layers=(layer,)), layer, rules(precision, **layout))
    tensors = keep(block, recompute or Recompute()).tensors
    return {tensor.name: tensor.num_bytes for tensor in tensors if tensor.num_bytes}


STREAM = 2 * RESIDUAL * HIDDEN
DENSE_KEEPS = {
    # What norms read, its fp32 root mean square, and what linear layers read; of half of the heads and columns.
    "input": STREAM,
    "attention.input": STREAM,
    "attention.input.statistics": 4 * RESIDUAL,
    "attention.query": 2 * TOKENS * 6 * 38,
    "attention.key": 2 * TOKENS * 2 * 38,
    "attention.value": 2 * TOKENS * 2 * 38,
    "attention.core_output": 2 * TOKENS * 6 * 38,
    "attention.softmax_statistics": 4 * TOKENS * 6,
    "attention.residual": STREAM,
    "ffn.input": STREAM,
    "ffn.input.statistics": 4 * RESIDUAL,
    "ffn.up": 2 * TOKENS * 2 * 23,
    "ffn.activated": 2 * TOKENS * 23,
}


def test_dense_layer():
    assert kept(DENSE) == pytest.approx(DENSE_KEEPS)


def test_layer_norms_keep_two_statistics():
    model = replace(MODEL, norm="layer")
    block = layer_block(model, DENSE, rules())
    (statistics,) = [
        tensor for tensor in keep(block, Recompute()).tensors if tensor.name == "ffn.input.statistics"
    ]
    assert statistics.num_bytes == 2 * 4 * RESIDUAL


def test_narrow_products_keep_narrow_inputs():
    """One byte and 4 per 128; queries, keys, values and what the activation reads stay wide."""
    one = 1 + 4 / 128
    narrow = {
        "attention.input": one * RESIDUAL * HIDDEN,
        "ffn.input": one * RESIDUAL * HIDDEN,
        "ffn.activated": one * TOKENS * 23,
        "attention.output.input": one * TOKENS * 6 * 38,  # its own copy: the core keeps what it wrote, too
    }
    result = kept(DENSE, precision=Precision(compute="fp8", recipe="blockwise"))
    assert result == pytest.approx(DENSE_KEEPS | narrow)


MOE_KEEPS = {
    "input": STREAM,
    "attention.input": STREAM,
    "attention.input.statistics": 4 * RESIDUAL,
    "attention.query_compressed": 2 * RESIDUAL * 74,
    "attention.query_latent": 2 * RESIDUAL * 74,
    "attention.query_latent.statistics": 4 * RESIDUAL,
    "attention.kv_compressed": 2 * RESIDUAL * (58 + 10),
    "attention.kv_latent": 2 * RESIDUAL * 58,
    "attention.kv_latent.statistics": 4 * RESIDUAL,
    "attention.query": 2 * TOKENS * 3 * 32,
    "attention.key": 2 * TOKENS * 3 * 32,  # the rotary part written out for every head
    "attention.value": 2 * TOKENS * 3 * 26,
    "attention.core_output": 2 * TOKENS * 3 * 26,
    "attention.softmax_statistics": 4 * TOKENS * 3,
    "attention.residual": STREAM,
    "ffn.input": STREAM,
    "ffn.input.statistics": 4 * RESIDUAL,
    "moe.probabilities": 4 * RESIDUAL * 20,
    "moe.permute.rows": 4 * RESIDUAL * 20,
    "moe.dispatched": 2 * 6 * RESIDUAL * HIDDEN,
    "moe.up": 2 * 6 * RESIDUAL * 2 * 34,
    "moe.activated": 2 * 6 * RESIDUAL * 34,
    "shared.up": 2 * TOKENS * 2 * 29,
    "shared.activated": 2 * TOKENS * 29,
}


def test_latent_attention_with_routed_and_shared_experts():
    assert kept(ROUTED, ep=5, dp_shard=5) == pytest.approx(MOE_KEEPS)


def test_split_experts_keep_the_rows_of_both_ranks_and_half_of_each():
    result = kept(ROUTED, ep=5, etp=2, dp_shard=5)
    changed = {
        "moe.dispatched": 2 * MOE_KEEPS["moe.dispatched"],
        "moe.up": MOE_KEEPS["moe.up"],
        "moe.activated": MOE_KEEPS["moe.activated"],
    }
    assert result == pytest.approx(MOE_KEEPS | changed)


LAYERNORMS = ("attention.input", "ffn.input")
LATENTS = ("attention.query_latent", "attention.kv_latent")
"""Normed in one kernel with their up-projections (Megatron-LM, gpt_layer_specs.py)."""
ENDS = ("", ".statistics")


@pytest.mark.parametrize(
    ("modules", "dropped"),
    [
        (("core_attn",), ("attention.softmax_statistics",)),  # its output stays: the next product reads it
        (("moe_act",), ("moe.activated",)),
        (("layernorm",), tuple(f"{name}{end}" for name in LAYERNORMS for end in ENDS)),
        (
            ("mla_up_proj",),
            (
                *("attention.query", "attention.key", "attention.value"),
                *(f"{name}{end}" for name in LATENTS for end in ENDS),
            ),
        ),
        (("shared_experts",), ("shared.up", "shared.activated")),
    ],
)  # fmt: skip
def test_what_selective_recompute_drops(modules, dropped):
    result = kept(ROUTED, Recompute(granularity="selective", modules=modules), ep=5, dp_shard=5)
    assert set(MOE_KEEPS) - set(result) == set(dropped)
    assert result == pytest.approx({name: MOE_KEEPS[name] for name in result})


def test_scores_that_are_not_flash_are_kept():
    """Probabilities of all pairs in 2 bytes; with dropout their mask in one and what is left of them."""
    pairs = TOKENS * 6 * 462
    plain = kept(DENSE, flash_attention=False)
    assert plain["attention.probabilities"] == 2 * pairs
    assert "attention.core_output" in plain  # the output product reads it
    dropped = kept(DENSE, flash_attention=False, kernels=Kernels(dropout=True))
    assert sum(dropped.values()) - sum(plain.values()) == pytest.approx(3 * pairs + 2 * RESIDUAL * HIDDEN)


def test_the_fullest_moments_of_a_feed_forward_and_of_a_loss():
    """Backward of the activation: kept tensors but its result, and four gradients; of a loss the fp32 softmax."""
    layer, layout = (
        Layer(attention=None, ffn=DenseFfn(ffn_hidden_size=460), num_norms=1),
        toy.layout(Layout(), 462.0),
    )
    block = layer_block(MODEL, layer, layout)
    result = block_moments(block, keep(block, Recompute()))
    saved = 2 * HIDDEN + 2 * HIDDEN + 4 + 2 * 920  # input, norm's result, its statistic, both factors
    assert result.backward_bytes == 462 * (saved + 2 * HIDDEN + 2 * 460 + 2 * 920)
    # Forward of the activation: what is kept and its result; then the result of down beside it, and the sum.
    assert result.forward_bytes == 462 * (saved + 2 * 460 + 2 * HIDDEN + 2 * HIDDEN)
    head = head_block(MODEL, layout)
    loss = block_moments(head, keep(head, Recompute()))
    ends = 2 * HIDDEN + 2 * HIDDEN + 4
    assert loss.forward_bytes == 462 * (ends + 2 * 950 + 4 * 950)
    product = (
        462 * (ends + 2 * 950 + 2 * HIDDEN) + 2 * HIDDEN * 950
    )  # both gradients, and that of the matrix alone
    assert loss.backward_bytes == max(462 * (ends + 4 * 950 + 2 * 950), product)


@pytest.mark.parametrize(
    ("stage", "pp", "vpp", "count", "held"),
    [
        (0, 4, 1, 9, 4), (1, 4, 1, 9, 3), (3, 4, 1, 9, 1), (0, 4, 1, 3, 3), (0, 1, 1, 9, 1),
        # Interleaved: 2(p - 1 - r) + (v - 1)p + 1 chunks, each half of a rank's layers.
        (0, 4, 2, 8, (6 + 4 + 1) / 2), (3, 4, 2, 8, (0 + 4 + 1) / 2), (0, 4, 3, 8, (6 + 8 + 1) / 3),
    ],
)  # fmt: skip
def test_micro_batches_in_flight(stage, pp, vpp, count, held):
    assert in_flight(stage=float(stage), pp=float(pp), vpp=float(vpp), num_microbatches=float(count)) == held


@pytest.mark.parametrize(("kind", "others"), [("all_gather", 2), ("ring", 2), ("ulysses", None)])
def test_keys_of_other_context_ranks_exist_while_attention_runs(kind, others):
    """Two of three parts of this rank's 2 key heads, beside its own."""
    block = layer_block(MODEL, DENSE, rules(cp=3, cp_kind=kind))
    moments = block_moments(block, keep(block, Recompute()))
    (core,) = [item for item in moments.backward if item.name == "attention.core"]
    keys = 2 * 2 * TOKENS / 3 * 2 * 38
    assert core.tensors.get("attention.gathered_kv") == (others and pytest.approx(others * keys))


def test_outputs_of_stages_are_kept_where_there_are_several():
    assert stage_output_bytes(message_bytes=7.0, microbatches=3.0, pp=4.0) == 21.0
    assert stage_output_bytes(message_bytes=7.0, microbatches=3.0, pp=1.0) == 0.0


LOSSES = ("vocab_parallel", "fused", "compiled", "eager", "native", "loss_parallel", "fused_linear")


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("layer", [DENSE, ROUTED], ids=["dense", "routed"])
def test_one_tensor_parallel_rank_has_nothing_to_split(layer, kind):
    """Whether it splits its sequence changes nothing: the moments of backward are as full."""
    peaks = []
    for sp in (True, False):
        layout = toy.layout(Layout(micro_batch_size=5, sp=sp, kernels=Kernels(cross_entropy=kind)), 462.0)
        blocks = (layer_block(replace(MODEL, layers=(layer,)), layer, layout), head_block(MODEL, layout))
        result = [block_moments(block, keep(block, Recompute())) for block in blocks]
        peaks.append([item.backward_bytes for item in result])
    assert peaks[0] == peaks[1]


def test_the_gradient_of_an_input_that_one_rank_gathers_from_itself():
    """A loss in place: 2 bytes of logits become their gradient; beside it those of the input and of the matrix."""
    layout = toy.layout(Layout(kernels=Kernels(cross_entropy="fused")), 462.0)
    head = head_block(MODEL, layout)
    ends = 2 * HIDDEN + 2 * HIDDEN + 4
    expected = 462 * (ends + 2 * 950 + 2 * HIDDEN) + 2 * HIDDEN * 950
    assert block_moments(head, keep(head, Recompute())).backward_bytes == expected
