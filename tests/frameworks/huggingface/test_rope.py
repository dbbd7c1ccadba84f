"""Rotary positions and norms of a config.json, as transformers 4 and 5 write them."""

from __future__ import annotations

import pytest
from tests.errors import raises

from forescale.catalogue.models import load_model, model_names
from forescale.errors import ReaderError, SpecError
from forescale.frameworks.huggingface.reader import read_huggingface
from forescale.frameworks.huggingface.writer import config_of, same_model
from forescale.spec.rope import Rope

SIZES = {
    "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 6, "vocab_size": 1000, "max_position_embeddings": 8192,
}  # fmt: skip
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 4096,
}
SCALED = Rope(base=5e5, scaling="llama3", factor=8.0, original_seq_len=4096)


def ropes(kind="llama", **keys):
    model = read_huggingface({"model_type": kind, **SIZES, **keys}, name="x", where="config.json").model
    return model.ropes


def far(kind="llama", **keys):
    return ropes(kind, **keys)[0]


def test_both_spellings():
    old = far(rope_theta=500000, rope_scaling={**LLAMA3, "rope_type": "llama3"})
    new = far(rope_parameters={**LLAMA3, "rope_type": "llama3", "rope_theta": 500000})
    assert old == new == far(rope_theta=500000, rope_scaling={**LLAMA3, "type": "llama3"}) == SCALED


def test_a_file_that_says_nothing_has_its_class_s():
    assert far() == Rope(base=1e4)
    assert far("mixtral", num_local_experts=4, num_experts_per_tok=2).base == 1e6
    assert far("phi").share == 0.5


def test_a_share_of_the_head():
    assert far("gpt_neox", rotary_pct=0.5, rotary_emb_base=2e4) == Rope(base=2e4, share=0.5)
    assert far(partial_rotary_factor=0.75).share == 0.75
    assert far(rope_parameters={"rope_theta": 1e4, "partial_rotary_factor": 0.25}).share == 0.25
    assert far(head_dim=64, rotary_dim=16).share == 0.25


def test_layers_with_a_window_have_positions_of_their_own():
    old = ropes(
        "gemma3_text", rope_theta=2e6, rope_local_base_freq=3e4, rope_scaling={"type": "linear", "factor": 8}
    )
    new = ropes(
        "gemma3_text",
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 3e4},
        },
    )
    assert old == new == (Rope(base=2e6, scaling="linear", factor=8.0), Rope(base=3e4))


def test_yarn():
    scaling = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 16}
    result = far(rope_scaling={**scaling, "mscale": 0.707, "mscale_all_dim": 0.707, "truncate": False})
    assert result == Rope(
        base=1e4, scaling="yarn", factor=40.0, original_seq_len=4096, beta_fast=16.0, mscale=0.707, mscale_all_dim=0.707,
        rounded=False,
    )  # fmt: skip
    assert far(rope_scaling=scaling).concentration == pytest.approx(1.3688879454)  # 0.1 ln 40 + 1
    assert far(rope_scaling={**scaling, "attention_factor": 1.2}).concentration == pytest.approx(1.2)
    assert far(rope_scaling={"type": "yarn", "factor": 4}).original_seq_len == 8192, "max_position_embeddings"


def test_a_scaling_that_is_not_described_is_listed():
    config = {"model_type": "llama", **SIZES, "rope_scaling": {"type": "longrope", "long_factor": [1.0]}}
    read = read_huggingface(config, name="x", where="config.json")
    assert read.model.ropes[0] == Rope(base=1e4)
    assert read.ignored == ("rope_scaling.long_factor", "rope_scaling.type")
    plain = {"model_type": "llama", **SIZES, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    assert read_huggingface(plain, name="x", where="config.json").ignored == ()


@pytest.mark.parametrize("value", [0, -1, "10k", True])
def test_bad_values_are_refused(value):
    with raises(ReaderError, "out_of_range rope_theta"):
        far(rope_theta=value)


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"rope_scaling": "yarn"}, "wrong_type rope_scaling"),
        (
            {"rope_parameters": {"rope_type": ["yarn"]}},
            "wrong_type rope_type",
        ),
        (
            {"rope_scaling": {"type": "yarn", "factor": 0}},
            "out_of_range factor",
        ),
        (
            {"rope_scaling": {"type": "llama3", "factor": 8.0}, "max_position_embeddings": None},
            "required_with original_seq_len, in tokens",
        ),
    ],
)
def test_tables_that_cannot_be_are_refused(keys, text):
    with raises(ReaderError, text):
        far(**keys)


def test_weights_of_zero_are_none():
    """transformers takes them as if they were not there."""
    scaling = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}
    assert far(rope_scaling={**scaling, "mscale": 0, "mscale_all_dim": 0}) == far(rope_scaling=scaling)


@pytest.mark.parametrize("kind", ["llama", "glm4", "gpt_neox"])
def test_epsilon_of_norms(kind):
    def eps(**keys):
        read = read_huggingface({"model_type": kind, **SIZES, **keys}, name="x", where="config.json")
        return read.model.norm_eps

    assert eps() == {"llama": 1e-6, "glm4": 1.5625e-7, "gpt_neox": 1e-5}[kind]
    assert eps(rms_norm_eps=2e-5) == eps(layer_norm_eps=2e-5) == 2e-5


def test_what_is_written_has_the_same_positions():
    """Of those of the catalogue whose layers an architecture describes to the last field: all but hybrids."""
    exact = 0
    for name in model_names():
        model = load_model(name).text
        try:
            read = read_huggingface(config_of(model), name=name, where="config.json").model
        except SpecError:  # no architecture that is written has its parts
            continue
        if same_model(read.shape, model.shape):
            exact += 1
            assert same_model(read, model), name
    assert exact >= EXACT


EXACT = 141
"""Models of the catalogue that are written to the last field."""
