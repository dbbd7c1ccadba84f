"""Every tensor and every weight of the blocks, worked out by hand: what exists at work, not only what is kept."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests import toy

from forescale.graph.counts import count_parameters
from forescale.graph.layer import embedding_block, head_block, layer_block, mtp_block
from forescale.graph.loss import loss_chunk_tokens
from forescale.graph.per_block import build_blocks
from forescale.graph.sharding import split_layout
from forescale.spec import (
    DenseFfn,
    FullAttention,
    Kernels,
    LatentAttention,
    Layer,
    Layout,
    LinearAttention,
    Model,
    MoeFfn,
    Precision,
)
from forescale.spec.model import Patches

TOKENS, HIDDEN, WIDTH, VOCAB = 5 * 462, 130, 46, 950
HEADS, KV, SIZE = 12, 4, 40
ATTENTION = FullAttention(num_heads=HEADS, num_kv_heads=KV, head_dim=SIZE)
FFN = DenseFfn(ffn_hidden_size=WIDTH)
MODEL = Model(
    name="by-hand",
    hidden_size=HIDDEN,
    layers=(Layer(attention=ATTENTION, ffn=FFN),),
    vocab_size=VOCAB,
    vocab_multiple=1,
)


def rules(**layout):
    return toy.layout(Layout(micro_batch_size=5, **layout), 462.0)


def block_of(attention, ffn, **layout):
    layer = Layer(attention=attention, ffn=ffn, num_norms=(attention is not None) + (ffn is not None))
    return layer_block(replace(MODEL, layers=(layer,)), layer, rules(**layout))


def check(block, tensors, weights=None, own=()):
    """Compare elements of all tensors but those of `own` blocks, and of weights whole and on one device."""
    result = {name: tensor.elements for name, tensor in block.tensors.items() if not name.startswith(own)}
    assert result == pytest.approx(tensors)
    if weights is not None:
        parameters = {
            parameter.name: (parameter.elements, parameter.local_elements) for parameter in block.parameters
        }
        assert set(parameters) == set(weights)
        for name, pair in parameters.items():
            assert pair == pytest.approx(weights[name]), name


HALF = TOKENS / 2
"""Tokens between blocks of tp 2 with its sequence; inside are all."""
STREAM = HALF * HIDDEN
WHOLE = TOKENS * HIDDEN
FEEDS = {
    "input": STREAM,
    "ffn.input": STREAM,
    "ffn.input.statistics": HALF,
    "ffn.result": STREAM,
    "ffn.residual": STREAM,
}
ATTENDS = {
    "input": STREAM,
    "attention.input": STREAM,
    "attention.input.statistics": HALF,
    "attention.result": STREAM,
    "attention.residual": STREAM,
    "attention.output.partial": WHOLE,
}
DENSE = {
    "attention.gather.result": WHOLE,
    "attention.query": TOKENS * 6 * SIZE,
    "attention.key": TOKENS * 2 * SIZE,
    "attention.value": TOKENS * 2 * SIZE,
    "attention.core_output": TOKENS * 6 * SIZE,
    "attention.softmax_statistics": TOKENS * 6,
    "attention.gathered_kv": 0,
    "ffn.gather.result": WHOLE,
    "ffn.up": TOKENS * 2 * 23,
    "ffn.activated": TOKENS * 23,
    "ffn.down.partial": WHOLE,
}
DENSE_WEIGHTS = {
    "attention.norm.weight": (HIDDEN, HIDDEN),
    "attention.query.weight": (HIDDEN * 480, HIDDEN * 240),
    "attention.key.weight": (HIDDEN * 160, HIDDEN * 80),
    "attention.value.weight": (HIDDEN * 160, HIDDEN * 80),
    "attention.output.weight": (480 * HIDDEN, 240 * HIDDEN),
    "ffn.norm.weight": (HIDDEN, HIDDEN),
    "ffn.up.weight": (HIDDEN * 2 * WIDTH, HIDDEN * WIDTH),
    "ffn.down.weight": (WIDTH * HIDDEN, 23 * HIDDEN),
}


def test_dense_layer():
    block = block_of(ATTENTION, FFN, tp=2)
    check(block, ATTENDS | FEEDS | DENSE, DENSE_WEIGHTS)
    sizes = {name: tensor.element_bytes for name, tensor in block.tensors.items()}
    wide = {name for name, size in sizes.items() if size == 4.0}
    assert wide == {"attention.input.statistics", "ffn.input.statistics", "attention.softmax_statistics"}
    assert set(sizes.values()) == {2.0, 4.0}


def test_dense_layer_with_everything_that_eager_kernels_keep():
    """Norms' inputs in fp32 and normalised, gates of activation and attention, probabilities with their masks."""
    attention = replace(
        ATTENTION, qk_norm="hidden", output_gate=True, sinks=True, qkv_bias=True, output_bias=True
    )
    ffn, kernels = replace(FFN, bias=True), Kernels(dropout=True, fused=False)
    block = block_of(attention, ffn, flash_attention=False, kernels=kernels, tp=2)
    scores = {
        f"attention.{name}": TOKENS * 6 * 462
        for name in ("probabilities", "softmax", "probability_mask", "dropped")
    }
    plain = {name: size for name, size in DENSE.items() if name != "attention.softmax_statistics"}
    norms = {
        f"{half}.input.{name}": STREAM for half in ("attention", "ffn") for name in ("fp32", "normalised")
    }
    more = {
        "attention.query.raw": TOKENS * 6 * SIZE,
        "attention.key.raw": TOKENS * 2 * SIZE,
        "attention.query.statistics": TOKENS,
        "attention.key.statistics": TOKENS,
        "attention.gate": TOKENS * 6 * SIZE,
        "attention.gated": TOKENS * 6 * SIZE,
        "ffn.activation.gate": TOKENS * 23,
        "attention.dropout_mask": STREAM,
        "ffn.dropout_mask": STREAM,
    }
    weights = DENSE_WEIGHTS | {
        "attention.query.weight": (HIDDEN * 960, HIDDEN * 480),  # the gate's beside it
        "attention.query.bias": (960, 480),
        "attention.key.bias": (160, 80),
        "attention.value.bias": (160, 80),
        "attention.query_norm.weight": (480, 480),
        "attention.key_norm.weight": (160, 160),
        "attention.sinks": (12, 6),
        "attention.output.bias": (HIDDEN, HIDDEN),
        "ffn.up.bias": (2 * WIDTH, WIDTH),
        "ffn.down.bias": (HIDDEN, HIDDEN),
    }
    check(block, ATTENDS | FEEDS | plain | scores | norms | more, weights)
    sizes = {name: tensor.element_bytes for name, tensor in block.tensors.items()}
    assert (sizes["attention.probability_mask"], sizes["ffn.dropout_mask"]) == (1, 1)
    assert (sizes["attention.dropped"], sizes["ffn.input.fp32"], sizes["ffn.input.normalised"]) == (2, 4, 2)


