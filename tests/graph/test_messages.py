"""Every message of a dense and of a routed layer and of both ends, with its bytes worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests import toy

from forescale.graph.layer import embedding_block, head_block, layer_block, mtp_block
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
    Routing,
)

TOKENS, HIDDEN, HEADS, KV, SIZE = 5 * 462, 130, 12, 6, 38
DENSE = Layer(
    attention=FullAttention(num_heads=HEADS, num_kv_heads=KV, head_dim=SIZE), ffn=DenseFfn(ffn_hidden_size=46)
)
ROUTED = Layer(attention=None, ffn=MoeFfn(num_experts=20, top_k=6, ffn_hidden_size=34), num_norms=1)
MODEL = Model(name="by-hand", hidden_size=HIDDEN, layers=(DENSE,), vocab_size=950, num_mtp_layers=1)
FORWARD, INPUT, WEIGHT = toy.PASSES


def sent(layer, *, precision=None, **layout):
    rules = toy.layout(Layout(micro_batch_size=5, **layout), 462.0, precision)
    return by_hand(toy.messages(layer_block(replace(MODEL, layers=(layer,)), layer, rules), rules))


def ends(builder, **layout):
    rules = toy.layout(Layout(micro_batch_size=5, **layout), 462.0)
    return by_hand(toy.messages(builder(MODEL, rules), rules))


def by_hand(result):
    return [(*item[:4], pytest.approx(item[4], rel=1e-12)) for item in result]


def region(half, size, feeds=None, again=None):
    """Enter and leave a tensor-parallel region with its sequence split: five messages of the whole sequence."""
    return [
        (f"{half}.gather", FORWARD, "all_gather", "tp", size if feeds is None else feeds),
        (f"{half}.gather", INPUT, "reduce_scatter", "tp", size),
        (f"{half}.gather", WEIGHT, "all_gather", "tp", size if again is None else again),
        (f"{half}.scatter", FORWARD, "reduce_scatter", "tp", size),
        (f"{half}.scatter", INPUT, "all_gather", "tp", size),
    ]


def test_tensor_parallel_with_its_sequence():
    stream = 2 * TOKENS * HIDDEN
    assert sent(DENSE, tp=2) == region("attention", stream) + region("ffn", stream)


def test_tensor_parallel_without_its_sequence():
    """Partial results summed forward, partial input gradients backward: 4 sums of the whole sequence."""
    stream = 2 * TOKENS * HIDDEN
    assert sent(DENSE, tp=2, sp=False) == [
        ("attention.gather", INPUT, "all_reduce", "tp", stream),
        ("attention.scatter", FORWARD, "all_reduce", "tp", stream),
        ("ffn.gather", INPUT, "all_reduce", "tp", stream),
        ("ffn.scatter", FORWARD, "all_reduce", "tp", stream),
    ]


def test_a_gathered_input_that_is_kept_is_not_gathered_again():
    result = sent(DENSE, tp=2, kernels=Kernels(regathers_inputs=False))
    assert [item[1] for item in result].count(WEIGHT) == 0
    assert len(result) == 8


def test_narrow_inputs_are_gathered_narrow_and_gradients_wide():
    """fp8 with a scale of 4 bytes per 128."""
    stream, small = 2 * TOKENS * HIDDEN, (1 + 4 / 128) * TOKENS * HIDDEN
    result = sent(DENSE, tp=2, precision=Precision(compute="fp8", recipe="blockwise"))
    assert result == region("attention", stream, small, small) + region("ffn", stream, small, small)


@pytest.mark.parametrize("kind", ["all_gather", "ring"])
def test_context_parallel_moves_keys_and_values(kind):
    """Over tp 2 x cp 3: each rank's 3 key heads, of the whole sequence; a third of it in tensor-parallel regions."""
    stream, keys = 2 * TOKENS / 3 * HIDDEN, 2 * TOKENS * 2 * 3 * SIZE
    operator, gradients = (
        ("attention.core", "all_gather") if kind == "ring" else ("attention.gather_kv", "reduce_scatter")
    )
    around = [
        (operator, FORWARD, "all_gather", "cp", keys),
        (operator, INPUT, "all_gather", "cp", keys),
        (operator, INPUT, gradients, "cp", keys),  # keys and values travel with their gradients around a ring
    ]
    attention = region("attention", stream)
    assert sent(DENSE, tp=2, cp=3, cp_kind=kind) == attention[:3] + around + attention[3:] + region(
        "ffn", stream
    )


def exchanged(axis, ranks):
    """Each rank's queries, keys, values and outputs leave once and come back as gradients."""
    queries, keys = 2 * TOKENS / ranks * HEADS * SIZE, 2 * TOKENS / ranks * KV * SIZE
    there = [("query", queries), ("key", keys), ("value", keys)]
    before = [
        (f"attention.{name}.exchange", item, "all_to_all", axis, size)
        for name, size in there
        for item in (FORWARD, INPUT)
    ]
    return before, [
        ("attention.core_output.exchange", item, "all_to_all", axis, queries) for item in (FORWARD, INPUT)
    ]


def test_ulysses_exchanges_tokens_for_heads():
    before, after = exchanged("cp", 3)
    assert sent(DENSE, cp=3, cp_kind="ulysses") == before + after


