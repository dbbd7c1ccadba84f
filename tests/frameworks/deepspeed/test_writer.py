"""What is written for DeepSpeed and the Trainer round-trips exactly."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.errors import raises
from tests.export.laws import check_writer
from tests.plans import plans

from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.frameworks import load_framework
from forescale.catalogue.models import load_model
from forescale.errors import SpecError
from forescale.export import export, under
from forescale.question import question_of
from forescale.spec import Layout, Workload
from forescale.spec.layout import Offload
from forescale.spec.workload import Trainable

NARROW = {"workload.precision.compute", "workload.precision.recipe"}
"""DeepSpeed has no narrow types."""


def without_pipeline(count: int, **choices):
    return plans("deepspeed", count, where=lambda layout: layout.pp == 1, **choices)


@pytest.mark.parametrize("seed", [1, 2])
def test_plans_read_back_to_the_bit(seed: int) -> None:
    pipeline = list(without_pipeline(60, seed=seed))
    wide = sum(item.workload.precision.compute != "fp8" for item in pipeline)
    written = check_writer(pipeline, unsaid=NARROW)
    assert sum(not item.unsaid for item in written) == wide > 30


def test_wider_types_read_back_to_the_bit() -> None:
    check_writer(without_pipeline(20, compute=("fp16", "fp32", "tf32")))


def question(**layout):
    request = question_of(
        load_model("llama-3.1-8b"),
        load_cluster("h100-sxm", 16),
        Workload(seq_len=4096, global_batch_size=64),
        strategy=Layout(**{"zero": 3, "dp_shard": 16, "sp": False, "cp_kind": "ulysses", **layout}),
    )
    return under(request, load_framework("deepspeed"))


def test_the_folder_is_what_the_trainer_takes() -> None:
    result = export(question(micro_batch_size=2))
    assert set(result.texts) == {"training.json", "ds_config.json", "config.json", "README.md"}
    arguments, config = (json.loads(result.texts[name]) for name in ("training.json", "ds_config.json"))
    assert arguments["gradient_accumulation_steps"] == config["gradient_accumulation_steps"] == 2
    assert config["train_batch_size"] == 64
    assert json.loads(result.texts["config.json"])["model_type"] == "llama"
    assert not result.unsaid


def test_experts_over_tp_with_states_on_the_host_are_refused() -> None:
    request = replace(
        question(zero=1, tp=2, ep=2, dp_shard=8, offload=Offload(optimizer=1.0)),
        model=load_model("mixtral-8x7b"),
    )
    with raises(SpecError, "unsupported_by deepspeed-zero | states on the host with experts"):
        export(request)
    with raises(SpecError, "unsupported_by deepspeed-zero | experts with tp or cp"):
        export(replace(request, strategy=replace(request.layout, cp=2, dp_shard=4, offload=Offload())))


def test_a_pipeline_is_refused() -> None:
    with raises(SpecError, "unsupported_by deepspeed-zero | pipeline stages"):
        export(question(zero=1, pp=2, dp_shard=8))


ADAPTED = Trainable(lora_rank=16, lora_targets=("q_proj", "v_proj"), lora_dropout=True, whole=("head",))


@pytest.mark.parametrize("frozen", [None, "int8", "nf4", "nf4_double"])
def test_adapters_are_tuned_by_trl(frozen) -> None:
    request = question(cp_kind="all_gather", dp_shard=16)
    workload = replace(
        request.workload, trainable=ADAPTED, precision=replace(request.workload.precision, frozen=frozen)
    )
    (result,) = check_writer([replace(request, workload=workload)])
    parts = json.loads(result.texts["training.json"])
    assert (parts["lora_r"], parts["lora_target_modules"]) == (16, ["q_proj", "v_proj"])
    assert parts["lora_modules_to_save"] == ["lm_head"]
    assert parts.get("load_in_4bit", False) == (frozen in ("nf4", "nf4_double"))
    assert result.launch.endswith("sft.py --config training.json")


def test_steps_of_the_whole_run_are_read_back() -> None:
    request = question()
    workload = replace(request.workload, tokens=1000 * request.workload.tokens_per_step)
    (result,) = check_writer([replace(request, workload=workload)])
    assert json.loads(result.texts["training.json"])["max_steps"] == 1000
    assert result.read_back.workload.tokens == workload.tokens