def test_norms_of_heads_have_a_statistic_per_head():
    block = block_of(replace(ATTENTION, qk_norm="head"), None, tp=2)
    assert block.tensors["attention.query.statistics"].elements == TOKENS * 6
    assert block.tensors["attention.query.statistics"].element_bytes == 4.0
    assert block.tensors["attention.key.statistics"].elements == TOKENS * 2
    parameters = {parameter.name: parameter.local_elements for parameter in block.parameters}
    assert parameters["attention.query_norm.weight"] == parameters["attention.key_norm.weight"] == SIZE


def test_key_heads_that_are_copied():
    """Of 4 key heads over tp 6 each rank has one whole: 6 copies of 1/6 of 4 heads, and as many again by half."""
    block = block_of(ATTENTION, None, tp=6)
    for name in ("key", "value"):
        assert block.tensors[f"attention.{name}"].elements == pytest.approx(TOKENS * SIZE)
    parameters = {parameter.name: parameter.local_elements for parameter in block.parameters}
    assert parameters["attention.key.weight"] == pytest.approx(HIDDEN * SIZE)
    assert parameters["attention.query.weight"] == pytest.approx(HIDDEN * 2 * SIZE)


def test_latent_attention():
    latent = LatentAttention(
        num_heads=6, q_lora_rank=74, kv_lora_rank=58, qk_nope_head_dim=22, qk_rope_head_dim=10, v_head_dim=26
    )
    tensors = ATTENDS | {
        "attention.query_compressed": HALF * 74,
        "attention.query_latent": HALF * 74,
        "attention.query_latent.statistics": HALF,
        "attention.gather_query.result": TOKENS * 74,
        "attention.kv_compressed": HALF * (58 + 10),
        "attention.kv_latent": HALF * 58,
        "attention.kv_latent.statistics": HALF,
        "attention.gather_kv_latent.result": TOKENS * (58 + 10),
        "attention.kv_joint": TOKENS * 3 * (22 + 26),
        "attention.query": TOKENS * 3 * 32,
        "attention.key": TOKENS * 3 * 32,
        "attention.value": TOKENS * 3 * 26,
        "attention.core_output": TOKENS * 3 * 26,
        "attention.softmax_statistics": TOKENS * 3,
        "attention.gathered_kv": 0,
    }
    weights = {
        "attention.norm.weight": (HIDDEN, HIDDEN),
        "attention.query_down.weight": (HIDDEN * 74, HIDDEN * 74),
        "attention.query_norm.weight": (74, 74),
        "attention.query_up.weight": (74 * 6 * 32, 74 * 3 * 32),
        "attention.kv_down.weight": (HIDDEN * 68, HIDDEN * 68),
        "attention.kv_norm.weight": (58, 58),
        "attention.kv_up.weight": (58 * 6 * 48, 58 * 3 * 48),
        "attention.output.weight": (6 * 26 * HIDDEN, 3 * 26 * HIDDEN),
    }
    check(block_of(latent, None, tp=2), tensors, weights)
    gathered = block_of(latent, None, cp=3).tensors["attention.gathered_kv"]
    assert gathered.elements == pytest.approx(2 / 3 * TOKENS * 6 * (32 + 26))  # keys are wider than values


