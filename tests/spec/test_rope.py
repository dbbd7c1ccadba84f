"""Rotary positions: what they cost, what they may say, and what earlier versions called them."""

from __future__ import annotations

import math

import pytest

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
        ({"factor": 8.0}, "factor 8.0 says nothing of a rope whose scaling is none"),
        (
            {"scaling": "llama3", "factor": 8.0, "original_seq_len": 8192, "beta_fast": 16.0},
            "beta_fast 16.0 says nothing of a rope whose scaling is llama3",
        ),
        ({"scaling": "yarn", "factor": 8.0}, "the scaling yarn of a rope needs original_seq_len"),
        (
            {"scaling": "llama3", "factor": 8.0, "original_seq_len": 8192, "low_freq_factor": 5.0},
            "low_freq_factor 5 of a rope must be at most high_freq_factor 4",
        ),
        (
            {"scaling": "yarn", "factor": 8.0, "original_seq_len": 8192, "beta_fast": 0.5},
            "beta_slow 1 of a rope must be at most beta_fast 0.5",
        ),
    ],
)
def test_what_a_scaling_does_not_go_by_is_refused(words, text):
    with pytest.raises(SpecError, match=text):
        Rope(base=1e4, **words)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ({"base": 0}, r"attention\.rope\.base must be greater than 0, got 0"),
        ({"base": 1e4, "share": 1.5}, r"rope\.share must be .*1.*got 1\.5"),
        ({"base": 1e4, "theta": 3}, "unknown key 'theta'"),
    ],
)
def test_bad_values_are_said_with_their_place(words, text):
    with pytest.raises(SpecError, match=text):
        build(Layer, {"attention": {**HEADS, "rope": words}, "ffn": None}, where="a plan")


def test_words_of_earlier_versions_are_read():
    """`scaled_rotary` stood in documents of every model; true in those of GPT-OSS."""

    def read(**words):
        return build(FullAttention, {**HEADS, **words}, where="a document")

    assert read(rotary=True, scaled_rotary=False) == read(rotary=True) == FullAttention(**HEADS)
    assert read(scaled_rotary=True).rope == GPT_OSS_ROPE
    assert not read(rotary=False).rotary
    with pytest.raises(SpecError, match="scaled_rotary"):
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
