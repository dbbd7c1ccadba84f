"""Programs of people's own: what they make, set later, leave unused, freeze and deal to devices."""

import json

import pytest
from tests.errors import raises

from forescale.catalogue.models import load_model
from forescale.errors import ReaderError
from forescale.frameworks.readers import read_file
from forescale.frameworks.reading import Options

QLORA = """import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments

bits = BitsAndBytesConfig(load_in_4bit=True)
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-8B", quantization_config=bits, device_map="auto")
model = prepare_model_for_kbit_training(model)
lora = LoraConfig(r=16, target_modules=["q_proj", "v_proj"])
model = get_peft_model(model, lora)
args = TrainingArguments("out", per_device_train_batch_size=2, gradient_accumulation_steps=4, fp16=True)
Trainer(model=model, args=args).train()
"""


@pytest.fixture
def read(tmp_path):
    """Read a program, whose length is given."""

    def call(text, name="train.py", **options):
        (tmp_path / name).write_text(text)
        explicit = {"model_of": load_model, "strict": False, "over": {"seq_len": 2048}, **options}
        return read_file(tmp_path / name, Options(**explicit))

    return call


def warned(parsed, *texts):
    return all(any(text in warning for warning in parsed.warnings) for text in texts)


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("", "", "full"),
        ("training(model)", "training(model, False)", "none"),
        ("training(model)", "training(model, use_gradient_checkpointing=False)", "none"),
        ("load_in_4bit=True", "load_in_4bit=False", "none"),
    ],
)
def test_weights_of_few_bits_are_prepared_with_recomputation(read, old, new, kind):
    parsed = read(QLORA.replace(old, new), num_devices=1)
    assert parsed.layout_fields["recompute"] == {"granularity": kind}


SFT = "from trl import SFTTrainer\nSFTTrainer(model=model, args=args, peft_config=lora).train()"
OLDER_SFT = SFT.replace("args=args", "args=args, tokenizer=tokenizer")
"""A call of TRL before 0.20, whose trainer prepares a quantised model."""


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({}, "unquantised"),
        ({"model = prepare_model_for_kbit_training(model)": ""}, "none"),
        (
            {"model = get_peft_model(model, lora)": "", "Trainer(model=model, args=args).train()": SFT},
            "unquantised",
        ),
        (
            {
                "model = prepare_model_for_kbit_training(model)": "",
                "Trainer(model=model, args=args).train()": SFT,
            },
            "none",
        ),
        (
            {
                "model = prepare_model_for_kbit_training(model)": "",
                "Trainer(model=model, args=args).train()": SFT.replace("SFT", "ORPO"),
            },
            "unquantised",
        ),
        (
            {
                "model = get_peft_model(model, lora)": "",
                "Trainer(model=model, args=args).train()": OLDER_SFT,
                "fp16=True": "bf16=True",
            },
            "norms",
        ),
    ],
)
def test_what_a_quantised_model_keeps_in_fp32_follows_the_calls(read, changes, kept):
    text = QLORA
    for old, new in changes.items():
        text = text.replace(old, new)
    assert read(text, num_devices=1).workload_fields["precision"]["fp32_frozen"] == kept


def test_one_process_deals_its_layers_to_all_devices(read):
    (fact,) = (fact for fact in read(QLORA).missing if fact.part == "devices")
    assert fact.example == "--devices 1"
    assert "device_map" in fact.reason
    with raises(ReaderError, "wrong_format data parallelism"):
        read(QLORA, num_devices=4)
    placed = read(QLORA.replace('"auto"', '{"": 0}'), num_devices=4)
    assert placed.workload_fields["global_batch_size"] == 2 * 4 * 4


def test_what_is_set_later_counts(read):
    later = "args.gradient_accumulation_steps = 32\nTrainer("
    assert (
        read(QLORA.replace("Trainer(model", later + "model"), num_devices=1).workload_fields[
            "global_batch_size"
        ]
        == 64
    )