def test_linear_attention():
    """Of 10 value heads of 22 and 6 key heads of 14, half; a state of 14 x 22 per head and chunk of 66 tokens."""
    linear = LinearAttention(
        num_heads=10, num_key_heads=6, key_head_dim=14, value_head_dim=22, conv_kernel=4, chunk_size=66,
        fused_scan=True, num_head_parameters=3, output_norm="hidden", gate_lora_rank=16, conv_bias=True,
    )  # fmt: skip
    keys, values = TOKENS * 3 * 14, TOKENS * 5 * 22
    tensors = ATTENDS | {
        "attention.gather.result": WHOLE,
        "attention.query": keys,
        "attention.key": keys,
        "attention.value": values,
        "attention.gate": values,
        "attention.decay": TOKENS * 5,
        "attention.decay_down": TOKENS * 16,
        "attention.decay_up": keys,
        "attention.query.mixed": keys,
        "attention.key.mixed": keys,
        "attention.value.mixed": values,
        "attention.core_output": values,
        "attention.states": TOKENS / 66 * 5 * 14 * 22,
        "attention.gated": values,
        "attention.normed": values,
    }
    weights = {
        "attention.norm.weight": (HIDDEN, HIDDEN),
        "attention.query.weight": (HIDDEN * 84, HIDDEN * 42),
        "attention.key.weight": (HIDDEN * 84, HIDDEN * 42),
        "attention.value.weight": (HIDDEN * 220, HIDDEN * 110),
        "attention.gate.weight": (HIDDEN * 220, HIDDEN * 110),
        "attention.decay.weight": (HIDDEN * 10, HIDDEN * 5),
        "attention.decay_down.weight": (HIDDEN * 16, HIDDEN * 16),
        "attention.decay_up.weight": (16 * 84, 16 * 42),
        "attention.head_parameters": (30, 15),
        "attention.convolution": (4 * (84 + 84 + 220), 4 * (42 + 42 + 110)),
        "attention.convolution.bias": (84 + 84 + 220, 42 + 42 + 110),
        "attention.output_norm": (220, 110),
        "attention.output.weight": (220 * HIDDEN, 110 * HIDDEN),
    }
    block = block_of(linear, None, tp=2)
    check(block, tensors, weights)
    (core,) = [operator for operator in block.operators if operator.name == "attention.core"]
    mixed = ("attention.query.mixed", "attention.key.mixed", "attention.value.mixed")
    assert core.backward_temporaries == ("attention.states", *mixed)  # both are made again
    assert core.reads == (*mixed, "attention.decay", "attention.decay_up")
    apart = block_of(replace(linear, fused_scan=False), None).operators
    assert [item.backward_temporaries for item in apart if item.name == core.name] == [("attention.states",)]
    scores, state = core.forward
    assert (scores.batch, scores.heads, scores.kv_heads) == (TOKENS / 66, 5, 5)
    assert (scores.q_len, scores.kv_len, scores.pairs) == (66, 66, 66 * 66)
    assert (state.m, state.n, state.k, state.batch) == (66, 22, 14, 2 * TOKENS / 66 * 5)


ROUTED = MoeFfn(num_experts=20, top_k=6, ffn_hidden_size=34, shared_ffn_hidden_size=58)


def test_experts_over_ep_and_etp():
    """A rank sends 6 copies of its half of the tokens; both ranks of an expert hold the rows of both."""
    ffn = replace(ROUTED, bias=True, score_bias=True, router_bias=True, shared_gate=True)
    sent = 6 * HALF
    rows = 2 * sent
    tensors = FEEDS | {
        "moe.logits": HALF * 20,
        "moe.probabilities": HALF * 20,
        "moe.routed": STREAM,
        "shared.result": STREAM,
        "moe.permuted": sent * HIDDEN,
        "moe.permute.rows": HALF * 20,
        "moe.arrived": sent * HIDDEN,
        "moe.gathered": rows * HIDDEN,
        "moe.dispatched": rows * HIDDEN,
        "moe.up": rows * 2 * 17,
        "moe.activated": rows * 17,
        "moe.output": rows * HIDDEN,
        "moe.biased": rows * HIDDEN,
        "moe.bias.sums": rows * HIDDEN,
        "moe.bias.joined": rows * HIDDEN,
        "moe.unsorted": rows * HIDDEN,
        "moe.reduced": sent * HIDDEN,
        "moe.returned": sent * HIDDEN,
        "shared.gather.result": WHOLE,
        "shared.up": TOKENS * 2 * 29,
        "shared.activated": TOKENS * 29,
        "shared.down.partial": WHOLE,
    }
    weights = {
        "ffn.norm.weight": (HIDDEN, HIDDEN),
        "moe.router.weight": (HIDDEN * 20, HIDDEN * 20),
        "moe.router.bias": (20, 20),
        "moe.score_bias": (20, 20),
        "moe.up.weight": (20 * HIDDEN * 68, 4 * HIDDEN * 34),
        "moe.up.bias": (20 * 68, 4 * 34),
        "moe.down.weight": (20 * 34 * HIDDEN, 4 * 17 * HIDDEN),
        "moe.down.bias": (20 * HIDDEN, 4 * HIDDEN),
        "shared.up.weight": (HIDDEN * 116, HIDDEN * 58),
        "shared.down.weight": (58 * HIDDEN, 29 * HIDDEN),
        "shared.gate.weight": (HIDDEN, HIDDEN),
    }
    block = block_of(None, ffn, tp=2, ep=5, etp=2, dp_shard=5)
    check(block, tensors, weights)
    sizes = {name: tensor.element_bytes for name, tensor in block.tensors.items()}
    wide = {
        "ffn.input.statistics",
        "moe.logits",
        "moe.probabilities",
        "moe.permute.rows",
        "moe.bias.sums",
        "moe.bias.joined",
    }
    assert {name for name, size in sizes.items() if size == 4} == wide
    assert set(sizes.values()) == {2, 4}
    experts = {parameter.name for parameter in block.parameters if parameter.group == "expert"}
    assert experts == {"moe.up.weight", "moe.up.bias", "moe.down.weight", "moe.down.bias"}
    assert {parameter.active_fraction for parameter in block.parameters} == {1.0, 6 / 20}
    assert [name for name, tensor in block.tensors.items() if not tensor.differentiable] == [
        "moe.permute.rows"
    ]


