"""Configurations that a program loads itself are read: by hydra with its defaults, by OmegaConf, yaml and json."""

import pytest

from forescale.catalogue.models import load_model
from forescale.frameworks.readers import read_file
from forescale.frameworks.reading import Options

HYDRA = """import hydra
from omegaconf import OmegaConf
from peft import LoraConfig
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, TrainingArguments
from trl import SFTTrainer


@hydra.main(config_path="conf", config_name="tune", version_base=None)
def main(cfg):
    model = AutoModelForCausalLM.from_pretrained(**cfg.model, quantization_config=BitsAndBytesConfig(**cfg.bits))
    lora = LoraConfig(**OmegaConf.to_container(cfg.lora, resolve=True))
    SFTTrainer(model, args=TrainingArguments(**cfg.trainer), peft_config=lora, max_seq_length=cfg["length"]).train()


if __name__ == "__main__":
    main()
"""
CONF = {
    "tune": """defaults:
  - trainer: small
  - base/types@bits
  - optional lora: wide
  - override hydra/job_logging: disabled
org: Qwen
length: 1024
model: {pretrained_model_name_or_path: "${org}/${name}", torch_dtype: "${dtype:bf16}"}
name: Qwen2.5-7B
""",
    "trainer/small": "per_device_train_batch_size: 2\ngradient_accumulation_steps: ${steps}\nbf16: true\n",
    "trainer/large": "# @package _global_\ntrainer: {per_device_train_batch_size: 8, bf16: true}\n",
    "base/types": "load_in_4bit: true\n",
    "lora/wide": "r: 64\ntarget_modules: [q_proj, v_proj]\n",
}


@pytest.fixture
def read(tmp_path):
    """Read a program with the configurations next to it, alone or by the command that starts it."""

    def call(text, command="", **options):
        (tmp_path / "train.py").write_text(text)
        file = tmp_path / ("run.sh" if command else "train.py")
        if command:
            file.write_text(f"#!/bin/bash\n{command}\n")
        return read_file(file, Options(**{"model_of": load_model, "strict": False, **options}))

    return call


@pytest.fixture
def conf(tmp_path):
    """Write hydra's files, some of them changed."""

    def call(**changed):
        for name, text in {**CONF, **changed}.items():
            file = tmp_path / "conf" / f"{name}.yaml"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text + ("steps: 4\n" if name == "tune" else ""))

    return call


def test_hydra_composes_the_configuration_of_a_program(read, conf):
    conf()
    parsed = read(HYDRA, num_devices=2)
    workload = parsed.workload_fields
    assert (parsed.model.name, parsed.missing) == ("qwen2.5-7b", ())
    assert (parsed.layout_fields["micro_batch_size"], workload["global_batch_size"]) == (2, 2 * 4 * 2)
    assert (workload["seq_len"], workload["precision"]["frozen"]) == (1024, "nf4")
    assert workload["trainable"]["lora_rank"] == 64
    assert any("dtype is ${dtype:bf16}" in text for text in parsed.warnings)


@pytest.mark.parametrize(
    ("words", "micro", "batch", "rank"),
    [
        ("trainer.per_device_train_batch_size=4 lora.r=16", 4, 4 * 4 * 2, 16),
        ("trainer=large", 8, 8 * 2, 64),
    ],
)
def test_words_of_a_command_change_it(read, conf, words, micro, batch, rank):
    conf()
    parsed = read(HYDRA, f"torchrun --nproc_per_node 2 train.py {words}")
    assert parsed.layout_fields["micro_batch_size"] == micro
    assert parsed.workload_fields["global_batch_size"] == batch
    assert parsed.workload_fields["trainable"]["lora_rank"] == rank


def test_a_configuration_that_is_not_there_is_asked_for_or_warned_of(read):
    parsed = read(HYDRA, num_devices=2)
    assert "the micro-batch size" in [fact.what for fact in parsed.missing]
    text = "\n".join(parsed.warnings)
    assert "LoRA of rank 16" in text
    for name in ("BitsAndBytesConfig is given is in cfg.bits", "from_pretrained is given is in cfg.model"):
        assert f"what {name}" in text


