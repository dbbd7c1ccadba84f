"""What calls decide, and the programs that are found by the names of their modules."""

import pytest

from forescale.catalogue.models import load_model
from forescale.frameworks.readers import read_file
from forescale.frameworks.reading import Options
from forescale.frameworks.trainers.calls import DECIDES, MAKES, SHARDS

LOOP = """import argparse
import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM
from .settings import LENGTH

parser = argparse.ArgumentParser()
parser.add_argument("--amp", action="store_true", default=False)
args = parser.parse_args()
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-8B", torch_dtype=torch.float32)
loader = DataLoader([], batch_size=4)
max_length = 2048
for step in range(1, 90_000):
    for batch in loader:
        if args.amp:
            with torch.cuda.amp.autocast(enabled=ENABLED):
                loss = model(**batch).loss
        loss.backward()
"""
FILTERED = """import inspect
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

def supported(words, names):
    names = set(names)
    return {name: value for name, value in words.items() if name in names}

words = {"output_dir": "out", "per_device_train_batch_size": 2, "gradient_checkpointing": True, "max_length": 512}
known = set(inspect.signature(TrainingArguments.__init__).parameters)
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-8B")
Trainer(model=model, args=TrainingArguments(**supported(words, known))).train()
"""


@pytest.fixture
def read(tmp_path):
    """Read a command next to files by their names."""

    def call(command, files, **options):
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        (tmp_path / "run.sh").write_text(f"{command}\n")
        return read_file(tmp_path / "run.sh", Options(model_of=load_model, strict=False, **options))

    return call


def package(text):
    return {"src/mine/train.py": text, "src/mine/settings.py": "LENGTH = 2048\n"}


@pytest.mark.parametrize(
    ("enabled", "switch", "compute"),
    [("True", "--amp", "fp16"), ("False", "--amp", "tf32"), ("True", "", "tf32")],
)
def test_a_loop_that_a_module_has_computes_in_the_type_of_its_autocast(read, enabled, switch, compute):
    parsed = read(f"python -m mine.train {switch}", package(LOOP.replace("ENABLED", enabled)))
    assert parsed.model.name == "qwen3-8b"
    assert parsed.layout_fields["micro_batch_size"] == 4
    types = parsed.workload_fields.get("precision", {})
    assert types.get("compute") == compute


def test_a_module_that_is_given_nothing_trains(read):
    parsed = read("PYTHONPATH=src python -m mine.train", package(FILTERED))
    assert (parsed.layout_fields["micro_batch_size"], parsed.workload_fields["seq_len"]) == (2, 512)


def test_arguments_that_a_library_takes_are_those_that_a_program_asks_it_for(read):
    parsed = read("python train.py", {"train.py": FILTERED})
    assert parsed.layout_fields["recompute"] == {"granularity": "full"}
    assert not any("filtered" in text or "only running" in text for text in parsed.warnings)


HEADER = "#SBATCH --nodes={nodes}\n#SBATCH --gres=gpu:8\naccelerate launch --config_file acc.yaml train.py"


@pytest.mark.parametrize(("nodes", "devices"), [(1, 6), (2, 16)])
def test_accelerates_file_starts_fewer_processes_than_a_node_has_devices(read, nodes, devices):
    files = {"acc.yaml": "distributed_type: MULTI_GPU\nnum_processes: 6\n", "train.py": FILTERED}
    assert read(HEADER.format(nodes=nodes), files).num_devices == devices


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        *(
            (DECIDES, name)
            for name in ("peft.LoraConfig", "PeftLoraConfig", "model.half", "deepspeed.initialize")
        ),
        *((MAKES, name) for name in ("TrainingArguments", "trl.GRPOConfig", "MyTrainingArguments")),
        *((SHARDS, name) for name in ("fully_shard", "strategies.FSDPStrategy")),
    ],
)
def test_patterns_follow_the_table_of_calls(pattern, name):
    assert pattern.search(name)


@pytest.mark.parametrize("name", ["first_half", "is_bfloat16", "LoraConfigs", "config"])
def test_names_that_only_end_like_a_call_decide_nothing(name):
    assert not DECIDES.search(name)


COMMANDS = """import typer
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM

app = typer.Typer()

@app.command("measure")
def first(model_name: str = typer.Option("Qwen/Qwen3-0.6B")):
    AutoModelForCausalLM.from_pretrained(model_name)
    DataLoader([], batch_size=32)

@app.command()
def train(model_name: str = typer.Option("Qwen/Qwen3-8B"), size: int = typer.Option(4), use_half: bool = False):
    model = AutoModelForCausalLM.from_pretrained(model_name)
    for batch in DataLoader([], batch_size=size):
        model(batch).loss.backward()

app()
"""


@pytest.mark.parametrize(
    ("words", "model", "batch"), [("train --size 2", "qwen3-8b", 2), ("train", "qwen3-8b", 4)]
)
def test_the_command_that_is_started_of_several_is_followed(read, words, model, batch):
    parsed = read(f"python cli.py {words}", {"cli.py": f"import torch\n{COMMANDS}"})
    assert parsed.model.name == model
    assert parsed.layout_fields["micro_batch_size"] == batch
    assert parsed.unknown == ()
    assert not any("size" in text for text in parsed.warnings)


