"""A person's own program says what its command leaves out, as far as its text alone shows it."""

import json

import pytest
from tests.errors import raises

from forescale.catalogue.models import load_model
from forescale.errors import MissingError
from forescale.frameworks.readers import read_file
from forescale.frameworks.reading import Options
from forescale.frameworks.trainers.program import made_type, read_program
from forescale.frameworks.trainers.record import record_of

PROGRAM = """import argparse
from dataclasses import dataclass, field
from own_args import More
from peft import LoraConfig

@dataclass
class ModelArguments:
    model_max_length: int = field(default=512, metadata={"help": "…"})
    lora_r: int = 8

KINDS = (ModelArguments, More)
parser = argparse.ArgumentParser()
parser.add_argument("--gradient-accumulation-steps", type=int, default=4)
parser.add_argument("--lr", default=1e-4)

def train(args):
    model = get_peft_model(load(), LoraConfig(r=16, target_modules=["q_proj", "k_proj"], lora_alpha=args.alpha))
"""
COMMAND = (
    "torchrun --nproc_per_node 4 src/train.py --model_name_or_path Qwen/Qwen2.5-7B-Instruct --bf16 True "
)


@pytest.fixture
def start(tmp_path):
    """Read a script that starts a program with that text, next to files of other names."""

    def call(text, command=COMMAND, files=None, **options):
        (tmp_path / "src").mkdir(exist_ok=True)
        (tmp_path / "src" / "train.py").write_text(text)
        for name, content in (files or {}).items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(content)
        script = tmp_path / "run.sh"
        script.write_text(f"#!/bin/bash\n{command}\n")
        return read_file(script, Options(model_of=load_model, strict=False, **options))

    return call


def test_defaults_and_adapters_are_taken_where_the_command_gives_none(start):
    more = (
        "class More:\n    pass\n\nclass TrainingArguments(Base):\n    per_device_train_batch_size: int = 2\n\n"
        "class OtherArguments:\n    per_device_train_batch_size: int = 16\n\nKINDS = (More, TrainingArguments)\n"
    )
    result = start(PROGRAM, files={"src/own_args.py": more})
    trainable = result.workload_fields["trainable"]
    assert (trainable["lora_rank"], trainable["lora_targets"]) == (16, ("q_proj", "k_proj"))
    assert (result.workload_fields["seq_len"], result.layout_fields["micro_batch_size"]) == (512, 2)
    assert result.workload_fields["global_batch_size"] == 2 * 4 * 4
    assert not result.missing
    assert any("of train.py itself: " in note and "model_max_length 512" in note for note in result.notes)


def test_the_command_goes_over_the_program(start):
    given = COMMAND + "--max_seq_length 1024 --per_device_train_batch_size 1 --gradient_accumulation_steps 1"
    result = start(PROGRAM, given)
    assert (result.workload_fields["seq_len"], result.workload_fields["global_batch_size"]) == (1024, 4)


def test_a_rank_that_an_argument_gives_is_that_of_its_default(start):
    result = start(PROGRAM.replace("r=16", "r=args.lora_r"))
    assert result.workload_fields["trainable"]["lora_rank"] == 8


def test_a_call_under_a_condition_is_warned_of(start):
    text = PROGRAM.replace("    model =", "    if args.peft:\n        model =")
    result = start(text)
    assert "trainable" not in result.workload_fields
    assert any("calls LoraConfig (train.py:18) under a condition" in warning for warning in result.warnings)


def test_a_call_under_a_condition_that_an_argument_meets(start):
    text = PROGRAM.replace(
        "    model =", "    PLACES = ['wqkv', 'wo', 'w2']\n    if args.use_lora:\n        model ="
    )
    text = text.replace("    lora_r: int = 8\n", "").replace("r=16, ", "")
    text = text.replace('["q_proj", "k_proj"]', "PLACES")
    result = start(text, COMMAND + "--use_lora true")
    trainable = result.workload_fields["trainable"]
    assert (trainable["lora_rank"], trainable["lora_targets"]) == (8, ("qkv_proj", "o_proj", "down_proj"))
    assert "under a condition" not in " ".join(result.warnings)
    result = start(text, COMMAND + "--lora_rank 4 --lora_target_modules q_proj")
    assert result.workload_fields["trainable"]["lora_rank"] == 4
    assert "under a condition" not in " ".join(result.warnings)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("model.gradient_checkpointing_enable()", "full"),
        ("model.config.gradient_checkpointing = True", "full"),
        ("config.gradient_checkpointing = False", "none"),
    ],
)
def test_recomputation_that_the_program_turns_on(start, line, expected):
    assert start(f"{line}\n").layout_fields["recompute"]["granularity"] == expected


