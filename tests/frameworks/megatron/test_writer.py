"""What is written for Megatron-LM round-trips exactly."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.errors import raises
from tests.export.laws import check_writer
from tests.plans import plans

from forescale.catalogue.models import load_model
from forescale.errors import SpecError
from forescale.export import export
from forescale.face import ask
from forescale.question import Question


def test_plans_read_back_to_the_bit() -> None:
    check_writer(plans("megatron", 45))


def test_the_allocator_is_an_environment_variable_that_is_read_back() -> None:
    question = plans("megatron", 3, allocator=("expandable_segments",))
    for result in check_writer(question):
        assert "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in result.texts[result.main]
        assert result.read_back.strategy.allocator == "expandable_segments"


OSS = (
    "--quick-geglu --glu-linear-offset 1.0 --activation-func-clamp-value 7.0",
    "--norm-epsilon 1e-05 --position-embedding-type yarn --rotary-base 150000 --rotary-scaling-factor 32.0 --mscale 1.0 "
    "--mscale-all-dim 0.0 --yarn-original-max-position-embeddings 4096 --yarn-beta-fast 32.0 --yarn-beta-slow 1.0 "
    "--no-yarn-correction-range-round-to-int",
)
"""What openai/gpt-oss-20b's config.json says of activations and positions (swiglu_limit, rope_theta, rope_scaling)."""


def oss(to: str, **changes: bool) -> Question:
    """Return GPT-OSS on a node, its experts changed."""
    question = ask(
        "gpt-oss-20b", "h100-sxm", devices=8, ep=8, seq_len=4096, global_batch_size=64, zero=1, framework=to
    )
    layers = tuple(replace(layer, ffn=replace(layer.ffn, **changes)) for layer in question.model.layers)
    return replace(question, model=replace(question.model, layers=layers))


@pytest.mark.parametrize("model", ["gpt-oss-20b", "gpt-oss-120b"])
def test_clamped_experts_and_scaled_positions_of_gpt_oss_are_written(model: str) -> None:
    question = replace(oss("megatron-core"), model=load_model(model))
    result = export(question)
    text = " ".join(result.texts[result.main].split())
    assert [item for item in OSS if item not in text] == []
    assert "--swiglu" not in text
    assert "--position-embedding-type rope" not in text
    assert not result.unsaid
    assert result.read_back.model.layers == question.model.layers


def test_a_model_with_another_clamp_is_refused() -> None:
    """Megatron-LM knows the clamp of GPT-OSS with biases only."""
    with raises(SpecError, "unsupported_by megatron-core"):
        export(oss("megatron-core", bias=False))


@pytest.mark.parametrize("to", ["primus", "megatron-bridge"])
def test_gpt_oss_for_what_wraps_megatron(to: str) -> None:
    result = export(oss(to))
    text = result.texts[result.main]
    assert not result.unsaid
    names = (
        ("quick_geglu: true", "activation_func_clamp_value: 7.0", "rotary_scaling_factor: 32.0")
        if to == "primus"
        else (
            "import quick_gelu\n",
            "cfg.model.activation_func = quick_gelu\n",
            "cfg.model.gated_linear_unit = True\n",
            "cfg.model.glu_linear_offset = 1.0\n",
            "cfg.model.activation_func_clamp_value = 7.0\n",
            "cfg.model.position_embedding_type = 'yarn'\n",
            "cfg.model.rotary_base = 150000\n",
            "cfg.model.yarn_rotary_scaling_factor = 32.0\n",
            "cfg.model.yarn_original_max_position_embeddings = 4096\n",
            "cfg.model.yarn_correction_range_round_to_int = False\n",
        )
    )
    assert [item for item in names if item not in text] == []


@pytest.mark.parametrize(
    ("to", "cluster", "line"),
    [
        ("megatron-core", "h100-sxm", "--microbatch-group-size-per-virtual-pipeline-stage 6"),
        ("megatron-bridge", "h100-sxm", "cfg.model.microbatch_group_size_per_vp_stage = 6"),
        ("primus", "mi300x", "microbatch_group_size_per_vp_stage: 6"),
    ],
)
def test_groups_of_micro_batches_are_written_and_read_back(to: str, cluster: str, line: str) -> None:
    """11 micro-batches on 4 ranks of 2 chunks, 5 of them in the last group."""
    parts = {"devices": 8, "seq_len": 4096, "global_batch_size": 22, "pp": 4, "vpp": 2, "microbatch_group": 6}
    result = export(ask("llama-2-7b", cluster, **parts, framework=to))
    assert line in result.texts[result.main]
    assert result.unsaid == ()
    assert result.read_back.strategy.microbatch_group == 6
    one_chunk = ask("llama-2-7b", cluster, **{**parts, "vpp": 1}, framework=to)
    assert line.split(maxsplit=1)[0] not in export(one_chunk).texts[result.main]