def test_a_class_of_its_own_has_its_defaults(read):
    own = "class Own(TrainingArguments):\n    gradient_accumulation_steps: int = 3\n\n\nargs = Own("
    text = QLORA.replace("gradient_accumulation_steps=4, ", "").replace("args = TrainingArguments(", own)
    assert read(text, num_devices=1).workload_fields["global_batch_size"] == 2 * 3


def test_what_is_unpacked_and_not_known_is_asked_for(read):
    text = QLORA.replace("gradient_accumulation_steps=4", "**json.load(open('more.json'))")
    parsed = read(text, num_devices=1)
    assert [fact.part for fact in parsed.missing] == ["workload.global_batch_size"]
    assert warned(parsed, "what else it is given is in json.load")


@pytest.mark.parametrize(
    ("old", "name"), [(", quantization_config=bits", "BitsAndBytesConfig"), ("(model, lora)", "LoraConfig")]
)
def test_a_configuration_that_nothing_takes_is_warned_of(read, old, name):
    assert warned(
        read(QLORA.replace(old, "()" * old.startswith("(")), num_devices=1), f"{name} is made, and taken by"
    )


def test_targets_that_a_loop_finds_are_warned_of(read):
    find = "found = [name for name in names_of(model)]\nfound = []\nlora = LoraConfig(r=16, target_modules=found)\n"
    text = QLORA.replace('lora = LoraConfig(r=16, target_modules=["q_proj", "v_proj"])\n', find)
    assert warned(read(text, num_devices=1), "lora_target_modules is filled while it runs")


def test_adapters_of_other_kinds_are_warned_of(read):
    parsed = read(QLORA.replace("LoraConfig(r=16, ", "IA3Config("), num_devices=1)
    assert "trainable" not in parsed.workload_fields
    assert warned(parsed, "prompts or scales is projected as training of all parameters")


def test_adapters_in_some_layers_are_warned_of(read):
    assert warned(
        read(QLORA.replace("r=16", "r=16, layers_to_transform=[1]"), num_devices=1),
        "lora_layers_to_transform",
    )


FROZEN = """from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-8B")
for parameter in NAME.parameters():
    parameter.requires_grad = False
args = TrainingArguments("out", per_device_train_batch_size=2, bf16=True)
Trainer(model=model, args=args).train()
"""


@pytest.mark.parametrize(("name", "warns"), [("model.model.layers", True), ("ref_model", False)])
def test_frozen_parameters_are_warned_of(read, name, warns):
    assert warned(read(FROZEN.replace("NAME", name), num_devices=1), "requires_grad") is warns


DECLARED = """from dataclasses import dataclass
import transformers

@dataclass
class Arguments(transformers.TrainingArguments):
    bits: int = 4
    lora_enable: bool = True
    lora_r: int = 64

args, = transformers.HfArgumentParser(Arguments).parse_args_into_dataclasses()
model = transformers.AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-8B")
USES
transformers.Trainer(model=model, args=args).train()
"""
COMMAND = (
    "torchrun --nproc_per_node 2 train.py --output_dir out --per_device_train_batch_size 2 --bf16 True\n"
)


@pytest.mark.parametrize(
    ("uses", "rank"),
    [("", None), ("if args.lora_enable:\n    make(model, args.lora_r, args.bits)", 64)],
)
def test_arguments_of_adapters_that_nothing_asks_for_do_not_count(read, tmp_path, uses, rank):
    (tmp_path / "train.py").write_text(DECLARED.replace("USES", uses))
    fields = read(COMMAND, "run.sh").workload_fields
    assert fields.get("trainable", {}).get("lora_rank") == rank
    assert fields["precision"].get("frozen") == ("nf4" if rank else None)


