"""Python scripts are followed to the calls that set up their training."""

import re

import pytest
from msgspec.structs import replace
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
    assert [
        text
        for text in parsed.warnings
        if re.search(r"under a condition.* as met: LoraConfig \(train\.py:\d+\)", text)
    ]


def test_unsloth_takes_fp16_on_devices_without_bf16(tmp_path):
    (tmp_path / "train.py").write_text(UNSLOTH)
    options = Options(model_of=load_model, strict=False, has_bf16=False)
    assert read_file(tmp_path / "train.py", options).workload_fields["precision"]["compute"] == "fp16"


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        (('L.Trainer(', "strategy = data.strategy\nL.Trainer("), ""),
        (('strategy="fsdp"', "strategy=data.strategy"), "how its states are sharded"),
        (('strategy="fsdp"', 'strategy="bagua"'), "how its states are sharded"),
        (('strategy="fsdp"', "strategy=FSDPStrategy()"), ""),
        (('strategy="fsdp"', "strategy=FSDPStrategy(**data.words)"), "how its states are sharded"),
        (('strategy="fsdp"', 'strategy="ddp_find_unused_parameters_true"'), ""),
    ],
)  # fmt: skip
def test_a_strategy_that_is_not_known_is_asked_for(read, change, fact):
    assert [item.what for item in read(LIGHTNING.replace(*change)).missing] == ([fact] if fact else [])


def test_offload_of_a_strategy_of_lightning(read):
    parsed = read(LIGHTNING.replace('"fsdp"', '"deepspeed_stage_3_offload"'))
    assert (parsed.layout_fields["zero"], parsed.missing) == (3, ())
    assert parsed.layout_fields["offload"]["parameters"]


@pytest.mark.parametrize(
    ("line", "fact"),
    [
        ("if world > 1:\n    model = FSDP(model)\n", "how its states are sharded"),
        ("model = wrap_with_fsdp(model)\n", "how its states are sharded"),
        ("Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin())\n", "how its states are sharded"),
        ("print(is_fsdp_enabled())\n", ""),
    ],
)
def test_what_shards_under_a_condition_or_elsewhere_is_asked_for(read, line, fact):
    parsed = read(TRL.replace("BATCH,", "4,") + line, num_devices=4)
    assert [item.what for item in parsed.missing] == ([fact] if fact else [])


def test_modules_that_shard_are_found_from_the_folder_above(read, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "layout.py").write_text(
        "def lay(model):\n    return FullyShardedDataParallel(model)\n"
    )
    (tmp_path / "scripts").mkdir()
    text = "from own.layout import lay\n" + TRL.replace("BATCH,", "4,")
    assert [fact.what for fact in read(text, "scripts/train.py", num_devices=4).missing] == [
        "how its states are sharded"
    ]


def test_a_deepspeed_configuration_that_is_not_known_is_asked_for(read):
    text = TRL.replace("BATCH,", "4, deepspeed=data.path,")
    assert [fact.what for fact in read(text, num_devices=4).missing] == ["DeepSpeed's configuration"]


def test_a_model_on_one_device_is_projected_on_it(read):
    text = TRL.replace("quantization_config=BITS", 'quantization_config=BITS, device_map={"": 0}').replace(
        "BATCH,", "4,"
    )
    assert (read(text).num_devices, read(text).missing) == (1, ())
    of_rank = text.replace('{"": 0}', '{"": state.process_index}')
    assert [fact.example for fact in read(of_rank).missing] == ["--devices 8"]
    current = text.replace('{"": 0}', "torch.cuda.current_device()")
    assert [fact.example for fact in read(current).missing] == ["--devices 8"]


@pytest.mark.parametrize(
    ("word", "recompute"),
    [
        ("", "full"),
        (", use_gradient_checkpointing=False", "none"),
        (", use_gradient_checkpointing=True", "full"),
    ],
)
def test_unsloth_recomputes_where_it_trains_all_parameters(read, word, recompute):
    text = UNSLOTH.replace("max_seq_length=length", f"max_seq_length=length, full_finetuning=True{word}")
    start, end = text.index("model = FastLanguageModel.get"), text.index("rows = ")
    parsed = read(text[:start] + text[end:])
    assert parsed.layout_fields["recompute"]["granularity"] == recompute
    assert parsed.workload_fields["precision"].get("frozen") is None


def test_names_given_on_import_are_those_of_their_library(read):
    text = TRL.replace(
        "from trl import SFTConfig, SFTTrainer",
        "from trl import SFTConfig as HFSFTConfig, SFTTrainer as HFSFTTrainer",
    )
    text = (
        text.replace("SFTConfig(", "HFSFTConfig(")
        .replace("SFTTrainer(", "HFSFTTrainer(")
        .replace("BATCH,", "4,")
    )
    text = text.replace("LoraConfig(", "Adapters(") + "\n"
    parsed = read("from peft import LoraConfig as Adapters\n" + text, num_devices=1)
    assert (parsed.layout_fields["micro_batch_size"], parsed.workload_fields["seq_len"]) == (4, 1024)
    assert parsed.workload_fields["trainable"]["lora_rank"] == 64


