"""torchtitan's own configuration manager, asked about many folders; run in a process of its own.

    python torchtitan_parser.py FOLDER < asked.json

reads a list of {"folder", "arguments", "world"} and prints a list of what torchtitan understood, or why it
refused. FOLDER holds torchtitan beside tyro and what else it parses with; packages that only data, logging and kernels
need are stood in for.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import io
import json
import logging
import os
import sys
import types
import warnings
from typing import Any

ABSENT = (
    "triton", "datasets", "pyarrow", "tokenizers", "wandb", "tensorboard", "PIL", "safetensors", "torch_checkpointing",
    "transformers", "huggingface_hub", "av", "torchvision", "torchao",
)  # fmt: skip
"""Packages that no configuration needs."""
DEGREES = ("dp_replicate", "dp_shard", "cp", "tp", "pp", "ep")


class _Class(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _made(name)


def _made(name: str) -> Any:
    """A class that can be inherited from, called and asked for anything."""
    body = {
        "__init__": lambda self, *args, **kwargs: None,
        "__call__": lambda self, *args, **kwargs: (
            args[0] if len(args) == 1 and callable(args[0]) else _made(name)()
        ),
        "__getattr__": lambda self, inner: _missing(inner),
    }
    return _Class(name, (), body)


def _missing(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _made(name)()


class _Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes imports of absent packages work."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        absent = name.split(".", maxsplit=1)[0] in ABSENT
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if absent else None

    def create_module(self, spec: Any) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__path__ = []
        module.__getattr__ = _Class("module", (), {}).__class__.__getattr__.__get__(_made("module"))  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        module.__version__ = "3.0.0"  # type: ignore[attr-defined]


def main(folder: str) -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)

    sys.meta_path.insert(0, _Absent())
    sys.path[:0] = [folder]
    question = json.load(sys.stdin)
    answers = []
    with contextlib.redirect_stdout(io.StringIO()):
        for item in question:
            try:
                answers.append(_understood(item))
            except (Exception, SystemExit) as error:
                answers.append({"refused": f"{type(error).__name__}: {error}"})
    json.dump(answers, sys.stdout, default=str)


def _understood(values: dict[str, Any]) -> dict[str, Any]:
    os.chdir(values["folder"])
    sys.path.insert(0, values["folder"])
    sys.modules.pop("plan", None)
    importlib.invalidate_caches()
    try:
        return _of_job(values["arguments"], values["world"])
    finally:
        sys.path.remove(values["folder"])


def _of_job(arguments: list[str], world: int) -> dict[str, Any]:
    from torchtitan.components.quantization import float8, mx
    from torchtitan.config import ConfigManager
    from torchtitan.distributed.parallel_dims import ParallelDims

    for module in (float8, mx):
        module.has_cuda_capability = lambda *_: True  # a Hopper or a Blackwell
    config = ConfigManager().parse_args(arguments)
    config.model_spec.model.update_from_config(config=config)
    dims = ParallelDims.from_config(config.parallelism, world)
    model = config.model_spec.model
    recompute = config.activation_checkpoint
    kinds = {
        type(layer.attention.wo).__qualname__ for layer in model.layers if hasattr(layer.attention, "wo")
    }
    return {
        **{name: getattr(dims, name) for name in DEGREES},
        **_common(config, len(model.layers)),
        "recompute": "none" if recompute is None else type(recompute).__qualname__.split("AC")[0].lower(),
        "sp": config.parallelism.enable_sequence_parallel,
        "dim": model.dim,
        "vocab_size": model.vocab_size,
        "loss": type(config.loss).__qualname__.split(".")[0],
        "linear": sorted(kinds),
    }


def _common(config: Any, num_layers: int) -> dict[str, Any]:
    from torchtitan.distributed import pipeline_parallel

    layout, pp = config.parallelism, config.parallelism.pipeline_parallel_degree
    deal = getattr(pipeline_parallel, "generate_llm_fqn_per_model_part", None) or (
        pipeline_parallel._generate_llm_fqn_per_model_part
    )
    single = layout.pipeline_parallel_schedule in ("1F1B", "GPipe")
    parts = layout.module_fqns_per_model_part or deal(pp * (1 if single or pp == 1 else 2), num_layers)
    assert parts[-1][-1] == "lm_head", parts[-1]
    return {
        "layers": [sum(name.startswith("layers.") for name in part) for part in parts],
        "schedule": layout.pipeline_parallel_schedule,
        "reshard": layout.fsdp_reshard_after_forward,
        "local_batch_size": config.training.local_batch_size,
        "micro_batch_size": layout.pipeline_parallel_microbatch_size,
        "global_batch_size": config.training.global_batch_size,
        "seq_len": config.training.seq_len,
        "dtype": config.training.dtype,
        "param": config.training.mixed_precision_param,
        "compile": config.compile.enable and "model" in config.compile.components,
    }


if __name__ == "__main__":
    main(sys.argv[1])
