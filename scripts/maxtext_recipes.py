"""Read the benchmark configurations of MaxText into a data file of recipes.

    python scripts/maxtext_recipes.py MAXTEXT COMMIT TPU_RECIPES COMMIT OUT.json

MAXTEXT and TPU_RECIPES are checkouts of AI-Hypercomputer/maxtext and AI-Hypercomputer/tpu-recipes. Their configurations
are read by Forescale's own reader: MaxText's configurations of GPUs and scripts of TPUs, the tuning parameters of its
benchmarks, and the commands of tpu-recipes, which also state the devices of a benchmark. Only settings are read, never
measured figures.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scripts.bridge_recipes import joined, text_of
from scripts.primus_recipes import different

from forescale.catalogue.clusters import load_device
from forescale.catalogue.models import load_model
from forescale.errors import ForescaleError
from forescale.frameworks.maxtext.command import known_keys, presets
from forescale.frameworks.readers import read_file
from forescale.frameworks.reading import Options, ParsedFile
from forescale.spec.layout import Layout
from forescale.spec.model import Model
from forescale.spec.recipes import active_width, kind_of

DEVICES = {"trillium": "tpu-v6e", "v6e": "tpu-v6e", "v5p": "tpu-v5p", "v5e": "tpu-v5e", "v4": "tpu-v4"}
CHIPS_OF_NAME = {"v5p": 2, "v4": 2}
"""Cores of a chip of slices that are named by their cores."""
JAX_DEVICES = {"tpu-v7x": 2}
"""Devices that JAX shows for each chip."""
SETTINGS = ("recompute", "offload", "kernels")
"""Fields of a layout that a recipe sets."""
STATES = ("parameters", "master", "moments", "second_moments", "gradients")
DEGREES = ("tp", "cp", "pp", "ep")
PROBE = 4096
"""Devices for which a configuration without a stated number is read."""
RUNNER = re.compile(r"--device_type=(v\w+)-(\d+)\s.*?--num_slices=(\d+)\s.*?--model_name=\"?([\w.-]+)", re.S)
TYPED = re.compile(r"-(?:bf16|fp8)-tpu7x-(\d+)x(\d+)x(\d+)")


def main(maxtext: str, commit: str, recipes: str, recipes_commit: str, target: str) -> None:
    """Write the recipes of one commit of both repositories."""
    entries = [*_files(Path(maxtext)), *_benchmarks(Path(maxtext), Path(recipes)), *_commands(Path(recipes))]
    source = (
        f"AI-Hypercomputer/maxtext {commit}, src/maxtext/configs/gpu/models, src/maxtext/configs/tpu, "
        f"benchmarks/maxtext_*_model_configs.py; AI-Hypercomputer/tpu-recipes {recipes_commit}, training"
    )
    document = {"source": source, "recipes": joined(entry for entry in entries if entry)}
    Path(target).write_text(text_of(document), encoding="utf-8")


def _files(root: Path) -> Iterator[dict[str, Any] | None]:
    """Yield the configurations that MaxText's reader takes as they are."""
    for path in sorted((root / "src/maxtext/configs/gpu/models").glob("*.yml")):
        yield _entry(path, "gpu", f"gpu/models/{path.stem}")
    for path in sorted((root / "src/maxtext/configs/tpu").glob("v*/**/*.sh")):
        folder = path.relative_to(root / "src/maxtext/configs/tpu").parts[0]
        yield _entry(path, DEVICES[folder], f"tpu/{path.relative_to(root / 'src/maxtext/configs/tpu')}"[:-3])


def _benchmarks(root: Path, recipes: Path) -> Iterator[dict[str, Any] | None]:
    """Yield the benchmarks of MaxText, once for each number of devices that tpu-recipes runs them on."""
    devices: dict[tuple[str, str], list[int]] = defaultdict(list)
    for path in sorted(recipes.glob("training/**/*")):
        if path.suffix not in (".sh", ".md") or "archive" in path.parts:
            continue
        for match in RUNNER.finditer(path.read_text(encoding="utf-8")):
            chips = int(match[2]) // CHIPS_OF_NAME.get(match[1], 1) * int(match[3])
            run = (match[1], match[4].replace("-", "_").replace(".", "_"))
            devices[run] += [chips] if chips not in devices[run] else []
    for folder in ("trillium", "v5e", "v5p"):
        path = root / f"benchmarks/maxtext_{folder}_model_configs.py"
        device = DEVICES[folder]
        for name, kind, values in _tuned(path):
            key = (device.removeprefix("tpu-"), name.replace("-", "_").replace(".", "_"))
            counts: list[int | None] = [*devices.get(key, ())]
            for count in counts or [None]:
                label = f"{path.stem}/{name}" + (f" on {count}" if count else "")
                yield _values_entry({"model_name": kind, **values}, device, label, count)