def test_one_rank_copies_rows_once_and_sums_nothing():
    """All experts are here, so rows are sorted as they are copied; a product's sum over tp is its result."""
    block = block_of(ATTENTION, replace(ROUTED, shared_ffn_hidden_size=0))
    empty = {"moe.permuted", "moe.arrived", "moe.unsorted", "moe.reduced"}
    more = {"attention.gather.result", "attention.output.partial", "attention.gathered_kv"}
    assert {name for name, tensor in block.tensors.items() if not tensor.elements} == empty | more
    assert block.tensors["moe.dispatched"].elements == 6 * WHOLE
    split = block_of(None, replace(ROUTED, shared_ffn_hidden_size=0), tp=2, etp=2)
    rows = {
        name: split.tensors[f"moe.{name}"].elements / STREAM for name in ("permuted", "arrived", "gathered")
    }
    assert rows == {"permuted": 6, "arrived": 0, "gathered": 12}  # no exchange, but rows of both are gathered


def test_experts_without_sequence_parallelism_send_each_rank_s_half_of_the_tokens():
    """All tp ranks have all tokens; each routes all, sends half, and shares its results with the other."""
    block = block_of(None, replace(ROUTED, shared_ffn_hidden_size=0), tp=2, ep=5, dp_shard=5, sp=False)
    rows = 6 * HALF
    whole = {"input": WHOLE, "ffn.input": WHOLE, "ffn.input.statistics": TOKENS, "ffn.result": WHOLE}
    tensors = whole | {
        "ffn.residual": WHOLE,
        "moe.logits": TOKENS * 20,
        "moe.probabilities": TOKENS * 20,
        "moe.permuted": rows * HIDDEN,
        "moe.permute.rows": HALF * 20,
        "moe.arrived": 0,  # one rank of each expert: rows that arrive are there already
        "moe.gathered": rows * HIDDEN,
        "moe.dispatched": rows * HIDDEN,
        "moe.up": rows * 68,
        "moe.activated": rows * 34,
        "moe.output": rows * HIDDEN,
        "moe.unsorted": rows * HIDDEN,
        "moe.reduced": 0,
        "moe.returned": rows * HIDDEN,
        "moe.own": HALF * HIDDEN,
    }
    check(block, tensors)


def test_experts_in_their_own_space_whose_tokens_travel_once():
    """42 numbers a row; what returns is one sum per token."""
    ffn = replace(ROUTED, latent_size=42, shared_ffn_hidden_size=0)
    block = block_of(None, ffn, ep=5, dp_shard=5, dispatcher="deepep")
    rows = 6 * TOKENS
    tensors = {
        "input": WHOLE,
        "ffn.input": WHOLE,
        "ffn.input.statistics": TOKENS,
        "ffn.result": WHOLE,
        "ffn.residual": WHOLE,
        "moe.logits": TOKENS * 20,
        "moe.probabilities": TOKENS * 20,
        "moe.latent": TOKENS * 42,
        "moe.latent_result": TOKENS * 42,
        "moe.permuted": 0,
        "moe.permute.rows": TOKENS * 20,
        "moe.arrived": 0,
        "moe.gathered": rows * 42,
        "moe.dispatched": rows * 42,
        "moe.up": rows * 68,
        "moe.activated": rows * 34,
        "moe.output": rows * 42,
        "moe.unsorted": rows * 42,
        "moe.reduced": 0,
        "moe.returned": TOKENS * 42,
    }
    weights = {
        "ffn.norm.weight": (HIDDEN, HIDDEN),
        "moe.router.weight": (HIDDEN * 20, HIDDEN * 20),
        "moe.latent_down.weight": (HIDDEN * 42,) * 2,
        "moe.latent_up.weight": (42 * HIDDEN,) * 2,
        "moe.up.weight": (20 * 42 * 68, 4 * 42 * 68),
        "moe.down.weight": (20 * 34 * 42, 4 * 34 * 42),
    }
    check(block, tensors, weights)


def ends(builder, model=MODEL, **layout):
    return builder(model, rules(**layout))


