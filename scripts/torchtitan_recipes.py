"""Read the training configurations of a release of torchtitan into a data file of recipes.

    python scripts/torchtitan_recipes.py GIT_DIRECTORY COMMIT OUT.json [PAGE_COMMIT]

Configurations are TOML files up to 0.2 and functions of `config_registry.py` later. Only settings are read, never
measured figures; of the benchmark page of December 2024 those that its headings state.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scripts.bridge_recipes import joined, text_of

from forescale.catalogue.models import load_model
from forescale.errors import ForescaleError
from forescale.spec.recipes import active_width, kind_of

MODELS = {
    "deepseek_v3_671b": "deepseek-v3", "llama3_8b": "llama-3.1-8b", "llama3_70b": "llama-3.1-70b",
    "llama3_405b": "llama-3.1-405b", "llama4_17bx16e": "llama-4-scout", "llama4_17bx128e": "llama-4-maverick",
    "llama2_7b": "llama-2-7b", "llama2_13b": "llama-2-13b", "llama2_70b": "llama-2-70b",
    "kimi_k2_5": "kimi-k2", "moonlight_16b_a3b": "moonlight-16b-a3b",
}  # fmt: skip
"""Models of the catalogue by the name of a configuration; others have the same name with hyphens."""
LONG = "benchmarks/llama3_h100_202412_torchtitan.md"
"""Page whose table 2 has the 8B model with 32,768 tokens on each device under full activation checkpointing."""


def main(directory: str, commit: str, target: str, page: str = "") -> None:
    """Write the recipes of one commit."""
    entries = [*_toml(directory, commit), *_python(directory, commit)]
    source = f"pytorch/torchtitan {commit}, configurations of models"
    if page:
        entries = [
            *_entry("llama3_8b", name="llama3_8b of 32,768 tokens", mode="full", tokens=32768, device="h100"),
            *entries,
        ]
        source = f"{source}; {LONG} @{page}"
    Path(target).write_text(text_of({"source": source, "recipes": joined(entries)}), encoding="utf-8")


def _git(directory: str, *arguments: str) -> str:
    command = ["git", "-C", directory, *arguments]
    return subprocess.run(command, check=True, capture_output=True, encoding="utf-8").stdout  # noqa: S603


def _paths(directory: str, commit: str, ending: str) -> list[str]:
    paths = _git(directory, "ls-tree", "-r", "--name-only", commit).splitlines()
    return [
        path for path in paths if path.endswith(ending) and "experiments" not in path and "test" not in path
    ]


def _toml(directory: str, commit: str) -> Iterator[dict[str, Any]]:
    for path in _paths(directory, commit, ".toml"):
        values = tomllib.loads(_git(directory, "show", f"{commit}:{path}"))
        if "seq_len" not in values.get("training", {}) or "activation_checkpoint" not in values:
            continue
        training, parallelism = values.get("training", {}), values.get("parallelism", {})
        degrees = {**values.get("experimental", {}), **training, **parallelism}
        batch = training.get("local_batch_size", training.get("batch_size", 1))
        narrow = "float8" in values.get("model", {}).get("converters", ()) or values.get("float8", {}).get(
            "enable_float8_linear", False
        )
        yield from _entry(
            Path(path).stem,
            mode=values["activation_checkpoint"]["mode"],
            compute="fp8" if narrow else "bf16",
            tokens=batch * training["seq_len"],
            tp=degrees.get("tensor_parallel_degree", 1),
            asynchronous=degrees.get("enable_async_tensor_parallel", False),
        )


def _python(directory: str, commit: str) -> Iterator[dict[str, Any]]:
    for path in _paths(directory, commit, "config_registry.py"):
        tree = ast.parse(_git(directory, "show", f"{commit}:{path}"))
        for node in tree.body:
            if not isinstance(node, ast.FunctionDef) or "debug" in node.name or node.name.startswith("_"):
                continue
            calls = {
                item.arg: item.value
                for call in ast.walk(node)
                if isinstance(call, ast.Call)
                for item in call.keywords
                if item.arg is not None
            }
            checkpoint, batch = (
                calls.get("activation_checkpoint"),
                calls.get("num_tokens_per_microbatch_per_dp_rank"),
            )
            if checkpoint is None or batch is None:
                continue
            degree = calls.get("tensor_parallel_degree")
            yield from _entry(
                node.name,
                mode="full" if "FullAC" in ast.unparse(checkpoint) else "selective",
                tokens=eval(ast.unparse(batch), {"__builtins__": {}}),  # noqa: S307 (products of numbers)
                tp=int(str(degree.value)) if isinstance(degree, ast.Constant) else 1,
                asynchronous=False,
            )


def _entry(
    stem: str,
    *,
    mode: str,
    tokens: int,
    compute: str = "bf16",
    tp: int = 1,
    asynchronous: bool = False,
    name: str | None = None,
    device: str = "",
) -> Iterator[dict[str, Any]]:
    """Yield the entry of one configuration, if its model is in the catalogue."""
    try:
        model = load_model(MODELS.get(stem, stem.replace("_", "-")))
    except ForescaleError:
        return
    layout: dict[str, Any] = {}
    if mode == "full":
        layout["recompute"] = {"granularity": "full"}
    if asynchronous:
        layout["overlap"] = {"tensor": True}
    entry = {
        "model": model.name,
        "kind": kind_of(model),
        "active_width": active_width(model),
        "num_layers": model.num_layers,
        "device": device,
        "architecture": "hopper" if device else "",
        "tokens": tokens,
        "degrees": {"tp": tp},
        "layout": layout,
    }
    for kind in (compute, "fp8" if compute == "bf16" else "bf16"):
        yield {"name": f"{name or stem}{'' if kind == compute else f' in {kind}'}", "compute": kind, **entry}


if __name__ == "__main__":
    main(*sys.argv[1:])
