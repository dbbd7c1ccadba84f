"""Programs of several files and commands are followed as Python runs them."""

import pytest

from forescale.catalogue.models import load_model
from forescale.frameworks.readers import read_file
from forescale.frameworks.reading import Options

TRAINER = """from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments


def tune(config):
    model = AutoModelForCausalLM.from_pretrained(config["model"])
    model = get_peft_model(model, LoraConfig(r=config["rank"], target_modules=["q_proj"]))
    args = TrainingArguments("out", per_device_train_batch_size=config["batch"], bf16=True)
    Trainer(model=model, args=args).train()
"""
SETTINGS = "tune:\n  model: Qwen/Qwen3-8B\n  rank: 32\n  batch: 2\n"


@pytest.fixture
def read(tmp_path):
    """Read a file of a folder."""

    def call(files, name, **options):
        for place, text in files.items():
            (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / place).write_text(text)
        return read_file(
            tmp_path / name, Options(model_of=load_model, strict=False, num_devices=1, **options)
        )

    return call


def facts(parsed):
    """Return the rank and the micro-batch."""
    return parsed.workload_fields["trainable"]["lora_rank"], parsed.layout_fields["micro_batch_size"]


COMMANDS = """import argparse
import yaml
from trainer import tune

parser = argparse.ArgumentParser()
commands = parser.add_subparsers(dest="command")
one = commands.add_parser("tune")
one.add_argument("settings")
other = commands.add_parser("merge")
other.add_argument("adapter")
args = parser.parse_args()
if args.command == "tune":
    tune(yaml.safe_load(open(args.settings))["tune"])
elif args.command == "merge":
    merge(LoraConfig(r=4))
"""


def test_words_of_a_command_are_those_of_its_parser_by_their_place(read):
    files = {"main.py": COMMANDS, "trainer.py": TRAINER, "run.yaml": SETTINGS}
    parsed = read({**files, "run.sh": "python main.py tune run.yaml\n"}, "run.sh")
    assert (parsed.model.name, *facts(parsed)) == ("qwen3-8b", 32, 2)
    assert not [text for text in parsed.warnings if "under a condition" in text or "not followed" in text]


@pytest.mark.parametrize("place", ["trainer.py", "src/trainer.py"])
def test_modules_are_found_in_the_folder_of_sources(read, place):
    program = "from trainer import tune\n\ntune({'model': 'Qwen/Qwen3-8B', 'rank': 16, 'batch': 4})\n"
    parsed = read({"scripts/train.py": program, f"scripts/{place}": TRAINER}, "scripts/train.py")
    assert facts(parsed) == (16, 4)


def test_a_module_is_followed_line_by_line_as_it_is_imported(read):
    constants = "BATCH = 0\nBATCH = BATCH if BATCH else 6\nRANK = 8\nif BATCH > 4:\n    RANK = 64\n"
    program = "from own.constants import BATCH, RANK\nfrom trainer import tune\n\n"
    program += "tune({'model': 'Qwen/Qwen3-8B', 'rank': RANK, 'batch': BATCH})\n"
    files = {"train.py": program, "trainer.py": TRAINER, "own/__init__.py": "", "own/constants.py": constants}
    assert facts(read(files, "train.py")) == (64, 6)


def test_options_of_fire_are_the_parameters_of_its_function(read):
    program = TRAINER.replace(
        "def tune(config):", "def tune(rank=8, batch=1):\n    config = locals_of(rank, batch)"
    )
    program = program.replace(
        "locals_of(rank, batch)", "{'model': 'Qwen/Qwen3-8B', 'rank': rank, 'batch': batch}"
    )
    files = {"train.py": f"import fire\n{program}\n\nfire.Fire(tune)\n"}
    parsed = read(
        {**files, "run.sh": "torchrun --nproc_per_node 1 train.py --rank 128 --batch 3\n"}, "run.sh"
    )
    assert facts(parsed) == (128, 3)


def test_a_trainer_of_lightning_is_that_of_its_module(read):
    program = """import argparse
from lightning.pytorch import Trainer

parser = argparse.ArgumentParser()
parser.add_argument("--strategy", default="ddp")
Trainer(strategy=parser.parse_args().strategy, precision="bf16-mixed").fit(model)
"""
    command = "python train.py --strategy deepspeed_stage_3\n"
    assert read({"train.py": program, "run.sh": command}, "run.sh").layout_fields["zero"] == 3
    assert (
        read({"train.py": program, "run.sh": "python train.py --strategy ddp\n"}, "run.sh").layout_fields[
            "zero"
        ]
        == 0
    )


