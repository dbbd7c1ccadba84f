"""Read the pretraining configurations of Primus into a data file of recipes.

    python scripts/primus_recipes.py CHECKOUT COMMIT OUT.json

CHECKOUT is a checkout of AMD-AGI/Primus; its files are read by Forescale's own reader. Only settings are read, never
measured figures.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scripts.bridge_recipes import joined, text_of

from forescale.catalogue.models import load_model
from forescale.errors import ForescaleError
from forescale.frameworks.readers import read_file
from forescale.frameworks.reading import Options, ParsedFile
from forescale.spec.layout import Layout
from forescale.spec.recipes import active_width, kind_of

MODELS = {
    "glm5": "glm-5",
    "llama-4-17B128E": "llama-4-maverick",
    "llama-4-17B16E": "llama-4-scout",
    "qwen3-5-35B-A3B": "qwen3.5-35b-a3b",
}
"""Models of the catalogue by the name of a configuration, where it differs."""
FOLDER = "examples/megatron/configs"
ARCHITECTURES = {"MI300X": "cdna3", "MI325X": "cdna3", "MI355X": "cdna4"}
SETTINGS = ("dispatcher", "graphs", "overlap", "kernels", "recompute", "offload")
"""Fields of a layout that a recipe sets."""
STATES = ("gradients", "master", "moments")
DEGREES = ("tp", "pp", "cp", "vpp", "ep", "zero", "micro_batch_size")


def main(checkout: str, commit: str, target: str) -> None:
    """Write the recipes of one commit."""
    paths = sorted(Path(checkout, FOLDER).glob("*/*-pretrain.yaml"))
    entries = [entry for path in paths if (entry := recipe(path)) is not None]
    document = {"source": f"AMD-AGI/Primus {commit}, {FOLDER}", "recipes": joined(entries)}
    Path(target).write_text(text_of(document), encoding="utf-8")


def recipe(path: Path) -> dict[str, Any] | None:
    """Return the entry of one configuration; None where its model is not in the catalogue or it cannot be read."""
    platform, stem = path.parent.name, path.stem
    name = re.split("-(?:BF16|FP8|MX)", stem)[0].replace("_", "-").replace("llama", "llama-")
    try:
        model = load_model(MODELS.get(name, name))
        parsed = read_file(path, Options(vocab_size=model.vocab_size))
    except ForescaleError:
        return None
    layout, types = parsed.layout_fields, _table(parsed, "precision")
    settings = different({field: layout[field] for field in SETTINGS if field in layout}, asdict(Layout()))
    states = {field: types[field] for field in STATES if field in types and types[field] != "fp32"}
    return {
        "name": f"{platform}/{stem}",
        "compute": types.get("compute", "bf16"),
        "model": model.name,
        "kind": kind_of(model),
        "active_width": active_width(model),
        "num_layers": model.num_layers,
        "device": platform.lower(),
        "architecture": ARCHITECTURES[platform],
        "degrees": {field: layout[field] for field in DEGREES if isinstance(layout.get(field), int)},
        "layout": settings,
        **({"workload": {"precision": states}} if states else {}),
    }


def _table(parsed: ParsedFile, name: str) -> Mapping[str, Any]:
    value = parsed.workload_fields.get(name)
    return value if isinstance(value, Mapping) else {}


def different(values: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that differ from the defaults, tables by their own fields."""
    result = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            value = different(value, usual[name])  # noqa: PLW2901 (the part of it that differs)
        if value not in ({}, usual.get(name)):
            result[name] = value
    return result


if __name__ == "__main__":
    main(*sys.argv[1:])
