"""FLOP, memory traffic and launches of every operator, worked out by hand: forward, input gradient, weight gradient.

Extents have few factors in common, so that two of them swapped give another number.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests import toy

from forescale.graph.layer import embedding_block, head_block, layer_block, mtp_block
from forescale.graph.ops import Gemm, GroupedGemm
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
    Routing,
)

BATCH, SEQ = 5.0, 462.0
TOKENS = 5 * 462
HIDDEN, WIDTH, VOCAB = 130, 46, 950
HEADS, KV, SIZE = 12, 4, 40
ATTENTION = FullAttention(num_heads=HEADS, num_kv_heads=KV, head_dim=SIZE)
FFN = DenseFfn(ffn_hidden_size=WIDTH)
NOTHING = (0.0, 0.0, 0.0)


def block_of(attention, ffn, *, model=None, precision=None, **layout):
    layer = Layer(attention=attention, ffn=ffn, num_norms=(attention is not None) + (ffn is not None))
    whole = replace(model or MODEL, layers=(layer,))
    return layer_block(whole, layer, toy.layout(Layout(micro_batch_size=5, **layout), SEQ, precision))


MODEL = Model(
    name="by-hand",
    hidden_size=HIDDEN,
    layers=(Layer(attention=ATTENTION, ffn=FFN),),
    vocab_size=VOCAB,
    vocab_multiple=1,
)


def product_flops(rows, k, n):
    """Two per multiplication, as often in either product of backward."""
    return (2 * rows * k * n,) * 3


def product_bytes(rows, k, n):
    """Both operands read and the result written in 2 bytes; fp32 sums of weight gradients are read and written."""
    return (
        2 * (rows * k + k * n + rows * n),
        2 * (rows * n + k * n + rows * k),
        2 * rows * (k + n) + 8 * k * n,
    )


def check(block, flops, num_bytes):
    """Compare both, operator by operator; one that is not listed, or does what is not listed, fails."""
    for currency, expected in ((toy.FLOPS, flops), (toy.BYTES, num_bytes)):
        counted = toy.counted(block, currency)
        assert set(counted) == set(num_bytes)
        for name, passes in counted.items():
            assert passes == pytest.approx(expected.get(name, NOTHING), rel=1e-12), name


def test_dense_layer():
    """Over tp 2 with its sequence: half the tokens in norms and additions, half the heads and columns inside."""
    heads, keys, local, rows = 6, 2, 23, TOKENS / 2
    out = heads * SIZE
    pairs = (
        sum(range(1, 463)) + 462 / 2
    )  # a query sees itself and all before; blocks on the diagonal, half a key more
    block = block_of(ATTENTION, FFN, tp=2)
    flops = {
        "attention.qkv": product_flops(TOKENS, HIDDEN, (heads + 2 * keys) * SIZE),
        "attention.core": (
            5 * heads * pairs * 4 * SIZE,
            5 * heads * pairs * 10 * SIZE,
            0,
        ),  # 2 products, then 5
        "attention.output": product_flops(TOKENS, out, HIDDEN),
        "ffn.up": product_flops(TOKENS, HIDDEN, 2 * local),
        "ffn.down": product_flops(TOKENS, local, HIDDEN),
    }
    stream, rotated = 2 * rows * HIDDEN, 2 * TOKENS * (heads + keys) * SIZE
    core = 2 * TOKENS * (2 * heads * SIZE + 2 * keys * SIZE)  # queries and outputs, keys and values
    num_bytes = {
        "attention.norm": (
            2 * stream,
            3 * stream,
            0,
        ),  # read, written; input and gradient read, gradient written
        "attention.qkv": product_bytes(TOKENS, HIDDEN, (heads + 2 * keys) * SIZE),
        "attention.rotary": (2 * rotated, 2 * rotated, 0),
        "attention.core": (core, 2 * core, 0),  # the same again as gradients
        "attention.output": product_bytes(TOKENS, out, HIDDEN),
        "attention.add": (
            3 * stream,
            stream,
            0,
        ),  # two read, one written; the gradient goes on as it is, once moved
        "ffn.norm": (2 * stream, 3 * stream, 0),
        "ffn.up": product_bytes(TOKENS, HIDDEN, 2 * local),
        "ffn.activation": (
            2 * TOKENS * 3 * local,
            2 * TOKENS * 5 * local,
            0,
        ),  # gate, up, result; and two gradients
        "ffn.down": product_bytes(TOKENS, local, HIDDEN),
        "ffn.add": (3 * stream, stream, 0),
    }
    check(block, flops, num_bytes)
    assert set(toy.counted(block, toy.LAUNCHES).values()) == {(1, 1, 0), (1, 1, 1)}


@pytest.mark.parametrize("norm", ["layer", "layer_no_bias", "rms"])
def test_ungated_layer_without_tensor_parallelism(norm):
    """GELU and squared ReLU read one factor and write one result; norms of all kinds move the same."""
    block = block_of(None, replace(FFN, gated=False), model=replace(MODEL, norm=norm))
    stream = 2 * TOKENS * HIDDEN
    flops = {
        "ffn.up": product_flops(TOKENS, HIDDEN, WIDTH),
        "ffn.down": product_flops(TOKENS, WIDTH, HIDDEN),
    }
    num_bytes = {
        "ffn.norm": (2 * stream, 3 * stream, 0),
        "ffn.up": product_bytes(TOKENS, HIDDEN, WIDTH),
        "ffn.activation": (2 * TOKENS * 2 * WIDTH, 2 * TOKENS * 3 * WIDTH, 0),
        "ffn.down": product_bytes(TOKENS, WIDTH, HIDDEN),
        "ffn.add": (3 * stream, stream, 0),
    }
    check(block, flops, num_bytes)


def core(attention=ATTENTION, **layout):
    block = block_of(attention, None, **layout)
    (operator,) = [operator for operator in block.operators if operator.name == "attention.core"]
    return (
        toy.counted(block, toy.FLOPS)["attention.core"],
        toy.counted(block, toy.BYTES)["attention.core"],
        operator,
    )


@pytest.mark.parametrize(
    ("compute", "gradients", "beside", "each"),
    [
        ("fp16", "fp16", False, 2 + 2 + 2),
        ("fp16", "fp32", False, 2 + 4 + 4),
        ("fp16", "fp32", True, 2 + 4 + 4 + 4 + 4),
        ("fp32", "fp32", False, 4 + 4 + 4),
    ],
)
def test_weight_gradients_that_kernels_of_their_own_add_up(compute, gradients, beside, each):
    """The product writes its own; it and the sum are read, the sum written; a cast written and read."""
    kernels = Kernels(gradient_sum="apart", keeps_product_gradients=beside)
    precision = Precision(compute=compute, parameters=compute, activations=compute, gradients=gradients)
    block = block_of(None, replace(FFN, gated=False), precision=precision, kernels=kernels)
    size = 4 if compute == "fp32" else 2
    moved = size * TOKENS * (HIDDEN + WIDTH) + (size + each) * HIDDEN * WIDTH
    assert toy.counted(block, toy.BYTES)["ffn.up"][2] == moved
    assert toy.counted(block, toy.LAUNCHES)["ffn.up"] == (1, 1, 2)
    experts = block_of(None, ROUTED, precision=precision, kernels=kernels, ep=5, dp_shard=5)
    moved = size * 6 * TOKENS * (HIDDEN + 68) + (size + each) * 4 * HIDDEN * 68
    assert toy.counted(experts, toy.BYTES)["moe.up"][2] == moved
    launched = [
        toy.counted(of, toy.LAUNCHES)["moe.up"]
        for of in (block_of(None, ROUTED, precision=precision, ep=5, dp_shard=5), experts)
    ]
    assert launched[1][2] == launched[0][2] + 4, "of every expert's weight one more"


def test_attention_of_all_pairs_has_no_diagonal():
    flops, _, _ = core(replace(ATTENTION, causal=False))
    assert flops == (5 * HEADS * 462**2 * 4 * SIZE, 5 * HEADS * 462**2 * 10 * SIZE, 0)


def test_attention_of_a_window():
    """The first queries see fewer keys than the window has."""
    flops, num_bytes, operator = core(replace(ATTENTION, window=97))
    pairs = sum(min(query, 97) for query in range(1, 463))
    assert operator.forward[0].flops == 5 * HEADS * pairs * 4 * SIZE
    assert operator.backward_input[0].flops == 5 * HEADS * pairs * 10 * SIZE
    assert flops[0] == 5 * HEADS * (pairs + 462 / 2) * 4 * SIZE
    assert num_bytes == core()[1]  # all keys are read somewhere
    assert not operator.forward[0].grows
    assert not core(replace(ATTENTION, window=462 // 2))[2].forward[0].grows  # most queries see as many keys
    assert core()[2].forward[0].grows


def test_a_window_without_causal_mask_has_one_width():
    flops, _, _ = core(replace(ATTENTION, window=97, causal=False))
    assert flops[0] == 5 * HEADS * 462 * 97 * 4 * SIZE


def test_attention_without_flash_makes_scores_once():
    """Two products forward, four backward, over the whole square; a fused softmax reads and writes 4 and 6 bytes a score."""
    flops, num_bytes, operator = core(flash_attention=False)
    assert flops == (5 * HEADS * 462**2 * 4 * SIZE, 5 * HEADS * 462**2 * 8 * SIZE, 0)
    pairs = sum(range(1, 463))
    assert operator.backward_input[0].flops == 5 * HEADS * pairs * 8 * SIZE
    item = 2 * 5 * HEADS * (2 * 462 * SIZE + 462**2)  # operands and result of one of them
    scores = 5 * HEADS * 462**2
    assert num_bytes == (2 * item + 4 * scores, 4 * item + 6 * scores, 0)


@pytest.mark.parametrize(
    ("kind", "queries", "heads"), [("all_gather", 3, 1), ("ring", 3, 1), ("ulysses", 1, 3)]
)
def test_context_parallel_ranks_share_queries_or_heads(kind, queries, heads):
    """A rank has a third of the queries and all keys, or a third of the heads and everything of those."""
    flops, _, operator = core(cp=3, cp_kind=kind)
    (work,) = [item for item in operator.forward if hasattr(item, "pairs")]
    pairs = sum(range(1, 463))
    assert (work.q_len, work.kv_len, work.heads, work.kv_heads) == (462 / queries, 462, 12 / heads, 4 / heads)
    assert work.flops == pytest.approx(5 * HEADS / 3 * pairs * 4 * SIZE)
    assert flops[0] == pytest.approx(5 * HEADS / 3 * (pairs + 462 / 2) * 4 * SIZE)


def test_a_ring_merges_the_partial_results_of_its_steps():
    """Each of two steps more reads and writes fp32 sums and reads a 16-bit part; backward those of q, k and v."""
    _, num_bytes, _ = core(cp=3, cp_kind="ring")
    tokens, per_head = TOKENS / 3, 2 * SIZE
    first = 2 * (tokens * HEADS * per_head + TOKENS * KV * per_head)
    merge = 2 * (4 + 4 + 2)
    assert num_bytes[0] == pytest.approx(first + merge * tokens * HEADS * SIZE)
    assert num_bytes[1] == pytest.approx(2 * first + merge * tokens * (HEADS + 2 * KV) * SIZE)
    launches = [
        toy.counted(block_of(ATTENTION, None, cp=cp, cp_kind="ring"), toy.LAUNCHES)["attention.core"]
        for cp in (1, 3)
    ]
    assert launches == [(1, 1, 0), (1 + 1, 1 + 3, 0)]  # results are merged, gradients of each of the three


def test_whole_runs_wait_for_the_rank_with_the_last_queries():
    _, _, operator = core(cp=3, cp_balanced=False)
    (work,) = [item for item in operator.forward if hasattr(item, "pairs")]
    last = sum(range(2 * 154 + 1, 462 + 1))
    assert work.pairs == pytest.approx(last)
    assert work.flops == pytest.approx(
        5 * HEADS * sum(range(1, 463)) / 3 * 4 * SIZE
    )  # executed on the mean rank


@pytest.mark.parametrize("attention", [ATTENTION, replace(ATTENTION, window=50)], ids=["causal", "window"])
def test_unfused_attention_computes_the_pairs_that_its_mask_hides(attention):
    """Megatron-LM's DotProductAttention multiplies all queries by all keys and masks the scores: 2 products forward, 4 back."""
    _, _, operator = core(flash_attention=False, attention=attention)
    forward, backward = operator.forward[0], operator.backward_input[0]
    assert forward.pairs < 462 * 462 == forward.computed_pairs
    assert forward.executed_flops == 5 * HEADS * 462 * 462 * 2 * (SIZE + SIZE)
    assert backward.executed_flops == 2 * forward.executed_flops
    assert forward.flops / forward.executed_flops == pytest.approx(forward.pairs / 462**2)
    _, _, flash = core(attention=attention)
    assert flash.forward[0].executed_flops == flash.forward[0].flops == forward.flops