def test_embedding():
    """Ids in 8 bytes; rows of all tokens, half of the vocabulary's each, before they are summed and scattered."""
    block = ends(embedding_block, tp=2)
    tensors = {"token_ids": TOKENS, "embedding.result": STREAM, "embedding.partial": WHOLE}
    check(block, tensors, {"embedding.weight": (VOCAB * HIDDEN, VOCAB / 2 * HIDDEN)})
    assert block.tensors["token_ids"].element_bytes == 8.0
    assert [name for name, tensor in block.tensors.items() if not tensor.differentiable] == ["token_ids"]
    assert block.tensors["token_ids"].gradient_bytes == 0.0
    assert block.tensors["embedding.result"].gradient_bytes == 2 * STREAM
    model = replace(MODEL, embedding_size=62, learned_positions=512, embedding_norm=True, norm="layer")
    more = {
        "embedding.narrow": TOKENS * 62,
        "embedding.normed": STREAM,
        "embedding.normed.statistics": 2 * HALF,
    }
    weights = {
        "embedding.weight": (VOCAB * 62, VOCAB / 2 * 62),
        "embedding.project.weight": (62 * HIDDEN, 62 * HIDDEN),
        "embedding.positions": (512 * HIDDEN, 512 * HIDDEN),
        "embedding.norm.weight": (HIDDEN, HIDDEN),
        "embedding.norm.bias": (HIDDEN, HIDDEN),
    }
    check(ends(embedding_block, model, tp=2), tensors | more, weights)


def test_embedding_of_patches():
    patches = Patches(patch_elements=48)
    block = ends(embedding_block, replace(MODEL, vocab_size=0, patches=patches), tp=2)
    weights = {"embedding.patch.weight": (48 * HIDDEN,) * 2, "embedding.patch.bias": (HIDDEN,) * 2}
    tensors = {"token_ids": TOKENS, "patches": TOKENS * 48, "embedding.result": STREAM}
    check(block, tensors, weights)
    assert {name for name, tensor in block.tensors.items() if not tensor.differentiable} == {
        "token_ids",
        "patches",
    }


def test_patches_beside_learned_tokens_and_over_the_grid_of_summa():
    """Five tokens before the patches of each of 5 images (one of the class, four registers) are no patches."""
    patches = Patches(patch_elements=48, class_tokens=5)
    model = replace(MODEL, vocab_size=0, patches=patches)
    assert ends(embedding_block, model).tensors["patches"].elements == (TOKENS - 5 * 5) * 48
    summa = ends(
        embedding_block, replace(model, patches=Patches(patch_elements=48)), tp=2, cp=3, tp_kind="summa"
    )
    assert summa.tensors["patches"].elements == TOKENS / 3 * 48 / 2


HEAD = {
    "head.stream": STREAM,
    "head.input": STREAM,
    "head.input.statistics": HALF,
    "head.gather.result": WHOLE,
    "head.logits": TOKENS * 480,
    "head.logits.weight_gradient": HIDDEN * 480,
}
"""950 columns padded to 960 = 80 x 6 x tp 2."""
SOFTMAX = {"head.softmax": TOKENS * 480}
WIDE = SOFTMAX | {"head.logits_fp32": TOKENS * 480}
GRADIENTS = WIDE | {"head.softmax_gradient": TOKENS * 480, "head.logits_gradient": TOKENS * 480}
LOSSES = {
    "vocab_parallel": SOFTMAX,
    "native": WIDE,
    "fused": {},
    "compiled": {},
    "eager": GRADIENTS,
    "loss_parallel": GRADIENTS | {"head.loss_step": TOKENS * 480},
}


@pytest.mark.parametrize("kind", LOSSES)
def test_losses(kind):
    block = ends(head_block, replace(MODEL, vocab_multiple=6), tp=2, kernels=Kernels(cross_entropy=kind))
    weights = {
        "head.norm.weight": (HIDDEN, HIDDEN),
        "head.logits.weight": (HIDDEN * VOCAB, HIDDEN * 480),
    }
    check(block, HEAD | LOSSES[kind], weights)
    sizes = {name: block.tensors[name].element_bytes for name in LOSSES[kind]}
    # Beside the gradient in the logits' 2 bytes, 2 more are those of its fp32 form.
    assert sizes == {name: 2 if name == "head.logits_gradient" else 4 for name in sizes}


