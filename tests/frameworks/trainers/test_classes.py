"""Programs in classes and modules: their objects, their own configuration, the environment, and what only parts say."""

import json

import pytest
from tests.errors import raises

from forescale.catalogue.models import load_model
from forescale.errors import ReaderError
from forescale.frameworks.readers import read_file
from forescale.frameworks.reading import Options

TUNER = """import os
from dataclasses import dataclass
from pathlib import Path

import torch
import yaml
from peft import LoraConfig
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer


@dataclass
class Settings:
    rank: int = 8
    batch: int = 1
    length: int = 512

    @classmethod
    def from_yaml(cls, path):
        with path.open("r") as file:
            table = yaml.safe_load(file) or {}
        lora = table.get("lora", {})
        return cls(rank=lora.get("rank", cls.rank), batch=table["training"]["batch"])


class Tuner:
    def __init__(self, settings):
        self.settings = settings
        self.bf16 = torch.cuda.get_device_capability()[0] >= 8

    def adapters(self):
        return LoraConfig(r=self.settings.rank, target_modules=["q_proj", "v_proj"])

    def run(self):
        model = AutoModelForCausalLM.from_pretrained(os.getenv("MODEL", "Qwen/Qwen2.5-7B"), torch_dtype="bfloat16")
        args = SFTConfig(
            "out", per_device_train_batch_size=self.settings.batch, bf16=self.bf16, max_length=self.settings.length
        )
        SFTTrainer(model=model, args=args, peft_config=self.adapters()).train()


if __name__ == "__main__":
    Tuner(Settings.from_yaml(Path(__file__).parent / "conf" / "tune.yaml")).run()
"""
CONF = "lora: {rank: 64}\ntraining: {batch: 4}\n"


@pytest.fixture
def read(tmp_path):
    """Write files and read the first of them."""

    def call(files, **options):
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return read_file(
            tmp_path / next(iter(files)), Options(**{"model_of": load_model, "strict": False, **options})
        )

    return call


def test_a_trainer_in_a_class_is_read_with_the_file_of_its_settings(read):
    parsed = read({"train.py": TUNER, "conf/tune.yaml": CONF}, num_devices=8)
    assert parsed.model.name == "qwen2.5-7b"
    assert parsed.workload_fields["trainable"]["lora_rank"] == 64
    assert parsed.workload_fields["global_batch_size"] == 4 * 8
    assert parsed.workload_fields["seq_len"] == 512
    assert parsed.workload_fields["precision"]["compute"] == "bf16"


@pytest.mark.parametrize(("has_bf16", "compute"), [(True, "bf16"), (False, "tf32")])
def test_devices_without_bf16_have_a_capability_below_8(read, has_bf16, compute):
    program = TUNER.replace(', torch_dtype="bfloat16"', "")
    parsed = read({"train.py": program, "conf/tune.yaml": CONF}, num_devices=8, has_bf16=has_bf16)
    assert parsed.workload_fields["precision"]["compute"] == compute


@pytest.mark.parametrize(
    ("line", "model", "warns"),
    [("", "qwen2.5-7b", True), ("export MODEL=Qwen/Qwen3-8B\n", "qwen3-8b", False)],
)
def test_a_variable_of_the_environment_is_that_of_the_script_or_its_default(read, line, model, warns):
    run = f"#!/bin/bash\n{line}torchrun --nproc_per_node 8 train.py\n"
    parsed = read({"run.sh": run, "train.py": TUNER, "conf/tune.yaml": CONF})
    assert parsed.model.name == model
    assert any("taken as not set: MODEL" in text for text in parsed.warnings) is warns


def test_what_a_launcher_sets_has_no_default(read):
    program = TUNER.replace(
        'batch=table["training"]["batch"]', 'batch=int(os.environ.get("SLURM_NNODES", 1))'
    )
    parsed = read({"train.py": program, "conf/tune.yaml": CONF}, num_devices=8)
    assert "micro_batch_size" in {fact.part.rpartition(".")[2] for fact in parsed.missing}