def test_every_rank_of_unfused_context_parallelism_computes_all_keys():
    """Whole runs of the sequence leave ranks with unequal masks, but unfused kernels compute them all the same."""
    _, _, operator = core(cp=3, cp_balanced=False, cp_kind="all_gather", flash_attention=False)
    (work,) = [item for item in operator.forward if hasattr(item, "pairs")]
    assert work.busy < 1.0
    assert work.executed_flops == pytest.approx(5 * HEADS * 462 / 3 * 462 * 4 * SIZE)


def test_key_heads_are_copied_where_there_are_fewer_than_ranks():
    """Of 4 key heads over 6 ranks, each rank keeps one whole."""
    block = block_of(ATTENTION, None, tp=6)
    assert toy.counted(block, toy.FLOPS)["attention.qkv"] == pytest.approx(
        product_flops(TOKENS, HIDDEN, (2 + 2 * 1) * SIZE)
    )
    _, _, operator = core(tp=6)
    assert (operator.forward[0].heads, operator.forward[0].kv_heads) == (2, 1)
    assert toy.counted(block, toy.BYTES)["attention.rotary"][0] == pytest.approx(
        2 * 2 * TOKENS * (2 + 1) * SIZE
    )


def test_norms_of_heads_and_a_gate_of_the_output():
    block = block_of(replace(ATTENTION, qk_norm="head", output_gate=True), None)
    counted = toy.counted(block, toy.BYTES)
    queries, keys = 2 * TOKENS * HEADS * SIZE, 2 * TOKENS * KV * SIZE
    assert counted["attention.query_norm"] == (2 * queries, 3 * queries, 0)
    assert counted["attention.key_norm"] == (2 * keys, 3 * keys, 0)
    assert counted["attention.output_gate"] == pytest.approx((3 * queries, 5 * queries, 0))
    width = (2 * HEADS + 2 * KV) * SIZE  # queries twice: their projection makes the gate too
    assert toy.counted(block, toy.FLOPS)["attention.qkv"] == product_flops(TOKENS, HIDDEN, width)