def test_a_loss_in_chunks():
    """950 / 2 columns are less than 4 times 130: chunks of ⌈2310 / 4⌉ = 578 tokens, up to a power of two 1024."""
    kernels = Kernels(cross_entropy="fused_linear")
    block = ends(head_block, replace(MODEL, head_bias=True), tp=2, kernels=kernels)
    tensors = {
        name: HEAD[name]
        for name in ("head.stream", "head.input", "head.input.statistics", "head.gather.result")
    }
    more = {
        "head.logits_chunk": 1024 * 475,
        "head.input_gradient": WHOLE,
        "head.weight_gradient": 475 * HIDDEN,
    }
    weights = {
        "head.norm.weight": (HIDDEN, HIDDEN),
        "head.logits.weight": (HIDDEN * VOCAB, HIDDEN * 475),
        "head.logits.bias": (VOCAB, 475),
    }
    check(block, tensors | more, weights)
    made = [name for name, tensor in block.tensors.items() if not tensor.differentiable]
    assert made == ["head.input_gradient", "head.weight_gradient"]
    loss = block.operators[-1]
    products, scalars = loss.forward[:3], loss.forward[-1]
    assert (scalars.kind, scalars.num_bytes) == (
        "all_reduce",
        3 * TOKENS * 4,
    )  # maximum, target's, sum of each token
    assert (loss.forward[3].bytes_moved, loss.gradient_in_saved) == (6 * TOKENS * 475, True)
    assert [(product.m, product.n, product.k) for product in products] == [
        (TOKENS, 475, HIDDEN), (TOKENS, HIDDEN, 475), (475, HIDDEN, TOKENS)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("tokens", "vocab", "hidden", "chunk"),
    [
        (4096, 128256, 4096, 128),  # 32 times as wide, so 128 tokens: a power of two already
        (5000, 32000, 4096, 1024),  # 8 times: 625 tokens, up to 1024
        (4096, 131072, 4096, 128),
        (4097, 131072, 4096, 256),  # one token more than 32 chunks of 128 have
        (3, 10, 20, 3),  # no more than there are
        (1, 1e6, 1, 1),
    ],
)
def test_chunks_of_a_fused_loss(tokens, vocab, hidden, chunk):
    """Liger-Kernel: next_power_of_2(⌈tokens / ⌈V / h⌉⌉)."""
    assert loss_chunk_tokens(tokens=float(tokens), vocab=float(vocab), hidden=float(hidden)) == chunk


def test_multi_token_prediction():
    """Two normed streams side by side, all tokens of both gathered, half of the columns of their join."""
    block = ends(mtp_block, tp=2)
    tensors = {
        "mtp.stream": STREAM,
        "mtp.stream_normed": STREAM,
        "mtp.stream_normed.statistics": HALF,
        "mtp.embedding": STREAM,
        "mtp.embedding_normed": STREAM,
        "mtp.embedding_normed.statistics": HALF,
        "mtp.joined": 2 * STREAM,
        "mtp.gather.result": 2 * WHOLE,
        "mtp.part": WHOLE / 2,
        "mtp.whole": WHOLE,
        "input": STREAM,
    }
    weights = DENSE_WEIGHTS | {
        "mtp.stream_norm.weight": (HIDDEN, HIDDEN),
        "mtp.embedding_norm.weight": (HIDDEN, HIDDEN),
        "mtp.join.weight": (2 * HIDDEN * HIDDEN, HIDDEN * HIDDEN),
        "head.norm.weight": (HIDDEN, HIDDEN),  # the matrix is the head's own
    }
    check(block, tensors, weights, own=("attention", "ffn", "head"))
    assert ends(mtp_block).tensors["mtp.whole"].elements == 0, "one rank gathers no columns"


def test_the_grid_of_summa():
    """Rows over cp 3, columns over tp 2; two panels in flight, lcm(2, 3) = 6 of them along the inner extent."""
    rows = TOKENS / 3
    stream = rows * HIDDEN / 2
    tensors = {
        "input": stream,
        "attention.input": stream,
        "attention.input.statistics": rows,
        "attention.query": rows * 6 * SIZE,
        "attention.key": rows * 2 * SIZE,
        "attention.value": rows * 2 * SIZE,
        "attention.core_output": rows * 6 * SIZE,
        "attention.softmax_statistics": rows * 6,
        "attention.gathered_kv": 2 * 2 * rows * 2 * SIZE,
        "attention.result": stream,
        "attention.residual": stream,
        "ffn.input": stream,
        "ffn.input.statistics": rows,
        "ffn.up": rows * 2 * 23,
        "ffn.activated": rows * 23,
        "ffn.result": stream,
        "ffn.residual": stream,
        "attention.qkv.panels": 2 * HIDDEN / 6 * (rows + 10 * SIZE),
        "attention.output.panels": 2 * 480 / 6 * (rows + HIDDEN / 2),
        "ffn.up.panels": 2 * HIDDEN / 6 * (rows + WIDTH),
        "ffn.down.panels": 2 * WIDTH / 6 * (rows + HIDDEN / 2),
    }
    weights = {
        name: (whole, whole / (2 if name.endswith("norm.weight") else 6))
        for name, (whole, _) in DENSE_WEIGHTS.items()
    }
    check(block_of(ATTENTION, FFN, tp=2, cp=3, tp_kind="summa"), tensors, weights)
    looked_up = {"token_ids": rows, "embedding.partial": 2 * stream, "embedding.rows": stream}
    table = {"embedding.weight": (VOCAB * HIDDEN, VOCAB * HIDDEN / 6)}
    check(ends(embedding_block, tp=2, cp=3, tp_kind="summa"), looked_up | {"embedding.result": stream}, table)
    head = ends(head_block, tp=2, cp=3, tp_kind="summa")
    assert head.tensors["head.logits.weight_gradient"].elements == pytest.approx(HIDDEN / 3 * VOCAB / 2)


