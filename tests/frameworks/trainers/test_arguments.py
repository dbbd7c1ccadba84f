"""A program of a person's own has the arguments of its command, and its own defaults for the rest."""

import pytest

from forescale.catalogue.models import load_model
from forescale.frameworks.readers import read_file
from forescale.frameworks.reading import Options

REWARD = """from dataclasses import dataclass, field
import torch
from transformers import AutoModelForSequenceClassification, HfArgumentParser, Trainer, TrainingArguments

@dataclass
class Settings:
    model: str = field(default="Qwen/Qwen3-8B")
    per_device_train_batch_size: int = field(default=1)
    gradient_accumulation_steps: int = field(default=32)
    checkpointing: bool = True
    max_length: int = field(default=4096, metadata={"help": "tokens"})
    lora_rank: int = 64

settings = HfArgumentParser(Settings).parse_args_into_dataclasses()[0]
length = settings.max_length
model = AutoModelForSequenceClassification.from_pretrained(settings.model, num_labels=1, torch_dtype=torch.bfloat16)

class RewardTrainer(Trainer):
    pass

RewardTrainer(
    model=model,
    args=TrainingArguments(
        "out",
        per_device_train_batch_size=settings.per_device_train_batch_size,
        gradient_accumulation_steps=settings.gradient_accumulation_steps,
        gradient_checkpointing=settings.checkpointing,
        bf16=True,
    ),
).train()
"""
LLAVA = """from dataclasses import dataclass, field
import transformers
from peft import LoraConfig, get_peft_model

@dataclass
class ModelArguments:
    model_name_or_path: str = "Qwen/Qwen3-8B"

@dataclass
class TrainingArguments(transformers.TrainingArguments):
    model_max_length: int = 512
    lora_enable: bool = False
    lora_r: int = 128
    shuffled: bool = False

def train():
    parser = transformers.HfArgumentParser((ModelArguments, TrainingArguments))
    model_args, training_args = parser.parse_args_into_dataclasses()
    model = transformers.AutoModelForCausalLM.from_pretrained(model_args.model_name_or_path)
    if training_args.lora_enable:
        model = get_peft_model(model, LoraConfig(r=training_args.lora_r, target_modules=["q_proj"]))
    if training_args.shuffled:
        pass
    transformers.Trainer(model=model, args=training_args).train()

train()
"""
ARGPARSE = """import argparse
from dataclasses import dataclass
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

@dataclass
class Script:
    batch: int = 8
    steps: int = 4
    whole: bool = True

def parse_args():
    usual = Script()
    parser = argparse.ArgumentParser()
    parser.add_argument("-b", "--batch", type=int, default=usual.batch)
    parser.add_argument("--steps", type=int, default=usual.steps)
    parser.add_argument("--half", action="store_false", dest="whole")
    return Script(**vars(parser.parse_args()))

args = parse_args()
words = {"per_device_train_batch_size": args.batch, "gradient_accumulation_steps": args.steps, "bf16": args.whole}
Trainer(model=AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-8B"), args=TrainingArguments("out", **words)).train()
"""


@pytest.fixture
def read(tmp_path):
    def call(program, command, name="train.py", **options):
        (tmp_path / "src").mkdir(exist_ok=True)
        (tmp_path / "src" / name).write_text(program)
        (tmp_path / "run.sh").write_text(command + "\n")
        explicit = {"num_devices": None, "model_of": load_model, "strict": False, **options}
        return read_file(tmp_path / "run.sh", Options(**explicit))

    return call


def test_defaults_of_a_dataclass_reach_the_calls(read):
    parsed = read(
        REWARD, "torchrun --nproc_per_node 2 src/train.py --per_device_train_batch_size 2 --output_path out"
    )
    layout, workload = parsed.layout_fields, parsed.workload_fields
    assert (parsed.num_devices, parsed.model.name, workload["seq_len"]) == (2, "qwen3-8b", 4096)
    assert (layout["micro_batch_size"], workload["global_batch_size"]) == (2 * 2, 2 * 2 * 32 * 2)  # pairs
    assert layout["recompute"] == {"granularity": "full"}
    assert "trainable" not in workload
    assert not parsed.missing
    assert parsed.warnings == ()


