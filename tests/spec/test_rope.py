"""Rotary positions: what they cost, what they may say, and what earlier versions called them."""

from __future__ import annotations

import math

import pytest
from tests.errors import raises

from forescale.errors import SpecError
from forescale.io.named import build
from forescale.spec import FullAttention, MoeFfn
from forescale.spec.model import Layer
from forescale.spec.rope import GPT_OSS_ROPE, PLAIN_ROPE, Rope

HEADS = {"num_heads": 8, "num_kv_heads": 2, "head_dim": 64}


def yarn(**words):
    return Rope(**{"base": 1e4, "scaling": "yarn", "factor": 40.0, "original_seq_len": 4096, **words})


def test_concentration_of_gpt_oss_by_hand():
    """0.1 ln 32 + 1 (transformers, modeling_rope_utils.py)."""
    assert GPT_OSS_ROPE.concentration == pytest.approx(1.3465735902799727)


def test_equal_weights_leave_sines_and_cosines_as_they_are():
    assert yarn(mscale=0.707, mscale_all_dim=0.707).concentration == 1
    assert yarn(mscale=1.0, mscale_all_dim=0.0).concentration == pytest.approx(0.1 * math.log(40) + 1)
    assert yarn(factor=1.0).concentration == PLAIN_ROPE.concentration == 1


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ({"factor": 8.0}, "no_effect factor"),
        (
            {"scaling": "llama3", "factor": 8.0, "original_seq_len": 8192, "beta_fast": 16.0},
            "no_effect beta_fast",
        ),
        ({"scaling": "yarn", "factor": 8.0}, "required_with original_seq_len, in tokens"),
        (
            {"scaling": "llama3", "factor": 8.0, "original_seq_len": 8192, "low_freq_factor": 5.0},
            "out_of_range low_freq_factor of a rope",
        ),
        (
            {"scaling": "yarn", "factor": 8.0, "original_seq_len": 8192, "beta_fast": 0.5},
            "out_of_range beta_slow of a rope",
        ),
    ],
)
def test_what_a_scaling_does_not_go_by_is_refused(words, text):
    with raises(SpecError, text):
        Rope(base=1e4, **words)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ({"base": 0}, "out_of_range attention.rope.base"),
        ({"base": 1e4, "share": 1.5}, "out_of_range attention.rope.share"),
        ({"base": 1e4, "theta": 3}, "unknown_key theta"),
    ],
)
def test_bad_values_are_said_with_their_place(words, text):
    with raises(SpecError, text):
        build(Layer, {"attention": {**HEADS, "rope": words}, "ffn": None}, where="a plan")


def test_words_of_earlier_versions_are_read():
    """`scaled_rotary` stood in documents of every model; true in those of GPT-OSS."""

    def read(**words):
        return build(FullAttention, {**HEADS, **words}, where="a document")

    assert read(rotary=True, scaled_rotary=False) == read(rotary=True) == FullAttention(**HEADS)
    assert read(scaled_rotary=True).rope == GPT_OSS_ROPE
    assert not read(rotary=False).rotary
    with raises(SpecError, "unknown_key scaled_rotary"):
        read(scaled_rotary="yes")


def test_positions_that_there_are_none_of_scale_nothing():
    turned = FullAttention(**HEADS, rope=GPT_OSS_ROPE)
    assert (turned.scaled_rotary, turned.without_positions().scaled_rotary) == (True, False)
    assert turned.without_positions() == FullAttention(**HEADS, rotary=False)


def test_selection_biases_of_earlier_versions_meant_sigmoids():
    sizes = {"num_experts": 8, "top_k": 2, "ffn_hidden_size": 64}
    assert build(MoeFfn, {**sizes, "score_bias": True}, where="a document").score == "sigmoid"
    assert (
        build(MoeFfn, {**sizes, "score_bias": True, "score": "softmax"}, where="a document").score
        == "softmax"
    )
    assert build(MoeFfn, sizes, where="a document").score == "softmax"
