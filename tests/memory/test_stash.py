"""Paged stash of what routed experts keep."""

from __future__ import annotations

import pytest

from forescale import project

QUESTION = {
    "model": "qwen3-30b-a3b", "cluster": "gb200-nvl72", "devices": 8, "ep": 8, "micro_batch_size": 1,
    "seq_len": 4096, "global_batch_size": 64, "precision": "mxfp8", "dispatcher": "hybridep", "graphs": "full",
}  # fmt: skip
ROWS = 4096 * 8
"""Copies of tokens that a rank receives of an even routing."""
SCALED = 33 / 32
"""MXFP8 has a scale for each 32 numbers."""
LAYER = ROWS * (2048 * SCALED + 2 * 768 * 2 + 768 * SCALED)
"""What experts of a layer keep: input in MXFP8, product in bf16, activation in MXFP8."""


def asked(**kernels):
    return project(**QUESTION, kernels={"fused_grouped_mlp": True, **kernels})


@pytest.fixture(scope="module")
def plain():
    return asked()


@pytest.mark.parametrize("factor", [1.0, 1.2])
def test_pages_have_room_for_more_rows_and_for_the_layer_at_work(plain, factor):
    stashed = asked(paged_stash=factor).memory.stages[0].activations_bytes
    more = stashed - plain.memory.stages[0].activations_bytes
    assert more == pytest.approx((48 * (factor - 1.0) + 1.0) * LAYER, rel=0.02)


def test_copies_slow_the_compute_that_hides_them(plain):
    stashed = asked(paged_stash=1.2)
    # 48 layers and 8 micro-batches: written and read once each way, at 8 TB/s of which runs keep a part
    alone = 8 * 48 * 4 * LAYER / 8e12
    assert 0.0 < stashed.step_time_s - plain.step_time_s < 0.5 * alone
    assert stashed.time_s["attention"] == plain.time_s["attention"]


def test_dense_models_have_no_stash():
    question = {**QUESTION, "model": "llama-3-8b", "ep": 1, "dispatcher": "all_to_all"}
    usual = project(**question)
    stashed = project(**question, kernels={"paged_stash": 1.2})
    assert (stashed.step_time_s, stashed.memory.peak_bytes) == (usual.step_time_s, usual.memory.peak_bytes)
