"""Moments per parameter, on a model whose matrices and vectors are few enough to count."""

from __future__ import annotations

import pytest
from tests.small import dense, moe

from forescale.graph.counts import EVERYTHING, count_parameters
from forescale.memory.states import moments_per_parameter
from forescale.spec import DenseFfn, FullAttention, Layer, Model

H, F, V = 64, 128, 1000
MODEL = Model(
    name="tiny",
    hidden_size=H,
    layers=(
        Layer(
            attention=FullAttention(num_heads=4, num_kv_heads=4, head_dim=16),
            ffn=DenseFfn(ffn_hidden_size=F, gated=False),
        ),
    ),
    vocab_size=V,
)
HIDDEN_MATRICES = 4 * H * H + 2 * H * F
ENDS = 2 * V * H
VECTORS = 3 * H
TOTAL = HIDDEN_MATRICES + ENDS + VECTORS


def test_parameters_are_as_counted_by_hand():
    assert count_parameters(MODEL).total == TOTAL


@pytest.mark.parametrize(("optimizer", "moments"), [("adamw", 2.0), ("lion", 1.0), ("sgd", 1.0)])
def test_whole_moments(optimizer, moments):
    for model in (MODEL, dense(), moe()):
        result = moments_per_parameter(model, optimizer, EVERYTHING)
        assert result.dense == pytest.approx(moments)
        assert result.expert == pytest.approx(moments if model.is_moe else 0.0)


def test_muon_leaves_embedding_head_and_vectors_to_adamw():
    expected = (HIDDEN_MATRICES + 2 * (ENDS + VECTORS)) / TOTAL
    assert moments_per_parameter(MODEL, "muon", EVERYTHING).dense == pytest.approx(expected)
    assert moments_per_parameter(moe(), "muon", EVERYTHING).expert == 1.0


def test_adafactor_keeps_sums_of_rows_and_columns():
    sums = 4 * (H + H) + 2 * (H + F) + 2 * (V + H)
    assert moments_per_parameter(MODEL, "adafactor", EVERYTHING).dense == pytest.approx(
        (sums + VECTORS) / TOTAL
    )


def test_adafactor_factors_every_expert():
    model = moe()
    assert model.moe is not None
    width = model.moe.ffn_hidden_size
    up, down = 2 * width * model.hidden_size, width * model.hidden_size
    sums = (2 * width + model.hidden_size) + (width + model.hidden_size)
    assert moments_per_parameter(model, "adafactor", EVERYTHING).expert == pytest.approx(sums / (up + down))