def _tuned(path: Path) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield name, model and tuning parameters of the benchmarks of a module."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "MaxTextModel":
            fields = {item.arg: item.value for item in node.keywords}
            tuned = fields["tuning_params"]
            assert isinstance(tuned, ast.Dict)
            values = {
                ast.literal_eval(key): ast.literal_eval(value)
                for key, value in zip(tuned.keys, tuned.values, strict=True)
                if key is not None and isinstance(value, ast.Constant | ast.UnaryOp)
            }
            yield ast.literal_eval(fields["model_name"]), ast.literal_eval(fields["model_type"]), values


def _commands(root: Path) -> Iterator[dict[str, Any] | None]:
    """Yield the commands of tpu-recipes that start MaxText themselves."""
    for path in sorted((root / "training/ironwood").glob("**/run_recipe.sh")):
        text = path.read_text(encoding="utf-8")
        name = "/".join(path.relative_to(root / "training").parts[:3])
        size = TYPED.search(name)
        if size is None:
            continue
        chips = int(size[1]) * int(size[2]) * int(size[3])
        values = dict(
            item.strip("\"'\\").split("=", 1)
            for item in text.replace("\\\n", " ").split()
            if re.match(r"[\"']?[a-z]\w*=\S", item)
        )
        yield _values_entry({name: _value(value) for name, value in values.items()}, "tpu-v7x", name, chips)


def _value(text: str) -> Any:  # noqa: ANN401 (a value of a command line)
    try:
        return json.loads(text.lower() if text in ("True", "False") else text)
    except ValueError:
        return text


def _values_entry(
    values: Mapping[str, Any], device: str, name: str, devices: int | None
) -> dict[str, Any] | None:
    known = {key: value for key, value in values.items() if key in known_keys() and "$" not in str(value)}
    known.setdefault("per_device_batch_size", 1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config.yml")
        path.write_text(
            "".join(f"{key}: {json.dumps(value)}\n" for key, value in known.items()), encoding="utf-8"
        )
        return _entry(path, device, name, devices)


def _entry(path: Path, device: str, name: str, devices: int | None = None) -> dict[str, Any] | None:
    """Return the entry of one configuration; None where it cannot be read."""
    count = (devices or PROBE) * JAX_DEVICES.get(device, 1)
    parsed = _read(path, Options(num_devices=count, strict=False)) or _read(path, Options(strict=False))
    if parsed is None:
        return None
    label, model = _model(parsed, name)
    layout, types = parsed.layout_fields, parsed.workload_fields.get("precision", {})
    states = {field: types[field] for field in STATES if field in types}
    batch, length = layout["micro_batch_size"], parsed.workload_fields["seq_len"]
    return {
        "name": name,
        "compute": types.get("compute", "bf16"),
        "model": label,
        "kind": kind_of(model),
        "active_width": active_width(model),
        "num_layers": model.num_layers,
        "device": device if device != "gpu" else "h100",
        "architecture": load_device(device).architecture if device != "gpu" else "hopper",
        "tokens": batch * length // layout.get("cp", 1),
        "degrees": _degrees(parsed, devices),
        "layout": different(
            {field: layout[field] for field in SETTINGS if field in layout}, asdict(Layout())
        ),
        **({"workload": {"precision": states}} if states else {}),
    }


def _read(path: Path, options: Options) -> ParsedFile | None:
    """Return a configuration; None where it cannot be read on that number of devices."""
    try:
        return read_file(path, options)
    except ForescaleError:
        return None


def _model(parsed: ParsedFile, name: str) -> tuple[str, Model]:
    """Return the model that a configuration trains and its name, which is the catalogue's where it has the model."""
    assert parsed.model is not None
    known = str(presets().get(parsed.model.name, {}).get("catalogue") or parsed.model.name)
    try:
        return known, load_model(known)
    except ForescaleError:
        scale = re.search(r"(?:default-(?:basic-)?|/)(\d+)b?\b", name)
        return f"maxtext-{scale[1]}b" if scale else known, parsed.model


def _degrees(parsed: ParsedFile, devices: int | None) -> dict[str, int]:
    layout = parsed.layout_fields
    degrees = {name: layout[name] for name in DEGREES if layout.get(name, PROBE) < PROBE}
    return {**degrees, **({"devices": devices} if devices else {})}


if __name__ == "__main__":
    main(*sys.argv[1:])
