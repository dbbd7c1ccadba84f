"""What is written for MaxText round-trips exactly, but for what it has no key for."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml
from tests.errors import raises
from tests.export.laws import check_writer
from tests.plans import dense_first, plans

from forescale.errors import SpecError
from forescale.export import export
from forescale.face import ask
from forescale.spec.workload import Trainable


@pytest.mark.parametrize(("seed", "cluster"), [(1, "h100-sxm"), (2, "tpu-v5p")])
def test_plans_read_back_to_the_bit(seed, cluster):
    check_writer([dense_first(plan) for plan in plans("maxtext", 45, seed=seed, cluster=cluster)])


def test_dense_layers_come_first():
    request = question(model="deepseek-v2-lite", devices=8, global_batch_size=64, zero=3)
    turned = replace(request, model=replace(request.model, layers=request.model.layers[::-1]))
    with raises(SpecError, "unsupported_by maxtext | layers.ffn"):
        export(turned)


def question(model="llama-3.1-70b", cluster="h100-sxm", **words):
    usual = {
        "devices": 64,
        "seq_len": 4096,
        "global_batch_size": 256,
        "framework": "maxtext",
        "recompute": "full",
    }
    return ask(model, cluster, **(usual | words))


def keys_of(**words):
    return yaml.safe_load(export(question(**words)).texts["run.yml"])


def test_a_model_goes_by_name_where_maxtext_has_it():
    assert keys_of()["model_name"] == "llama3.1-70b"
    deep = keys_of(model="deepseek-v3", zero=3)
    assert (deep["model_name"], deep["mtp_num_layers"], deep["n_routing_groups"]) == ("deepseek3-671b", 1, 8)
    assert keys_of(model="qwen3-4b")["model_name"] == "qwen3-4b"
    keys = keys_of(model="mistral-7b")
    assert (keys["decoder_block"], keys["sliding_window_size"]) == ("llama2", 4096)


@pytest.mark.parametrize("frozen", [(), ("vision",)])
def test_a_tower_goes_with_a_model_by_name(frozen):
    request = question(model="llama-4-scout", cluster="tpu-v5p", zero=3, images={"count": 4})
    request = replace(request, workload=replace(request.workload, trainable=Trainable(frozen=frozen)))
    (result,) = check_writer([request], unsaid=("model.layers.attention.rope",))  # scaled as Llama 3.1's
    keys = yaml.safe_load(result.texts["run.yml"])
    assert (keys["model_name"], keys["use_multimodal"]) == ("llama4-17b-16e", True)
    assert keys["freeze_vision_encoder_params"] == bool(frozen)
    with raises(SpecError, "unsupported_by MaxText | qwen3-vl-8b"):
        export(question(model="qwen3-vl-8b", zero=3))


def test_inner_axes_lie_inside_a_slice():
    keys = keys_of(tp=4, pp=2, zero=3, micro_batch_size=1)
    named = {key: value for key, value in keys.items() if key.endswith("_parallelism")}
    assert named == {
        "ici_tensor_parallelism": 4,
        "ici_fsdp_parallelism": 2,
        "dcn_fsdp_parallelism": 4,
        "dcn_pipeline_parallelism": 2,
        "dcn_data_parallelism": 1,
    }
    whole = keys_of(cluster="tpu-v5p", tp=4, zero=3)
    assert (whole["ici_tensor_parallelism"], whole["ici_fsdp_parallelism"]) == (4, 16)


def test_batch_of_every_device():
    keys = keys_of(tp=8, micro_batch_size=2, global_batch_size=32)
    assert (keys["per_device_batch_size"], keys["gradient_accumulation_steps"]) == (0.25, 2)
    third = keys_of(model="llama-3.1-8b", devices=48, cp=3, zero=3, seq_len=6144, global_batch_size=16)
    assert int(third["per_device_batch_size"] * 48) == 16


def test_a_model_without_softmax_attention_is_refused():
    request = question(model="qwen3-next-80b-a3b", devices=8, global_batch_size=64, zero=3)
    with raises(SpecError, "unsupported_by MaxText"):
        export(replace(request, model=replace(request.model, layers=request.model.layers[:1])))


def test_policies():
    assert (
        keys_of(recompute={"granularity": "policy", "policy": "save_out_proj"})["remat_policy"]
        == "save_out_proj"
    )
    kept = {"granularity": "policy", "policy": "custom", "kept": ["query_proj", "key_proj", "value_proj"]}
    names = {"modules": ["query_proj", "key_proj", "value_proj"]}
    assert keys_of(recompute=kept, offload=names)["remat_policy"] == "qkv_proj_offloaded"
    custom = keys_of(recompute=kept)
    assert (custom["remat_policy"], custom["key_proj"]) == ("custom", "device")
    lost = export(question(recompute="none")).unsaid
    assert [item.word for item in lost] == ["strategy.recompute"]


def test_pipelines_run_breadth_first():
    assert question(pp=2).layout.schedule == "looped-bfs"
    assert export(question(pp=4, vpp=2, zero=3, micro_batch_size=2)).unsaid == ()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            {"model": "mixtral-8x7b", "ep": 8, "zero": 1},
            "unsupported_by maxtext | experts are shards of stage 3",
        ),
        (
            {"model": "mixtral-8x7b", "tp": 2, "etp": 1, "zero": 3},
            "unsupported_by maxtext | experts are split as all else",
        ),
        ({"cp": 2, "zero": 1}, "unsupported_by maxtext | context ranks shard weights"),
        (
            {"tp": 8, "dp_shard": 1, "dp_replicate": 8, "zero": 3},
            "unsupported_by maxtext | stage 3 has shards",
        ),
        ({"pp": 3, "devices": 48, "global_batch_size": 48}, "unsupported_by maxtext | equal stages"),
        (
            {"pp": 4, "micro_batch_size": 4, "global_batch_size": 384},
            "not_divisible MaxText: num_microbatches",
        ),
        ({"model": "nemotron-h-56b"}, "unsupported_by MaxText | nemotron-h-56b"),
    ],
)
def test_what_maxtext_refuses_is_refused(words, text):
    with raises(SpecError, text):
        export(question(**words))


def test_adapters_of_fused_products_are_those_of_their_parts():
    request = question(zero=3)
    fused = Trainable(lora_rank=8, lora_targets=("qkv_proj",))
    result = export(replace(request, workload=replace(request.workload, trainable=fused)))
    assert result.read_back.workload.trainable.lora_targets == ("q_proj", "k_proj", "v_proj")
    assert "workload.trainable" in {item.word for item in result.unsaid}


def test_moments_of_a_recipe_read_back_and_give_way_together():
    usual = question(cluster="tpu-v7", seq_len=8192, global_batch_size=128)
    precision = usual.workload.precision
    assert (precision.moments, precision.second_moments) == (
        "bf16",
        "fp32",
    )  # mu_dtype of tpu-recipes' run_recipe.sh
    result = export(usual)
    assert result.unsaid == ()
    assert yaml.safe_load(result.texts["run.yml"])["mu_dtype"] == "bfloat16"
    whole = question(cluster="tpu-v7", moment_dtype="fp32").workload.precision
    assert (whole.moments, whole.second_moments) == ("fp32", None)


def test_moments_of_one_type_in_16_bits_cannot_be_written_beside_weights_in_32():
    lost = {item.word: item.read for item in export(question(model="llama-3-8b", moment_dtype="bf16")).unsaid}
    assert lost["workload.precision.second_moments"] == "fp32"
