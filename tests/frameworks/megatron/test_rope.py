"""Rotary positions in Megatron's flags: read as its parser takes them, written as read."""

from __future__ import annotations

import pytest
from tests.errors import raises

from forescale.catalogue.models import load_model, model_names
from forescale.errors import ReaderError
from forescale.frameworks.megatron import read_arguments
from forescale.frameworks.megatron.model import read_model
from forescale.frameworks.megatron.rope import read_rope, rope_settings
from forescale.frameworks.megatron.write_layout import model_settings
from forescale.frameworks.settings import Settings
from forescale.spec import FullAttention, LatentAttention
from forescale.spec.rope import GPT_OSS_ROPE, PLAIN_ROPE, Rope

BASE = (
    "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --vocab-size 1000 --micro-batch-size 1 --seq-length 64 "
    "--position-embedding-type"
)
LATENT = f"{BASE} rope --multi-latent-attention "
YARN = {"scaling": "yarn", "factor": 40.0, "original_seq_len": 4096, "mscale": 0.707, "mscale_all_dim": 0.707}


@pytest.mark.parametrize(
    ("flags", "rope"),
    [
        (f"{BASE} rope", PLAIN_ROPE),
        (f"{BASE} rope --rotary-base 500000 --rotary-percent 0.5", Rope(base=5e5, share=0.5)),
        (
            f"{BASE} rope --use-rope-scaling",
            Rope(base=1e4, scaling="llama3", factor=8.0, original_seq_len=8192),
        ),
        (
            f"{BASE} rope --use-rope-scaling --rope-scaling-factor 32",
            Rope(base=1e4, scaling="llama3", factor=32.0, original_seq_len=8192),
        ),
        (
            f"{BASE} rope --rotary-seq-len-interpolation-factor 4",
            Rope(base=1e4, scaling="linear", factor=4.0),
        ),
        (f"{BASE} yarn", PLAIN_ROPE),
        (
            f"{BASE} yarn --rotary-scaling-factor 4 --yarn-beta-fast 16 --no-yarn-correction-range-round-to-int",
            Rope(base=1e4, scaling="yarn", factor=4.0, original_seq_len=4096, beta_fast=16.0, rounded=False),
        ),
        (LATENT, PLAIN_ROPE),
        (
            f"{LATENT} --rotary-scaling-factor 40 --mscale 0.707 --mscale-all-dim 0.707",
            Rope(base=1e4, **YARN),
        ),
        (f"{LATENT} --rope-type rope --rotary-scaling-factor 40", PLAIN_ROPE),
    ],
)
def test_flags(flags, rope):
    assert read_arguments(flags).model.ropes[0] == rope


def test_models_without_rotary_positions_have_none():
    learned = read_arguments(f"{BASE} learned_absolute --rotary-base 500000 --max-position-embeddings 128")
    assert learned.model.ropes == (None, None)
    assert read_arguments(f"{BASE} rope --norm-epsilon 1e-6").model.norm_eps == 1e-6
    assert read_arguments(f"{BASE} rope").model.norm_eps == 1e-5, "TransformerConfig.layernorm_epsilon"


@pytest.mark.parametrize("every", ["4", "[0]*3+[1]*1+[0]*3+[1]*1"])
def test_layers_without_positions(every):
    more = "--rotary-base 500000 --micro-batch-size 1 --seq-length 64 --position-embedding-type rope --no-rope-freq"
    read = read_arguments(
        f"--num-layers 8 --hidden-size 64 --num-attention-heads 4 --vocab-size 1000 {more} {every}"
    )
    assert [layer.attention.rotary for layer in read.model.layers] == [True, True, True, False] * 2
    assert read.model.ropes[0].base == 5e5


def test_layers_without_positions_are_written():
    model = load_model("exaone-4.0-32b")
    settings = model_settings(model, seq_len=4096)
    assert settings["no_rope_freq"] == "+".join(["[0]*3", "[1]*1"] * 16)
    again = read_model(Settings(settings, "settings"), name="again")
    assert [layer.attention.rope for layer in again.layers] == [
        layer.attention.rope for layer in model.layers
    ]
    assert [layer.attention.rotary for layer in again.layers] == [
        layer.attention.rotary for layer in model.layers
    ]
    assert model_settings(load_model("qwen3-8b"), seq_len=4096)["no_rope_freq"] is None


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ("--rotary-base 0", "out_of_range --rotary-base"),
        ("--rotary-percent -1", "out_of_range --rotary-percent"),
        ("--use-rope-scaling --rope-scaling-factor x", "wrong_type --rope-scaling-factor"),
    ],
)
def test_bad_values_are_refused(flags, text):
    with raises(ReaderError, text):
        read_arguments(f"{BASE} rope {flags}")


