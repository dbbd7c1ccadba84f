"""Configurations that a launch script writes before it names them, and those under a path of another machine."""

import pytest
from tests.errors import raises

from forescale.catalogue.models import load_model
from forescale.errors import ReaderError
from forescale.frameworks.readers import read_file
from forescale.frameworks.reading import Options

RUN = "torchrun --nproc_per_node 4 train.py --model_name_or_path Qwen/Qwen2.5-7B --bf16 true --max_length 512"
RUN += " --per_device_train_batch_size 2 --gradient_accumulation_steps 1 "
STAGE = '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}'


@pytest.fixture
def read(tmp_path):
    """Read a script next to files of other names."""

    def call(text, files=None):
        for name, content in (files or {}).items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(content)
        script = tmp_path / "scripts" / "run.sh"
        script.parent.mkdir(exist_ok=True)
        script.write_text(f"#!/bin/bash\n{text}\n")
        return read_file(script, Options(model_of=load_model, strict=False))

    return call


def here(name, text):
    return f"cat > {name} <<EOF\n{text}\nEOF\n"


def test_deepspeeds_file(read):
    text = here("$DIR/ds_$STAGE.json", STAGE.replace("2", "$STAGE"))
    parsed = read("STAGE=1\nDIR=/tmp/x\n" + text + RUN + "--deepspeed $DIR/ds_$STAGE.json")
    assert parsed.layout_fields["zero"] == 1
    assert not parsed.missing


def test_fsdps_file(read):
    text = (
        '{"fsdp": "full_shard auto_wrap", "fsdp_config": {"activation_checkpointing": true, "cls": ${OPEN}}}'
    )
    parsed = read(here("/a/fsdp.json", text) + RUN + "--fsdp /a/fsdp.json")
    assert (parsed.layout_fields["zero"], parsed.layout_fields["recompute"]["granularity"]) == (3, "full")
    parsed = read(
        here("f.json", '{"reshard_after_forward": false}') + RUN + "--fsdp full_shard --fsdp_config f.json"
    )
    assert parsed.layout_fields["zero"] == 2


def test_accelerates_file_and_that_of_a_trainer(read):
    text = here("/tmp/a.yaml", "distributed_type: FSDP\nnum_processes: 4\nfsdp_config:\n  fsdp_version: 2")
    run = RUN.replace(
        "torchrun --nproc_per_node 4",
        "CUDA_VISIBLE_DEVICES=0,1 accelerate launch --config_file /tmp/a.yaml",
    )
    parsed = read(text + run)
    assert (parsed.num_devices, parsed.layout_fields["zero"]) == (4, 3)
    keys = "model_name_or_path: Qwen/Qwen2.5-7B\nstage: sft\nfinetuning_type: full\ncutoff_len: 256\nbf16: true\n"
    text = here("c.yaml", keys + "per_device_train_batch_size: $B")
    text += "FORCE_TORCHRUN=1 NPROC_PER_NODE=2 llamafactory-cli train c.yaml"
    parsed = read(f"B=3\n{text}")
    assert (parsed.workload_fields["seq_len"], parsed.layout_fields["micro_batch_size"]) == (256, 3)
    with raises(ReaderError, "--var B=VALUE"):
        read(text)


def test_what_is_written_is_refused_as_a_file_is(read):
    with raises(ReaderError, "ds.json: it is not valid JSON"):
        read(here("ds.json", '{"a": }') + RUN + "--deepspeed ds.json")
    with raises(ReaderError, "a table of keys"):
        read(here("ds.json", "[1]") + RUN + "--deepspeed ds.json")


def test_a_file_is_found_by_the_end_of_its_path(read):
    files = {"conf/zero.json": STAGE, "zero.json": STAGE.replace("2", "1")}
    parsed = read(RUN + "--deepspeed /home/x/project/conf/zero.json", files)
    assert parsed.layout_fields["zero"] == 2


def test_deepspeed_divides_the_whole_batch(read):
    loose = '{\n  "train_batch_size": 32, // of a step\n  "zero_optimization": {"stage": 1,},\n}'
    command = "srun bash -c 'python train.py --deepspeed --deepspeed_config ds.json'"
    header = "#SBATCH --nodes=1\n#SBATCH --ntasks-per-node=8\n#SBATCH --gpus-per-node=8\n"
    program = "import deepspeed\nengine = deepspeed.initialize(args=args)\n"
    parsed = read(header + command, {"ds.json": loose, "scripts/train.py": program})
    assert (parsed.num_devices, parsed.layout_fields["zero"]) == (8, 1)
    assert (parsed.layout_fields["micro_batch_size"], parsed.workload_fields["global_batch_size"]) == (4, 32)
    assert [fact.part for fact in parsed.missing] == ["model"]


def test_numbers_of_a_command_of_litgpt(read):
    run = "litgpt finetune_lora Qwen/Qwen3-8B --devices 4 --num_nodes 2 --train.max_seq_length 512"
    parsed = read(run)
    assert (parsed.num_devices, parsed.layout_fields["recompute"]["granularity"]) == (8, "full")
    assert not parsed.warnings
    program = "strategy = DDPStrategy()\n'''\nstrategy = FSDPStrategy()\n'''\n"
    changed = {"litgpt/finetune/lora.py": program}
    assert "replicates states (DDPStrategy)" in read(run, changed).warnings[0]
    assert not read(run.replace("4", "1").replace("2 ", "1 "), changed).warnings