SPLIT = """        for at in range(0, len(batch), SIZE):
            model(batch["input_ids"][at : at + SIZE]).loss.backward()
        optimizer.step()
"""


def test_a_loop_that_splits_batches_has_micro_batches_of_a_part(read):
    text = LOOP.replace("ENABLED", "True").replace("        loss.backward()\n", SPLIT.replace("SIZE", "2"))
    parsed = read("python -m mine.train", package(text), num_devices=2)
    assert parsed.layout_fields["micro_batch_size"] == 2
    assert [fact.part for fact in parsed.missing] == ["workload.global_batch_size"]
    parsed = read("python -m mine.train", package(text.replace(" 2", " unknown")), num_devices=2)
    assert [fact.part for fact in parsed.missing] == [
        "strategy.micro_batch_size",
        "workload.global_batch_size",
    ]


def test_a_type_that_an_argument_decides_comes_before_that_of_autocast(read):
    text = LOOP.replace("ENABLED", "True").replace(
        'add_argument("--amp"', 'add_argument("--bf16", default=True)\nparser.add_argument("--amp"'
    )
    types = read("python -m mine.train --amp", package(text)).workload_fields["precision"]
    assert types["compute"] == "bf16"


OPTIONS = """import argparse
from trl import GRPOConfig, GRPOTrainer

parser = argparse.ArgumentParser()
parser.add_argument("--size", type=int, default=2)
parser.add_argument("--data")
args = parser.parse_args()
size = args.size
if args.data is not None:
    size = int(open(args.data).read())
words = GRPOConfig("out", per_device_train_batch_size=size, max_completion_length=256, num_generations=2, bf16=True,
    gradient_checkpointing=True, beta=0.0PROMPT)
GRPOTrainer("Qwen/Qwen3-8B", args=words).train()
"""


@pytest.mark.parametrize(("prompt", "length"), [("", 768), (", max_prompt_length=128", 384)])
def test_an_option_that_is_not_given_is_none_and_a_prompt_without_a_limit_is_warned_of(read, prompt, length):
    parsed = read("python train.py --size 4", {"train.py": OPTIONS.replace("PROMPT", prompt)}, num_devices=1)
    assert parsed.layout_fields["micro_batch_size"] == 4
    assert not any(fact.part == "strategy.micro_batch_size" for fact in parsed.missing)
    assert parsed.workload_fields["seq_len"] == length
    assert any("max_prompt_length" in text for text in parsed.warnings) == (not prompt)


def test_prefix_tuning_of_a_programs_own_is_warned_of(read):
    assert read("python train.py --pre_seq_len 128", {"train.py": FILTERED}, num_devices=1).warnings[0] == (
        "pre_seq_len: 128 is not modelled (adapters)"
    )
    declared = 'import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument("--pre_seq_len")\n'
    parsed = read(
        "python train.py --pre_seq_len 128",
        {"train.py": f"{declared}print(parser.parse_args().pre_seq_len)\n{FILTERED}"},
        num_devices=1,
    )
    assert "what the program makes of pre_seq_len 128 is not known" in parsed.warnings


LAID = """import json
from dataclasses import MISSING, dataclass, fields
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments

@dataclass
class Settings:
    config: str = ""
    batch: int = 1
    max_length: int = 512
    output: str = "out"

settings = HfArgumentParser(Settings).parse_args_into_dataclasses()[0]
usual = {item.name: item for item in fields(settings)}
for key, value in json.load(open("settings.json")).items():
    if key in usual and usual[key].default is not MISSING and getattr(settings, key) == usual[key].default:
        setattr(settings, key, value)
words = TrainingArguments(settings.output, per_device_train_batch_size=settings.batch, max_length=settings.max_length)
Trainer(model=AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-8B"), args=words).train()
"""


@pytest.mark.parametrize(("flags", "batch"), [("", 3), ("--batch 5", 5)])
def test_a_file_that_a_program_lays_over_the_fields_of_its_arguments_counts(read, flags, batch):
    files = {"train.py": LAID, "settings.json": '{"batch": 3, "max_length": 1024, "other": 1}'}
    parsed = read(f"python train.py --output o {flags}", files, num_devices=1)
    assert (parsed.layout_fields["micro_batch_size"], parsed.workload_fields["seq_len"]) == (batch, 1024)
    assert not any("setattr" in text for text in parsed.warnings)


ADAPTED = """from peft import PeftModel
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

base = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-8B")
model = PeftModel.from_pretrained(base, "saves/first-stage", is_trainable=True)
Trainer(model=model, args=TrainingArguments("out", per_device_train_batch_size=2, bf16=True, max_length=512)).train()
"""


def test_adapters_of_a_path_are_no_second_model(read):
    parsed = read("python train.py", {"train.py": ADAPTED}, num_devices=1)
    assert parsed.model.name == "qwen3-8b"
    assert parsed.workload_fields["trainable"]["lora_rank"] == 16
    assert any("assumed: LoRA of rank 16" in text for text in parsed.warnings)
    assert not any("it loads" in text for text in parsed.warnings)