LATENT = LatentAttention(
    num_heads=6, q_lora_rank=74, kv_lora_rank=58, qk_nope_head_dim=22, qk_rope_head_dim=10, v_head_dim=26
)


def test_latent_attention():
    """Down on this rank's part of the sequence, up on all of it and on half of the heads."""
    heads, rows, wide = 3, TOKENS / 2, 22 + 10
    block = block_of(LATENT, None, tp=2)
    pairs = sum(range(1, 463)) + 462 / 2
    products = {
        "attention.query_down": (rows, HIDDEN, 74),
        "attention.query_up": (TOKENS, 74, heads * wide),
        "attention.kv_down": (rows, HIDDEN, 58 + 10),  # and the one rotary key of all heads
        "attention.kv_up": (TOKENS, 58, heads * (22 + 26)),
        "attention.output": (TOKENS, heads * 26, HIDDEN),
    }
    flops = {name: product_flops(*extents) for name, extents in products.items()}
    # Queries and keys are wider than values: q·k twice in 5 products of backward more often than p·v.
    flops["attention.core"] = (
        5 * heads * pairs * 2 * (wide + 26), 5 * heads * pairs * 2 * (3 * wide + 2 * 26), 0
    )  # fmt: skip
    stream, keys, values = 2 * rows * HIDDEN, 2 * TOKENS * heads * wide, 2 * TOKENS * heads * 26
    joint = 2 * TOKENS * heads * (22 + 26)
    num_bytes = {name: product_bytes(*extents) for name, extents in products.items()} | {
        "attention.norm": (2 * stream, 3 * stream, 0),
        "attention.query_norm": (2 * 2 * rows * 74, 3 * 2 * rows * 74, 0),
        "attention.kv_norm": (2 * 2 * rows * 58, 3 * 2 * rows * 58, 0),
        "attention.split_kv": (joint + keys + values,) * 2 + (0,),
        "attention.rotary": (2 * 2 * keys,) * 2 + (0,),  # whole queries and keys
        "attention.core": (2 * (keys + values), 2 * 2 * (keys + values), 0),
        "attention.add": (3 * stream, stream, 0),
    }
    check(block, flops, num_bytes)
    fused = block_of(LATENT, None, tp=2, kernels=Kernels(fused_rotary=True))
    assert toy.counted(fused, toy.BYTES)["attention.rotary"] == pytest.approx(
        (2 * 2 * TOKENS * heads * 10,) * 2 + (0,)
    )
    direct = block_of(replace(LATENT, q_lora_rank=None), None, tp=2)
    assert toy.counted(direct, toy.FLOPS)["attention.query"] == product_flops(TOKENS, HIDDEN, heads * wide)


