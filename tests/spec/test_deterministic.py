"""Deterministic mode: whose attention stays fused, and what its kernels take."""

from __future__ import annotations

import pytest

from forescale import project
from forescale.catalogue.frameworks import load_framework
from forescale.time.kernel_switches import DETERMINISTIC_ATTENTION

QUESTION = {
    "model": "llama-3-8b", "devices": 8, "tp": 8, "micro_batch_size": 1, "seq_len": 8192, "global_batch_size": 8,
}  # fmt: skip


def asked(cluster, framework, *, deterministic=True):
    return project(**QUESTION, cluster=cluster, framework=framework, kernels={"deterministic": deterministic})


@pytest.mark.parametrize(
    ("cluster", "framework", "fused"),
    [
        ("a100-sxm-80gb", "megatron-core@24.01", False),
        ("a100-sxm-80gb", "megatron-core@24.02", True),
        ("a100-sxm-80gb", "megatron-core@25.09", True),
        ("a100-sxm-80gb", "megatron-core", True),
        ("h100-sxm", "megatron-core@24.01", True),  # cuDNN's attention is deterministic there
    ],
)
def test_attention_before_hopper_is_fused_since_transformer_engine_1_3(cluster, framework, fused):
    assert asked(cluster, framework).strategy.flash_attention is fused
    assert asked(cluster, framework, deterministic=False).strategy.flash_attention


def test_unfused_attention_keeps_its_scores():
    old, new = (asked("a100-sxm-80gb", f"megatron-core@{name}") for name in ("24.01", "24.02"))
    # softmax in 16 bits of every layer: 32 layers x 4 heads of a rank x 8192 x 8192 scores
    scores = 32 * 4 * 8192**2 * 2
    assert old.memory.peak_bytes - new.memory.peak_bytes > scores


def test_a_release_of_megatron_core_is_the_last_one_before_its_date():
    assert load_framework("megatron-core@25.02").line == "24.02"
    assert load_framework("megatron-core@25.02").released == "25.02"


def test_the_backward_pass_of_fused_attention_takes_longer():
    # FlashAttention pull request 1893, H100, 8,192 tokens: 2.900 ms instead of 2.391 ms
    assert pytest.approx(2.900 / 2.391, abs=0.005) == DETERMINISTIC_ATTENTION
    usual = asked("h100-sxm", "megatron-core", deterministic=False)
    ordered = asked("h100-sxm", "megatron-core")
    assert usual.time_s["attention"] < ordered.time_s["attention"] < 1.21 * usual.time_s["attention"]