PACKAGE = {
    "main.py": "from tuning import build\n\nif __name__ == '__main__':\n    build().run()\n",
    "tuning/__init__.py": "from .tuner import build\n",
    "tuning/tuner.py": TUNER.partition("\nif __name__")[0]
    + "\ndef build():\n    return Tuner(Settings(batch=2))\n",
}


def test_a_program_whose_trainer_is_in_a_module_is_read(read):
    parsed = read(PACKAGE, num_devices=8)
    assert parsed.workload_fields["global_batch_size"] == 16
    assert parsed.workload_fields["trainable"]["lora_rank"] == 8
    script = {"run.sh": "#!/bin/bash\nROOT=$WHERE\npython $ROOT/main.py\n", **PACKAGE}
    assert read(script, num_devices=8).workload_fields["global_batch_size"] == 16


def test_a_program_that_trains_nothing_itself_is_refused(read):
    with raises(ReaderError, "wrong_format a script that trains"):
        read({**PACKAGE, "main.py": "from tuning import build\nprint(build)\n"})


OWN = """import argparse
import yaml
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--config", required=True)
table = yaml.safe_load(open(parser.parse_args().config))
model = AutoModelForCausalLM.from_pretrained(table["model"]["name"])
Trainer(model=model, args=TrainingArguments("out", **table["training"])).train()
"""
TABLE = """model: {name: Qwen/Qwen3-8B}
training: {per_device_train_batch_size: 2, optim: adamw_8bit, gradient_checkpointing: true, bf16: true}
"""


@pytest.mark.parametrize("option", ["--config own.yaml", "--config=own.yaml"])
def test_a_program_loads_its_own_configuration(read, option):
    run = f"accelerate launch --num_processes 4 train.py {option}\n"
    parsed = read({"run.sh": run, "train.py": OWN, "own.yaml": TABLE}, over={"seq_len": 2048})
    assert parsed.model.name == "qwen3-8b"
    assert parsed.workload_fields["global_batch_size"] == 8
    assert parsed.workload_fields["precision"]["moments"] == "fp8"
    assert parsed.layout_fields["recompute"] == {"granularity": "full"}


def test_tables_of_a_configuration_that_are_not_read_are_warned_of(read):
    table = "model_name_or_path: Qwen/Qwen3-8B\noutput_dir: out\nbf16: true\nouter: {optim: adamw_8bit}\n"
    parsed = read({"recipe.yaml": table}, num_devices=8)
    assert [text for text in parsed.warnings if text.startswith("outer:")]


def test_a_table_that_is_parsed_into_dataclasses_is_read(read):
    program = """import yaml
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments
parser = HfArgumentParser((TrainingArguments,))
(args,) = parser.parse_dict(yaml.safe_load(open("own.yaml"))["training"])
Trainer(model=AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-8B"), args=args).train()
"""
    over = {"seq_len": 2048}
    parsed = read({"train.py": program, "own.yaml": TABLE}, num_devices=4, over=over)
    assert parsed.workload_fields["global_batch_size"] == 8
    whole = program.replace(
        'parse_dict(yaml.safe_load(open("own.yaml"))["training"])', 'parse_yaml_file("flat.yaml")'
    )
    flat = "per_device_train_batch_size: 16\nbf16: true\n"
    assert (
        read({"train.py": whole, "flat.yaml": flat}, num_devices=4, over=over).workload_fields[
            "global_batch_size"
        ]
        == 64
    )


def test_a_case_decides_the_adapters(read):
    program = """from peft import LoraConfig, VeraConfig
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer
KIND = "lora"
match KIND:
    case "lora":
        peft = LoraConfig(r=32, target_modules=["q_proj"])
    case "vera":
        peft = VeraConfig(r=512)
args = SFTConfig("out", per_device_train_batch_size=1, max_length=1024, bf16=True)
SFTTrainer(model="Qwen/Qwen3-8B", args=args, peft_config=peft).train()
"""
    assert read({"train.py": program}, num_devices=1).workload_fields["trainable"]["lora_rank"] == 32