LINEAR = LinearAttention(
    num_heads=10, num_key_heads=6, key_head_dim=14, value_head_dim=22, conv_kernel=4, chunk_size=66
)


def test_linear_attention_with_its_convolution():
    """Over tp 2: products inside chunks of 66 tokens, and two with the state of each head at their borders."""
    heads, keys, values = 5, 3 * 14, 5 * 22
    block = block_of(LINEAR, None, tp=2)
    projected = {"query": keys, "key": keys, "value": values, "gate": values, "decay": 5}
    products = {f"attention.{name}": (TOKENS, HIDDEN, width) for name, width in projected.items()}
    products["attention.output"] = (TOKENS, values, HIDDEN)
    chunks = TOKENS / 66
    # A causal kernel of one chunk: half a key more per query, as in any attention of blocks.
    scores = chunks * heads * (66**2 + 66 / 2) * 2 * (14 + 22)
    state = 2 * chunks * heads * 2 * 66 * 14 * 22
    flops = {name: product_flops(*extents) for name, extents in products.items()}
    flops["attention.core"] = (scores + state, 2 * (scores + state), 0)
    stream, mixed, out = 2 * (TOKENS / 2) * HIDDEN, 2 * TOKENS * (2 * keys + values), 2 * TOKENS * values
    inner = 2 * chunks * heads * 66 * 2 * (14 + 22)
    passing = 2 * 2 * chunks * heads * (66 * 14 + 14 * 22 + 66 * 22)
    num_bytes = {name: product_bytes(*extents) for name, extents in products.items()} | {
        "attention.norm": (2 * stream, 3 * stream, 0),
        "attention.convolution": (
            2 * mixed,
            4 * mixed,
            0,
        ),  # in and out; input and gradient read for both gradients
        "attention.core": (inner + passing, 2 * (inner + passing), 0),
        "attention.gated_norm": (3 * out, 5 * out, 0),
        "attention.add": (3 * stream, stream, 0),
    }
    check(block, flops, num_bytes)
    (core,) = (operator for operator in block.operators if operator.name == "attention.core")
    assert not core.forward[0].grows  # a chunk late in the sequence is no more work than an early one


ROUTED = MoeFfn(num_experts=20, top_k=6, ffn_hidden_size=34, shared_ffn_hidden_size=58)


def grouped_bytes(rows, groups, k, n):
    """Every expert reads its own rows and weights; its weight gradient is summed in fp32."""
    both = 2 * (rows * k + groups * k * n + rows * n)
    return both, both, 2 * rows * (k + n) + 8 * groups * k * n


