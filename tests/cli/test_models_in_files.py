"""Every command that takes a model's name takes a file that has the model, in the same position."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forescale.cli import inputs
from forescale.cli.advice import rows_of, table

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
FLAGS = (
    "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --ffn-hidden-size 1024 --swiglu --vocab-size 32000 "
    "--seq-length 256 --max-position-embeddings 256 --micro-batch-size 1 --global-batch-size 8 --bf16 "
    "--normalization RMSNorm --position-embedding-type rope --disable-bias-linear "
    "--untie-embeddings-and-output-weights --make-vocab-size-divisible-by 1"
)
ARGUMENTS = {
    "model_name_or_path": "folder",
    "output_dir": "out",
    "per_device_train_batch_size": 1,
    "bf16": True,
}
PLAN = """
model = "folder"
cluster = "h100-sxm"
devices = 2

[strategy]
pp = 2

[workload]
seq_len = 256
global_batch_size = 8
"""
RUN = ("--cluster", "h100-sxm", "--devices", 2, "--seq-len", 256, "--global-batch-size", 8)
LAID = (*RUN, "--pp", 2)
NEEDS = {
    "memory compare": (*LAID, "--across", "zero", "--values", "0,1"),
    "search": (*RUN, "--top", 1, "--fix", "micro_batch_size=1"),
    "export": (*LAID, "--to", "megatron"),
    "advise": (*RUN, "--no-exact"),
    "fit": (*LAID, "--no-pairs"),
    "diagnose": (*LAID, "--measured", "step=1s"),
    "watch": (*LAID, "--log", "train.log", "--no-follow"),
    "run": (*LAID, "--tokens", "1B"),
    "sites": (*RUN, "--pp", 1, "--sites", "2,100Gbit/s"),
    "report": RUN,
}
"""What commands need that do not take a layout alone."""
COMMANDS = {
    path: NEEDS.get(path, LAID)
    for path, rows in table()["commands"].items()
    if path != "compare"  # which takes several machines: test_compare
    and any(name in ("model", "words") and "on" not in row for name, row in rows_of(rows))
}
"""Every command that takes a model, with its options."""
SOURCES = ("llama-3.2-1b", "config.json", "folder", "plan.toml", "train.sh", "arguments.json")


@pytest.fixture
def files(tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "config.json").write_text(json.dumps(MODEL))
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    (tmp_path / "plan.toml").write_text(PLAN)
    (tmp_path / "train.sh").write_text(f"torchrun --nproc-per-node 2 pretrain_gpt.py {FLAGS}\n")
    (tmp_path / "train.log").write_text("starting\n")
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 1}}))
    (tmp_path / "arguments.json").write_text(json.dumps({**ARGUMENTS, "deepspeed": "ds.json"}))
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Asked(Exception):
    """Carries the question that a command asks."""


@pytest.fixture
def question_of(forescale, files, monkeypatch):
    """Return the question that a command asks, without its answer."""
    built = inputs._built

    def stop(*given, **named):
        raise Asked(built(*given, **named))

    monkeypatch.setattr(inputs, "_built", stop)

    def call(*arguments):
        with pytest.raises(Asked) as raises:
            forescale(*arguments)
        return raises.value.args[0]

    return call


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_stands_where_a_name_does(question_of, command, source):
    question = question_of(*command.split(), source, *COMMANDS[command])
    assert question.model.num_layers == (16 if source == "llama-3.2-1b" else 4)
    assert question.cluster.num_devices == 2
    assert question.workload.global_batch_size == 8


@pytest.mark.parametrize("source", ["plan.toml", "train.sh"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_that_has_the_rest_needs_nothing_beside(question_of, command, source):
    needed = COMMANDS[command][len(RUN) :] if command in ("export", "memory compare", "sites", "run") else ()
    machine = () if source == "plan.toml" else ("--cluster", "h100-sxm")
    question = question_of(*command.split(), source, *machine, *needed)
    assert (question.model.num_layers, question.workload.seq_len) == (4, 256)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_model_may_be_in_the_file_of_config(question_of, command):
    question = question_of(*command.split(), "--config", "train.sh", *COMMANDS[command])
    assert question.model.num_layers == 4


def test_a_model_goes_over_that_of_config(question_of):
    machine = ("--config", "train.sh", "--cluster", "h100-sxm")
    assert question_of("project", "llama-3.2-1b", *machine).model.num_layers == 16
    assert question_of("project", *machine).model.num_layers == 4


def test_the_catalogue_describes_the_model_of_a_file(forescale, files):
    rows = {
        source: json.loads(forescale("catalogue", "models", source, "--json").out)["models"]
        for source in SOURCES
    }
    assert all(len(row) == 1 for row in rows.values())
    layers = {source: row[0]["num_layers"] for source, row in rows.items()}
    assert layers == {source: 16 if source == "llama-3.2-1b" else 4 for source in SOURCES}


def test_a_field_of_a_script_inside_a_table_stays_where_no_flag_sets_it(forescale, tmp_path):
    script = tmp_path / "moe.sh"
    script.write_text(
        "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 2 --hidden-size 256 --num-attention-heads 4 "
        "--seq-length 256 --micro-batch-size 1 --global-batch-size 8 --num-experts 8 --expert-model-parallel-size 8 "
        "--moe-expert-capacity-factor 1.5 --moe-token-dispatcher-type alltoall --vocab-size 1024 --bf16\n"
    )
    ran = forescale("project", script, "--cluster", "h100-sxm", "--expert-imbalance", "1.2", "--json")
    assert ran.code == 0, ran.err
    routing = json.loads(ran.out)["strategy"]["routing"]
    assert (routing["capacity_factor"], routing["imbalance"]) == (1.5, 1.2)


PROGRAM = """
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained("folder")
words = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4, "bf16": True}
Trainer(model, TrainingArguments("out", deepspeed="elsewhere/zero.json", **words)).train()
"""


def test_a_file_of_config_stands_for_the_one_that_a_program_names(question_of, files):
    Path("train.py").write_text(PROGRAM)
    states = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}, "train_batch_size": "auto"}
    Path("zero.json").write_text(json.dumps(states))
    run = ("--cluster", "h100-sxm", "--devices", "2", "--seq-len", "256")
    question = question_of("project", "train.py", "--config", "zero.json", *run)
    assert (question.layout.zero, question.workload.global_batch_size) == (2, 8)
