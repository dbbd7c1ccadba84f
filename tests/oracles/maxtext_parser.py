"""MaxText's own configuration, asked about many files; run in a process and with a Python of its own.

    python3.12 maxtext_parser.py FOLDER < asked.json

reads a list of {"text", "devices", "slices"} and prints a list of what MaxText understood, or why it refused.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

AXES = ("data", "pipeline", "fsdp", "context", "context_usp_ulysses", "tensor", "expert")
SAID = (
    "global_batch_size_to_train_on", "micro_batch_size_to_train_on", "gradient_accumulation_steps", "max_target_length",
    "num_pipeline_microbatches", "num_pipeline_repeats", "num_layers_per_pipeline_stage", "remat_policy", "emb_dim",
    "num_decoder_layers", "num_query_heads", "num_kv_heads", "head_dim", "mlp_dim", "vocab_size", "num_experts",
    "num_experts_per_tok", "moe_mlp_dim", "first_num_dense_layers", "dtype", "weight_dtype", "quantization",
    "context_parallel_strategy", "shard_optimizer_over_data", "num_target_devices",
)  # fmt: skip
USUAL = ("skip_jax_distributed_system=true", "enable_checkpointing=false")


def main(_: str) -> None:
    os.environ["JAX_PLATFORMS"] = "cpu"
    logging.disable(logging.CRITICAL)
    question = json.load(sys.stdin)
    answers = []
    with contextlib.redirect_stdout(io.StringIO()), tempfile.TemporaryDirectory() as folder:
        import jax
        from maxtext.configs import pyconfig
        from maxtext.utils import max_utils

        path = Path(folder) / "run.yml"
        for item in question:
            jax.devices = lambda *_, number=item["devices"]: [None] * number
            max_utils.get_num_slices = lambda _, number=item["slices"]: number
            path.write_text(item["text"])
            try:
                answers.append(_understood(pyconfig.initialize(["train", str(path), *USUAL])))
            except Exception as error:
                answers.append({"refused": f"{type(error).__name__}: {error}"})
    json.dump(answers, sys.stdout, default=str)


def _understood(config: Any) -> dict[str, Any]:
    axes = {
        axis: getattr(config, f"ici_{axis}_parallelism") * getattr(config, f"dcn_{axis}_parallelism")
        for axis in AXES
    }
    plain = {name: getattr(config, name) for name in SAID}
    return axes | {
        name: value if isinstance(value, int | float | str | None) else str(value)
        for name, value in plain.items()
    }


if __name__ == "__main__":
    main(sys.argv[1])
