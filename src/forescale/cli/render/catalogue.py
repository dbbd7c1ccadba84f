"""Catalogue entries as rows: plain values for JSON, words for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from forescale.catalogue.clusters import (
    cluster_names,
    device_names,
    load_cluster,
    load_device,
    resolve_cluster_name,
    resolve_device_name,
    short_names,
)
from forescale.catalogue.frameworks import framework_names, load_framework, release_names
from forescale.catalogue.models import load_model, model_names
from forescale.cost.calibration import load_calibration
from forescale.cost.provenance import provenance
from forescale.cost.run_calibration import load_run_calibration
from forescale.errors import SpecError
from forescale.files import exists, place_of
from forescale.graph.counts import count_parameters
from forescale.io.named import model_given, model_of
from forescale.io.question import is_plan, read_plan_values
from forescale.report.document import Column, Content, View, line, listed, table
from forescale.spec import Device
from forescale.spec.framework import Framework, explicit_fields
from forescale.spec.framework_options import Limits
from forescale.spec.model import Model
from forescale.spec.recipes import Recipe
from forescale.spec.space import choice_word
from forescale.struct import attributes
from forescale.units import format_bytes, format_count, format_prefixed

Rows = list[dict[str, Any]]
_RATES = ("bf16", "fp16", "fp8", "fp4")


def model_rows(text: str) -> Rows:
    """Return the models whose name contains `text`, or the model of the file that `text` is."""
    path = place_of(text)
    if text and text not in model_names() and exists(path):
        return [_model_row(_model_in(path))]
    return [_model_row(load_model(name)) for name in _containing(text, model_names())]


def _model_in(path: Path) -> Model:
    """Return the model of a plan, a config.json, a folder or a framework's file."""
    if is_plan(path):
        return model_given(read_plan_values(path).get("model"), str(path), path.parent)
    return model_of(str(path))


def _model_row(model: Model) -> dict[str, Any]:
    counts = count_parameters(model)
    return {
        "name": model.name,
        "params": counts.total,
        "active_params": counts.active,
        **attributes(model, "num_layers", "hidden_size"),
        "num_experts": model.moe.num_experts if model.moe else 0,
        **attributes(model, "max_seq_len", "source"),
    }


def device_rows(text: str) -> Rows:
    """Return the devices whose name contains `text`."""
    return [
        {
            **attributes(device, "name", "vendor"),
            **{f"{kind}_flops": getattr(device.matrix_flops, kind) for kind in _RATES},
            **attributes(device, "reduced_accumulation_flops", "hbm_bytes", "hbm_bandwidth", "power_w"),
            **_efficiencies(device),
            **attributes(device, "source"),
        }
        for device in map(load_device, _containing(text, device_names(), resolve_device_name))
    ]


def cluster_rows(text: str) -> Rows:
    """Return the clusters whose name contains `text`."""
    return [
        {
            "name": cluster.name,
            "short_names": [alias for alias, full in short_names().items() if full == cluster.name],
            "device": cluster.device.name,
            **_efficiencies(cluster.device),
            "devices_per_node": cluster.devices_per_node,
            "tiers": [attributes(tier, "name", "size", "bandwidth", "topology") for tier in cluster.tiers],
            "source": cluster.source,
        }
        for cluster in (
            load_cluster(name, 1) for name in _containing(text, cluster_names(), resolve_cluster_name)
        )
    ]


def _efficiencies(device: Device) -> dict[str, Any]:
    """Return what the packaged calibrations fitted the efficiencies of a device to."""
    result = provenance(device, load_calibration(device), load_run_calibration())
    return {"efficiencies": result.origin, "fitted_on": list(result.devices)}


def framework_rows() -> Rows:
    """Return all frameworks, with the release lines of each, the usual one first."""
    return [
        {
            **attributes(framework, "name", "title"),
            "releases": list(release_names(framework.name)),
            "limits": framework.limits is not None,
            **attributes(framework, "software", "source"),
        }
        for framework in (load_framework(f"{name}@{release_names(name)[0]}") for name in framework_names())
    ]


def framework_view(framework: Framework) -> View:
    """Return the settings of a framework that are not defaults, with their sources, and its supported options."""
    plain = Framework(name="", release="", title="", date="", source="", software="")
    head = ("name", "release", "title", "date", "source", "sources", "limits", "recipes")
    rows = (
        (name, _said(value), framework.sources.get(name, ""))
        for name, value in explicit_fields(framework, plain).items()
        if name not in head
    )
    return View(
        title=f"{framework.title}: {framework.label} ({framework.date})",
        contents=(
            line(framework.source),
            table("|field", "<value", "<source", rows=rows),
            *_recipes(framework.recipes, framework.sources.get("recipes", "")),
            *_limits(framework.limits),
        ),
    )


