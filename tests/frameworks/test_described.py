"""Decoders described by their sizes: parameters, what is assumed, and what is refused."""

from __future__ import annotations

import json

import pytest

import forescale as fs
from forescale.errors import ForescaleError, UnknownKeyError
from forescale.frameworks.described import described_model
from forescale.frameworks.detect import detect
from forescale.frameworks.readers import read_model
from forescale.frameworks.reading import Options
from forescale.graph.counts import count_parameters

GPT = {"n_layer": 3, "n_embd": 64, "n_head": 4, "vocab_size": 512, "block_size": 128}
LLAMA = {"depth": 3, "dim": 64, "n_heads": 8, "n_kv_heads": 2, "intermediate_size": 160, "vocab": 512}
MOE = {
    "num_layers": 4,
    "hidden_size": 64,
    "num_heads": 4,
    "num_experts": 8,
    "top_k": 2,
    "moe_ffn_hidden_size": 48,
    "ffn_hidden_size": 256,
    "num_dense_layers": 1,
    "n_shared_experts": 2,
    "vocab_size": 512,
}


def parameters(values):
    return count_parameters(described_model(values, "table").model)


def test_a_plain_decoder():
    layer = 4 * 64 * 64 + 2 * 64 * 256 + 2 * 64
    assert parameters(GPT).total == 3 * layer + 2 * 512 * 64 + 64
    assert parameters({**GPT, "weight_tying": True}).total == 3 * layer + 512 * 64 + 64


def test_grouped_heads_and_a_gated_mlp():
    layer = 2 * 64 * 64 + 2 * 64 * 16 + 3 * 64 * 160 + 2 * 64
    assert parameters(LLAMA).total == 3 * layer + 2 * 512 * 64 + 64
    plain = layer - 64 * 160
    assert parameters({**LLAMA, "activation": "gelu"}).total == 3 * plain + 2 * 512 * 64 + 64


def test_experts_after_dense_layers():
    model = described_model(MOE, "table").model
    assert [layer.ffn.ffn_hidden_size for layer in model.layers] == [256, 48, 48, 48]
    experts = model.layers[-1].ffn
    assert (experts.num_experts, experts.top_k, experts.shared_ffn_hidden_size) == (8, 2, 96)


def test_sizes_that_others_do_not_have():
    model = described_model(
        {**LLAMA, "head_dim": 32, "window": 64, "qk_norm": True, "norm": "LayerNorm"}, "table"
    ).model
    attention = model.layers[0].attention
    assert (attention.head_dim, attention.window, attention.qk_norm, model.norm) == (32, 64, "head", "layer")


@pytest.mark.parametrize(
    ("change", "code", "key"),
    [
        ({"n_layers": 3}, "given_twice", "n_layer, n_layers"),
        ({"n_layer": "three"}, "wrong_type", "n_layer"),
        ({"n_layer": 0}, "out_of_range", "n_layer"),
        ({"n_head": 5}, "not_divisible", "n_embd"),
        ({"weight_tying": "maybe"}, "wrong_type", "weight_tying"),
        ({"act": "tanhshrink"}, "not_one_of", "act"),
        ({"num_experts": 8}, "required_with", "top_k"),
    ],
)
def test_what_cannot_be_is_refused(change, code, key):
    with pytest.raises(ForescaleError) as caught:
        described_model({**GPT, **change}, "table")
    assert (caught.value.code, caught.value.key) == (code, key)


def test_all_that_is_missing_is_named_at_once():
    with pytest.raises(ForescaleError) as caught:
        described_model({"n_layer": 3, "n_head": 4}, "table")
    assert (caught.value.code, caught.value.key) == ("missing", "hidden_size, vocab_size")


def test_a_misspelt_size_is_named_with_the_nearest(tmp_path):
    file = tmp_path / "own.yaml"
    file.write_text("n_layer: 3\nn_embd: 64\nn_head: 4\nvocab_sise: 512\n")
    with pytest.raises(UnknownKeyError) as caught:
        read_model(file, Options())
    assert caught.value.key == "vocab_sise"
    assert "own.yaml, line 4" in str(caught.value)
    assert caught.value.suggestions[0] == "vocab_size"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (json.dumps(GPT), "described"),
        (json.dumps({**GPT, "model_type": "gpt2"}), "huggingface"),
        ("num_layers: 4\nhidden_size: 64\nnum_attention_heads: 4\nffn_hidden_size: 256\n", "primus"),
        ("n_layer: 4\nn_embd: 64\nbatch_size: 8\nlearning_rate: 0.1\n", None),
    ],
)
def test_only_sizes_are_taken_for_a_model(text, name):
    detection = detect(text)
    assert (detection.name if detection else None) == name


def test_a_dict_of_sizes_is_a_model_in_python():
    result = fs.project(GPT, cluster="a100-sxm-80gb", devices=8, global_batch_size=64)
    assert result.params.total == parameters(GPT).total
    assert result.workload.seq_len == 128