def test_arguments_do_not_turn_recomputation_off_that_a_call_turns_on(read):
    program = """from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-8B", device_map="cuda:0")
model.gradient_checkpointing_enable()
args = TrainingArguments("out", per_device_train_batch_size=1, gradient_checkpointing=False, bf16=True)
Trainer(model=model, args=args).train()
"""
    over = {"seq_len": 2048}
    parsed = read({"train.py": program}, over=over)
    assert parsed.layout_fields["recompute"] == {"granularity": "full"}
    assert (parsed.num_devices, parsed.missing) == (1, ())


def test_unsloth_recomputes_whatever_the_arguments_say_with_a_warning(read):
    program = """from unsloth import FastLanguageModel
from trl import SFTConfig, SFTTrainer
model, tokenizer = FastLanguageModel.from_pretrained("unsloth/Qwen3-8B", max_seq_length=2048)
model = FastLanguageModel.get_peft_model(model, r=16)
args = SFTConfig("out", per_device_train_batch_size=1, gradient_checkpointing=False)
SFTTrainer(model=model, args=args).train()
"""
    parsed = read({"train.py": program})
    assert parsed.layout_fields["recompute"] == {"granularity": "full"}
    assert any("on in get_peft_model and off in the arguments" in text for text in parsed.warnings)


def test_a_batch_of_deepspeed_that_is_not_that_of_the_arguments_is_warned_of(read):
    engine = {
        "train_batch_size": 32,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 4,
        "zero_optimization": {"stage": 3},
        "bf16": {"enabled": True},
    }
    files = {
        "run.sh": "accelerate launch --config_file acc.yaml train.py --per_device_train_batch_size 2 "
        "--model_name_or_path Qwen/Qwen3-8B --output_dir out\n",
        "acc.yaml": "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: ds.json}\nnum_processes: 4\n",
        "ds.json": json.dumps(engine),
    }
    parsed = read(files, over={"seq_len": 2048})
    assert any("a batch of 32, the arguments one of 8" in text for text in parsed.warnings)


def test_a_configuration_that_is_only_tried_counts_for_nothing(read):
    program = """from peft import LoraConfig
from trl import SFTConfig, SFTTrainer
peft = LoraConfig(r=16, target_modules=["q_proj", "v_proj"])
probe = LoraConfig(r=4, target_modules=["k_proj"])
args = SFTConfig("out", per_device_train_batch_size=1, max_length=1024, bf16=True)
SFTTrainer(model="Qwen/Qwen3-8B", args=args, peft_config=peft).train()
"""
    parsed = read({"train.py": program}, num_devices=1)
    assert parsed.workload_fields["trainable"]["lora_rank"] == 16
    assert not [text for text in parsed.warnings if "taken by nothing" in text]


def test_unsloth_loads_4_bits_unless_it_is_told_not_to(read):
    program = """from unsloth import FastLanguageModel
from trl import SFTConfig, SFTTrainer
model, tokenizer = FastLanguageModel.from_pretrained("unsloth/Qwen3-8B", max_seq_length=2048)
model = FastLanguageModel.get_peft_model(model, r=16)
args = SFTConfig("out", per_device_train_batch_size=1)
SFTTrainer(model=model, args=args).train()
"""
    assert read({"train.py": program}).workload_fields["precision"]["frozen"] == "nf4"
    eight = program.replace("max_seq", "load_in_8bit=True, max_seq")
    assert read({"train.py": eight}).workload_fields["precision"]["frozen"] == "int8"
    whole = program.replace("max_seq", "load_in_4bit=False, max_seq")
    assert "frozen" not in read({"train.py": whole}).workload_fields["precision"]


