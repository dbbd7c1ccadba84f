"""What starts a program of a person's own, and what its text changes silently."""

import pytest
from tests.errors import raises
from tests.frameworks.trainers.test_program import COMMAND, PROGRAM, start  # noqa: F401  (a fixture)

from forescale.catalogue.models import load_model
from forescale.errors import ReaderError
from forescale.frameworks.readers import read_file
from forescale.frameworks.reading import Options


def test_program_that_freezes_parameters_itself_is_warned_of(start):  # noqa: F811
    plain = "from transformers import Trainer\nmodel = load()\n"
    command = COMMAND + "--per_device_train_batch_size 1 --max_length 64"
    assert not [text for text in start(plain, command).warnings if "freezes" in text]
    for text in (
        "for p in model.parameters():\n    p.requires_grad = False\n",
        "tower.requires_grad_(False)\n",
    ):
        (warning,) = [text for text in start(plain + text, command).warnings if "freezes" in text]
        assert "--freeze" in warning
        assert not [
            text
            for text in start(plain + text, command, over={"trainable": {}}).warnings
            if "freezes" in text
        ]


def test_actor_and_critic_are_not_read_as_one_model(start):  # noqa: F811
    with raises(ReaderError, "not_expressed"):
        start(
            PROGRAM,
            "deepspeed src/train.py --actor_model_name_or_path a --critic_zero_stage 3 --per_device_train_batch_size 1 --deepspeed",
        )


@pytest.mark.parametrize("first", ["#!/bin/bash\n", ""])
def test_script_without_a_first_line_is_a_script_by_its_name(tmp_path, first):
    text = "import torch\nmicro_batch_size = 2\nblock_size = 64\nloss.backward()\noptimizer.step()\n"
    (tmp_path / "loop.py").write_text(text)
    script = tmp_path / "go.sh"
    script.write_text(f"{first}uv run deepspeed --num_gpus=4 loop.py lr=1\n")
    options = Options(model_of=load_model, model=load_model("llama-3.1-8b"), strict=False)
    parsed = read_file(script, options)
    assert (parsed.num_devices, parsed.layout_fields["micro_batch_size"]) == (4, 2)


def test_value_that_shards_is_asked_about(start):  # noqa: F811
    command = COMMAND + "--per_device_train_batch_size 1 --max_length 64 --mode"
    asked = [fact.what for fact in start("import torch\n", f"{command} fsdp").missing]
    assert "how its states are sharded" in asked
    assert not start("import torch\n", f"{command} ddp").missing


def test_value_that_tells_of_memory_is_warned_of(start):  # noqa: F811
    command = COMMAND + "--per_device_train_batch_size 1 --max_length 64 --activation"
    assert any(
        "activation checkpoint" in text for text in start("import torch\n", f"{command} checkpoint").warnings
    )
    assert not any("activation" in text for text in start("import torch\n", f"{command} gelu").warnings)


@pytest.mark.parametrize("count", ["$GPUS", "4"])
def test_open_number_of_processes_is_asked_for(start, count):  # noqa: F811
    command = f"accelerate launch --use_fsdp --num_machines=1 --num_processes={count} src/train.py "
    command += "--model_name_or_path Qwen/Qwen2.5-7B-Instruct --per_device_train_batch_size 1 --max_length 64"
    result = start("import torch\n", command)
    asked = "the number of devices" in [fact.what for fact in result.missing]
    assert (asked, result.num_devices) == ((True, None) if count == "$GPUS" else (False, 4))
