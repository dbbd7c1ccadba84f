"""Accelerate's own classes, asked about many launch files; run in a process of its own.

    python accelerate_parser.py FOLDER < asked.json

reads a list of YAML texts and prints a list of what Accelerate understood, or why it refused.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any


def main(folder: str) -> None:
    warnings.filterwarnings("ignore")
    sys.path.insert(0, folder)
    from accelerate.commands.config import config_args
    from accelerate.parallelism_config import ParallelismConfig
    from accelerate.utils import FullyShardedDataParallelPlugin

    answers = []
    before = dict(os.environ)
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "launch.yaml"
        for text in json.load(sys.stdin):
            path.write_text(text)
            os.environ.clear()
            os.environ.update(before)
            try:
                config = config_args.load_config_from_file(str(path))
                _as_launched(config)
                answers.append(_understood(config, ParallelismConfig(), FullyShardedDataParallelPlugin()))
            except Exception as error:
                answers.append({"refused": f"{type(error).__name__}: {error}"})
    json.dump(answers, sys.stdout)


def _as_launched(config: Any) -> None:
    """Set the variables that `accelerate launch` sets (utils/launch.py)."""
    for key, value in (config.parallelism_config or {}).items():
        os.environ["PARALLELISM_CONFIG_" + key.removeprefix("parallelism_config_").upper()] = str(value)
    for key, value in (config.fsdp_config or {}).items():
        os.environ[key.upper()] = str(value)


def _understood(config: Any, degrees: Any, plugin: Any) -> dict[str, Any]:
    if config.parallelism_config and degrees.total_size != config.num_processes:  # Accelerator asks the same
        msg = f"{degrees.total_size} processes of parallelism_config, {config.num_processes} of the launch"
        raise ValueError(msg)
    layout = plugin.sharding_strategy
    return {
        "devices": config.num_processes,
        "dp_replicate": degrees.dp_replicate_size,
        "dp_shard": degrees.dp_shard_size,
        "tp": degrees.tp_size,
        "cp": degrees.cp_size * degrees.sp_size,
        "version": plugin.fsdp_version,
        "reshard": plugin.reshard_after_forward if isinstance(plugin.reshard_after_forward, bool) else None,
        "sharding": getattr(layout, "name", None),
        "offload": str(plugin.cpu_offload),
        "recompute": plugin.activation_checkpointing,
    }


if __name__ == "__main__":
    main(sys.argv[1])
