"""Accelerate's launch files: what counts under another kind of training than theirs is said."""

from __future__ import annotations

import json

import pytest
from tests.errors import raises

from forescale.errors import ReaderError
from forescale.frameworks.deepspeed.trainer import AccelerateReader
from forescale.frameworks.reading import Options

LAUNCH = """compute_environment: LOCAL_MACHINE
distributed_type: {kind}
fsdp_config:
  fsdp_sharding_strategy: FULL_SHARD
num_processes: 8
"""
WRAPPED = LAUNCH.replace("num_pro", "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\nnum_pro")


DEVICES = "8 devices, from num_processes 8 (line 5)"


def test_a_table_of_another_kind_is_noted(tmp_path):
    path = tmp_path / "launch.yaml"
    path.write_text(LAUNCH.format(kind="MULTI_GPU"))
    result = AccelerateReader().read(path, Options())
    assert result.strategy.zero == 0
    assert result.notes == (
        "fsdp_config, such as fsdp_sharding_strategy (line 4), counts under distributed_type FSDP alone; it is MULTI_GPU",
        DEVICES,
    )
    path.write_text(WRAPPED.format(kind="FSDP"))
    result = AccelerateReader().read(path, Options())
    assert (result.strategy.zero, result.notes) == (3, (DEVICES.replace("5", "6"),))


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        (WRAPPED, "layer"),
        (LAUNCH, "model"),
        (WRAPPED.replace("TRANSFORMER_BASED_WRAP", "NO_WRAP"), "model"),
        (LAUNCH.replace("FULL_SHARD", "NO_SHARD"), "layer"),
    ],
)
def test_fsdp_without_a_policy_of_wrapping_is_one_unit(tmp_path, text, unit):
    """Accelerate, utils/dataclasses.py: FullyShardedDataParallelPlugin's auto_wrap_policy is NO_WRAP by default."""
    path = tmp_path / "launch.yaml"
    path.write_text(text.format(kind="FSDP"))
    result = AccelerateReader().read(path, Options())
    assert result.layout_fields.get("kernels", {}).get("fsdp_unit", "layer") == unit


def test_policies_of_wrapping_that_accelerate_lacks_are_refused(tmp_path):
    path = tmp_path / "launch.yaml"
    path.write_text(WRAPPED.format(kind="FSDP").replace("TRANSFORMER_BASED", "ALWAYS"))
    with raises(ReaderError, "not_one_of fsdp_auto_wrap_policy (line 5)"):
        AccelerateReader().read(path, Options())


def test_keys_of_fsdp_need_no_prefix_and_kinds_no_capitals(tmp_path):
    path = tmp_path / "launch.yaml"
    text = LAUNCH.format(kind="FSDP").replace(
        "fsdp_sharding_strategy: FULL_SHARD", "sharding_strategy: shard_grad_op"
    )
    path.write_text(text)
    assert AccelerateReader().read(path, Options()).strategy.zero == 2


def test_keys_that_accelerate_has_are_read(tmp_path):
    path = tmp_path / "launch.yaml"
    path.write_text(
        LAUNCH.format(kind="FSDP").replace(
            "num_pro", "  fsdp_ignored_modules: null\nregion: us-east-1\nnum_pro"
        )
    )
    assert AccelerateReader().read(path, Options()).strategy.zero == 3


def test_machines_divide_the_processes_and_cpus_are_said(tmp_path):
    path = tmp_path / "launch.yaml"
    path.write_text(LAUNCH.format(kind="FSDP") + "num_machines: 3\n")
    with raises(ReaderError, "not_divisible num_processes (line 5)"):
        AccelerateReader().read(path, Options())
    path.write_text(WRAPPED.format(kind="FSDP") + "num_machines: 2\nuse_cpu: true\n")
    (note, _) = AccelerateReader().read(path, Options()).notes
    assert note.startswith("not expressed: use_cpu (line 8)")


@pytest.mark.parametrize(("kind", "compute"), [("bf16", "bf16"), ("no", "tf32"), (None, "bf16")])
def test_accelerate_fills_in_a_type_that_is_auto(tmp_path, kind, compute):
    content = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": "auto"},
        "zero_optimization": {"stage": 3},
    }
    (tmp_path / "ds.json").write_text(json.dumps(content))
    path = tmp_path / "launch.yaml"
    launch = (
        "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: ds.json\nnum_processes: 8\n"
    )
    path.write_text(launch + (f"mixed_precision: '{kind}'\n" if kind else ""))
    result = AccelerateReader().read(path, Options())
    assert result.workload_fields["precision"]["compute"] == compute
