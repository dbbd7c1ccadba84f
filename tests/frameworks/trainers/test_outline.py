"""A training loop of a person's own is followed: its model, batch, types, adapters; what it leaves open is asked for."""

import pytest

from forescale.catalogue.models import load_model
from forescale.frameworks.readers import read_file
from forescale.frameworks.reading import Options

LOOP = """import argparse
import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM
NAME = "Qwen/Qwen3-8B"


def train(args):
    model = AutoModelForCausalLM.from_pretrained(NAME, torch_dtype=torch.bfloat16)
    model.gradient_checkpointing_enable()
    CHANGE
    for batch in DataLoader(data, batch_size=args.batch_size):
        model(**batch).loss.backward()
        optimizer.step()


parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=4)
train(parser.parse_args())
"""


@pytest.fixture
def read(tmp_path):
    """Read a loop alone, or by a command."""

    def call(change="pass", command="", modules=None):
        for name, text in {"train.py": LOOP.replace("CHANGE", change), **(modules or {})}.items():
            (tmp_path / name).write_text(text)
        (tmp_path / "run.sh").write_text(command)
        options = Options(model_of=load_model, strict=False, num_devices=2)
        return read_file(tmp_path / ("run.sh" if command else "train.py"), options)

    return call


def missing(parsed):
    return [fact.what for fact in parsed.missing]


@pytest.mark.parametrize(("command", "batch"), [("", 4), ("torchrun train.py --batch_size 6\n", 6)])
def test_calls_of_a_loop_say_its_model_batch_and_types(read, command, batch):
    parsed = read(command=command)
    assert (parsed.model.name, "seq_len" in parsed.workload_fields) == ("qwen3-8b", False)
    assert (parsed.layout_fields["micro_batch_size"], parsed.workload_fields["global_batch_size"]) == (
        batch,
        2 * batch,
    )
    assert parsed.layout_fields["recompute"]["granularity"] == "full"
    assert parsed.workload_fields["precision"]["parameters"] == "bf16"


@pytest.mark.parametrize("change", ["accumulate = 4", "steps = args.grad_accum"])
def test_gradients_that_a_loop_may_add_up_leave_the_batch_open(read, change):
    assert "the global batch size" in missing(read(change))


def test_adapters_of_a_loop_are_read_and_of_others_warned_of(read):
    tuned = "model = get_peft_model(model, LoraConfig(r=16, target_modules=['q_proj']))"
    assert read(tuned).workload_fields["trainable"]["lora_rank"] == 16
    doubtful = read(f"if data.tunes:\n        {tuned}")
    assert "trainable" not in doubtful.workload_fields
    assert any("calls LoraConfig (train.py:12) under a condition" in text for text in doubtful.warnings)
    module = "from peft import LoraConfig\n\n\ndef tune(model):\n    return LoraConfig(r=4)\n"
    (text,) = [
        text for text in read("register(tune)", modules={"own.py": module}).warnings if "own.py" in text
    ] or [""]
    assert text == ""
    used = read("from own import tune\n    register(tune)", modules={"own.py": module})
    assert any(
        "not followed, may change the figures: LoraConfig (own.py:5)" in text for text in used.warnings
    )


def test_defaults_that_differ_are_warned_of_and_not_projected(read):
    classes = "from dataclasses import dataclass\n\n\n"
    for name, value in (("ShardConfig", True), ("ModelConfig", False)):
        classes += f"@dataclass\nclass {name}:\n    gradient_checkpointing: bool = {value}\n\n\n"
    program = LOOP.replace("    model.gradient_checkpointing_enable()\n", "")
    program += "KINDS = (ShardConfig, ModelConfig)\n"
    parsed = read(command="torchrun train.py --batch_size 2\n", modules={"train.py": classes + program})
    text = "train.py has gradient_checkpointing True and gradient_checkpointing False: defaults that differ"
    assert any(warning.startswith(text) for warning in parsed.warnings)


def test_wrapped_checkpoints_of_a_loop_are_full_recomputation(read):
    program = LOOP.replace("model.gradient_checkpointing_enable()", "apply_activation_checkpointing(model)")
    assert read(modules={"train.py": program}).layout_fields["recompute"]["granularity"] == "full"


def test_a_program_with_the_name_of_another_trainers_is_a_persons_own(tmp_path, read):
    (tmp_path / "src").mkdir()
    parsed = read(
        command="torchrun --nproc_per_node 2 src/train.py --batch_size 2\n", modules={"src/train.py": LOOP}
    )
    assert (parsed.model.name, parsed.layout_fields["micro_batch_size"]) == ("qwen3-8b", 2)
    assert "trainable" not in parsed.workload_fields


def test_states_of_16_bits_that_a_loop_shards_itself_are_warned_of(read):
    assert any("--moment-dtype" in text for text in read("model = FSDP(model)").warnings)
    assert not any("--moment-dtype" in text for text in read().warnings)


def test_names_of_accumulation_and_length_are_those_of_the_command(read):
    parsed = read("for _ in range(args.grad_accum): pass", "torchrun train.py --grad_accum 3 --seq_len 640\n")
    assert (parsed.workload_fields["seq_len"], parsed.workload_fields["global_batch_size"]) == (
        640,
        4 * 3 * 2,
    )


def test_random_tensors_in_an_item_are_no_batch(read):
    item = "class Rows:\n        def __getitem__(self, at):\n            return torch.randint(0, 9, (512,))"
    parsed = read(item + "\n    loader = DataLoader(Rows(), batch_size=args.batch_size)")
    assert parsed.layout_fields["micro_batch_size"] == 4


def test_functions_that_a_program_calls_are_not_followed_without_their_arguments(read):
    tuned = "state = Accelerator(gradient_accumulation_steps=args.batch_size)\n    get_peft_model(model, LoraConfig(r=8))"
    parsed = read(tuned, modules={"extra.py": ""})
    assert (parsed.missing, parsed.workload_fields["global_batch_size"]) == ((), 4 * 4 * 2)


def test_flags_of_megatron_in_python_are_arguments_of_a_program(read, tmp_path):
    declared = "parser.add_argument('--num_layers')\n    parser.add_argument('--hidden_size')"
    assert read(declared).layout_fields["micro_batch_size"] == 4


def test_functions_that_a_loop_does_not_call_turn_nothing_on(read):
    tunes = "torch.backends.cuda.matmul.allow_tf32 = True\n    if 2 > 3:\n        tune(model)"
    module = "def tune(model):\n    model.gradient_checkpointing_enable()\n    get_peft_model(model, LoraConfig(r=4))\n"
    program = LOOP.replace("CHANGE", tunes).replace("    model.gradient_checkpointing_enable()\n", "")
    parsed = read(modules={"train.py": program + "\n\n" + module})
    assert (parsed.layout_fields["recompute"]["granularity"], "trainable" in parsed.workload_fields) == (
        "none",
        False,
    )


@pytest.mark.parametrize("name", ["acc_steps", "gradient_accum_steps", "accum_steps"])
def test_accumulation_of_a_command_has_many_names(read, name):
    parsed = read(f"for _ in range(args.{name}): pass", f"torchrun train.py --{name} 5\n")
    assert parsed.workload_fields["global_batch_size"] == 4 * 5 * 2