def test_hierarchical_context_parallelism_does_both():
    """Groups of 2 exchange; around the 3 groups go the keys of 1/2 of the heads, of the whole sequence."""
    before, after = exchanged("cp_inner", 6)
    keys = 2 * TOKENS * 2 * (KV / 2) * SIZE
    ring = [
        ("attention.core", FORWARD, "all_gather", "cp_outer", keys),
        ("attention.core", INPUT, "all_gather", "cp_outer", keys),
        ("attention.core", INPUT, "all_gather", "cp_outer", keys),
    ]
    assert sent(DENSE, cp=6, cp_kind="hierarchical", cp_inner=2) == before + ring + after


def test_latent_attention_gathers_what_is_narrow():
    """Queries and keys between down and up: ranks of 74, and of 58 with the rotary key of 10."""
    latent = LatentAttention(
        num_heads=6, q_lora_rank=74, kv_lora_rank=58, qk_nope_head_dim=22, qk_rope_head_dim=10, v_head_dim=26
    )
    result = sent(Layer(attention=latent, ffn=None, num_norms=1), tp=2)
    stream, queries, keys = 2 * TOKENS * HIDDEN, 2 * TOKENS * 74, 2 * TOKENS * 68
    three = ((FORWARD, "all_gather"), (INPUT, "reduce_scatter"), (WEIGHT, "all_gather"))
    assert result == [
        *(("attention.gather_query", item, kind, "tp", queries) for item, kind in three),
        *(("attention.gather_kv_latent", item, kind, "tp", keys) for item, kind in three),
        ("attention.scatter", FORWARD, "reduce_scatter", "tp", stream),
        ("attention.scatter", INPUT, "all_gather", "tp", stream),
    ]


COUNTS = ("moe.balance", FORWARD, "all_reduce", "tp_cp", 4 * 20)
"""Tokens of each expert over the ranks of a sequence, in fp32."""


def routed(there, back, *, ep=5):
    """Counts in int64 of what each rank sends to each expert; rows there and back, and their gradients."""
    return [
        ("moe.count", FORWARD, "all_gather", "ep", 8 * 20 * ep),
        ("moe.dispatch", FORWARD, "all_to_all", "ep", there),
        ("moe.dispatch", INPUT, "all_to_all", "ep", back),
        ("moe.combine", FORWARD, "all_to_all", "ep", back),
        ("moe.combine", INPUT, "all_to_all", "ep", there),
    ]


def test_expert_parallel_sends_every_copy_of_a_token():
    rows = 2 * 6 * TOKENS * HIDDEN
    assert sent(ROUTED, ep=5, dp_shard=5) == routed(rows, rows)


def test_rows_in_8_bits_go_there_and_their_gradients_come_back_wide():
    rows = 6 * TOKENS * HIDDEN
    result = sent(ROUTED, ep=5, dp_shard=5, routing=Routing(dispatch="fp8"))
    assert result == routed((1 + 4 / 128) * rows, 2 * rows)


def test_an_exchange_waits_for_the_fullest_rank():
    rows = 2 * 6 * TOKENS * HIDDEN
    uneven = sent(ROUTED, ep=5, dp_shard=5, routing=Routing(imbalance=1.5, balance="none"))
    assert uneven == routed(1.5 * rows, 1.5 * rows)


def test_expert_tensor_parallel_gathers_rows_inside():
    """tp 2, ep 5, etp 2: half of the tokens on each rank; both gather each other's rows."""
    local = 2 * 6 * TOKENS / 2 * HIDDEN
    count, dispatch, dispatched, combine, combined = routed(local, local)
    assert sent(ROUTED, tp=2, ep=5, etp=2, dp_shard=5) == [
        COUNTS, count, dispatch, dispatched,
        ("moe.dispatch_etp", FORWARD, "all_gather", "etp", 2 * local),
        ("moe.dispatch_etp", INPUT, "reduce_scatter", "etp", 2 * local),
        ("moe.combine_etp", FORWARD, "reduce_scatter", "etp", 2 * local),
        ("moe.combine_etp", INPUT, "all_gather", "etp", 2 * local),
        combine, combined,
    ]  # fmt: skip


def test_a_shared_expert_has_a_region_of_its_own():
    layer = replace(ROUTED, ffn=replace(ROUTED.ffn, shared_ffn_hidden_size=58))
    result = [item for item in sent(layer, tp=2, ep=5, dp_shard=5) if item[3] == "tp"]
    assert result == region("shared", 2 * TOKENS * HIDDEN)


def test_ends():
    """Rows of the table summed over its shards; three fp32 numbers per token of the loss (maximum, sum, target)."""
    stream = 2 * TOKENS * HIDDEN
    assert ends(embedding_block, tp=2) == region("embedding", stream)[3:]
    assert ends(head_block, tp=2) == [
        *region("head", stream)[:3],
        ("head.cross_entropy", FORWARD, "all_reduce", "tp", 3 * 4 * TOKENS),
    ]


def test_multi_token_prediction_gathers_two_streams_and_its_columns():
    stream = 2 * TOKENS * HIDDEN
    result = ends(mtp_block, tp=2)[:5]
    assert result == [
        *region("mtp", 2 * stream)[:3],
        ("mtp.gather_columns", FORWARD, "all_gather", "tp", stream),
        ("mtp.gather_columns", INPUT, "all_gather", "tp", stream),
    ]