@pytest.mark.parametrize(("parameters", "size"), [("fp32", 4), ("bf16", 2), ("fp8", 2)])
def test_a_weight_gradient_has_the_type_of_its_weight_and_16_bits_at_least(parameters, size):
    recipe = {"compute": "fp8", "recipe": "blockwise"} if parameters == "fp8" else {}
    precision = Precision(parameters=parameters, **recipe)
    block = head_block(MODEL, toy.layout(Layout(), 462.0, precision))
    gradient = block.tensors["head.logits.weight_gradient"]
    assert (gradient.element_bytes, gradient.differentiable) == (size, False)


def test_gradients_of_activations_have_16_bits_at_least():
    """What is kept in fp8 gets gradients in bf16, routing logits in fp32 get theirs in fp32."""
    layout = toy.layout(Layout(), 462.0, Precision(compute="fp8"))
    layer = Layer(attention=None, ffn=ROUTED, num_norms=1)
    tensors = layer_block(replace(MODEL, layers=(layer,)), layer, layout).tensors
    dense = layer_block(MODEL, MODEL.layers[0], layout).tensors["ffn.gather.result"]
    assert dense.element_bytes == 1.0  # what a narrow product takes
    head = head_block(MODEL, layout).tensors
    assert (
        head["head.input"].element_bytes == head["head.gather.result"].element_bytes == 2.0
    )  # and a wide one
    for name, kept, gradient in (("moe.dispatched", 1, 2), ("moe.up", 2, 2), ("moe.logits", 4, 4)):
        tensor = tensors[name]
        assert tensor.num_bytes == kept * tensor.elements
        assert tensor.gradient_bytes == gradient * tensor.elements


@pytest.mark.parametrize(("kind", "groups"), [("ulysses", 1), ("hierarchical", 3)])
def test_heads_exchanged_for_tokens(kind, groups):
    """As much after the exchange as before; in pairs, keys and values of the two other pairs pass by."""
    cp = 2 * groups
    block = block_of(ATTENTION, None, cp=cp, cp_kind=kind, cp_inner=2 if groups > 1 else None)
    queries, keys = TOKENS / cp * HEADS * SIZE, TOKENS / cp * KV * SIZE
    tensors = {name.removeprefix("attention."): tensor.elements for name, tensor in block.tensors.items()}
    for name, size in (("query", queries), ("key", keys), ("value", keys), ("core_output", queries)):
        assert tensors[name] == tensors[f"{name}.exchanged"] == pytest.approx(size)
    (core,) = [operator for operator in block.operators if operator.name == "attention.core"]
    assert core.reads == tuple(f"attention.{name}.exchanged" for name in ("query", "key", "value"))
    assert tensors["softmax_statistics"] == TOKENS / cp * HEADS
    assert tensors.get("gathered_kv") == ((groups - 1) * 2 * keys if groups > 1 else None)


def test_one_rank_exchanges_no_result():
    block = block_of(ATTENTION, None, cp_kind="ulysses")
    assert block.tensors["attention.core_output.exchanged"].elements == 0


def norms_of(layer):
    """Return what reads what: the norms of a layer, and the inputs of its first products."""
    block = layer_block(replace(MODEL, layers=(layer,)), layer, rules())
    products = {"attention.qkv", "ffn.up"}
    norms = [operator.name for operator in block.operators if operator.name.endswith("norm")]
    feeds = {operator.name: operator.saves[0] for operator in block.operators if operator.name in products}
    return norms, feeds


@pytest.mark.parametrize(
    ("parallel", "num_norms", "norms", "feeds"),
    [
        (False, 2, ["attention.norm", "ffn.norm"], ("attention.input", "ffn.input")),
        (True, 2, ["attention.norm", "ffn.norm"], ("attention.input", "ffn.input")),
        (True, 1, ["attention.norm"], ("attention.input", "attention.input")),  # one norm for both
        (
            False,
            4,
            ["attention.norm", "attention.post_norm", "ffn.norm", "ffn.post_norm"],
            ("attention.input", "ffn.input"),
        ),
    ],
)
def test_norms_of_a_layer(parallel, num_norms, norms, feeds):
    layer = Layer(attention=ATTENTION, ffn=FFN, parallel=parallel, num_norms=num_norms)
    assert norms_of(layer) == (norms, dict(zip(("attention.qkv", "ffn.up"), feeds, strict=True)))


def test_a_lone_feed_forward_has_its_norm_or_none():
    assert norms_of(Layer(attention=None, ffn=FFN, num_norms=1)) == (["ffn.norm"], {"ffn.up": "ffn.input"})


def test_what_backward_of_a_product_needs_beside_what_it_kept():
    """The input gathered again; not where the gathered one was kept. The gradient of a weight that is summed later."""

    def temporaries(**kernels):
        block = block_of(None, FFN, tp=2, kernels=Kernels(**kernels))
        return {
            operator.name: operator.backward_temporaries
            for operator in block.operators
            if operator.backward_weight
        }

    usual = temporaries()
    assert (usual["ffn.up"], usual["ffn.down"]) == (("ffn.gather.result",), ())
    kept = temporaries(regathers_inputs=False)
    assert (kept["ffn.up"], kept["ffn.down"]) == ((), ())
    apart = temporaries(gradient_sum="after_product")
    assert apart["ffn.up"] == ("ffn.gather.result", "ffn.up.weight_gradient")
    assert apart["ffn.down"] == ("ffn.down.weight_gradient",)