@pytest.mark.parametrize(
    ("name", "load"),
    [
        ("run.yaml", "import yaml\nwith open('run.yaml') as file:\n    cfg = yaml.safe_load(file)\n"),
        ("run.yaml", "from omegaconf import OmegaConf\ncfg = OmegaConf.load('run.yaml')\n"),
        ("run.yaml", "cfg = OmegaConf.merge(OmegaConf.load('run.yaml'), OmegaConf.from_cli())\n"),
        ("run.json", "import json\nfrom pathlib import Path\ncfg = json.load(open(Path('run.json')))\n"),
    ],
)
def test_files_that_a_program_opens(read, tmp_path, name, load):
    (tmp_path / name).write_text('{"model": "Qwen/Qwen2.5-7B", "train": {"batch": 3, "length": 512}}')
    program = """from trl import SFTConfig, SFTTrainer
args = SFTConfig("out", per_device_train_batch_size=cfg["train"]["batch"], max_length=cfg["train"].get("length"))
SFTTrainer(cfg["model"], args=args).train()
"""
    parsed = read(load + program, num_devices=1)
    assert (parsed.model.name, parsed.missing) == ("qwen2.5-7b", ())
    assert (parsed.layout_fields["micro_batch_size"], parsed.workload_fields["seq_len"]) == (3, 512)


def test_a_set_field_counts_and_broken_files_are_left_open(read, tmp_path):
    load = "import yaml\ncfg = yaml.safe_load(open('run.yaml'))\ncfg['batch'] = 5\n"
    program = "from trl import SFTConfig, SFTTrainer\nSFTTrainer('Qwen/Qwen2.5-7B', args=SFTConfig(max_length=64, per_device_train_batch_size=cfg['batch']))\n"
    (tmp_path / "run.yaml").write_text("batch: 2\n")
    assert read(load + program, num_devices=1).layout_fields["micro_batch_size"] == 5
    (tmp_path / "run.yaml").write_text("batch: [2\n")
    facts = [fact.part for fact in read(load + program, num_devices=1).missing]
    assert facts == ["strategy.micro_batch_size"]


INSTANTIATED = """import hydra
from hydra.utils import instantiate
from transformers import AutoModelForCausalLM
from trl import SFTTrainer


@hydra.main(config_path="conf", config_name="tune", version_base=None)
def main(cfg):
    model = AutoModelForCausalLM.from_pretrained(cfg.name, torch_dtype="bfloat16")
    SFTTrainer(model=model, args=instantiate(cfg.args, bf16=True), peft_config=instantiate(cfg.peft)).train()


main()
"""


def test_hydra_makes_what_a_table_names(read, tmp_path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "tune.yaml").write_text(
        "name: Qwen/Qwen3-8B\n"
        "args: {_target_: trl.SFTConfig, per_device_train_batch_size: 4, max_length: 1024, output_dir: out}\n"
        "peft: {_target_: peft.LoraConfig, r: 32, target_modules: [q_proj]}\n"
    )
    parsed = read(INSTANTIATED, num_devices=2)
    assert parsed.workload_fields["global_batch_size"] == 8
    assert parsed.workload_fields["trainable"]["lora_rank"] == 32
    assert parsed.workload_fields["seq_len"] == 1024


