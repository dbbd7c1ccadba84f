"""DeepSpeed's own configuration class, asked about many files; run in a process of its own.

    python deepspeed_parser.py FOLDER < asked.json

reads a list of {"config", "world", "inner"} and prints a list of what DeepSpeed understood, or why it refused.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import sys
import warnings
from typing import Any


def main(folder: str) -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    os.environ["DS_ACCELERATOR"] = "cpu"
    sys.path.insert(0, folder)
    question = json.load(sys.stdin)
    answers = []
    with contextlib.redirect_stdout(io.StringIO()):
        from deepspeed.runtime import config as module

        for item in question:
            try:
                answers.append(_understood(module, **item))
            except Exception as error:
                answers.append({"refused": f"{type(error).__name__}: {error}"})
    json.dump(answers, sys.stdout, default=str)


def _understood(module: Any, config: dict[str, Any], world: int, inner: int) -> dict[str, Any]:
    class Mpu:
        def get_data_parallel_world_size(self) -> int:
            return world // inner

        def get_model_parallel_world_size(self) -> int:
            return inner

    module.dist.get_world_size = lambda *_, **__: world
    module.dist.get_rank = lambda *_, **__: 0
    deep_speed_config = module.DeepSpeedConfig(config, mpu=Mpu())
    zero, placed = deep_speed_config.zero_config, deep_speed_config.expert_parallel_config
    if placed is not None and placed.enabled:
        _check_experts(
            placed, deep_speed_config, world=world, tp=config.get("tensor_parallel", {}).get("autotp_size", 1)
        )
    offload = zero.offload_optimizer
    return {
        "dp": deep_speed_config.world_size,
        "train_batch_size": deep_speed_config.train_batch_size,
        "micro": deep_speed_config.train_micro_batch_size_per_gpu,
        "steps": deep_speed_config.gradient_accumulation_steps,
        "zero": deep_speed_config.zero_optimization_stage,
        "overlap": bool(zero.overlap_comm),
        "bucket": zero.reduce_bucket_size,
        "bf16": deep_speed_config.bfloat16_config.enabled,
        "gradients": str(deep_speed_config.grad_accum_dtype),
        "offload": None if offload is None else str(getattr(offload.device, "value", offload.device)),
        "tp": deep_speed_config.tensor_parallel_config.autotp_size,
        "ep": placed.autoep_size if placed is not None and placed.enabled else 1,
    }


def _check_experts(placed: Any, value: Any, *, world: int, tp: int) -> None:
    from deepspeed.module_inject.auto_ep_config import validate_autoep_config

    zero = value.zero_config
    validate_autoep_config(
        placed, world, 1, tp, value._param_dict.get("sequence_parallel_size", 1),
        zero_stage=value.zero_optimization_stage,
        zero_offload_optimizer=zero.offload_optimizer is not None,
        zero_offload_param=zero.offload_param is not None,
    )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1])
