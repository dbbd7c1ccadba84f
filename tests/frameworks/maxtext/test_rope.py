"""Rotary positions in MaxText's keys."""

from __future__ import annotations

import pytest

from forescale.catalogue.models import load_model
from forescale.export import export
from forescale.face import ask
from forescale.frameworks.maxtext.command import base_values
from forescale.frameworks.maxtext.rope import read_rope, rope_keys
from forescale.frameworks.settings import Settings
from forescale.spec.rope import GPT_OSS_ROPE, PLAIN_ROPE, Rope


def read(block="llama2", *, local=False, **keys):
    return read_rope(Settings({**base_values(), **keys}, "run.yml"), block, local=local)


def test_what_base_yml_has():
    assert read() == PLAIN_ROPE
    assert read(rope_type="yarn", rope_factor=1) == PLAIN_ROPE


def test_scalings():
    assert read(rope_type="llama3.1", rope_max_timescale=500000) == Rope(
        base=5e5, scaling="llama3", factor=8.0, original_seq_len=8192
    )
    assert read(rope_type="llama3.1", rope_use_scale=False) == PLAIN_ROPE
    assert read(rope_linear_scaling_factor=8.0) == Rope(base=1e4, scaling="linear", factor=8.0)
    softmax = read(rope_type="yarn", mscale=0.707)  # queries times keys are scaled (attention_mla.py)
    assert (softmax.mscale, softmax.mscale_all_dim, softmax.concentration) == (0.707, 0.707, 1)
    assert read(rope_type="yarn", rope_factor=32, rope_attention_scaling=True).concentration == pytest.approx(
        1.346574
    )


def test_local_layers_and_shares_are_those_of_some_blocks():
    near = {
        "rope_max_timescale": 1000000,
        "local_rope_max_timescale": 10000,
        "rope_linear_scaling_factor": 8.0,
    }
    assert read("gemma3", local=True, **near) == PLAIN_ROPE
    assert read("gemma3", **near) == Rope(base=1e6, scaling="linear", factor=8.0)
    assert read("qwen3_next", partial_rotary_factor=0.25).share == 0.25
    assert read("llama2", partial_rotary_factor=0.25).share == 1


@pytest.mark.parametrize(
    ("model", "block"),
    [
        ("llama-3.1-8b", "llama2"), ("qwen3-8b", "qwen3"), ("deepseek-v2", "deepseek"), ("gpt-oss-20b", "gpt_oss"),
        ("gemma-3-27b", "gemma3"), ("qwen3-next-80b-a3b", "qwen3_next"), ("kimi-k2", "deepseek"),
    ],
)  # fmt: skip
def test_what_is_written_reads_back(model, block):
    far, near = load_model(model).text.ropes
    keys = rope_keys(load_model(model).text, block)
    assert read(block, **keys) == far
    assert near is None or read(block, local=True, **keys) == near


def test_gpt_oss():
    assert load_model("gpt-oss-20b").ropes == (GPT_OSS_ROPE, GPT_OSS_ROPE)


def test_a_name_of_another_base_is_not_taken():
    """MaxText's qwen3-235b-a22b is the release of July 2025, whose base is 5,000,000."""
    question = ask(
        "qwen3-235b-a22b", "h100-sxm", devices=64, seq_len=4096, global_batch_size=64, framework="maxtext"
    )
    result = export(question)
    text = result.texts["run.yml"]
    assert "rope_max_timescale: 1000000" in text
    assert "model_name" not in text
    assert not [item for item in result.unsaid if item.word.endswith(("rope", "norm_eps"))]