def test_an_embedding_s_norm_stays_wide_under_narrow_recipes():
    """Its result is the stream, of which linear layers make their own narrow copies."""
    layout = toy.layout(Layout(micro_batch_size=5), 462.0, Precision(compute="fp8", recipe="delayed"))
    block = embedding_block(replace(MODEL, embedding_norm=True), layout)
    assert block.tensors["embedding.normed"].element_bytes == 2.0


def test_prediction_repeats_the_model_s_last_layer():
    other = replace(MODEL.layers[0], ffn=DenseFfn(ffn_hidden_size=2 * WIDTH))
    model = replace(MODEL, layers=(MODEL.layers[0], MODEL.layers[0], other), num_mtp_layers=1)
    blocks = build_blocks(model, rules())
    assert blocks.mtp.tensors["ffn.activated"].elements == TOKENS * 2 * WIDTH
    assert blocks.layers[0].tensors["ffn.activated"].elements == TOKENS * WIDTH


def test_replicas_and_shards_of_experts():
    """tp 2 x cp 3 x dp 12 ranks, of which ep 4 x etp 2 hold different parts: 9 copies, over dp_shard 6 of 12 alike 4.5."""
    degrees, _ = split_layout(Layout(tp=2, cp=3, ep=4, etp=2, dp_replicate=2, dp_shard=6))
    assert (degrees.dp, degrees.expert_dp, degrees.expert_shards) == (12, 9, 4.5)


def test_parameters_that_a_token_uses():
    """6 of 20 experts; the router, the shared expert and all else in whole."""
    layer = Layer(attention=None, ffn=ROUTED, num_norms=1)
    count = count_parameters(replace(MODEL, layers=(layer,) * 3))
    expert, shared = 20 * 3 * 34 * HIDDEN, 3 * 58 * HIDDEN
    others = 3 * (HIDDEN + 20 * HIDDEN + shared) + 2 * VOCAB * HIDDEN + HIDDEN
    assert (count.total, count.expert) == (others + 3 * expert, 3 * expert)
    assert count.active == others + 3 * expert * 6 // 20


def test_experts_in_8_bits_narrow_rows_both_ways():
    """Forward what comes in, backward gradients of what goes out; each expert's apart, or all by one kernel."""
    precision = Precision(compute="fp8", recipe="delayed")
    layer = Layer(attention=None, ffn=replace(ROUTED, shared_ffn_hidden_size=0), num_norms=1)
    for kernels, calls in ((Kernels(), 20), (Kernels(expert_kernels="one"), 1)):
        layout = toy.layout(Layout(micro_batch_size=5, kernels=kernels), 462.0, precision)
        operators = {
            operator.name: operator
            for operator in layer_block(replace(MODEL, layers=(layer,)), layer, layout).operators
        }
        for name, (k, n) in {"moe.up": (HIDDEN, 68), "moe.down": (34, HIDDEN)}.items():
            there, back = operators[name].forward[0], operators[name].backward_input[0]
            assert (there.bytes_moved, back.bytes_moved) == (3 * 6 * TOKENS * k, 3 * 6 * TOKENS * n)
            assert there.kernels == back.kernels == calls


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [
        (Precision(), "bf16"),
        (Precision(compute="fp16", activations="fp16"), "fp16"),
        (Precision(compute="tf32", activations="fp32"), "tf32"),
        (Precision(compute="fp8", recipe="delayed"), "bf16"),
        (Precision(compute="fp8", recipe="delayed", activations="fp16"), "fp16"),
    ],
)
def test_attention_runs_in_the_type_of_wide_products(precision, dtype):
    assert toy.layout(Layout(), 462.0, precision).core_type == dtype


def test_experts_are_weighed_in_fp32():
    """Megatron-LM, TEGroupedMLP: the product with routing weights in fp32, before it is narrowed."""
    block = block_of(None, ROUTED, kernels=Kernels(weighted_activation=False))
    weighted = block.tensors["moe.weighted"]
    assert (weighted.elements, weighted.element_bytes) == (6 * TOKENS * 34, 4)


def test_a_softmax_that_is_not_fused_keeps_its_result_in_fp32_beside_the_copy_for_the_product():
    """Hugging Face's eager_attention_forward: 6 bytes a score."""
    pairs = 5 * HEADS * 462**2
    eager = block_of(ATTENTION, None, flash_attention=False, kernels=Kernels(fused=False))
    fused = block_of(ATTENTION, None, flash_attention=False)
    sizes = [block.tensors["attention.probabilities"].num_bytes for block in (eager, fused)]
    assert sizes == [2 * pairs, 2 * pairs]
    assert eager.tensors["attention.softmax"].num_bytes == 4 * pairs
    assert "attention.softmax" not in fused.tensors
    core = next(operator for operator in eager.operators if operator.name == "attention.core")
    assert "attention.softmax" in core.saves