def test_a_class_named_like_training_arguments_is_none(read):
    program = """from dataclasses import dataclass
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments


@dataclass
class OwnTrainingArguments:
    model: str
    max_seq_length: int = 4096


args, own = HfArgumentParser((TrainingArguments, OwnTrainingArguments)).parse_args_into_dataclasses()
Trainer(model=AutoModelForCausalLM.from_pretrained(own.model), args=args).train()
"""
    command = "python train.py --model Qwen/Qwen3-8B --bf16 --per_device_train_batch_size 2\n"
    parsed = read({"train.py": program, "run.sh": command}, "run.sh")
    assert "seq_len" not in parsed.workload_fields


def test_what_a_dataclass_makes_of_its_values_counts(read):
    program = """from dataclasses import dataclass
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments


@dataclass
class Own:
    model: str
    kind: str = "gpt"
    modules: list[str] = None

    def __post_init__(self):
        if self.modules is None:
            self.modules = ["q_proj", "up_proj"] if self.kind == "llama" else ["c_attn"]


args, own = HfArgumentParser((TrainingArguments, Own)).parse_args_into_dataclasses()
model = get_peft_model(AutoModelForCausalLM.from_pretrained(own.model), LoraConfig(target_modules=own.modules))
Trainer(model=model, args=args).train()
"""
    command = "python train.py --model Qwen/Qwen3-8B --kind llama --per_device_train_batch_size 2\n"
    parsed = read({"train.py": program, "run.sh": command}, "run.sh")
    assert parsed.workload_fields["trainable"]["lora_targets"] == ("q_proj", "up_proj")


def test_a_switch_of_fire_turns_recomputation_on(read):
    program = TRAINER.replace("def tune(config):", "def tune(use_gradient_checkpointing=False):")
    program = program.replace("config[", "{'model': 'Qwen/Qwen3-8B', 'rank': 8, 'batch': 4}[")
    program = program.replace(
        "    args =",
        "    if use_gradient_checkpointing:\n        model.gradient_checkpointing_enable()\n    args =",
    )
    files = {"train.py": f"import fire\n{program}\n\nfire.Fire(tune)\n"}
    for words, expected in (("", "none"), (" --use_gradient_checkpointing", "full")):
        parsed = read({**files, "run.sh": f"python train.py --seed 1{words}\n"}, "run.sh")
        assert parsed.layout_fields["recompute"]["granularity"] == expected


UNSLOTH = """from unsloth import FastLanguageModel
from trl import SFTConfig, SFTTrainer

model, _ = FastLanguageModel.from_pretrained("Qwen/Qwen3-8B", max_seq_length=64)
model = FastLanguageModel.get_peft_model(model)
SFTTrainer(model=model, args=SFTConfig(output_dir="out")).train()
"""


def test_unsloth_has_defaults_of_its_own_for_configurations_of_trl(read):
    parsed = read({"train.py": UNSLOTH}, "train.py")
    batch = parsed.layout_fields["micro_batch_size"], parsed.workload_fields["global_batch_size"]
    assert batch == (4, 8)
    assert any(text.startswith("per_device_train_batch_size 4, gradient_accum") for text in parsed.warnings)
    given = UNSLOTH.replace(
        'output_dir="out"', '"out", per_device_train_batch_size=1, gradient_accumulation_steps=1'
    )
    assert read({"train.py": given}, "train.py").workload_fields["global_batch_size"] == 1


def test_a_head_that_is_tied_is_trained_with_its_embedding(read):
    program = TRAINER.replace(
        'target_modules=["q_proj"]', 'target_modules=["q_proj"], modules_to_save=["lm_head"]'
    )
    program += "\n\ntune({'model': 'Qwen/Qwen3-4B', 'rank': 8, 'batch': 4})\n"
    parsed = read({"train.py": program}, "train.py")
    assert set(parsed.workload_fields["trainable"]["whole"]) == {"head", "embedding"}
    assert any("ties embedding and head" in text for text in parsed.warnings)


def test_a_program_that_is_not_there_is_found_by_its_end_or_warned_of(read):
    command = (
        "torchrun --nproc_per_node 1 /opt/mine/code/tune.py --model_name_or_path Qwen/Qwen3-8B --bf16 True\n"
    )
    program = f"{TRAINER}\n\ntune({{'model': 'Qwen/Qwen3-8B', 'rank': 16, 'batch': 4}})\n"
    parsed = read({"run.sh": command}, "run.sh")
    assert any(text.startswith("tune.py is not found") for text in parsed.warnings)
    assert facts(read({"run.sh": command, "code/tune.py": program}, "run.sh")) == (16, 4)