def test_sharding_of_its_own_is_asked_for(start):
    text = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nmodel = FSDP(model, sharding_strategy=one)\n"
    result = start(text)
    assert [fact.flag for fact in result.missing if "sharded" in fact.what] == ["--zero N"]
    assert "zero" not in result.layout_fields
    result = start(text, over={"zero": 2})
    assert (result.layout_fields["dp_shard"], result.layout_fields.get("dp_replicate", 1)) == (4, 1)


def test_a_library_that_lays_it_out_is_named(start):
    for line in ("from nnscaler.parallel import ComputeConfig", "import colossalai, os"):
        (fact,) = [fact for fact in start(f"{line}\n").missing if fact.flag == "--zero N"]
        assert "leaves it to" in fact.reason


def test_an_argument_that_names_sharding_is_asked_for(start):
    flags = [fact.flag for fact in start("x = 1\n", COMMAND + "--sharding_strategy hsdp").missing]
    assert "--zero N" in flags


def test_a_configuration_that_the_program_makes_for_deepspeed_is_asked_for(start):
    result = start("import deepspeed\nengine, *_ = deepspeed.initialize(model=model, config={})\n")
    assert "--config FILE.json" in [fact.flag for fact in result.missing]
    made = json.dumps({"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}})
    default = 'parser.add_argument("--deepspeed", default="./ds.json")\nimport deepspeed\ndeepspeed.init_distributed()\n'
    assert start(default, files={"src/ds.json": made, "ds.json": made}).layout_fields["zero"] == 2


def test_batches_of_deepspeeds_file_decide(start):
    sizes = {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 1}}
    command = COMMAND + "--deepspeed_config ds.json --batch_size 7"
    result = start("x = 1\n", command, files={"ds.json": json.dumps(sizes)})
    assert (result.workload_fields["global_batch_size"], result.layout_fields["micro_batch_size"]) == (32, 2)
    assert "--global-batch-size N" not in [fact.flag for fact in result.missing]


def test_a_pipeline_in_deepspeeds_file_is_not_that_of_a_trainer(start):
    table = {"zero_optimization": {"stage": 3}, "pipeline": {"stages": 4}}
    command = COMMAND + "--deepspeed ds.json --per_device_train_batch_size 1"
    result = start("x = 1\n", command, files={"ds.json": json.dumps(table)})
    assert (result.layout_fields.get("pp", 1), result.layout_fields["dp_shard"]) == (1, 4)
    assert any("PipelineModule" in note for note in result.notes)


def test_types_of_a_copy_of_deepspeed_chat(start, tmp_path):
    table = 'def get():\n    return {\n        # "fp16": {"enabled": True},\n        "bf16": {"enabled": True, "auto_cast": True}}\n'
    command = "deepspeed --num_gpus 4 main.py --model_name_or_path Qwen/Qwen2.5-7B-Instruct --zero_stage 3 --max_seq_len 8"
    command += " --per_device_train_batch_size 2"
    files = {"main.py": "x = 1\n", "utils/ds_utils.py": table}
    assert start("", command, files=files).workload_fields["precision"]["compute"] == "bf16"
    assert made_type(tmp_path / "main.py") == {"dtype": "bf16"}
    (tmp_path / "utils" / "ds_utils.py").unlink()
    assert start("", command).workload_fields["precision"]["compute"] == "fp16"


def test_a_program_chosen_by_an_argument_is_asked_for(start):
    command = 'MODE=$1\nif [ "$MODE" == one ]; then P=src/train.py; elif [ "$MODE" == two ]; then P=src/train.py; fi\n'
    command += (
        'srun bash -c "torchrun --nproc_per_node 4 $P --model_name Qwen/Qwen2.5-7B-Instruct --batch_size 2"'
    )
    with raises(MissingError, "missing --args"):
        start("x = 1\n", command)
    result = start("x = 1\n", command, arguments=["one"])
    assert result.num_devices == 4
    assert "--global-batch-size N" in [fact.flag for fact in result.missing]


def test_what_is_no_python_says_nothing(tmp_path):
    path = tmp_path / "train.py"
    for text in ("def (:\n", "x = 1\n" * 2**16, "(" * 5000):
        path.write_text(text)
        assert read_program(path).content({}, record_of("trainer")) == {}
    assert read_program(None).names == frozenset()
