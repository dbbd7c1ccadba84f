from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from tests.errors import raises

from forescale.catalogue.frameworks import framework_names, load_framework, release_names
from forescale.cost.run_calibration import load_run_calibration
from forescale.errors import UnknownNameError
from forescale.face import ask
from forescale.project import project
from forescale.spec.layout import Kernels, Recompute

EVERY = [f"{name}@{release}" for name in framework_names() for release in release_names(name)]


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("litgpt", "torch-fsdp@litgpt"),
        ("automodel", "torch-fsdp@automodel"),
        ("unsloth", "transformers@unsloth"),
        ("openrlhf", "deepspeed-zero@0.17"),
        ("gpt-neox", "megatron-deepspeed@gpt-neox"),
        ("composer", "llm-foundry@2023"),
    ],
)
def test_trainers_go_by_the_framework_that_their_files_are_read_as(name, label):
    assert load_framework(name).label == label
    assert load_framework("litgpt").kernels == load_framework("torch-fsdp@fused").kernels
    assert load_framework("unsloth").kernels.cross_entropy == "fused_linear"


@pytest.mark.parametrize("name", ["nemo-rl", "verl"])
def test_trainers_on_classes_of_transformers_are_known_by_their_own_names(name):
    framework = load_framework(name)
    assert (framework.name, framework.release, framework.model_code) == ("transformers", name, "transformers")


@pytest.mark.parametrize("label", EVERY)
def test_every_record_loads_and_says_where_each_field_comes_from(label):
    framework = load_framework(label)
    assert framework.label == label
    usual = {"name", "release", "title", "date", "source", "sources", "limits"}
    plain = type(framework)(name="", release="", title="", date="", source="", software="")
    set_ = {n for n in framework.__dataclass_fields__ if getattr(framework, n) != getattr(plain, n)} - usual
    assert set_ <= framework.sources.keys()
    assert framework.date


def test_fitted_losses_of_every_software_are_there():
    known = load_run_calibration().software
    assert {load_framework(label).software for label in EVERY} <= known.keys()


@pytest.mark.parametrize("release", ["2024", "2025", "0.2", "0.3"])
def test_compiled_blocks_of_torchtitan_keep_inputs_only_and_eager_ones_each_step(release):
    compiled, eager = (load_framework(f"torchtitan@{release}{suffix}") for suffix in ("", "-eager"))
    assert (compiled.kernels.fused, eager.kernels.fused) == (True, False)
    assert replace(eager.kernels, fused=True) == compiled.kernels


def test_a_release_goes_over_what_it_starts_from():
    assert load_framework("torchtitan").release == "0.3"
    assert load_framework("torchtitan@2024").kernels.cross_entropy == "loss_parallel"
    assert load_framework("torchtitan@2024").kernels.gathers_aside
    eager = load_framework("torchtitan@2024-eager")
    assert (eager.software, eager.microbatches_per_stage) == ("torch-eager", 1)
    assert load_framework("nemo@24.07").master == "bf16"
    losses = {
        name: load_framework(f"nemo@{name}").kernels.cross_entropy for name in ("24.11", "25.04", "25.05")
    }
    assert losses == {"24.11": "native", "25.04": "native", "25.05": "fused"}
    queued = [load_framework(name).kernels.queued_layers for name in ("nanotron", "nanotron@2025-torch-2.8")]
    assert (queued[0] > 0, queued[1]) == (True, 0)
    kernels = Kernels(cuts_vision=True, gathers_ends_apart=True, limits_within=False, scales_rotary=False)
    assert load_framework("megatron-core").kernels == kernels
    assert load_framework("primus@moe").kernels.limits_within


def test_lines_joined_go_over_one_another_and_say_when_libraries_were_released():
    both = load_framework("megatron-bridge@bf16-moments+25.11")
    assert (both.moments, both.released) == ("bf16", "25.11")
    assert (load_framework("megatron-bridge").released, load_framework("nemo@24.07").released) == (
        "26.08",
        "24.07",
    )
    question = ask(
        "llama-3.1-8b", "h100-sxm", devices=8, seq_len=4096, global_batch_size=8, framework="nemo@24.11"
    )
    assert question.layout.software == "megatron-core@24.11"
    with raises(UnknownNameError, "unknown_name release of megatron-bridge"):
        load_framework("megatron-bridge@bf16-moments+26.99")


def test_names_are_found_by_alias_and_near_ones_are_suggested():
    assert load_framework("Megatron").name == "megatron-core"
    assert load_framework("torch_fsdp").name == "torch-fsdp"
    assert load_framework("megatron-lm") == load_framework("megatron-core")  # what it trains with today
    assert load_framework("megatron-lm@2022").name == "megatron-lm"
    with raises(UnknownNameError, "unknown_name framework"):
        load_framework("torchtitn")
    with raises(UnknownNameError, "unknown_name release of nemo"):
        load_framework("nemo@24.7")
    with raises(UnknownNameError, "unknown_name release of torchtitan"):
        load_framework("torchtitan@")


