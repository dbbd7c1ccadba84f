"""What one device holds of a block's parameters, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests import toy

from forescale.graph.per_block import build_blocks
from forescale.memory.parameters import holdings
from forescale.spec import DenseFfn, FullAttention, Layer, Layout, Model, MoeFfn
from forescale.spec.layout import Kernels

HIDDEN, VOCAB = 130, 950
DENSE = Layer(
    attention=FullAttention(num_heads=12, num_kv_heads=4, head_dim=40, qkv_bias=True),
    ffn=DenseFfn(ffn_hidden_size=46),
)
ROUTED = Layer(
    attention=None,
    ffn=MoeFfn(
        num_experts=20, top_k=6, ffn_hidden_size=34, shared_ffn_hidden_size=58, score_bias=True, bias=True
    ),
    num_norms=1,
)
MODEL = Model(
    name="by-hand",
    hidden_size=HIDDEN,
    layers=(DENSE, ROUTED),
    vocab_size=VOCAB,
    vocab_multiple=1,
    num_mtp_layers=1,
)


def held(**layout):
    return holdings(build_blocks(MODEL, toy.layout(Layout(**layout), 462.0)))


def test_a_dense_layer():
    """Half of heads and columns over tp 2: biases of queries, keys and values with them, norms whole."""
    layer = held(tp=2).layers[0]
    attention, biases = HIDDEN * (6 + 2 * 2) * 40 + 6 * 40 * HIDDEN, (6 + 2 * 2) * 40
    assert layer.dense == 2 * HIDDEN + attention + biases + 3 * HIDDEN * 23
    assert layer.vectors == 2 * HIDDEN + biases
    assert layer.narrow == attention + 3 * HIDDEN * 23
    assert layer.largest.dense == HIDDEN * 6 * 40  # queries, or the output; gate and up are apart
    assert (layer.expert, layer.largest.expert, layer.num_experts, layer.expert_tensors) == (0, 0, 0, 0)
    assert (layer.tensors, layer.score_biases, layer.vocabulary) == (2 + 3 + 3 + 1 + 2, 0, 0)


def test_a_layer_of_experts():
    """4 of 20 experts over ep 5; a router with a bias that selects, and a shared expert."""
    layer = held(ep=5, dp_shard=5).layers[1]
    router, shared, item = HIDDEN * 20, 3 * HIDDEN * 58, 3 * HIDDEN * 34
    assert layer.dense == HIDDEN + router + 20 + shared
    assert layer.expert == 4 * (item + 2 * 34 + HIDDEN)
    assert layer.vectors == HIDDEN + 20
    assert layer.narrow == shared + 4 * item
    assert layer.largest.expert == 4 * HIDDEN * 34
    assert layer.largest.dense == HIDDEN * 58
    assert (layer.num_experts, layer.expert_tensors, layer.score_biases) == (20, 4, 20)
    assert layer.tensors == 1 + 2 + 4 + 2


@pytest.mark.parametrize(
    ("joined", "dense", "vectors", "expert"),
    [
        ({"joins_qkv": True}, 2 + 1 + 1 + 1 + 2, 2 + 1, 4),
        ({"joins_gate": False}, 2 + 3 + 3 + 1 + 3, 2 + 3, 6),
        ({"joins_qkv": True, "joins_gate": False}, 2 + 1 + 1 + 1 + 3, 2 + 1, 6),
    ],
)
def test_what_a_framework_holds_as_one_parameter(joined, dense, vectors, expert):
    """Queries, keys and values with their biases as one or three; gate and up, of experts with biases, as one or two."""
    layer, routed = held(kernels=Kernels(**joined)).layers
    assert (layer.tensors, layer.vector_tensors) == (dense, vectors)
    assert routed.expert_tensors == expert
    assert layer.dense == held().layers[0].dense


def test_both_ends_and_prediction():
    """The head's matrix is told apart; prediction has its own norms, its join and the model's last layer."""
    result = held()
    assert (result.embedding.dense, result.embedding.tensors) == (VOCAB * HIDDEN, 1)
    assert (result.head.dense, result.head.vocabulary, result.head.tensors) == (HIDDEN, VOCAB * HIDDEN, 2)
    layer = result.layers[1]
    assert result.mtp.dense == layer.dense + 2 * HIDDEN + 2 * HIDDEN * HIDDEN + HIDDEN
    assert (result.mtp.expert, result.mtp.score_biases) == (layer.expert, 20)
    assert result.mtp.tensors == layer.tensors + 2 + 1 + 1


@pytest.mark.parametrize("tp", [1, 2])
def test_products_by_operator(tp):
    result = held(tp=tp)
    assert result.layers[0].products == {
        "attention.qkv": HIDDEN * 20 * 40 / tp,
        "attention.output": 12 * 40 * HIDDEN / tp,
        "ffn.up": HIDDEN * 2 * 46 / tp,
        "ffn.down": 46 * HIDDEN / tp,
    }
    products = {name: size for name, size in result.layers[1].products.items() if name.startswith("moe")}
    assert products == {"moe.router": HIDDEN * 20, "moe.up": HIDDEN * 68, "moe.down": 34 * HIDDEN}


def test_ungated_and_without_biases():
    plain = replace(
        MODEL, layers=(replace(DENSE, ffn=DenseFfn(ffn_hidden_size=46, gated=False)),), num_mtp_layers=0
    )
    result = holdings(build_blocks(plain, toy.layout(Layout(), 462.0)))
    assert result.layers[0].products["ffn.up"] == HIDDEN * 46
    assert result.mtp is None
