"""What is written for nanotron round-trips exactly, but for what it has no key for."""

from __future__ import annotations

import pytest
from tests.errors import raises
from tests.export.laws import check_writer
from tests.plans import plans

from forescale.catalogue.models import load_model
from forescale.errors import SpecError
from forescale.export import export
from forescale.face import ask
from forescale.frameworks.nanotron.writer import model_config
from forescale.spec import Layout

KINDS = (("llama-3.1-8b", "llama-3.1-70b", "mistral-7b", "qwen2.5-7b"), ("mixtral-8x7b", "qwen2-57b-a14b"))
"""Models whose parts nanotron has: no norms of queries and keys, heads that share out the hidden size."""
ROPE = "model.layers.attention.rope"
"""What it cannot say of Llama 3.1: it slows positions all alike or not at all."""
SUM = "model.layers.ffn.normalised"
"""Nor of Mixtral: weights of its experts are the softmax of all (nn/moe.py)."""


@pytest.mark.parametrize("seed", [1, 2])
def test_plans_read_back_to_the_bit(seed):
    choices = {"cp_kind": ("all_gather",), "compute": ("bf16", "bf16", "fp32")}
    check_writer(plans("nanotron", 45, seed=seed, kinds=KINDS, **choices), unsaid=(ROPE, SUM))


@pytest.mark.parametrize(
    ("words", "lost"),
    [
        ({"optimizer": "muon"}, {"workload.optimizer", ROPE}),
        ({"precision": "fp8"}, {"workload.precision.compute", ROPE}),
    ],
)
def test_what_it_has_no_key_for_is_listed(words, lost):
    assert {item.word for item in export(question(**words)).unsaid} == lost


def question(**words):
    usual = {"devices": 16, "seq_len": 4096, "global_batch_size": 32, "framework": "nanotron"}
    return ask(words.pop("model", "llama-3.1-8b"), "h100-sxm", **(usual | words))


def test_words_of_the_file():
    text = export(question(tp=2, pp=2, schedule="gpipe", zero=1, recompute="full", micro_batch_size=2)).texts[
        "run.yaml"
    ]
    for line in (
        "dp: 4", "pp: 2", "tp: 2", "pp_engine: afab", "tp_mode: REDUCE_SCATTER", "recompute_layer: true", "zero_stage: 1",
        "batch_accumulation_per_replica: 4", "is_llama_config: true", "make_vocab_size_divisible_by: 128",
    ):  # fmt: skip
        assert f"  {line}\n" in text


def test_a_model_without_gates_is_a_starcoder():
    assert model_config(load_model("gpt2-xl"), Layout())["is_starcoder2_config"] is True


def test_what_is_lost_is_listed():
    unsaid = {item.word: item.read for item in export(question(optimizer="lion")).unsaid}
    assert unsaid["workload.optimizer"] == "adamw"
    assert [item.word for item in export(question(tokens=32 * 4096 * 1000)).unsaid] == [ROPE]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ({"model": "mixtral-8x7b", "ep": 4, "zero": 1}, "unsupported_by nanotron | ep 4"),
        (
            {"model": "gpt2-xl", "cp": 2},
            "unsupported_by nanotron's Starcoder2 | context parallelism",
        ),
        ({"tp": 2, "zero": 3}, "unsupported_by nanotron | zero 3"),
        (
            {"model": "qwen3-4b"},
            "unsupported_by nanotron | layers.attention.head_dim 128 would be 80",
        ),
        ({"model": "gemma-2-9b"}, "unsupported_by nanotron | head_dim 256 would be 224"),
        (
            {"model": "gpt2-xl", "devices": 8, "seq_len": 1024},
            "unsupported_by nanotron | learned_positions 1024",
        ),
        ({"model": "deepseek-v2-lite"}, "unsupported_by nanotron | deepseek-v2-lite (latent attention)"),
        ({"tp": 16}, "unsupported_by nanotron | a key/value head for every rank of tp"),
        (
            {"dp_replicate": 2, "dp_shard": 8, "zero": 1},
            "unsupported_by nanotron | replicas of shards are of stage 3",
        ),
    ],
)
def test_what_nanotron_refuses_is_refused(words, text):
    with raises(SpecError, text):
        export(question(**words))
