"""Attention to picked keys against kernels that were measured and FLOP that Megatron-Bridge counts."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from forescale.catalogue.clusters import load_device
from forescale.catalogue.models import load_model
from forescale.cost.calibration import load_calibration
from forescale.cost.tile import TileModel
from forescale.graph.counts import model_flops
from forescale.graph.layer import layer_block
from forescale.graph.ops import AttentionCore, Elementwise, Gemm
from forescale.graph.sharding import ShardingRules, split_layout
from forescale.spec import Layer, Layout, Model, Precision

TABLE = Path(__file__).parents[1] / "data/kernels/picked_keys.csv"
with TABLE.open(encoding="utf-8") as lines:
    MEASURED = list(csv.DictReader(lines))
GLM = load_model("glm-5")


def forward(seq_len: int) -> dict[str, tuple]:
    """What the operators of one layer of GLM-5 do forward on one device."""
    degrees, choices = split_layout(Layout())
    layout = ShardingRules(degrees=degrees, choices=choices, precision=Precision(), seq_len=float(seq_len))
    return {
        operator.name: operator.forward for operator in layer_block(GLM, GLM.layers[-1], layout).operators
    }


def of_kind(work: tuple, kind: type):
    (result,) = (item for item in work if isinstance(item, kind))
    return result


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: "-".join(row.values()))
def test_kernels_take_what_was_measured(row: dict[str, str]):
    """FlashMLA multiplies by all 2,048 places for keys, filled or not: within 15 %.

    DeepGEMM's scores are in 8 bits, ours in 16: up to 1.35 times as long, and not shorter. Picking takes between the
    times of the easiest and the hardest scores, which those kernels read and ours also write.
    """
    device = load_device(row["device"])
    model = TileModel(device=device, calibration=load_calibration(device))
    work, measured = forward(int(row["queries"])), float(row["milliseconds"]) / 1e3
    if row["kernel"] == "attention":
        core = of_kind(work["attention.core"], AttentionCore)
        assert model.seconds(core) == pytest.approx(measured, rel=0.15)
        return
    scores = work["attention.index_scores"]
    if row["kernel"] == "scores":
        assert 1.0 <= model.seconds(of_kind(scores, Gemm)) / measured <= 1.35
        return
    picking = model.seconds(of_kind(scores, Elementwise))
    assert picking > measured if row["kernel"] == "easiest pick" else picking < measured


@pytest.mark.parametrize("name", ["deepseek-v3.2", "glm-5"])
@pytest.mark.parametrize("seq_len", [1024, 4096, 131072])
def test_flop_are_those_that_megatron_bridge_counts(name: str, seq_len: int):
    """Megatron-Bridge @067f987, training/utils/flop_utils.py, of a trained indexer with a loss on the keys picked.

    It also counts the additions of the indexer's heads and the gradients of scores (which are made from scores that
    are made again): counted here as executed, not as the model's.
    """
    model = load_model(name)
    attention = model.layers[0].attention
    local, hidden, rank = attention.indexer, model.hidden_size, attention.q_lora_rank
    nope, rope = attention.qk_nope_head_dim, attention.qk_rope_head_dim
    latent, value, heads = attention.kv_lora_rank, attention.v_head_dim, attention.num_heads
    every = (seq_len + 1) / 2
    picked = min(attention.top_k, seq_len)
    context = picked - picked * (picked - 1) / (2 * seq_len)
    projections = (
        rank * (hidden + heads * (nope + rope)) + latent * (hidden + heads * (nope + value)) + hidden * rope
    )
    core = context * heads * (latent + rope + latent)
    indexer = rank * local.num_heads * local.head_dim + hidden * local.head_dim + hidden * local.num_heads
    scores = every * local.num_heads * local.head_dim
    target = context * heads * (latent + rope)
    per_token = 6 * (projections + heads * value * hidden + core) + 4 * indexer + 2 * scores + 2 * target
    alone = Model(name="one", hidden_size=hidden, layers=(Layer(attention=attention, ffn=None, num_norms=1),))
    assert model_flops(alone, seq_len).masked == pytest.approx(seq_len * per_token, rel=1e-9)


def test_gradients_of_scores_are_made_on_the_keys_picked():
    seq_len = 8192
    degrees, choices = split_layout(Layout())
    layout = ShardingRules(degrees=degrees, choices=choices, precision=Precision(), seq_len=float(seq_len))
    operators = {operator.name: operator for operator in layer_block(GLM, GLM.layers[-1], layout).operators}
    pairs = 2048 * seq_len - 2048 * 2047 / 2
    (gradient,) = operators["attention.index_loss"].backward_input
    assert gradient.flops == pytest.approx(3 * 2 * 32 * 128 * pairs)
    scores = of_kind(operators["attention.index_scores"].forward, Gemm)
    assert scores.flops == pytest.approx(2 * 32 * 128 * seq_len * (seq_len + 1) / 2)
    assert operators["attention.index_scores"].backward_input == ()