def test_experts():
    """20 experts over ep 5: six rows per token leave, as many arrive for 4 experts."""
    rows, local = 6 * TOKENS, 4
    block = block_of(None, ROUTED, ep=5, dp_shard=5)
    products = {
        "moe.router": (TOKENS, HIDDEN, 20),
        "shared.up": (TOKENS, HIDDEN, 2 * 58),
        "shared.down": (TOKENS, 58, HIDDEN),
    }
    experts = {"moe.up": (HIDDEN, 2 * 34), "moe.down": (34, HIDDEN)}
    flops = {name: product_flops(*extents) for name, extents in products.items()}
    flops |= {name: product_flops(rows, k, n) for name, (k, n) in experts.items()}
    stream, moved = 2 * TOKENS * HIDDEN, 2 * rows * HIDDEN
    num_bytes = {name: product_bytes(*extents) for name, extents in products.items()}
    num_bytes |= {name: grouped_bytes(rows, local, k, n) for name, (k, n) in experts.items()}
    num_bytes |= {
        "ffn.norm": (2 * stream, 3 * stream, 0),
        "moe.top_k": (16 * TOKENS * 20, 16 * TOKENS * 20, 0),  # fp32 scores over all experts, four passes
        # Before the exchange by destination, after it by expert; the way back the same. Each row read and written.
        "moe.permute": (2 * moved, 2 * moved, 0),
        "moe.sort": (2 * moved, 2 * moved, 0),
        "moe.activation": (2 * rows * 3 * 34, 2 * rows * 5 * 34, 0),
        "moe.unsort": (2 * moved, 2 * moved, 0),
        "moe.unpermute": (2 * moved, 2 * moved, 0),
        "shared.activation": (2 * TOKENS * 3 * 58, 2 * TOKENS * 5 * 58, 0),
        "moe.add_shared": (3 * stream, 0, 0),  # the gradient serves both
        "ffn.add": (3 * stream, stream, 0),
    }
    check(block, flops, num_bytes)
    launches = toy.counted(block, toy.LAUNCHES)
    assert launches["moe.top_k"] == (6, 6, 0)
    assert {launches[name] for name in ("moe.permute", "moe.sort", "moe.unsort", "moe.unpermute")} == {
        (2, 2, 0)
    }
    assert (
        (block.operators[[operator.name for operator in block.operators].index("moe.up")]).forward[0].kernels
        == 4
    )


def test_experts_that_are_split_themselves():
    """etp 2: both ranks gather each other's rows, and multiply all of them by half of each expert."""
    block = block_of(None, replace(ROUTED, shared_ffn_hidden_size=0), tp=2, ep=5, etp=2, dp_shard=5)
    rows = 2 * 6 * TOKENS / 2
    counted = toy.counted(block, toy.FLOPS)
    assert counted["moe.up"] == product_flops(rows, HIDDEN, 34)
    assert counted["moe.down"] == product_flops(rows, 17, HIDDEN)
    traffic = toy.counted(block, toy.BYTES)
    assert traffic["moe.up"] == grouped_bytes(rows, 4, HIDDEN, 34)
    assert traffic["moe.permute"][0] == 2 * 2 * 6 * TOKENS / 2 * HIDDEN  # own rows alone
    assert traffic["moe.sort"][0] == 2 * 2 * rows * HIDDEN


def test_experts_on_one_rank_move_rows_once_there_and_once_back():
    counted = toy.counted(block_of(None, ROUTED), toy.BYTES)
    moved = 2 * 6 * TOKENS * HIDDEN
    assert (counted["moe.permute"][0], counted["moe.unpermute"][0]) == (2 * moved, 2 * moved)
    assert (counted["moe.sort"], counted["moe.unsort"]) == (NOTHING, NOTHING)


def test_rows_of_the_fullest_rank_and_of_a_capacity():
    """Twice the mean rows arrive at the fullest rank; a capacity of 0.75 leaves ⌈0.75 · rows / 20⌉ of each expert."""
    uneven = block_of(None, ROUTED, ep=5, dp_shard=5, routing=Routing(imbalance=2.0))
    assert toy.counted(uneven, toy.FLOPS)["moe.up"] == product_flops(2 * 6 * TOKENS, HIDDEN, 68)
    assert (
        toy.counted(uneven, toy.BYTES)["moe.permute"][0] == 2 * 2 * 6 * TOKENS * HIDDEN
    )  # what leaves is the mean
    tight = block_of(None, ROUTED, ep=5, dp_shard=5, routing=Routing(capacity_factor=0.75))
    rows = 20 * 520  # 0.75 · 13860 / 20 = 519.75
    assert toy.counted(tight, toy.FLOPS)["moe.up"] == product_flops(rows, HIDDEN, 68)


def test_tokens_that_travel_once_are_copied_on_the_way():
    once = toy.counted(block_of(None, ROUTED, ep=5, dp_shard=5, dispatcher="deepep"), toy.BYTES)
    assert (once["moe.permute"], once["moe.unpermute"]) == (NOTHING, NOTHING)
    assert once["moe.sort"][0] == 2 * 2 * 6 * TOKENS * HIDDEN


@pytest.mark.parametrize(
    ("dispatcher", "called"), [("all_to_all", True), ("deepep", True), ("hybridep", False)]
)
def test_hybridep_sorts_within_its_own_calls(dispatcher, called):
    """Megatron-LM, moe/fused_a2a.py: dispatch_with_permute and combine_with_unpermute."""
    block = block_of(None, ROUTED, ep=5, dp_shard=5, dispatcher=dispatcher)
    work = {operator.name: (*operator.forward, *operator.backward_input) for operator in block.operators}
    for name in ("moe.sort", "moe.unsort"):
        assert {item.called for item in work[name]} == {called}