def test_other_models_and_configurations_are_warned_of(read):
    program = """from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer
teacher = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-8B")
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B")
SFTTrainer(model=model, args=SFTConfig("a", per_device_train_batch_size=8, max_length=1024, bf16=True)).train()
GRPOTrainer(model=model, args=GRPOConfig("b", per_device_train_batch_size=1, bf16=True)).train()
"""
    parsed = read({"train.py": program}, num_devices=1)
    warnings = parsed.warnings
    assert parsed.model is not None
    assert parsed.model.name == "qwen3-0.6b"
    assert "it also loads Qwen/Qwen3-8B, which is not in the figures" in warnings
    batches = "per_device_train_batch_size is 8 at train.py:5 and 1 at train.py:6; the last is projected"
    assert batches in warnings
    assert "max_length is 1024 at train.py:5 and left out at train.py:6; the last is projected" in warnings


COMMAND = """import typer
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
app = typer.Typer()


def tune(batch):
    model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-8B")
    Trainer(model=model, args=TrainingArguments("out", per_device_train_batch_size=batch, bf16=True)).train()


@app.command()
def main(batch: int = typer.Option(4, "--batch"), name: str = typer.Option(..., "--name")):
    tune(batch)


app()
"""


@pytest.mark.parametrize("typer", [True, False])
def test_a_command_is_followed_with_the_defaults_of_its_options(read, typer):
    click = (
        COMMAND.replace("import typer", "import click")
        .replace("app = typer.Typer()\n", "")
        .replace("@app.command()", '@click.command()\n@click.option("--batch", "-b", default=4, type=int)')
        .replace('batch: int = typer.Option(4, "--batch"), name: str = typer.Option(..., "--name")', "batch")
        .replace("app()", "main()")
    )
    files, over = {"train.py": COMMAND if typer else click}, {"seq_len": 2048}
    assert read(files, num_devices=2, over=over).workload_fields["global_batch_size"] == 8
    run = {"run.sh": "torchrun --nproc_per_node 2 train.py --batch 16 --model_name_or_path x\n", **files}
    assert read(run, over=over).workload_fields["global_batch_size"] == 32


def test_a_program_of_which_nothing_that_trains_is_followed_says_so(read):
    program = """from transformers import Trainer, TrainingArguments
from somewhere import build


class Tuner:
    def run(self):
        Trainer(args=TrainingArguments("out", per_device_train_batch_size=2)).train()


build(Tuner)
"""
    parsed = read({"train.py": program}, num_devices=2)
    assert any("no call that is followed trains" in text for text in parsed.warnings)


def test_only_functions_of_modules_that_are_reached_count(read):
    loop = """import torch
from model import build
batch_size = 4
model = build()
loss = model(torch.zeros(1))
loss.backward()
"""
    model = """from peft import LoraConfig


def build():
    return make()


def make():
    return None


def other(model):
    model.gradient_checkpointing_enable()
"""
    run = "torchrun --nproc_per_node 2 train.py --model_name_or_path Qwen/Qwen3-8B --output_dir out\n"
    over = {"seq_len": 1024, "micro_batch_size": 1, "global_batch_size": 2}
    parsed = read({"run.sh": run, "train.py": loop, "model.py": model}, over=over)
    assert parsed.layout_fields["recompute"] == {"granularity": "none"}
    reached = model.replace("    return None", "    other(net())")
    parsed = read({"run.sh": run, "train.py": loop, "model.py": reached}, over=over)
    assert parsed.layout_fields["recompute"] == {"granularity": "full"}


def test_a_program_that_requires_its_configuration_is_asked_for_its_command(read):
    with raises(ReaderError, "wrong_format a script with its settings"):
        read({"train.py": OWN, "own.yaml": TABLE})


def test_fields_that_are_set_by_names_that_are_not_known_are_not_known(read):
    program = TUNER.replace(
        'Tuner(Settings.from_yaml(Path(__file__).parent / "conf" / "tune.yaml")).run()',
        "settings = Settings()\n    for name, value in ask():\n        setattr(settings, name, value)\n    Tuner(settings).run()",
    )
    parsed = read({"train.py": program}, num_devices=8)
    assert "micro_batch_size" in {fact.part.rpartition(".")[2] for fact in parsed.missing}


