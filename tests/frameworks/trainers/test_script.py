"""Python scripts are followed to the calls that set up their training."""

import pytest
from tests.errors import raises

from forescale.catalogue.models import load_model
from forescale.errors import ReaderError
from forescale.frameworks.readers import read_file
from forescale.frameworks.reading import Options

UNSLOTH = """from unsloth import FastLanguageModel, is_bfloat16_supported
import torch

length = 2048
model, tokenizer = FastLanguageModel.from_pretrained(model_name="unsloth/Llama-3.1-8B-bnb-4bit", max_seq_length=length)
model = FastLanguageModel.get_peft_model(
    model, r=32, target_modules=["q_proj", "v_proj"], use_gradient_checkpointing="unsloth"
)
rows = data.read()
if len(rows) != 4:
    raise ValueError("the data")
trainer = SFTTrainer(
    model=model,
    args=TrainingArguments(
        per_device_train_batch_size=2, gradient_accumulation_steps=4, optim="adamw_8bit", bf16=is_bfloat16_supported()
    ),
)
"""
TRL = """from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from trl import SFTConfig, SFTTrainer
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=8)
parser.add_argument("--batch", type=int)
options = parser.parse_args()


def main():
    model = AutoModelForCausalLM.from_pretrained("mistralai/Mistral-7B-v0.1", quantization_config=BITS)
    args = SFTConfig(
        "out", per_device_train_batch_size=BATCH, gradient_accumulation_steps=options.steps, bf16=True, max_length=2**10
    )
    SFTTrainer(model=model, args=args, peft_config=LoraConfig(r=64, target_modules="all-linear")).train()


BITS = BitsAndBytesConfig(load_in_4bit=True)
if __name__ == "__main__":
    main()
"""
LIGHTNING = """import lightning as L

class Module(L.LightningModule):
    def __init__(self):
        self.model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B")

loader = DataLoader([], batch_size=2)
L.Trainer(devices=8, num_nodes=2, precision="bf16-mixed", strategy="fsdp", accumulate_grad_batches=4).fit(Module(), loader)
"""


@pytest.fixture
def read(tmp_path):
    def call(text, name="train.py", **options):
        (tmp_path / name).write_text(text)
        return read_file(tmp_path / name, Options(**{"model_of": load_model, "strict": False, **options}))

    return call


def test_unsloth_trains_adapters_on_one_device(read):
    parsed = read(UNSLOTH)
    fields, workload = parsed.layout_fields, parsed.workload_fields
    assert (parsed.model.name, parsed.num_devices, workload["seq_len"]) == ("llama-3.1-8b", 1, 2048)
    assert (fields["micro_batch_size"], workload["global_batch_size"]) == (2, 8)
    assert (workload["trainable"]["lora_rank"], workload["trainable"]["lora_targets"]) == (
        32,
        ("q_proj", "v_proj"),
    )
    assert (workload["precision"]["frozen"], workload["precision"]["moments"]) == ("nf4", "fp8")
    assert fields["offload"]["modules"] == ("decoder_layer_input",)
    assert fields["kernels"]["cross_entropy"] == "fused_linear"


def test_a_command_starts_a_script_on_its_devices(read):
    read(TRL.replace("BATCH,", "4,"))
    parsed = read("torchrun --nproc_per_node 4 train.py", "run.sh")
    workload = parsed.workload_fields
    assert (parsed.format, parsed.num_devices, parsed.model.name) == ("launch", 4, "mistral-7b")
    assert (workload["seq_len"], workload["global_batch_size"]) == (1024, 128)
    assert (workload["trainable"]["lora_rank"], workload["precision"]["frozen"]) == (64, "nf4")


def test_a_batch_that_only_running_shows_is_asked_for(read):
    parsed = read(TRL.replace("BATCH,", "options.batch,"), num_devices=2)
    assert [fact.part for fact in parsed.missing] == ["strategy.micro_batch_size"]
    assert "micro_batch_size" not in parsed.layout_fields
    assert (
        read(
            TRL.replace("BATCH,", "options.batch,"), num_devices=2, over={"micro_batch_size": 2}
        ).workload_fields["global_batch_size"]
        == 32
    )


def test_lightning_trains_with_its_strategy_and_devices(read):
    parsed = read(LIGHTNING)
    assert (parsed.num_devices, parsed.model.name, parsed.layout_fields["zero"]) == (16, "qwen2.5-7b", 3)
    assert parsed.workload_fields["global_batch_size"] == 2 * 4 * 16


def test_a_script_without_its_arguments_is_refused(read):
    text = "from trl import TrlParser, SFTTrainer\nargs, = TrlParser(SFTConfig).parse_args_and_config()\nSFTTrainer('m', args=args)\n"
    with raises(ReaderError, "wrong_format a script with its settings"):
        read(text)


def test_of_several_models_the_first_is_trained_and_conditions_are_warned_of(read):
    other = "reference = AutoModelForCausalLM.from_pretrained('Qwen/Qwen3-8B')\nif data.big:\n    LoraConfig(r=4)\n"
    parsed = read(TRL.replace("BATCH,", "4,") + other, num_devices=1)
    assert parsed.model.name == "mistral-7b"
    assert [text for text in parsed.warnings if "LoraConfig is called under a condition" in text]


def test_unsloth_takes_fp16_on_devices_without_bf16(tmp_path):
    (tmp_path / "train.py").write_text(UNSLOTH)
    options = Options(model_of=load_model, strict=False, has_bf16=False)
    assert read_file(tmp_path / "train.py", options).workload_fields["precision"]["compute"] == "fp16"