def test_experts_weighed_and_with_biases():
    """Weights in fp32 move 12 and 34 bytes, or 4 in 16 bits; biases in eager PyTorch 28 and 40, or 4 in one kernel."""
    apart = block_of(
        None, replace(ROUTED, bias=True), ep=5, dp_shard=5, kernels=Kernels(weighted_activation=False)
    )
    counted, rows = toy.counted(apart, toy.BYTES), 6 * TOKENS
    assert counted["moe.weigh"] == (12 * rows * 34, 34 * rows * 34, 0)
    assert toy.counted(apart, toy.LAUNCHES)["moe.weigh"] == (2, 5, 0)
    eager = block_of(None, ROUTED, ep=5, dp_shard=5, kernels=Kernels(weighted_activation=False, fused=False))
    assert toy.counted(eager, toy.BYTES)["moe.weigh"] == (2 * 2 * rows * 34, 2 * 2 * rows * 34, 0)
    assert toy.counted(eager, toy.LAUNCHES)["moe.weigh"] == (1, 1, 0)
    ungated = block_of(None, replace(ROUTED, gated=False), ep=5, dp_shard=5)
    assert toy.counted(ungated, toy.BYTES)["moe.weigh"] == (12 * rows * 34, 34 * rows * 34, 0)
    kernels = Kernels(weighted_ungated=True)
    one = block_of(None, replace(ROUTED, gated=False), ep=5, dp_shard=5, kernels=kernels)
    assert "moe.weigh" not in toy.counted(one, toy.BYTES)
    assert counted["moe.bias"] == (28 * rows * HIDDEN, 40 * rows * HIDDEN, 0)
    assert toy.counted(apart, toy.LAUNCHES)["moe.bias"] == (2 * 4, 6 * 4, 0)
    one = block_of(None, replace(ROUTED, bias=True), ep=5, dp_shard=5, kernels=Kernels(expert_kernels="one"))
    assert toy.counted(one, toy.BYTES)["moe.bias"] == (4 * rows * HIDDEN, 4 * rows * HIDDEN, 0)


def test_experts_in_a_narrower_space():
    block = block_of(None, replace(ROUTED, latent_size=42), ep=5, dp_shard=5)
    flops = toy.counted(block, toy.FLOPS)
    assert flops["moe.latent_down"] == product_flops(TOKENS, HIDDEN, 42)
    assert flops["moe.latent_up"] == product_flops(TOKENS, 42, HIDDEN)
    assert flops["moe.up"] == product_flops(6 * TOKENS, 42, 68)
    assert toy.counted(block, toy.BYTES)["moe.permute"][0] == 2 * 2 * 6 * TOKENS * 42


def ends(builder, model=MODEL, *, precision=None, **layout):
    return builder(model, toy.layout(Layout(micro_batch_size=5, **layout), SEQ, precision))


def test_embedding():
    """Rows read and written; their gradients read, and added to fp32 sums: 2 + 4 + 4 bytes."""
    block = ends(embedding_block, tp=2)
    looked_up = 2 * TOKENS * HIDDEN
    check(block, {}, {"embedding.lookup": (2 * looked_up, 0, (2 + 4 + 4) * TOKENS * HIDDEN)})
    narrow = ends(embedding_block, replace(MODEL, embedding_size=62))
    assert toy.counted(narrow, toy.FLOPS)["embedding.project"] == product_flops(TOKENS, 62, HIDDEN)
    assert toy.counted(narrow, toy.BYTES)["embedding.lookup"] == (4 * TOKENS * 62, 0, 10 * TOKENS * 62)


def test_a_head_of_a_narrower_width_projects_the_stream_to_it():
    """OPT-350M: project_out, then the tied matrix."""
    block = ends(head_block, replace(MODEL, embedding_size=62))
    counted = toy.counted(block, toy.FLOPS)
    assert counted["head.project"] == product_flops(TOKENS, HIDDEN, 62)
    assert counted["head.logits"] == product_flops(TOKENS, 62, VOCAB)
    assert block.tensors["head.narrow"].elements == TOKENS * 62
    assert "head.project" not in toy.counted(
        ends(head_block, replace(MODEL, embedding_size=HIDDEN)), toy.FLOPS
    )


BY_PASSES = {
    # fp32 copy; maximum; difference; exponential; sum; quotient | scaled; cast
    "vocab_parallel": (2 + 4 + 4 + 8 + 8 + 4 + 8, 8 + 6),
    "native": (2 + 4 + 4 + 8 + 8, 8 + 6),  # difference, exponential and sum in one
    "fused": (2 + 2 + 2, 2 + 2),  # read twice, the gradient written; scaled
    "compiled": (2 + 2, 2 + 2 + 2),
    "eager": (2 + 4 + 4 + 4 + 4, 4 + 4 + 4 + 4 + 4 + 2),
}  # fmt: skip
"""Bytes of each pass over 16-bit logits, forward and backward."""


def test_a_vocabulary_that_is_not_padded_is_cut_into_equal_parts():
    """950 over tp 4 are parts of 238 and 945 of 237, whatever multiple the model names."""
    kernels = Kernels(pads_vocabulary=False)
    for vocab, part in ((950, 238), (945, 237)):
        model = replace(MODEL, vocab_size=vocab, vocab_multiple=6)
        block = ends(head_block, model, tp=4, kernels=kernels)
        assert toy.counted(block, toy.FLOPS)["head.logits"] == product_flops(TOKENS, HIDDEN, part)


@pytest.mark.parametrize("kind", BY_PASSES)
def test_losses(kind):
    """Half of the vocabulary over tp 2, padded to 480 from 475 (960 is a multiple of 6 · tp); norm on this rank's tokens."""
    model = replace(MODEL, vocab_multiple=6)
    block = ends(head_block, model, tp=2, kernels=Kernels(cross_entropy=kind))
    local = 960 / 2
    forward, backward = BY_PASSES[kind]
    stream = 2 * TOKENS / 2 * HIDDEN
    num_bytes = {
        "head.norm": (2 * stream, 3 * stream, 0),
        "head.logits": product_bytes(TOKENS, HIDDEN, local),
        "head.cross_entropy": (forward * TOKENS * local, backward * TOKENS * local, 0),
    }
    check(block, {"head.logits": product_flops(TOKENS, HIDDEN, local)}, num_bytes)
    assert toy.counted(block, toy.LAUNCHES)["head.cross_entropy"] == (6, 2, 0)