def test_limits_recompute_as_the_record_does():
    policies = load_framework("torchtitan").limits.values["recompute"]
    assert [policy.granularity for policy in policies] == ["none", "policy", "full"]
    assert policies[1].policy == "torch_per_op_compiled"
    local, base = (load_framework(name).limits.values for name in ("primus", "megatron"))
    assert {**local, "schedule": (None,)} == base


def test_what_deepseek_published_takes_as_long_and_fits():
    """2,048 H800, PP 16, EP 64, ZeRO-1: 180K device hours a trillion tokens are 19.9 s a step (arXiv:2412.19437, table 1)."""
    question = ask(
        "deepseek-v3",
        "h800-sxm",
        devices=2048,
        seq_len=4096,
        global_batch_size=15360,
        framework="deepseek",
        pp=16,
        ep=64,
    )
    result = project(question)
    hours = 180e3 * question.workload.tokens_per_step / 1e12
    assert result.step_time_s == pytest.approx(hours * 3600 / 2048, rel=0.1)
    assert result.memory.peak_bytes < result.memory.capacity_bytes
    layout = question.layout
    assert (layout.schedule, layout.dispatcher, layout.routing.dispatch) == ("dualpipe", "deepep", "fp8")


@pytest.mark.parametrize("label", EVERY)
def test_records_travel_to_other_processes(label):
    assert pickle.loads(pickle.dumps(load_framework(label))) == load_framework(label)
    assert isinstance(hash(load_framework(label)), int)


def test_a_date_without_an_entry_means_the_release_before_it_or_the_first():
    for name, line in (
        ("megatron-bridge@26.03", "26.02.01"),
        ("nemo@25.07", "25.05"),
        ("megatron-bridge@25.07", "25.09"),
    ):
        framework = load_framework(name)
        known = load_framework(f"{framework.name}@{line}")
        assert (framework.label, framework.line, framework.released) == (name, line, name[-5:])
        assert framework.recipes == known.recipes
        assert known.line == ""
    question = ask(
        "llama-3.1-8b", "h100-sxm", devices=8, seq_len=4096, global_batch_size=8, framework="nemo@24.12"
    )
    assert question.layout.software == "megatron-core@24.12"
    assert any("24.11" in note.text for note in question.notes)


@pytest.mark.parametrize(
    "framework", ["llm-foundry@2023", "llm-foundry@2024-triton", "llm-foundry@2024", "torchtitan"]
)
def test_fsdp_of_fp32_weights_holds_16_bytes_per_parameter(framework):
    question = ask(
        "llama-3.1-8b", cluster="h100", devices=8, framework=framework, zero=3, seq_len=512,
        micro_batch_size=1, global_batch_size=8,
    )  # fmt: skip
    result = project(question)
    stage = result.memory.stages[0]
    states = stage.weights_bytes + stage.gradients_bytes + stage.optimizer_bytes
    assert states * 8 / result.params.total == pytest.approx(16.0, rel=0.01)


@pytest.mark.parametrize(
    ("release", "line", "flash"),
    [("4.28.1", "4.30", False), ("4.35.2", "4.30", False), ("4.36", "", True), ("4.43.3", "4.36", True)],
)
def test_a_number_without_an_entry_is_the_last_release_before_it(release, line, flash):
    framework = load_framework(f"transformers@{release}")
    assert (framework.line, framework.flash_attention) == (line, flash)


@pytest.mark.parametrize("name", ["trl", "llamafactory", "ms-swift", "unsloth", "axolotl"])
def test_trainers_that_recompute_by_default_do_by_name(name):
    assert load_framework(name).recompute == Recompute(granularity="full")
    assert load_framework("fastchat").recompute == Recompute()


@pytest.mark.parametrize(
    ("name", "line", "kept", "recompute"),
    [
        ("trl", "", "none", "full"),
        ("trl@1.9", "trl-0.26", "none", "full"),
        ("trl@0.25.1", "trl-0.22", "norms", "full"),
        ("trl@0.12", "trl-0.7", "norms", "none"),
    ],
)
def test_the_number_of_a_library_is_that_of_its_own_line(name, line, kept, recompute):
    framework = load_framework(name)
    assert (framework.name, framework.line) == ("transformers", line)
    assert (framework.fp32_frozen, framework.recompute.granularity) == (kept, recompute)
    assert load_framework("transformers@4.43.3").line == "4.36"


def test_deepspeed_has_the_optimizer_of_the_trainer_s_release():
    today, before = load_framework("deepspeed").kernels, load_framework("deepspeed@0.14.4").kernels
    assert (today.fused_update, today.updates_together) == (True, False)
    assert (before.fused_update, before.updates_together) == (False, True)
    assert today.sub_group_elements == before.sub_group_elements == 1e9


def test_a_release_can_have_limits_of_its_own():
    limits = load_framework("litgpt").limits
    assert (limits.values["tp"], limits.reliefs["allocator"]) == ((1,), ("expandable_segments",))
    assert "activation_offload" not in limits.reliefs
    assert load_framework("fsdp").limits is None
