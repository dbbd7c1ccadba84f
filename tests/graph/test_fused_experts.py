"""Kernels of newer recipes: experts whose products activate and quantise, attention in fp8."""

from __future__ import annotations

import pytest

from forescale import project

QUESTION = {
    "model": "qwen3-30b-a3b", "cluster": "gb200-nvl72", "devices": 8, "ep": 8, "micro_batch_size": 4,
    "seq_len": 4096, "global_batch_size": 512, "precision": "mxfp8", "dispatcher": "hybridep", "graphs": "full",
}  # fmt: skip


def asked(**kernels):
    return project(**QUESTION, kernels=kernels)


@pytest.fixture(scope="module")
def plain():
    return asked()


def test_fused_experts_take_less_time_and_keep_the_same(plain):
    fused = asked(fused_grouped_mlp=True)
    assert fused.time_s["moe"] < plain.time_s["moe"]
    assert fused.time_s["attention"] == plain.time_s["attention"]
    assert fused.memory.peak_bytes == plain.memory.peak_bytes
    assert fused.hardware_flops_per_step == plain.hardware_flops_per_step


def test_attention_in_fp8_takes_less_time(plain):
    narrow = asked(narrow_attention=True)
    assert narrow.time_s["attention"] < plain.time_s["attention"]
    # softmax stays in fp32: the products alone are not twice as fast as a whole
    assert narrow.time_s["attention"] > 0.5 * plain.time_s["attention"]
    assert narrow.time_s["moe"] == plain.time_s["moe"]


def test_an_output_projection_in_mxfp8_takes_less_time(plain):
    narrow = asked(narrow_head=True)
    # the loss, its softmax and the logits stay as they are
    assert 0.5 * plain.time_s["head"] < narrow.time_s["head"] < 0.9 * plain.time_s["head"]
    assert narrow.time_s["moe"] == plain.time_s["moe"]
    assert narrow.hardware_flops_per_step == plain.hardware_flops_per_step


@pytest.mark.parametrize(
    "other", [{"precision": "fp8"}, {"precision": "bf16"}, {"model": "qwen3-0.6b", "ep": 1}]
)
def test_only_an_untied_head_under_mxfp8_is_narrowed(other):
    question = {**QUESTION, **other, "kernels": {"narrow_head": True}}
    assert project(**question).step_time_s == project(**{**question, "kernels": {}}).step_time_s


def test_none_changes_a_step_in_16_bits():
    wide = {**QUESTION, "precision": "bf16"}
    all_of_them = {"fused_grouped_mlp": True, "narrow_attention": True, "narrow_head": True}
    assert project(**wide, kernels=all_of_them).step_time_s == project(**wide).step_time_s


def test_scales_of_whole_tensors_fuse_nothing():
    question = {**QUESTION, "precision": "fp8"}
    fused = project(**question, kernels={"fused_grouped_mlp": True})
    assert fused.step_time_s == project(**question, kernels={}).step_time_s


@pytest.mark.parametrize(("weighted", "faster"), [(True, True), (False, False)])
def test_squared_relu_is_fused_where_it_is_weighted(weighted, faster):
    question = {**QUESTION, "model": "nemotron-3-nano-30b-a3b"}
    plain, fused = (
        project(**question, kernels={"weighted_ungated": weighted, "fused_grouped_mlp": value})
        for value in (False, True)
    )
    assert (fused.time_s["moe"] < plain.time_s["moe"]) is faster


def test_the_op_fuser_alone_casts_no_activation_of_a_dense_feed_forward():
    question = {**QUESTION, "model": "llama-3-8b", "ep": 1, "dispatcher": "all_to_all"}
    plain, fused = (project(**question, kernels={"fused_grouped_mlp": value}) for value in (False, True))
    assert fused.time_s["ffn"] < plain.time_s["ffn"]
    assert fused.time_s["attention"] == plain.time_s["attention"]
    assert fused.memory.peak_bytes == plain.memory.peak_bytes
    wide = {**question, "precision": "fp8"}
    assert project(**wide, kernels={"fused_grouped_mlp": True}).step_time_s == project(**wide).step_time_s