def test_a_loss_by_steps_on_shards():
    """Forward instead of the log-softmax (12): maximum 4, difference 8, exponential 8, sum 4, difference 8.

    Backward instead of 16: zeros 4, exponential 8, sum and subtraction 12, product 8 (torch/distributed/tensor/
    parallel/loss.py).
    """
    kernels = Kernels(cross_entropy="loss_parallel")
    alone, split = (
        toy.counted(ends(head_block, tp=tp, kernels=kernels), toy.BYTES)["head.cross_entropy"]
        for tp in (1, 2)
    )
    forward, backward = BY_PASSES["eager"]
    assert alone == (forward * TOKENS * VOCAB, backward * TOKENS * VOCAB, 0)
    steps = (forward - 12 + 4 + 8 + 8 + 4 + 8, backward - 16 + 4 + 8 + 12 + 8)
    assert split == (steps[0] * TOKENS * VOCAB / 2, steps[1] * TOKENS * VOCAB / 2, 0)


def test_a_loss_fused_with_its_product():
    """All three products forward, and the gradients scaled in backward: read and written."""
    block = ends(head_block, kernels=Kernels(cross_entropy="fused_linear"))
    rows, k, n = TOKENS, HIDDEN, VOCAB
    stream = 2 * rows * k
    once = product_bytes(rows, k, n)
    accumulated = 2 * rows * (k + n) + 4 * k * n  # in 16 bits here
    num_bytes = {
        "head.norm": (2 * stream, 3 * stream, 0),
        "head.fused_loss": (2 * once[0] + accumulated + 6 * rows * n, 4 * rows * k, 4 * n * k),
    }
    check(block, {"head.fused_loss": (3 * 2 * rows * k * n, 0, 0)}, num_bytes)
    assert toy.counted(block, toy.LAUNCHES)["head.fused_loss"] == (3 + 6, 1, 1)


def test_multi_token_prediction_joins_two_streams():
    """Two norms, both written side by side, projected to half of the columns; then a layer and the head."""
    model = replace(MODEL, layers=(Layer(attention=ATTENTION, ffn=FFN),), num_mtp_layers=1)
    layout = toy.layout(Layout(micro_batch_size=5, tp=2), SEQ)
    counted = toy.counted(mtp_block(model, layout), toy.BYTES)
    stream = 2 * TOKENS / 2 * HIDDEN
    assert counted["mtp.stream_norm"] == counted["mtp.embedding_norm"] == (2 * stream, 3 * stream, 0)
    assert counted["mtp.concatenate"] == (2 * 2 * stream, 2 * stream, 0)
    assert counted["mtp.join"] == product_bytes(TOKENS, 2 * HIDDEN, HIDDEN / 2)
    parts = (
        toy.counted(layer_block(model, model.layers[0], layout), toy.BYTES),
        toy.counted(head_block(model, layout), toy.BYTES),
    )
    assert {name: counted[name] for part in parts for name in part} == parts[0] | parts[1]


CASTS = {
    # What a 16-bit number takes to become narrow: read, written; current scaling reads once more for its maximum;
    # blocks are written along rows and columns, with a scale of 4 bytes per 128, or of 1 per 32 or 16.
    ("fp8", "delayed"): 2 + 1,
    ("fp8", "current"): 2 + 2 + 1,
    ("fp8", "blockwise"): 2 + 2 * (1 + 4 / 128),
    ("fp8", "rowwise"): 2 + 1 + 2 * 2 + 1,
    ("mxfp8", "none"): 2 + 2 * (1 + 1 / 32),
    ("nvfp4", "none"): 2 + 2 + 2 * (1 / 2 + 1 / 16),
}  # fmt: skip
OPERANDS = {"fp8": 1.0, "mxfp8": 1 + 1 / 32, "nvfp4": 1 / 2 + 1 / 16}


@pytest.mark.parametrize(("compute", "recipe"), CASTS)
def test_weights_are_quantised_for_every_product_where_they_are_not_cached(compute, recipe):
    """Forward along one extent, backward along the other; with one scale per tensor, FSDP gathers them quantised."""
    precision = Precision(compute=compute, recipe=recipe)
    blocks = (
        block_of(None, FFN, precision=precision, kernels=Kernels(caches_narrow_weights=caches))
        for caches in (True, False)
    )
    cached, made = (toy.counted(block, toy.BYTES)["ffn.up"] for block in blocks)
    per_tensor = compute == "fp8" and recipe in ("none", "delayed", "current")
    extra = 0 if per_tensor else CASTS[compute, recipe] / 2 * HIDDEN * 2 * WIDTH
    assert [new - old for new, old in zip(made, cached, strict=True)] == pytest.approx(
        [extra, extra, 0], rel=2e-3
    )


