import pytest

from forescale.advise.changes import Change
from forescale.frameworks.trainers.patch import edits, patched, text_of
from forescale.frameworks.trainers.record import record_of
from forescale.spec import Layout, Workload
from forescale.spec.layout import Recompute

YAML = """# mine
base_model: x  # the base
micro_batch_size: 8   # per device
fsdp:
  - full_shard
learning_rate: 1e-5
"""
WORK = Workload(seq_len=2048, global_batch_size=64)


def test_yaml_keeps_comments_and_order():
    text = patched(
        YAML, ".yaml", {"micro_batch_size": 2, "gradient_checkpointing": True, "fsdp": "full_shard offload"}
    )
    assert text.splitlines() == [
        "# mine",
        "base_model: x  # the base",
        "micro_batch_size: 2   # per device",
        "fsdp: full_shard offload",
        "learning_rate: 1e-5",
        "gradient_checkpointing: true",
    ]


def test_of_a_key_that_is_there_twice_the_last_counts():
    text = patched("a: true\nb: 1\na: true  # again\n", ".yaml", {"a": False})
    assert text == "a: true\nb: 1\na: false  # again\n"


def test_a_script_keeps_its_lines():
    script = "#!/bin/bash\nswift sft \\\n    --max_length 2048 \\\n    --deepspeed zero2\n"
    text = patched(
        script, ".sh", {"deepspeed": "zero3", "$PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    )
    assert "--deepspeed zero3\n" in text
    assert text.splitlines()[:2] == ["#!/bin/bash", "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"]


def test_a_quoted_value_is_replaced_whole():
    script = 'torchrun train.py --fsdp "full_shard auto_wrap" --learning_rate 1\n'
    text = patched(script, ".sh", {"fsdp": "full_shard auto_wrap offload", "use_liger_kernel": True})
    assert "--fsdp 'full_shard auto_wrap offload' --" in text
    assert "--use_liger_kernel true" in text


def test_json_is_written_with_its_keys_in_order():
    assert patched('{"b": 1, "a": 2}', ".json", {"b": 3}) == '{\n  "b": 3,\n  "a": 2\n}\n'


@pytest.mark.parametrize(
    ("change", "keys"),
    [
        (
            Change(kind="micro_batch_size", text="", overrides={"micro_batch_size": 2}),
            {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 8},
        ),
        (
            Change(kind="recompute", text="", overrides={"recompute": Recompute(granularity="full")}),
            {"gradient_checkpointing": True},
        ),
        (Change(kind="pp", text="", overrides={"pp": 2}), None),
    ],
)
def test_a_change_is_said_in_keys(change, keys):
    layout = Layout(dp_replicate=4, micro_batch_size=1)
    assert edits(change, record_of("trainer").remedies, layout, WORK) == keys


def test_the_text_of_keys():
    assert text_of({"gradient_checkpointing": True}) == "set `gradient_checkpointing: true`"


def test_options_go_to_the_program_and_to_each_place_that_has_them():
    script = "torchrun --nproc_per_node=4 train.py --out_dir a --micro_size 8 \\\n  --micro_size 4\nnext --micro_size 2\n"
    text = patched(script, ".sh", {"micro_size": 1, "new_key": 3})
    assert text.splitlines()[0].startswith(
        "torchrun --nproc_per_node=4 train.py --new_key 3 --out_dir a --micro_size 1 "
    )
    assert text.splitlines()[1:] == ["  --micro_size 1", "next --micro_size 2"]