@pytest.mark.parametrize(
    ("to", "cluster", "lines"),
    [
        ("megatron-core", "h100-sxm", ("--defer-embedding-wgrad-compute", "--wgrad-deferral-limit 5")),
        (
            "megatron-bridge",
            "h100-sxm",
            ("cfg.model.defer_embedding_wgrad_compute = True", "cfg.model.wgrad_deferral_limit = 5"),
        ),
        ("primus", "mi300x", ("defer_embedding_wgrad_compute: true", "wgrad_deferral_limit: 5")),
    ],
)
@pytest.mark.parametrize("limit", [5, 1_000_000], ids=["some", "all"])
def test_deferred_weight_gradients_of_the_head_are_written_and_read_back(
    to: str, cluster: str, lines: tuple[str, ...], limit: int
) -> None:
    parts = {"devices": 8, "seq_len": 4096, "global_batch_size": 16, "pp": 4}
    kernels = {"deferred_head_gradients": limit}
    result = export(ask("llama-2-7b", cluster, **parts, framework=to, kernels=kernels))
    text = result.texts[result.main]
    assert [line in text for line in lines] == [True, limit == 5]
    assert result.unsaid == ()
    assert result.read_back.strategy.kernels.deferred_head_gradients == limit


@pytest.mark.parametrize(
    ("to", "lines"),
    [
        ("megatron-core", ("--first-last-layers-bf16", "--num-layers-at-end-in-bf16 3")),
        (
            "megatron-bridge",
            ("cfg.mixed_precision.first_last_layers_bf16 = True", "cfg.mixed_precision.num_layers_at_end_in_bf16 = 3"),
        ),
        ("primus", ("first_last_layers_bf16: true", "num_layers_at_end_in_bf16: 3")),
    ],
)  # fmt: skip
def test_layers_in_bf16_are_written_and_read_back_but_not_modules(to: str, lines: tuple[str, ...]) -> None:
    types = {"compute": "fp8", "recipe": "current", "num_layers_at_end_in_bf16": 3}
    parts = {"devices": 8, "seq_len": 4096, "global_batch_size": 16, "framework": to}
    result = export(ask("llama-2-7b", "h100-sxm", **parts, precision=types))
    assert all(line in result.texts[result.main] for line in lines)
    assert result.unsaid == ()
    read = result.read_back.workload.precision
    assert (read.num_layers_at_start_in_bf16, read.num_layers_at_end_in_bf16) == (0, 3)
    plain = export(ask("llama-2-7b", "h100-sxm", **parts, precision={"compute": "fp8", "recipe": "current"}))
    assert lines[0] not in plain.texts[plain.main]
    modules = ask(
        "llama-2-7b", "h100-sxm", **parts, precision={**types, "high_precision_modules": ["attention"]}
    )
    assert [item.word for item in export(modules).unsaid] == ["workload.precision.high_precision_modules"]


@pytest.mark.parametrize(
    ("to", "cluster", "line"),
    [
        ("megatron-core", "gb200-nvl72", "--moe-paged-stash-buffer-size-factor-cuda 1.2"),
        ("megatron-bridge", "gb200-nvl72", "cfg.model.moe_paged_stash_buffer_size_factor_cuda = 1.2"),
        ("primus", "mi355x", "moe_paged_stash_buffer_size_factor_cuda: 1.2"),
    ],
)
def test_paged_stashing_is_written_with_the_capacity_that_it_needs(to: str, cluster: str, line: str) -> None:
    parts = {"devices": 8, "seq_len": 4096, "global_batch_size": 64, "ep": 8, "micro_batch_size": 1}
    kernels = {"paged_stash": 1.2, "fused_grouped_mlp": True}
    result = export(ask("qwen3-30b-a3b", cluster, **parts, framework=to, precision="bf16", kernels=kernels))
    text = result.texts[result.main]
    assert line in text
    assert "moe_expert_rank_capacity_factor" in text.replace("-", "_")
    assert result.unsaid == ()
    assert result.read_back.strategy.kernels.paged_stash == 1.2
    assert result.read_back.strategy.kernels.fused_grouped_mlp
