"""Read the recommended configurations of NeMo's performance scripts into a data file of recipes.

    python scripts/nemo_recipes.py GIT_DIRECTORY COMMIT OUT.json

Only settings of pretraining are read, never measured figures.
"""

from __future__ import annotations

import csv
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scripts.bridge_recipes import ARCHITECTURES, joined, text_of

from forescale.catalogue.models import load_model
from forescale.errors import ForescaleError
from forescale.spec.model import Model
from forescale.spec.recipes import active_width, kind_of

FOLDER = "scripts/performance/recommended_model_configs"
MODELS = {
    "llama3 8b": "llama-3-8b", "llama3 70b": "llama-3-70b", "llama31 405b": "llama-3.1-405b", "gpt3 175b": "gpt3-175b",
    "mixtral 8x7b": "mixtral-8x7b", "mixtral 8x22b": "mixtral-8x22b", "nemotron4 15b": "nemotron-4-15b",
    "nemotron4 340b": "nemotron-4-340b", "deepseek v3": "deepseek-v3", "nemotronh 56b": "nemotron-h-56b",
    "llama4 e16": "llama-4-scout", "llama4 e128": "llama-4-maverick", "qwen3 30b_a3b": "qwen3-30b-a3b",
    "qwen3 235b_a22b": "qwen3-235b-a22b",
}  # fmt: skip
DEGREES = {"tp": "tp_size", "pp": "pp_size", "cp": "cp_size", "vpp": "vp_size", "ep": "ep_size",
           "micro_batch_size": "mbs", "devices": "num_gpus"}  # fmt: skip
FLEXIBLE = ("h100",)
"""Devices on which pretrain_deepseek_v3.py takes DeepEP; on others it overlaps shared experts."""
STAGES = {
    (4, 1): [16, 16, 16, 13],
    (8, 1): [*[8] * 7, 5],
    (4, 2): [*[8] * 7, 5],
    (16, 1): [*[4] * 15, 1],
    (8, 2): [*[4] * 15, 1],
    (4, 4): [*[4] * 15, 1],
}
"""Layers of each stage by pp and vpp (pretrain_deepseek_v3.py, map_pp_vp_to_layout)."""


def main(directory: str, commit: str, target: str) -> None:
    """Write the recipes of one commit."""
    entries = [
        entry
        for device in ("h100", "b200", "gb200")
        for row in csv.DictReader(
            _git(directory, f"{commit}:{FOLDER}/model_configs_{device}.csv").splitlines()
        )
        if row["task"] == "pre_train"
        for entry in _entries(row, device)
    ]
    document = {"source": f"NVIDIA/NeMo {commit}, {FOLDER}", "recipes": joined(entries)}
    Path(target).write_text(text_of(document), encoding="utf-8")


def _git(directory: str, name: str) -> str:
    command = ["git", "-C", directory, "show", name]
    return subprocess.run(command, check=True, capture_output=True, encoding="utf-8").stdout  # noqa: S603


def _entries(row: Mapping[str, str], device: str) -> Iterator[dict[str, Any]]:
    try:
        model = load_model(MODELS[f"{row['model']} {row['size']}"])
    except (ForescaleError, KeyError):
        return
    degrees = {name: int(float(row[key] or 1)) for name, key in DEGREES.items()}
    degrees["zero"] = 3 if row["use_mcore_fsdp"] == "1" else 1
    layout = _layout(row, model, device)
    plain = {
        "name": f"{row['model']}_{row['size']} {device} {row['dtype']} on {degrees['devices']}",
        "compute": row["dtype"],
        "model": model.name,
        "kind": kind_of(model),
        "active_width": active_width(model),
        "num_layers": model.num_layers,
        "device": device,
        "architecture": ARCHITECTURES[device],
        "degrees": degrees,
        "layout": layout,
    }
    if model.name != "deepseek-v3":
        yield plain
        return
    for (pp, vpp), stages in STAGES.items():
        yield {
            **plain,
            "name": f"{plain['name']}, pp {pp} vpp {vpp}",
            "degrees": {**degrees, "pp": pp, "vpp": vpp},
            "layout": {**layout, "stage_layers": stages},
        }


def _layout(row: Mapping[str, str], model: Model, device: str) -> dict[str, Any]:
    """Return the settings of a row; captured layers of models with experts leave the experts out."""
    captured = "partial" if model.is_moe else "full"
    layout: dict[str, Any] = {"graphs": captured if float(row["cuda_graphs"] or 0) else "none"}
    if layers := int(float(row["recompute_layers"] or 0)):
        layout["recompute"] = {"granularity": "full", "num_layers": layers}
    if row.get("recompute_modules"):
        layout["recompute"] = {
            "granularity": "selective",
            "modules": sorted(row["recompute_modules"].split("/")),
        }
    if layers := int(float(row["activation_offload_layers"] or 0)):
        layout["offload"] = {"activation_layers": layers}
    if model.has_latent:
        flexible = device in FLEXIBLE
        layout |= {"dispatcher": "deepep"} if flexible else {"overlap": {"shared_experts": True}}
    return layout


if __name__ == "__main__":
    main(*sys.argv[1:])