@pytest.mark.parametrize(("compute", "recipe"), CASTS)
def test_narrow_products_cast_what_they_read_and_run_faster(compute, recipe):
    """Input forward, gradient backward; products at 2 or 4 times the rate; the activation writes a narrow result."""
    precision = Precision(compute=compute, recipe=recipe)
    block = block_of(None, FFN, precision=precision)
    faster, cast = 4 if compute == "nvfp4" else 2, CASTS[compute, recipe]
    operand = 1 + 4 / 128 if recipe == "blockwise" else OPERANDS[compute]
    rows, k, n = TOKENS, HIDDEN, 2 * WIDTH
    assert toy.counted(block, toy.FLOPS)["ffn.up"] == (2 * rows * k * n / faster,) * 3
    moved = toy.counted(block, toy.BYTES)["ffn.up"]
    expected = (
        cast * rows * k + operand * (rows * k + k * n) + 2 * rows * n,
        cast * rows * n + operand * (rows * n + k * n) + 2 * rows * k,
        operand * rows * (n + k) + 8 * k * n,
    )
    assert moved == pytest.approx(expected, rel=2e-3)  # the table of casts is rounded to 0.01
    saved = 1 + 4 / 128 if recipe == "blockwise" else operand
    activation = toy.counted(block, toy.BYTES)["ffn.activation"]
    assert activation == pytest.approx((rows * WIDTH * (4 + saved), rows * WIDTH * (4 + 4 + saved), 0))
    transposed = toy.counted(block, toy.needing_transposes(toy.BYTES))["ffn.up"]
    more = rows * k if recipe in ("delayed", "current") else 0  # one scale per tensor: one byte more to write
    assert transposed[0] - moved[0] == pytest.approx(more)


def test_current_scaling_takes_four_kernels_to_quantise():
    """The largest magnitude is set to zero and found, a scale is made of it, and the input is cast."""
    for recipe, kernels in (("delayed", 1.0), ("current", 4.0)):
        block = block_of(None, FFN, precision=Precision(compute="fp8", recipe=recipe))
        operator = next(item for item in block.operators if item.name == "ffn.up")
        assert [op.kernels for op in operator.forward if getattr(op, "family", "") == "cast"] == [kernels]


def test_an_activation_s_input_that_is_kept_narrow_is_cast_forward_alone():
    """Read in 2 bytes, written in 1 and its part of a scale; the gradient is that of the wide one."""
    kernels = Kernels(narrow_activation_inputs=True)
    counted = toy.counted(block_of(None, FFN, precision=Precision(compute="fp8"), kernels=kernels), toy.BYTES)
    assert counted["ffn.up.cast"] == (TOKENS * 2 * WIDTH * (2 + 1 + 4 / 128), 0, 0)
    block = block_of(None, FFN, precision=Precision(compute="fp8"), kernels=kernels)
    assert [operator.name for operator in block.operators if operator.shares_gradient] == [
        "ffn.up.cast",
        "ffn.add",
    ]


@pytest.mark.parametrize(("recipe", "dtype"), [("current", "fp8"), ("blockwise", "fp8_blockwise")])
def test_products_with_scales_of_blocks_are_kernels_of_their_own(recipe, dtype):
    precision = Precision(compute="fp8", recipe=recipe)
    for block, name in ((FFN, "ffn.up"), (ROUTED, "moe.up")):
        (operator,) = (
            operator
            for operator in block_of(None, block, precision=precision).operators
            if operator.name == name
        )
        passes = (operator.forward, operator.backward_input, operator.backward_weight)
        dtypes = [item.dtype for work in passes for item in work if isinstance(item, Gemm | GroupedGemm)]
        assert dtypes == [dtype] * 3


def test_what_stays_wide_under_narrow_recipes():
    precision = Precision(compute="fp8", recipe="delayed")
    flops = toy.counted(block_of(None, ROUTED, precision=precision, ep=5, dp_shard=5), toy.FLOPS)
    assert flops["moe.router"] == product_flops(TOKENS, HIDDEN, 20)
    assert flops["moe.up"] == tuple(
        product_flop / 2 for product_flop in product_flops(6 * TOKENS, HIDDEN, 68)
    )
    head = toy.counted(ends(head_block, precision=precision), toy.FLOPS)
    assert head["head.logits"] == product_flops(TOKENS, HIDDEN, VOCAB)
    wide = block_of(None, ROUTED, precision=precision, kernels=Kernels(narrow_experts=False))
    assert toy.counted(wide, toy.FLOPS)["moe.up"] == product_flops(6 * TOKENS, HIDDEN, 68)
    core_flops = toy.counted(block_of(ATTENTION, None, precision=precision), toy.FLOPS)["attention.core"]
    assert core_flops == core()[0]


@pytest.mark.parametrize(
    ("precision", "summed"),
    [
        (Precision(), 4 + 4),
        (Precision(gradients="bf16"), 2 + 2),
        (Precision(compute="fp32", activations="fp32", parameters="fp32"), 4 + 4),
    ],
)
def test_weight_gradients_are_read_and_written_where_they_are_summed(precision, summed):
    rows, k, n = TOKENS, HIDDEN, 2 * WIDTH
    operand = 4 if precision.compute == "fp32" else 2
    ffn_up = toy.counted(block_of(None, FFN, precision=precision), toy.BYTES)["ffn.up"]
    assert ffn_up[2] == operand * rows * (k + n) + summed * k * n
    assert ffn_up[0] == operand * (rows * k + k * n + rows * n)
    experts = toy.counted(block_of(None, ROUTED, precision=precision), toy.BYTES)["moe.up"]
    assert experts[2] == operand * 6 * rows * (k + 68) + summed * 20 * k * 68
