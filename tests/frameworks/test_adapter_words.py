"""Adapters as frameworks say them: read, written and read back; what cannot be expressed is refused in a sentence."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.errors import raises

from forescale import export
from forescale.catalogue.models import load_model
from forescale.errors import ForescaleError, ReaderError
from forescale.frameworks.readers import read_file
from forescale.frameworks.reading import Options
from forescale.spec import Workload
from forescale.spec.workload import ALL_LINEAR, RECURRENT, Trainable

OPTIONS = Options(num_devices=8, model_of=load_model)
FUSED = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
RUN = {"cluster": "h100-sxm", "devices": 8, "seq_len": 2048, "global_batch_size": 8}


def trained(reading) -> Trainable:
    workload = reading.workload
    return (
        workload.trainable
        if isinstance(workload, Workload)
        else Trainable(**reading.workload_fields["trainable"])
    )


@pytest.mark.parametrize("framework", ["bridge", "maxtext", "torchtitan"])
@pytest.mark.parametrize("targets", [ALL_LINEAR, ("q_proj", "k_proj", "v_proj"), ("o_proj", "down_proj")])
def test_what_is_written_is_read_back(framework, targets, tmp_path):
    result = export(
        "llama-3.1-8b",
        **RUN,
        to=framework,
        trainable={"lora_rank": 16, "lora_targets": targets, "lora_experts": "own"},
    )
    for name, text in result.texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    read = trained(read_file(tmp_path / next(iter(result.texts)), OPTIONS))
    assert read.lora_rank == 16
    assert set(read.lora_targets) == set(targets)


def test_fused_adapters_of_bridge(tmp_path):
    result = export("llama-3.1-8b", **RUN, to="bridge", trainable={"lora_rank": 8, "lora_targets": FUSED})
    text = next(iter(result.texts.values()))
    names = ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]
    assert f"cfg.peft = LoRA(target_modules={names}, dim=8, share_expert_adapters=False)" in text
    place = tmp_path / "recipe.py"
    place.write_text(text, encoding="utf-8")
    assert trained(read_file(place, OPTIONS)) == Trainable(lora_rank=8, lora_targets=FUSED)
    bare = text.replace(f"target_modules={names}, dim=8, share_expert_adapters=False", "")
    place.write_text(bare, encoding="utf-8")
    usual = trained(read_file(place, OPTIONS))
    assert usual == Trainable(lora_rank=32, lora_targets=FUSED, lora_experts="shared")
    for wrong, message in (("DoRA()", "LoRA and CanonicalLoRA can"), ("LoRA(dimm=8)", "unknown_key dimm")):
        place.write_text(bare.replace("LoRA()", wrong), encoding="utf-8")
        with raises(ForescaleError, message):
            read_file(place, OPTIONS)


def test_adapters_of_recurrent_layers_of_bridge(tmp_path):
    targets = ("qkv_proj", "o_proj", "in_proj", "out_proj")
    question = {"lora_rank": 8, "lora_targets": targets}
    result = export("qwen3-next-80b-a3b", **RUN, to="bridge", trainable=question, ep=8)
    text = next(iter(result.texts.values()))
    assert "target_modules=['linear_qkv', 'linear_proj', 'in_proj', 'out_proj']" in text
    place = tmp_path / "recipe.py"
    place.write_text(text, encoding="utf-8")
    assert trained(read_file(place, OPTIONS)) == Trainable(lora_rank=8, lora_targets=targets)


ADAPTER = {
    "peft_type": "LORA",
    "base_model_name_or_path": "meta-llama/Llama-3.1-8B",
    "r": 16,
    "lora_dropout": 0.05,
    "target_modules": ["q_proj", "v_proj"],
    "modules_to_save": ["embed_tokens", "lm_head"],
}


def test_peft(tmp_path):
    place = tmp_path / "adapter_config.json"
    place.write_text(json.dumps(ADAPTER), encoding="utf-8")
    file = read_file(place, OPTIONS)
    assert file.model is not None
    assert file.model.name == "llama-3.1-8b"
    assert trained(file) == Trainable(
        lora_rank=16, lora_targets=("q_proj", "v_proj"), lora_dropout=True, whole=("embedding", "head")
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"peft_type": "IA3"}, "not_expressed peft_type"),
        ({"use_dora": True}, "not_expressed use_dora"),
        ({"rank_pattern": {"q_proj": 4}}, "not_expressed rank_pattern"),
        ({"target_modules": ["conv1"]}, "conv1.*known places"),
        ({"modules_to_save": ["classifier"]}, "classifier.*trained whole"),
    ],
)
def test_what_of_peft_is_not_expressed(changes, said, tmp_path):
    place = tmp_path / "adapter_config.json"
    place.write_text(json.dumps(ADAPTER | changes), encoding="utf-8")
    with raises(ReaderError, said):
        read_file(place, OPTIONS)


TRL = """
model_name_or_path: meta-llama/Llama-3.1-8B
per_device_train_batch_size: 2
max_length: 2048
bf16: true
fsdp: full_shard
use_peft: true
lora_r: 64
lora_dropout: 0.0
lora_target_modules: all-linear
load_in_4bit: true
use_bnb_nested_quant: true
"""


def test_trl(tmp_path):
    place = tmp_path / "sft.yaml"
    place.write_text(TRL, encoding="utf-8")
    file = read_file(place, OPTIONS)
    assert trained(file) == Trainable(lora_rank=64, lora_targets=(*ALL_LINEAR, *RECURRENT))
    types = {"compute": "bf16", "gradients": "fp32", "frozen": "nf4_double"}
    assert file.workload_fields["precision"] == types


def test_quantised_weights_of_maxtext(tmp_path):
    trainable, precision = {"lora_rank": 8}, {"frozen": "nf4"}
    result = export("llama-3.1-8b", **RUN, to="maxtext", trainable=trainable, precision=precision)
    text = next(iter(result.texts.values()))
    place = tmp_path / "run.yml"
    place.write_text(text, encoding="utf-8")
    values = read_file(place, OPTIONS).workload_fields
    assert values["precision"]["frozen"] == "nf4"
    assert replace(Trainable(**values["trainable"]), lora_targets=ALL_LINEAR) == Trainable(lora_rank=8)
    place.write_text(text.replace("nf4", "int2"), encoding="utf-8")
    with raises(ReaderError, "not_one_of lora.lora_weight_qtype"):
        read_file(place, OPTIONS)
