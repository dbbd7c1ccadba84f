"""DeepSpeed's JSON: ZeRO, batch, types and offload as a layout; what it cannot say is refused or noted."""

from __future__ import annotations

import json

import pytest
from tests.errors import raises

from forescale.errors import ForescaleError
from forescale.frameworks.deepspeed.reader import DeepSpeedReader
from forescale.frameworks.reading import Options

BATCH = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}


@pytest.fixture
def read(tmp_path):
    def reading(content, devices=None, *, strict=True):
        path = tmp_path / "ds_config.json"
        path.write_text(json.dumps(content))
        return DeepSpeedReader().read(path, Options(num_devices=devices, strict=strict))

    return reading


def test_stage_batch_and_types(read):
    result = read({**BATCH, "bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}, 8)
    layout = result.strategy
    assert (layout.zero, layout.dp_shard, layout.micro_batch_size) == (2, 8, 2)
    assert result.workload_fields["global_batch_size"] == 64
    assert result.workload_fields["precision"] == {
        "compute": "bf16", "parameters": "bf16", "gradients": "bf16", "activations": "bf16",
    }  # fmt: skip
    assert not layout.overlap.grad_reduce


def test_batch_sizes_must_agree_with_the_devices(read):
    with raises(ForescaleError, "differs train_batch_size"):
        read(BATCH, 16)
    assert read(BATCH).strategy.dp == 8
    assert (
        read({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}, 4).workload_fields[
            "global_batch_size"
        ]
        == 32
    )


def test_sums_in_fp32_stay_beside_gradients_in_bf16(read):
    value = {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}
    first = read({**BATCH, **value, "zero_optimization": {"stage": 1}}, 8)
    assert first.workload_fields["precision"]["gradients"] == "fp32"
    assert first.layout_fields["kernels"] == {}, "which optimizer that means is the framework's"


def test_offload_to_the_host(read):
    stage3 = {"stage": 3, "offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}}
    offload = read({**BATCH, "zero_optimization": stage3}, 8).strategy.offload
    assert offload.parameters
    assert offload.optimizer == 1.0
    half = {"stage": 2, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}
    assert read({**BATCH, "zero_optimization": half}, 8).strategy.offload.optimizer == 0.5
    stage2 = read({**BATCH, "zero_optimization": {**stage3, "stage": 2}}, 8)
    assert not stage2.strategy.offload.parameters
    assert any("offload_param has no effect" in note for note in stage2.notes)
    nvme = read({**BATCH, "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}, 8)
    assert any("NVMe" in note for note in nvme.notes)


def test_shards_among_neighbours(read):
    hpz = {"stage": 3, "zero_hpz_partition_size": 4}
    assert read({**BATCH, "zero_optimization": hpz}, 8).strategy.reshard == 4
    layout = read({**BATCH, "zero_optimization": {"stage": 3, "mics_shard_size": 4}}, 8).strategy
    assert (layout.dp_replicate, layout.dp_shard) == (2, 4)


def test_other_parallelism(read):
    value = {"train_micro_batch_size_per_gpu": 1, "sequence_parallel_size": 2}
    result = read({**value, "pipeline": {"stages": 2}, "tensor_parallel": {"autotp_size": 2}}, 16)
    layout = result.strategy
    assert (layout.tp, layout.pp, layout.cp, layout.cp_kind, layout.dp) == (2, 2, 2, "ulysses", 2)
    assert result.framework == "megatron-deepspeed"


def test_a_micro_batch_that_is_left_out_follows_from_the_batch(read):
    result = read({"train_batch_size": 64, "gradient_accumulation_steps": 2}, 8)
    assert (result.strategy.micro_batch_size, result.workload_fields["global_batch_size"]) == (4, 64)
    message = "train_micro_batch_size_per_gpu is not given: 4, from train_batch_size 64"
    assert any(note.startswith(message) for note in result.notes)
    auto = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": "auto"}
    assert read(auto, 8).strategy.micro_batch_size == 1
    assert read({"train_batch_size": 64}).strategy.micro_batch_size == 1


def test_parameters_alone_on_the_host(read):
    stage3 = {"stage": 3, "offload_param": {"device": "cpu"}}
    offload = read({**BATCH, "zero_optimization": stage3}, 8).strategy.offload
    assert (offload.parameters, offload.states, offload.optimizer) == (True, False, 0.0)


@pytest.mark.parametrize(
    ("content", "compute"),
    [
        ({"bf16": {"enabled": "auto"}}, "bf16"),
        ({"fp16": {"enabled": "auto"}}, "fp16"),
        ({"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}}, "bf16"),
        ({"fp16": {"enabled": True}, "bf16": {"enabled": "auto"}}, "fp16"),
        ({"bf16": {"enabled": False}}, "tf32"),
        ({}, "tf32"),
    ],
)
def test_a_type_that_is_auto_is_the_one_that_a_trainer_would_set(read, content, compute):
    result = read({**BATCH, **content}, 8)
    assert result.workload_fields["precision"]["compute"] == compute
    assumed = any("auto: taken as true" in note for note in result.notes)
    assert assumed == ("auto" in str(content) and True not in [item["enabled"] for item in content.values()])


def test_what_hugging_face_fills_in_is_not_given(read):
    result = read(
        {"train_batch_size": "auto", "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}}, 8
    )
    assert "global_batch_size" not in result.workload_fields
    assert result.notes.count("train_batch_size is auto: not given") == 1


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"zero_optimization": {"stage": 4}}, "not_one_of zero_optimization.stage"),
        ({"zero_optimization": {"stge": 2}}, "unknown_key stge"),
        (
            {"train_batch_sise": 2, "zero_optimization": {}},
            "unknown_key train_batch_sise",
        ),
        ({"train_batch_size": 1.5}, "wrong_type train_batch_size"),
        (
            {"bf16": {"enabled": "yes"}, "train_batch_size": 2},
            "wrong_type bf16.enabled",
        ),
        (
            {**BATCH, "zero_optimization": {"stage": 3, "mics_shard_size": 3}},
            "not_a_factor zero_optimization.mics_shard_size",
        ),
    ],
)
def test_what_is_wrong_is_said(read, content, text):
    with raises(ForescaleError, text):
        read(content, 8)


def test_what_is_not_expressed_is_noted(read):
    result = read({**BATCH, "zero_optimization": {"stage": 3, "zero_quantized_weights": True}}, 8)
    assert (
        "not expressed: zero_optimization.zero_quantized_weights (weights gathered in 8 bits)" in result.notes
    )


def test_what_the_file_leaves_open_is_its_frameworks(read):
    third = read({**BATCH, "zero_optimization": {"stage": 3}}, 8)
    assert third.framework == "deepspeed-zero"
    assert third.layout_fields["kernels"] == {}
    assert third.layout_fields["overlap"] == {"grad_reduce": True}
    assert not {"software", "recompute", "allocator"} & third.layout_fields.keys()
    sized = read({**BATCH, "zero_optimization": {"stage": 3, "reduce_bucket_size": 1000}}, 8)
    assert sized.layout_fields["kernels"] == {"bucket_elements": 1000.0}


def test_experts_that_deepspeed_places(read):
    placed = {"enabled": True, "autoep_size": 4}
    assert read({**BATCH, "expert_parallel": placed}, 8).strategy.ep == 4
    assert read({**BATCH, "expert_parallel": {**placed, "enabled": False}}, 8).strategy.ep == 1
    with raises(ForescaleError, "out_of_range expert_parallel.expert_tensor_parallel_size"):
        read({**BATCH, "expert_parallel": {**placed, "expert_tensor_parallel_size": 2}}, 8)
    with raises(ForescaleError, "unknown_key autoepsize"):
        read({**BATCH, "expert_parallel": {"autoepsize": 2}}, 8)


def test_ranks_of_a_model_that_do_not_divide_the_devices_are_named(tmp_path):
    parts = {"pipeline": {"stages": 3}, "tensor_parallel": {"autotp_size": 5}}
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps({"zero_optimization": {"stage": 1}, **parts}, indent=1))
    message = "not_a_factor the ranks of a model"
    with raises(ForescaleError, message):
        DeepSpeedReader().read(path, Options(num_devices=16))


def test_a_key_that_is_nearly_one_without_effect_is_listed(tmp_path):
    path = tmp_path / "ds.json"
    path.write_text('{"train_micro_batch_size_per_gpu": 1, "train_batch_size": 2, "prescale_grad": true}')
    assert DeepSpeedReader().read(path, Options(num_devices=2, strict=False)).unknown == ("prescale_grad",)