def _recipes(recipes: Sequence[Recipe], source: str) -> list[Content]:
    """Return the models, devices and compute types of performance recipes."""
    if not recipes:
        return []
    types: dict[str, dict[str, dict[str, None]]] = {}
    for recipe in recipes:
        types.setdefault(recipe.model, {}).setdefault(recipe.device, {}).update(dict.fromkeys(recipe.names))
    rows = [
        (model, "; ".join(f"{device} {', '.join(names)}" for device, names in devices.items()))
        for model, devices in types.items()
    ]
    note = f"settings left open follow the recipe of the closest model, device and types ({source})"
    return [table("|recipes", "<devices and types", rows=rows), line(note)]


def _limits(limits: Limits | None) -> list[Content]:
    if limits is None:
        return [line("its supported options are not recorded; --to does not accept it")]
    names = dict.fromkeys((*limits.values, *limits.others))
    both = {
        name: dict.fromkeys((*limits.values.get(name, ()), *limits.others.get(name, ()))) for name in names
    }
    rows = [(name, ", ".join(map(choice_word, values))) for name, values in both.items()]
    rows += [("rule", f"{name}: {rule}") for name, rule in limits.rules.items()]
    texts = [line(text) for text in (limits.note, limits.source) if text]
    return [table("|supports", "<values", rows=rows), *texts]


def _said(value: Any) -> str:  # noqa: ANN401 (a field of a framework)
    if isinstance(value, dict):
        return ", ".join(f"{name} {_said(part)}" for name, part in value.items())
    if isinstance(value, tuple):
        return "; ".join(_said(part) for part in value)
    if is_dataclass(value) and not isinstance(value, type):
        return _said(asdict(value))
    return {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def catalogue_view(kind: str, rows: Rows) -> View:
    """Return rows as a table, one line each."""
    return View(contents=(listed(_COLUMNS[kind], rows, gap=1 if kind == "devices" else 2),))


def _containing(text: str, names: tuple[str, ...], resolve: Callable[[str], str] | None = None) -> list[str]:
    """Return the names that contain `text`, else the one that it means as a short name."""
    result = [name for name in names if text.lower() in name]
    if result or resolve is None:
        return result
    try:
        return [resolve(text)]
    except SpecError:
        return []


def _tiers(row: dict[str, Any]) -> str:
    return "  ".join(
        f"{tier['name']} {tier['size'] or 'all'} × {format_prefixed(tier['bandwidth'], 'B/s')}"
        for tier in row["tiers"]
    )


def _rate(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda row: format_prefixed(row[name], "FLOP/s") if row[name] else "–"


_COLUMNS: dict[str, tuple[Column[dict[str, Any]], ...]] = {
    "models": (
        Column("<model", lambda row: row["name"]),
        Column("parameters", lambda row: format_count(row["params"])),
        Column("active", lambda row: format_count(row["active_params"])),
        Column("layers", lambda row: str(row["num_layers"])),
        Column("hidden", lambda row: str(row["hidden_size"])),
        Column("experts", lambda row: str(row["num_experts"] or "–")),
        Column("context", lambda row: f"{row['max_seq_len']:,}" if row["max_seq_len"] else "–"),
    ),
    "devices": (
        Column("|device", lambda row: row["name"]),
        Column("?vendor", lambda row: row["vendor"]),
        Column("16-bit", lambda row: _rate("bf16_flops" if row["bf16_flops"] else "fp16_flops")(row)),
        Column("fp8", _rate("fp8_flops")),
        Column("fp4", _rate("fp4_flops")),
        Column("memory", lambda row: format_bytes(row["hbm_bytes"])),
        Column("bandwidth", lambda row: format_prefixed(row["hbm_bandwidth"], "B/s")),
        Column("<fitted to", lambda row: row["efficiencies"]),
    ),
    "frameworks": (
        Column("|framework", lambda row: row["name"]),
        Column("<releases", lambda row: ", ".join(row["releases"])),
        Column("<--to", lambda row: "yes" if row["limits"] else "–"),
        Column("<losses of", lambda row: row["software"]),
    ),
    "clusters": (
        Column("|cluster", lambda row: row["name"]),
        Column("<device", lambda row: row["device"]),
        Column("<per node", lambda row: str(row["devices_per_node"])),
        Column("<fitted to", lambda row: row["efficiencies"]),
        Column("<tiers: devices × bandwidth each way", _tiers),
    ),
}