STORED = """from dataclasses import dataclass, field

from hydra.core.config_store import ConfigStore


@dataclass
class Train:
    per_device_train_batch_size: int = 3
    gradient_accumulation_steps: int = 2
    bf16: bool = True


@dataclass
class Config:
    train: Train = field(default_factory=Train)
    model: str = "Qwen/Qwen2.5-7B"
    length: int = 256
    name: str = "???"


store = ConfigStore.instance()
store.store(name="schema", node=Config)
store.store(group="train", name="many", node=Train(per_device_train_batch_size=6))
"""
USED = """import hydra
from trl import SFTConfig, SFTTrainer
{}

@hydra.main(config_path={}, config_name="{}")
def main(cfg):
    args = SFTConfig(cfg.name, max_length=cfg.length, **cfg.train)
    SFTTrainer(cfg.model, args=args).train()


if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    ("place", "name", "words", "micro", "length"),
    [
        ("None", "schema", "", 3, 256),
        ("None", "schema", "length=64 train.per_device_train_batch_size=5", 5, 64),
        ('"conf"', "run", "", 6, 128),
        ('"conf"', "run", "--config-name other", 3, 32),
    ],
)
def test_structured_configurations_are_composed_with_files(read, tmp_path, place, name, words, micro, length):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/run.yaml").write_text(
        "defaults:\n  - schema\n  - train: many\n  - _self_\nlength: 128\n"
    )
    (tmp_path / "conf/other.yaml").write_text("defaults:\n  - schema\nlength: 32\n")
    parsed = read(USED.format(STORED, place, name), f"torchrun --nproc_per_node 2 train.py -- {words}")
    assert (parsed.model.name, parsed.missing) == ("qwen2.5-7b", ())
    assert (parsed.layout_fields["micro_batch_size"], parsed.workload_fields["seq_len"]) == (micro, length)
    assert parsed.workload_fields["global_batch_size"] == micro * 2 * 2


def test_words_are_those_of_the_program_that_is_started(read, tmp_path):
    (tmp_path / "other.py").write_text(USED.format(STORED, "None", "schema"))
    program = "from other import STORE\n" + USED.format(STORED, "None", "schema")
    parsed = read(program, "python train.py train.per_device_train_batch_size=6 length=64")
    assert (parsed.layout_fields["micro_batch_size"], parsed.workload_fields["seq_len"]) == (6, 64)


JSON = """import sys
from dataclasses import dataclass
from transformers import HfArgumentParser, TrainingArguments
from trl import SFTTrainer


@dataclass
class Own(TrainingArguments):
    per_device_train_batch_size: int = 1
    max_length: int = 64


parser = HfArgumentParser((Own,))
if len(sys.argv) == 2 and sys.argv[1].endswith(".json"):
    (args,) = parser.parse_json_file(sys.argv[1])
else:
    (args,) = parser.parse_args_into_dataclasses()
SFTTrainer("Qwen/Qwen2.5-7B", args=args, max_seq_length=args.max_length).train()
"""


def test_a_program_loads_the_file_that_is_its_only_word(read, tmp_path):
    (tmp_path / "run.json").write_text(
        '{"per_device_train_batch_size": 4, "output_dir": "out", "bf16": true}'
    )
    parsed = read(JSON, 'FILE="${1:-./run.json}"\ntorchrun --nproc_per_node 2 train.py "$FILE"')
    assert parsed.layout_fields["micro_batch_size"] == 4


RANKED = """import os
from transformers import TrainingArguments
from trl import SFTTrainer

steps = 16
world_size = int(os.environ.get("WORLD_SIZE", 1))
if world_size != 1:
    steps = steps // world_size
args = TrainingArguments("out", per_device_train_batch_size=1, gradient_accumulation_steps=steps, bf16=True)
SFTTrainer("Qwen/Qwen2.5-7B", args=args, max_seq_length=64).train()
"""


@pytest.mark.parametrize(
    ("command", "devices"), [("torchrun --nproc_per_node 4 train.py", 4), ("python train.py --x 1", 1)]
)
def test_ranks_are_those_of_the_launcher(read, command, devices):
    parsed = read(RANKED, command, num_devices=devices)
    assert (parsed.missing, parsed.workload_fields["global_batch_size"]) == ((), 16)


def test_one_process_deals_layers_to_all_that_it_sees(read):
    text = """from transformers import AutoModelForCausalLM, TrainingArguments
from trl import SFTTrainer
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B", device_map="auto")
args = TrainingArguments("out", per_device_train_batch_size=2, bf16=True)
SFTTrainer(model, args=args, max_seq_length=64).train()
"""
    parsed = read(text, "export CUDA_VISIBLE_DEVICES=0,1\npython train.py --x 1")
    (fact,) = [fact for fact in parsed.missing if fact.part == "devices"]
    assert (fact.example, parsed.workload_fields["global_batch_size"]) == ("--devices 1", 2)