def test_a_notebook_is_read_as_its_python(read):
    code = ["%pip install trl\n", "!nvidia-smi \\\n  -L\n", *QLORA.splitlines(keepends=True)]
    cells = [
        {"cell_type": "markdown", "source": ["# Train"]},
        {"cell_type": "code", "source": ["%%bash\n", "ls"]},
        {"cell_type": "code", "source": ["this is no Python"]},
        {"cell_type": "code", "source": code},
    ]
    parsed = read(json.dumps({"nbformat": 4, "cells": cells}), "train.ipynb", num_devices=1)
    assert parsed.model.name == "qwen3-8b"
    assert parsed.workload_fields["trainable"]["lora_rank"] == 16


ENGINE = "import deepspeed\nfrom inner import Base\n\n\ndef main():\n    Base().run()\n"


def test_deepspeeds_launcher_leaves_its_configuration_open(read, tmp_path):
    (tmp_path / "train.py").write_text(ENGINE)
    (tmp_path / "inner.py").write_text("from deeper import run\n")
    parsed = read(
        "deepspeed --num_gpus 4 train.py --task_type dpo --config c.yaml --batch_size 2\n".replace(
            "--config c.yaml ", ""
        ),
        "run.sh",
    )
    assert "DeepSpeed's configuration" in [fact.what for fact in parsed.missing]
    assert warned(parsed, "task_type: dpo is projected as examples of one sequence")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("#!/bin/bash\nexec python -m own.train --lr 1e-4 2>&1 | tee out.log\n", "own.train"),
        ("#!/bin/bash\nalign-cli sft --model_name_or_path m --per_device_train_batch_size 2\n", "align-cli"),
    ],
)
def test_the_program_that_is_not_read_is_named(read, text, name):
    with raises(ReaderError, "wrong_format a command that trains") as caught:
        read(text, "run.sh")
    assert name in str(caught.value)


CALLED = """import fire
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments


def load(name):
    model = AutoModelForCausalLM.from_pretrained(name)
    model.gradient_checkpointing_enable()
    return get_peft_model(model, LoraConfig(r=16, target_modules="all-linear"))


def train(name="Qwen/Qwen3-8B", batch: int = 4):
    Trainer(model=load(name), args=TrainingArguments("out", per_device_train_batch_size=batch, bf16=True)).train()


fire.Fire(train)
"""


def test_functions_that_train_are_followed_where_nothing_calls_them(read):
    parsed = read(CALLED, num_devices=2)
    assert (parsed.model.name, parsed.layout_fields["micro_batch_size"]) == ("qwen3-8b", 4)
    assert parsed.layout_fields["recompute"] == {"granularity": "full"}
    assert parsed.workload_fields["trainable"]["lora_rank"] == 16


def test_functions_that_nothing_calls_are_warned_of(read):
    method = "\n\nclass Other:\n    def adapt(self, model):\n        return get_peft_model(model, LoraConfig(r=64))\n"
    assert warned(
        read(CALLED + method, num_devices=2),
        "not followed, may change the figures: get_peft_model (train.py:21), LoraConfig (train.py:21)",
    )


TUNED = """def main():
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig
    from trl import DPOConfig, DPOTrainer

    bits = BitsAndBytesConfig(load_in_4bit=True)
    base = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-8B", quantization_config=bits)
    model = PeftModel.from_pretrained(base, "adapters", is_trainable=TRAINS)
    args = DPOConfig("out", per_device_train_batch_size=2, bf16=True, gradient_checkpointing=True, max_length=64)
    DPOTrainer(model=model, args=args).train()


main()
"""


def test_adapters_that_are_loaded_are_trained_on(read):
    parsed = read(TUNED.replace("TRAINS", "True"), num_devices=2, over={})
    assert parsed.workload_fields["trainable"]["lora_rank"] == 16
    assert parsed.workload_fields["precision"]["frozen"] == "nf4"
    assert warned(parsed, "LoRA of rank 16 (--lora-rank)")


def test_weights_of_few_bits_without_adapters_are_warned_of(read):
    parsed = read(TUNED.replace("TRAINS", "False"), num_devices=2, over={})
    assert "trainable" not in parsed.workload_fields
    assert warned(parsed, "load_in_4bit: no adapter is named")