def test_a_program_that_trains_with_no_known_library_is_named_so(read):
    with raises(ReaderError, "wrong_format a program that trains"):
        read({"train.py": "import numpy\n\nmode = 1\nprint(numpy.zeros(mode))\n"})


@pytest.mark.parametrize("base", ["BaseModel", "BaseSettings"])
def test_fields_of_pydantic_have_their_defaults(read, base):
    program = f"""from pydantic import {base}, Field
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments


class Settings({base}):
    batch: int = Field(4, ge=1)
    steps: int = Field(default=8, description="accumulated")


settings = Settings()
words = {{"per_device_train_batch_size": settings.batch, "gradient_accumulation_steps": settings.steps}}
args = TrainingArguments("out", bf16=True, **words)
Trainer(model=AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-8B"), args=args).train()
"""
    parsed = read({"train.py": program}, num_devices=2, over={"seq_len": 2048})
    assert parsed.workload_fields["global_batch_size"] == 4 * 8 * 2
    assert any("settings of pydantic" in text for text in parsed.warnings) is (base == "BaseSettings")


def test_a_checkpoint_that_may_be_there_is_not_the_model(read):
    program = """import os
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
last = None
if os.path.isdir("out"):
    last = os.listdir("out")[0]
if last is not None:
    model = AutoModelForCausalLM.from_pretrained(last)
else:
    model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B")
Trainer(model=model, args=TrainingArguments("out", per_device_train_batch_size=8, bf16=True)).train()
"""
    parsed = read({"train.py": program}, num_devices=1)
    assert parsed.model is not None
    assert parsed.model.name == "qwen3-0.6b"
    assert any("Qwen/Qwen3-0.6B is projected" in text for text in parsed.warnings)


def test_online_dpo_samples_pairs(read):
    program = """from trl import OnlineDPOConfig, OnlineDPOTrainer
class MyConfig(OnlineDPOConfig):
    extra: int = 1
args = MyConfig(output_dir="a", per_device_train_batch_size=2, max_length=1024, bf16=True)
OnlineDPOTrainer(model="Qwen/Qwen3-0.6B", args=args).train()
"""
    parsed = read({"train.py": program}, num_devices=1)
    assert parsed.phase.startswith("online_dpo")
    assert parsed.workload_fields["reference"] == "copy"
    assert parsed.workload_fields["global_batch_size"] == 4


@pytest.mark.parametrize("folder", ["run", "dpo"])
def test_a_stage_that_beta_alone_names_is_warned_of(read, folder):
    text = "model_name_or_path: Qwen/Qwen3-0.6B\nper_device_train_batch_size: 1\nbeta: 0.1\nmax_length: 1024\nbf16: true\n"
    parsed = read({f"{folder}/train.yaml": text}, num_devices=1)
    assert any("beta alone" in warning for warning in parsed.warnings) == (folder == "run")


@pytest.mark.parametrize(
    ("body", "warned"),
    [
        ("return model(**inputs).loss + self.teacher_model(**inputs).loss", True),
        ("return model(**inputs).loss + model(**other).loss", True),
        ("return weigh(model(**inputs).loss)", False),
    ],
)
def test_a_loss_that_runs_another_model_is_warned_of(read, body, warned):
    program = f"""from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
class Distills(Trainer):
    def compute_loss(self, model, inputs, **rest):
        {body}
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-8B", torch_dtype="bfloat16")
args = TrainingArguments("out", per_device_train_batch_size=1, bf16=True)
Distills(model=model, args=args).train()
"""
    parsed = read({"train.py": program}, num_devices=1, over={"seq_len": 512})
    assert any("compute_loss of Distills" in text for text in parsed.warnings) is warned
