"""Hybrid stacks by their letters, as Megatron-LM lays them out."""

from __future__ import annotations

import pytest
from tests.errors import raises

from forescale.errors import ReaderError
from forescale.frameworks.megatron import read_arguments
from forescale.frameworks.megatron.write_layout import hybrid_pattern
from forescale.frameworks.reading import Options
from forescale.spec.attention import FullAttention, LinearAttention
from forescale.spec.model import DenseFfn, MoeFfn

BASE = "--hidden-size 1024 --num-attention-heads 16 --seq-length 16 --vocab-size 100 --micro-batch-size 1 "
PP = "--pipeline-model-parallel-size "


def read(more, devices=None):
    return read_arguments(BASE + more, options=Options(num_devices=devices))


def test_each_letter_is_one_part():
    layers = read("--hybrid-layer-pattern M-*E --num-experts 8 --disable-bias-linear").model.layers
    assert [type(layer.attention) for layer in layers[:3:2]] == [LinearAttention, FullAttention]
    assert [type(layer.ffn) for layer in layers[1::2]] == [DenseFfn, MoeFfn]
    assert all((layer.attention is None) != (layer.ffn is None) for layer in layers)
    assert {layer.num_norms for layer in layers} == {1}


def test_mamba_is_as_wide_as_megatron_makes_it():
    """Defaults of Megatron-LM: expansion 2, heads of 64, 8 groups, a state of 128."""
    mixer = read("--hybrid-layer-pattern M").model.layers[0].attention
    assert (mixer.num_heads, mixer.value_head_dim) == (32, 64)
    assert (mixer.num_key_heads, mixer.key_head_dim) == (8, 128)
    more = "--mamba-num-heads 48 --mamba-head-dim 32 --mamba-num-groups 4 --mamba-state-dim 16"
    mixer = read(f"--hybrid-layer-pattern M {more}").model.layers[0].attention
    assert (mixer.num_heads, mixer.value_head_dim, mixer.num_key_heads, mixer.key_head_dim) == (48, 32, 4, 16)


@pytest.mark.parametrize(
    ("pattern", "pp", "vpp", "stages"),
    [
        ("MM--", 2, 1, None),
        ("MM|--", 2, 1, None),
        ("M-M|-", 2, 1, (3, 1)),
        ("M-|M|-|M-M", 2, 2, (2, 1, 1, 3)),
        ("M|-|M|-", 2, 2, None),
    ],
)
def test_bars_cut_stages(pattern, pp, vpp, stages):
    layout = read(f"--hybrid-layer-pattern '{pattern}' {PP}{pp} --global-batch-size 4", pp).strategy
    assert (layout.vpp, layout.stage_layers) == (vpp, stages)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ("--hybrid-layer-pattern MG*", "not_expressed --hybrid-layer-pattern"),
        ("--hybrid-layer-pattern M-*- --num-experts 8", "required_with a layer E in --hybrid-layer-pattern"),
        (
            "--hybrid-layer-pattern M/*/M",
            "not_expressed --hybrid-layer-pattern: prediction of further tokens with",
        ),
        (
            "--hybrid-layer-pattern M/**",
            "not_expressed --hybrid-layer-pattern: prediction of further tokens with",
        ),
        ("--hybrid-layer-pattern 'M||*'", "not_expressed --hybrid-layer-pattern"),
        ("--hybrid-layer-pattern M-* --num-layers 4", "differs --num-layers"),
        (f"--hybrid-layer-pattern 'M|-|*' {PP}2", "not_divisible the number of stages of the layer pattern"),
        ("--hybrid-layer-pattern ME", "missing --num-experts"),
    ],
)
def test_what_cannot_be(more, text):
    with raises(ReaderError, text) as caught:
        read(more)
    assert "\n" not in str(caught.value)


def test_layers_that_predict_further_tokens_stand_behind_the_others():
    """Nemotron 3 Super predicts two more tokens, each with attention and experts."""
    model = read("--hybrid-layer-pattern M-/*E/*E --num-experts 8").model
    assert (model.num_layers, model.num_mtp_layers) == (2, 2)
    ahead = model.mtp_layer
    assert (type(ahead.attention), type(ahead.ffn), ahead.num_norms) == (FullAttention, MoeFfn, 2)
    assert hybrid_pattern(model) == "M-/*E/*E"
    assert read("--hybrid-layer-pattern M-/-").model.mtp_layer == model.layers[1]


def test_experts_in_a_narrower_space():
    more = "--hybrid-layer-pattern ME --num-experts 8 --moe-latent-size 256"
    assert read(more).model.layers[1].ffn.latent_size == 256


def test_the_older_spelling():
    assert read("--num-layers 3 --hybrid-override-pattern M-*").model.num_layers == 3


def test_what_limits_activations_and_scales_the_rotary_embedding():
    """GPT-OSS: --activation-func-clamp-value 7.0, --position-embedding-type yarn, whose factor is not 1."""
    experts, limit = "--num-layers 2 --num-experts 8", "--activation-func-clamp-value 7.0"
    gpt_oss, other = (
        read(f"{experts} {more}").model.layers[0]
        for more in (
            f"{limit} --position-embedding-type yarn --rotary-scaling-factor 32",
            "--position-embedding-type rope",
        )
    )
    assert (gpt_oss.ffn.limited, gpt_oss.attention.scaled_rotary) == (True, True)
    assert (other.ffn.limited, other.attention.scaled_rotary) == (False, False)