@pytest.mark.parametrize(("switch", "rank"), [("--lora_enable True", 128), ("", None)])
def test_defaults_of_own_training_arguments_count(read, switch, rank):
    command = f"deepspeed --num_gpus 4 src/train.py --bf16 True --gradient_accum 2 --shuffled True {switch}"
    parsed = read(LLAVA, command)
    workload = parsed.workload_fields
    assert (workload["seq_len"], workload["global_batch_size"]) == (512, 8 * 2 * 4)
    assert workload.get("trainable", {}).get("lora_rank") == rank
    assert workload.get("trainable", {}).get("lora_targets", ("q_proj",)) == ("q_proj",)
    assert [
        text for text in parsed.warnings if "assumed" in text and "recompute" not in text
    ]  # type of the weights
    assert parsed.unknown == ()


def test_argparse_has_the_defaults_of_its_program(read):
    parsed = read(ARGPARSE, "python src/train.py -b 2 --output_dir out --steps 16", num_devices=1)
    assert parsed.layout_fields["micro_batch_size"] == 2
    parsed = read(ARGPARSE, "python src/train.py --batch 2 --output_dir out --steps 16", num_devices=1)
    workload = parsed.workload_fields
    assert (parsed.layout_fields["micro_batch_size"], workload["global_batch_size"]) == (2, 32)
    assert workload["precision"]["compute"] == "bf16"


def test_a_module_and_a_program_of_another_folder_are_found(read):
    command = (
        "accelerate launch --num_processes 2 -m src.train --per_device_train_batch_size 4 --output_dir out"
    )
    assert read(REWARD, command).workload_fields["global_batch_size"] == 4 * 32 * 2 * 2
    named = "torchrun --nproc_per_node 2 /opt/of/mine/train.py --per_device_train_batch_size 4"
    assert read(REWARD, named).warnings[0].startswith("defaults of train.py; assumed")


def test_adapters_of_a_checkpoint_are_assumed(read):
    text = ARGPARSE.replace("AutoModelForCausalLM", "AutoPeftModelForCausalLM").replace(
        "from transformers", "from peft"
    )
    parsed = read(text, "python src/train.py --output_dir out", num_devices=1)
    assert parsed.workload_fields["trainable"]["lora_rank"] == 16
    assert "--lora-rank" in parsed.warnings[0]


def test_programs_of_transformers_4_load_frozen_weights_in_fp32(read):
    text = ARGPARSE.replace('"bf16": args.whole', '"fp16": True, "evaluation_strategy": "steps"')
    text = text.replace("\nTrainer(", "\nLoraConfig(r=4)\nTrainer(")
    parsed = read(text, "python src/train.py --output_dir out", num_devices=1)
    assert parsed.workload_fields["precision"]["frozen"] == "fp32"


def test_a_program_with_a_train_type_of_its_own_is_not_of_swift(read):
    command = (
        "torchrun --nproc_per_node 3 mine/tune.py --model_name_or_path Qwen/Qwen3-8B --train_type sft --bf16"
    )
    parsed = read(ARGPARSE, f"{command} --per_device_train_batch_size 1 --use_lora True --lora_r 128")
    workload = parsed.workload_fields
    assert (workload["trainable"]["lora_rank"], workload["global_batch_size"]) == (128, 3)


def test_a_program_of_another_name_takes_a_file_of_llamafactory(read, tmp_path):
    keys = "stage: dpo\nfinetuning_type: lora\nlora_target: all\ncutoff_len: 512\nper_device_train_batch_size: 1\n"
    (tmp_path / "dpo.yaml").write_text(f"model_name_or_path: Qwen/Qwen3-8B\n{keys}bf16: true\n")
    parsed = read("import mine\n", "torchrun --nproc_per_node 2 src/entry.py dpo.yaml", name="entry.py")
    workload = parsed.workload_fields
    assert (workload["seq_len"], workload["global_batch_size"], workload["reference"]) == (
        512,
        2 * 2,
        "shared",
    )
    assert "gate_proj" in workload["trainable"]["lora_targets"]


def test_a_program_that_is_not_read_is_assumed(read):
    parsed = read(
        "import mine\nmine.train()\n", "torchrun --nproc_per_node 2 src/train_dpo.py --output_dir out --bf16"
    )
    for assumed in ("--recompute", "no other model, though it is named after dpo", "--param-dtype"):
        assert assumed in parsed.warnings[0]
