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
    asked = json.load(sys.stdin)
    answers = []
    with contextlib.redirect_stdout(io.StringIO()):
        from deepspeed.runtime import config as module

        for each in asked:
            try:
                answers.append(_understood(module, **each))
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
    found = module.DeepSpeedConfig(config, mpu=Mpu())
    zero, placed = found.zero_config, found.expert_parallel_config
    if placed is not None and placed.enabled:
        _check_experts(placed, found, world=world, tp=config.get("tensor_parallel", {}).get("autotp_size", 1))
    offload = zero.offload_optimizer
    return {
        "dp": found.world_size,
        "train_batch_size": found.train_batch_size,
        "micro": found.train_micro_batch_size_per_gpu,
        "steps": found.gradient_accumulation_steps,
        "zero": found.zero_optimization_stage,
        "overlap": bool(zero.overlap_comm),
        "bucket": zero.reduce_bucket_size,
        "bf16": found.bfloat16_config.enabled,
        "gradients": str(found.grad_accum_dtype),
        "offload": None if offload is None else str(getattr(offload.device, "value", offload.device)),
        "tp": found.tensor_parallel_config.autotp_size,
        "ep": placed.autoep_size if placed is not None and placed.enabled else 1,
    }


def _check_experts(placed: Any, found: Any, *, world: int, tp: int) -> None:
    from deepspeed.module_inject.auto_ep_config import validate_autoep_config

    zero = found.zero_config
    validate_autoep_config(
        placed, world, 1, tp, found._param_dict.get("sequence_parallel_size", 1),
        zero_stage=found.zero_optimization_stage,
        zero_offload_optimizer=zero.offload_optimizer is not None,
        zero_offload_param=zero.offload_param is not None,
    )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1])
