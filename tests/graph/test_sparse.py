"""Attention to picked keys: what each rank does, sends and keeps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forescale.graph.layer import layer_block
from forescale.graph.ops import AttentionCore, Collective, Gemm
from forescale.graph.recompute import keep
from forescale.graph.sharding import ShardingRules, split_layout
from forescale.spec import DenseFfn, Indexer, LatentAttention, Layer, Layout, Model, Precision, Recompute

SEQ, HIDDEN, HEADS = 512, 96, 8
SPEC = LatentAttention(
    num_heads=HEADS,
    q_lora_rank=48,
    kv_lora_rank=32,
    qk_nope_head_dim=24,
    qk_rope_head_dim=8,
    v_head_dim=20,
    top_k=64,
    indexer=Indexer(num_heads=4, head_dim=16),
)
LATENT = 32 + 8
"""Width of what all heads read of a key."""


def block(spec=SPEC, seq_len=SEQ, **layout):
    layer = Layer(attention=spec, ffn=DenseFfn(ffn_hidden_size=32))
    model = Model(name="sparse", hidden_size=HIDDEN, layers=(layer,), vocab_size=2)
    degrees, choices = split_layout(Layout(**layout))
    return layer_block(
        model,
        layer,
        ShardingRules(degrees=degrees, choices=choices, precision=Precision(), seq_len=float(seq_len)),
    )


def operators(*args, **layout):
    return {operator.name: operator for operator in block(*args, **layout).operators}


def messages(operator, kind="forward"):
    return [
        (item.kind, item.axis, item.num_bytes)
        for item in getattr(operator, kind)
        if isinstance(item, Collective)
    ]


def test_all_heads_read_one_latent_of_each_key_picked():
    (core,) = (item for item in operators()["attention.core"].forward if isinstance(item, AttentionCore))
    assert (core.heads, core.kv_heads, core.qk_dim, core.v_dim) == (HEADS, 1.0, LATENT, 32)
    assert (core.q_len, core.kv_len, core.pairs) == (SEQ, 64, SEQ * 64)
    filled = 64 * SEQ - 64 * 63 / 2
    assert core.flops == pytest.approx(2 * HEADS * filled * (LATENT + 32))
    assert core.executed_flops == pytest.approx(2 * HEADS * SEQ * 64 * (LATENT + 32))  # empty places, too
    assert not core.grows


def test_short_sequences_have_no_more_places_than_keys():
    (core,) = (
        item for item in operators(seq_len=48)["attention.core"].forward if isinstance(item, AttentionCore)
    )
    assert core.pairs == 48 * 48


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_queries_are_made_wide_and_results_narrow_by_each_head(tp):
    result = operators(tp=tp, sp=tp > 1)
    for name, k, n in (("absorb", 24, 32), ("expand", 32, 20)):
        forward, back, weight = (
            getattr(result[f"attention.{name}"], item)[0]
            for item in ("forward", "backward_input", "backward_weight")
        )
        assert (forward.m, forward.k, forward.n, forward.batch) == (SEQ, k, n, HEADS / tp)
        assert (back.m, back.k, back.n) == (SEQ, n, k)
        assert (weight.m, weight.k, weight.n) == (n, SEQ, k)


def test_the_projection_up_is_one_weight_as_in_dense_attention():
    dense = replace(SPEC, top_k=None, indexer=None)
    ours, theirs = (
        {parameter.name: parameter.elements for parameter in block(spec).parameters} for spec in (SPEC, dense)
    )
    assert {name: size for name, size in ours.items() if "index" not in name} == theirs
    indexer = {name: size for name, size in ours.items() if "index" in name}
    assert indexer == {
        "attention.index_query.weight": 48 * 4 * 16,
        "attention.index_key.weight": HIDDEN * 16,
        "attention.index_weights.weight": HIDDEN * 4,
        "attention.index_key_norm.weight": 16,
        "attention.index_key_norm.bias": 16,
    }


def test_the_indexer_is_whole_on_every_rank_and_gathers_what_it_reads():
    result = operators(tp=4, sp=True)
    (gather,) = messages(result["attention.index_gather"])
    assert gather == ("all_gather", "tp", SEQ * (HIDDEN + 48) * 2)
    (query,) = (item for item in result["attention.index_query"].forward if isinstance(item, Gemm))
    assert (query.m, query.k, query.n) == (SEQ, 48, 4 * 16)
    assert result["attention.index_query"].backward_input == ()
    assert "attention.index_gather" not in operators(tp=4, sp=False)
    whole = {parameter.name: parameter.local_elements for parameter in block(tp=4, sp=True).parameters}
    assert whole["attention.index_query.weight"] == 48 * 4 * 16


def test_scores_meet_all_keys_and_only_those_picked_learn():
    result = operators(tp=2, sp=True)
    (scores,) = (item for item in result["attention.index_scores"].forward if isinstance(item, Gemm))
    assert scores.flops == pytest.approx(2 * 4 * 16 * SEQ * (SEQ + 1) / 2)
    filled = 64 * SEQ - 64 * 63 / 2
    (target,) = (item for item in result["attention.index_target"].forward if isinstance(item, Gemm))
    assert target.flops == pytest.approx(2 * HEADS / 2 * LATENT * filled)
    assert messages(result["attention.index_target"]) == [("all_reduce", "tp", SEQ * 64 * 4)]
    (gradient,) = result["attention.index_loss"].backward_input
    assert gradient.flops == pytest.approx(3 * 2 * 4 * 16 * filled)


def test_an_indexer_that_is_not_trained_has_no_backward_and_keeps_what_it_picked():
    still = replace(SPEC, indexer=Indexer(num_heads=4, head_dim=16, trained=False))
    result = operators(still)
    assert not {"attention.index_target", "attention.index_loss"} & set(result)
    for name in ("query", "key", "weights"):
        assert result[f"attention.index_{name}"].backward_weight == ()
    kept = {tensor.name: tensor.num_bytes for tensor in keep(block(still), Recompute()).tensors}
    assert {name for name in kept if "index" in name} == set()
    assert kept["attention.picked"] == SEQ * 64 * 4


def test_what_is_kept():
    kept = {tensor.name: tensor.num_bytes for tensor in keep(block(), Recompute()).tensors}
    ours = {
        name: size for name, size in kept.items() if name.startswith("attention.") and "index" not in name
    }
    for gone in ("attention.input", "attention.input.statistics", "attention.residual"):
        ours.pop(gone)
    assert ours == {
        "attention.query_compressed": SEQ * 48 * 2,
        "attention.query_latent": SEQ * 48 * 2,
        "attention.query_latent.statistics": SEQ * 4,
        "attention.kv_compressed": SEQ * LATENT * 2,
        "attention.kv_latent.statistics": SEQ * 4,
        "attention.query_heads": SEQ * HEADS * 32 * 2,
        "attention.query": SEQ * HEADS * LATENT * 2,
        "attention.key": SEQ * LATENT * 2,
        "attention.value": 0.0,
        "attention.core_output": SEQ * HEADS * 32 * 2,
        "attention.softmax_statistics": SEQ * HEADS * 4,
        "attention.values": SEQ * HEADS * 20 * 2,
        "attention.picked": SEQ * 64 * 4,
    }
    assert {name: size for name, size in kept.items() if "index" in name} == {
        "attention.index_query": SEQ * 64 * 2,
        "attention.index_key": SEQ * 16 * 2,
        "attention.index_weights": SEQ * 4 * 2,
        "attention.index_input": 0.0,  # gathered over tp: none at tp 1
    }


def test_layers_that_share_pick_nothing():
    assert not [name for name in operators(replace(SPEC, indexer=None)) if "index" in name]


def test_latents_and_keys_of_the_indexer_are_gathered_over_cp():
    result = operators(cp=4, cp_kind="all_gather")
    assert messages(result["attention.gather_kv"]) == [("all_gather", "cp", SEQ * LATENT * 2)]
    assert messages(result["attention.index_scores"]) == [("all_gather", "cp", SEQ * 16 * 2)]