HEADS = {"num_heads": 8, "num_kv_heads": 2, "head_dim": 64}
MLA = {"num_heads": 8, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32}


@pytest.mark.parametrize(
    "attention",
    [
        FullAttention(**HEADS, rope=Rope(base=5e5, share=0.25)),
        FullAttention(**HEADS, rope=Rope(base=5e5, scaling="llama3", factor=32.0, original_seq_len=8192)),
        FullAttention(**HEADS, rope=Rope(base=1e6, scaling="linear", factor=8.0)),
        FullAttention(**HEADS, rope=GPT_OSS_ROPE),
        LatentAttention(**MLA),
        LatentAttention(**MLA, rope=Rope(base=5e4, **YARN)),
        LatentAttention(**MLA, rope=Rope(base=5e4, **{**YARN, "original_seq_len": 8192}, beta_fast=1.0)),
    ],
)
def test_what_is_written_reads_back(attention):
    latent = {"multi_latent_attention": isinstance(attention, LatentAttention)}
    assert read_rope(Settings(latent | rope_settings(attention), "settings")) == attention.rope


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("llama-3-8b", {"rotary_base": 500000, "layernorm_epsilon": 1e-5, "use_rope_scaling": None}),
        ("llama-3.2-1b", {"rotary_base": 500000, "use_rope_scaling": True, "rope_scaling_factor": 32.0}),
        ("qwen3-8b", {"rotary_base": 1000000, "layernorm_epsilon": 1e-6, "rotary_percent": None}),
        ("glm-4.5", {"rotary_base": 1000000, "rotary_percent": 0.5}),
        ("deepseek-v2", {"rotary_scaling_factor": 40.0, "mscale": 0.707, "mscale_all_dim": 0.707}),
        ("moonlight-16b-a3b", {"rotary_base": 50000, "rotary_scaling_factor": 1.0, "mscale": None}),
        ("gpt2-xl", {"rotary_base": None, "position_embedding_type": "learned_absolute"}),
        ("nemotron-h-56b", {"rotary_base": None, "position_embedding_type": "none"}),
    ],
)
def test_models_of_the_catalogue(model, words):
    settings = model_settings(load_model(model), seq_len=4096)
    assert {key: settings.get(key) for key in words} == words


@pytest.mark.parametrize(
    ("model", "flags"),
    [
        ("deepseek-v3", {"score_function": "sigmoid", "topk_scaling_factor": 2.5, "pre_softmax": False}),
        ("deepseek-v2", {"score_function": None, "topk_scaling_factor": 16.0, "pre_softmax": True}),
        ("qwen3-30b-a3b", {"score_function": None, "topk_scaling_factor": None, "pre_softmax": False}),
        ("qwen2-57b-a14b", {"score_function": None, "topk_scaling_factor": None, "pre_softmax": True}),
    ],
)
def test_weights_of_experts(model, flags):
    known = load_model(model)
    settings = model_settings(known, seq_len=4096)
    assert {key: settings[f"moe_router_{key}"] for key in flags} == flags
    again = read_model(Settings(settings, "settings"), name=model).moe
    assert (again.score, again.normalised) == (known.moe.score, known.moe.normalised)
    assert again.weight_scale == known.moe.weight_scale


def test_every_base_of_the_catalogue_can_be_said():
    """--rotary-base takes whole numbers."""
    bases = {rope.base for name in model_names() for rope in load_model(name).text.ropes if rope}
    assert {1e4, 5e5, 1e6} < bases
    assert all(base.is_integer() for base in bases)


def test_yarn_does_not_predict_further_tokens():
    """arguments.py: mtp_num_layers with position_embedding_type yarn."""
    more = "--micro-batch-size 1 --seq-length 64 --rotary-scaling-factor 4 --mtp-num-layers 1"
    flags = f"--num-layers 8 --hidden-size 64 --num-attention-heads 4 --vocab-size 1000 {more}"
    with raises(ReaderError, "unsupported_by Megatron-LM"):
        read_arguments(f"{flags} --position-embedding-type yarn")
    assert read_arguments(
        f"{flags} --position-embedding-type rope --multi-latent-attention"
    ).model.num_mtp_layers