def test_a_class_of_its_own_is_no_configuration_of_a_library(read):
    own = "class SFTConfig:\n    per_device_train_batch_size: int = 2\n\n\n"
    text = TRL.replace("from trl import SFTConfig, SFTTrainer", "from trl import SFTTrainer").replace(
        "BATCH,", "4,"
    )
    with raises(ReaderError, "wrong_format a script with its settings"):
        read(text.replace("def main", f"{own}def main", 1), num_devices=1)


def test_a_model_that_an_unread_function_makes_is_warned_of(read):
    text = TRL.replace(
        'AutoModelForCausalLM.from_pretrained("mistralai/Mistral-7B-v0.1", quantization_config=BITS)',
        "build(BITS)",
    )
    text = text.replace("BATCH,", "4,").replace("from trl", "from mine import build\nfrom trl")
    named = [
        text
        for text in read(text, num_devices=1, model=load_model("qwen3-8b")).warnings
        if "is not read" in text
    ]
    assert named == [
        "build(BITS) is not read: adapters, types and recomputation of the model that it makes are not known"
    ]


def test_functions_of_modules_from_the_folder_above_are_followed(read, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "models.py").write_text(
        "from peft import LoraConfig, get_peft_model\n\n\ndef adapted(model):\n"
        "    return get_peft_model(model, LoraConfig(r=48, target_modules='all-linear'))\n"
    )
    (tmp_path / "scripts").mkdir()
    text = "from own.models import adapted\n" + TRL.replace("BATCH,", "4,").replace(
        "model=model", "model=adapted(model)"
    )
    text = text.replace(', peft_config=LoraConfig(r=64, target_modules="all-linear")', "")
    assert read(text, "scripts/train.py", num_devices=1).workload_fields["trainable"]["lora_rank"] == 48


@pytest.mark.parametrize(
    ("config", "micro", "length"),
    [
        ('SFTConfig(output_dir="out")', 8, 1024),
        ('SFTConfig(output_dir="out", per_device_train_batch_size=2, max_length=512)', 2, 512),
        ('SFTConfig(output_dir="out", **yaml.safe_load(open("c.yaml")))', None, None),
    ],
)
def test_what_a_program_leaves_open_is_as_its_trainer_defaults(read, config, micro, length):
    text = (
        "import yaml\nfrom trl import SFTConfig, SFTTrainer\n"
        f'SFTTrainer(model="Qwen/Qwen2.5-0.5B", args={config}, train_dataset=rows).train()\n'
    )
    parsed = read(text, num_devices=1)
    assert parsed.layout_fields.get("micro_batch_size") == micro
    assert parsed.workload_fields.get("global_batch_size") == micro
    assert parsed.workload_fields.get("seq_len") == length


OWN = """import argparse
from transformers import Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True)
parser.add_argument("--batch", type=int, default=2)
given = parser.parse_args()
args = TrainingArguments("out", per_device_train_batch_size=given.batch, bf16=True)
Trainer(model=AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B"), args=args).train()
"""


@pytest.mark.parametrize(("arguments", "micro"), [(("--data", "d"), 2), (("--data=d", "--batch", "4"), 4)])
def test_a_program_is_given_its_arguments(read, arguments, micro):
    parsed = read(OWN, arguments=arguments, num_devices=1)
    assert parsed.layout_fields["micro_batch_size"] == micro


@pytest.mark.parametrize(("micro", "devices", "sequences"), [(1, 1, 6), (1, 6, 1), (6, 1, 6)])
def test_a_batch_without_a_whole_group_of_generations_counts_prompts(read, micro, devices, sequences):
    text = (
        "from trl import GRPOConfig, GRPOTrainer\n"
        f'args = GRPOConfig("out", per_device_train_batch_size={micro}, num_generations=6, max_prompt_length=64,'
        " max_completion_length=64, bf16=True)\n"
        'GRPOTrainer(model="Qwen/Qwen2.5-0.5B", reward_funcs=[f], args=args).train()\n'
    )
    parsed = read(text, num_devices=devices)
    assert parsed.layout_fields["micro_batch_size"] == sequences
    assert any("num_generations 6" in line for line in parsed.warnings) == (sequences != micro)


def test_a_file_that_is_not_there_may_be_given_by_another_name(tmp_path):
    (tmp_path / "sharded.yml").write_text(
        "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3}\nmixed_precision: bf16\nnum_processes: 8\n"
    )
    (tmp_path / "train.sh").write_text(
        "accelerate launch --num_processes 3 --config_file sharded.yaml run_clm.py --model_name_or_path Qwen/Qwen2.5-0.5B"
        " --per_device_train_batch_size 1 --block_size 512 --bf16\n"
    )
    options = Options(model_of=load_model, strict=False)
    with raises(ReaderError, "not_found file sharded.yaml"):
        read_file(tmp_path / "train.sh", options)
    launch = read_file(tmp_path / "sharded.yml", options)
    parsed = read_file(tmp_path / "train.sh", replace(options, launch=launch))
    assert (parsed.num_devices, parsed.layout_fields["zero"]) == (3, 3)
