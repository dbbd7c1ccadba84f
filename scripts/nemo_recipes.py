"""Read the recommended configurations of NeMo's performance scripts into a data file of recipes.

    python scripts/nemo_recipes.py GIT_DIRECTORY COMMIT OUT.json

Only settings of pretraining are read, never measured figures.
"""

from __future__ import annotations

import csv
import re
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
    "qwen3 235b_a22b": "qwen3-235b-a22b", "grok1 314b": "grok-1",
}  # fmt: skip
DEGREES = {"tp": "tp_size", "pp": "pp_size", "cp": "cp_size", "vpp": "vp_size", "ep": "ep_size",
           "micro_batch_size": "mbs", "devices": "num_gpus"}  # fmt: skip
FLEXIBLE = ("h100",)
"""Devices on which pretrain_deepseek_v3.py takes DeepEP, if it knows it; on others it overlaps shared experts."""
UNFUSED = ("b200", "gb200")
"""Devices on which cuDNN before 9.11 has no backward of latent attention (Transformer Engine, fused_attn.cpp), whose
unfused kernels keep the scores: recipes of that time recompute core_attn there."""
DROPPING = "MegatronTokenDropCallback"
"""What drops tokens beyond a capacity of 1 and pads experts to it: all shapes are static."""
WIDE_ROUTER = re.compile(r"moe_router_dtype\b.*= 'fp32'")
"""In a script, or in the configuration of the model since May 2025."""
ROUTING = {"capacity_factor": 1.0, "pad_to_capacity": True}
STAGES = {
    (4, 1): [16, 16, 16, 13],
    (8, 1): [*[8] * 7, 5],
    (4, 2): [*[8] * 7, 5],
    (16, 1): [*[4] * 15, 1],
    (8, 2): [*[4] * 15, 1],
    (4, 4): [*[4] * 15, 1],
}
"""Layers of each stage of DeepSeek-V3 by pp and vpp (pretrain_deepseek_v3.py, map_pp_vp_to_layout)."""
EARLIER_STAGES = {(pp, 1): [64 // pp - 1, *[64 // pp] * (pp - 2), 64 // pp - 2] for pp in (2, 4, 8, 16)}
"""The same of releases without that map (num_layers_in_first_pipeline_stage)."""
LAUNCHED = {
    "h100": {"tp_size": "4", "pp_size": "8", "cp_size": "2", "vp_size": "8", "cuda_graphs": "0"},
    "b200": {"tp_size": "4", "cuda_graphs": "1"},
    "gb200": {"tp_size": "4", "cuda_graphs": "1"},
}
"""Rows of Grok-1, for which NeMo has a script but no configuration (NVIDIA/dgxc-benchmarking v25.05.05,
grok1/launch.sh)."""


def main(directory: str, commit: str, target: str) -> None:
    """Write the recipes of one commit."""
    release = Release(directory, commit)
    entries = [
        entry
        for device in ("h100", "b200", "gb200")
        for row in release.rows(device)
        for entry in _entries(row, device, release.script(row))
    ]
    document = {"source": f"NVIDIA/NeMo {commit}, {FOLDER}", "recipes": joined(entries)}
    Path(target).write_text(text_of(document), encoding="utf-8")


class Release:
    """Files of one commit of a git directory."""

    def __init__(self, directory: str, commit: str) -> None:
        self.directory, self.commit = directory, commit

    def text(self, path: str) -> str:
        """Return the text of a file; empty if there is none."""
        command = ["git", "-C", self.directory, "show", f"{self.commit}:{path}"]
        return subprocess.run(command, check=False, capture_output=True, encoding="utf-8").stdout  # noqa: S603

    def rows(self, device: str) -> Iterator[dict[str, str]]:
        """Yield the configurations of pretraining on a device."""
        for row in csv.DictReader(self.text(f"{FOLDER}/model_configs_{device}.csv").splitlines()):
            if row["task"] == "pre_train":
                yield row
        for dtype in ("bf16", "fp8"):
            grok = {
                "model": "grok1",
                "size": "314b",
                "dtype": dtype,
                "ep_size": "8",
                "mbs": "1",
                **LAUNCHED[device],
            }
            if self.script(grok):
                yield grok

    def script(self, row: Mapping[str, str]) -> str:
        """Return the pretraining script of a row, and the recipe whose performance mode it takes."""
        name = f"{row['model']}_{row['size']}"
        text = self.text(f"scripts/performance/llm/pretrain_{name}.py")
        mode = "performance_mode=True" in text
        text += self.text(f"nemo/collections/llm/gpt/model/{row['model']}.py") if text else ""
        return text + self.text(f"nemo/collections/llm/recipes/{name}.py") if mode else text


def _entries(row: Mapping[str, str], device: str, script: str) -> Iterator[dict[str, Any]]:
    try:
        model = load_model(MODELS[f"{row['model']} {row['size']}"])
    except (ForescaleError, KeyError):
        return
    degrees = {
        name: int(float(row.get(key) or 1))
        for name, key in DEGREES.items()
        if name != "devices" or key in row
    }
    degrees["zero"] = 3 if row.get("use_mcore_fsdp") == "1" else 1
    layout = _layout(row, model, device, script)
    plain = {
        "name": f"{row['model']}_{row['size']} {device} {row['dtype']}"
        + (f" on {size}" if (size := degrees.get("devices")) else ""),
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
    for (pp, vpp), stages in (STAGES if "map_pp_vp_to_layout" in script else EARLIER_STAGES).items():
        yield {
            **plain,
            "name": f"{plain['name']}, pp {pp} vpp {vpp}",
            "degrees": {**degrees, "pp": pp, "vpp": vpp},
            "layout": {**layout, "stage_layers": stages},
        }


def _layout(row: Mapping[str, str], model: Model, device: str, script: str) -> dict[str, Any]:
    """Return the settings of a row; captured layers of models with experts leave the experts out.

    Where experts are padded to a capacity, whole layers are captured (Megatron-Core 0.14, CudaGraphManager).
    """
    flexible = device in FLEXIBLE and "moe_enable_deepep = True" in script
    drops = model.is_moe and DROPPING in script and not flexible
    captured = "partial" if model.is_moe and not drops else "full"
    layout: dict[str, Any] = {"graphs": captured if float(row.get("cuda_graphs") or 0) else "none"}
    if layers := int(float(row.get("recompute_layers") or 0)):
        layout["recompute"] = {"granularity": "full", "num_layers": layers}
    if row.get("recompute_modules"):
        layout["recompute"] = {
            "granularity": "selective",
            "modules": sorted(row["recompute_modules"].split("/")),
        }
    if layers := int(float(row.get("activation_offload_layers") or 0)):
        layout["offload"] = {"activation_layers": layers}
    if flexible:
        layout["dispatcher"] = "deepep"
    if drops:
        layout |= {"dispatcher": "all_to_all", "routing": ROUTING}
    if model.is_moe and WIDE_ROUTER.search(script):
        layout["kernels"] = {"wide_router": True}
    if model.has_latent and not flexible:
        layout["overlap"] = {"shared_experts": True}
    if model.has_latent and device in UNFUSED and "core_attn" in (row.get("recompute_modules") or ""):
        layout["flash_attention"] = False
    return layout


if __name__ == "__main__":
    main(*sys.argv[1:])
