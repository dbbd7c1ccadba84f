"""Accelerate's launch files: what counts under another kind of training than theirs is said."""

from __future__ import annotations

import pytest

from forescale.errors import ReaderError
from forescale.frameworks.deepspeed.trainer import AccelerateReader
from forescale.frameworks.reading import Options

LAUNCH = """compute_environment: LOCAL_MACHINE
distributed_type: {kind}
fsdp_config:
  fsdp_sharding_strategy: FULL_SHARD
num_processes: 8
"""


def test_a_table_of_another_kind_is_noted(tmp_path):
    path = tmp_path / "launch.yaml"
    path.write_text(LAUNCH.format(kind="MULTI_GPU"))
    found = AccelerateReader().read(path, Options())
    assert found.strategy.zero == 0
    assert found.notes == (
        "fsdp_config, such as fsdp_sharding_strategy (line 4), counts under distributed_type FSDP alone; it is MULTI_GPU",
    )
    path.write_text(LAUNCH.format(kind="FSDP"))
    found = AccelerateReader().read(path, Options())
    assert (found.strategy.zero, found.notes) == (3, ())


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
    with pytest.raises(
        ReaderError, match=r"num_processes \(line 5\) 8 is no multiple of num_machines \(line 6\) 3"
    ):
        AccelerateReader().read(path, Options())
    path.write_text(LAUNCH.format(kind="FSDP") + "num_machines: 2\nuse_cpu: true\n")
    (note,) = AccelerateReader().read(path, Options()).notes
    assert note.startswith("not expressed: use_cpu (line 7)")
