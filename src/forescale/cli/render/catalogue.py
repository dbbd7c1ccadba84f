"""Catalogue entries as rows: plain values for JSON, words for the terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.table import Table

from forescale.catalogue.clusters import cluster_names, device_names, load_cluster, load_device
from forescale.catalogue.models import load_model, model_names
from forescale.cli.render import words
from forescale.graph.parameters import count_parameters
from forescale.units import format_bytes, format_count

Rows = list[dict[str, Any]]
_RATES = ("bf16", "fp8", "fp4")


def model_rows(text: str) -> Rows:
    """Return the models whose name contains `text`."""
    rows = []
    for name in _containing(text, model_names()):
        model = load_model(name)
        counts = count_parameters(model)
        rows.append(
            {
                "name": name,
                "params": counts.total,
                "active_params": counts.active,
                "num_layers": model.num_layers,
                "hidden_size": model.hidden_size,
                "num_experts": model.moe.num_experts if model.moe else 0,
                "max_seq_len": model.max_seq_len,
                "source": model.source,
            }
        )
    return rows


def device_rows(text: str) -> Rows:
    """Return the devices whose name contains `text`."""
    rows = []
    for name in _containing(text, device_names()):
        device = load_device(name)
        rates = {f"{kind}_flops": getattr(device.matrix_flops, kind) for kind in _RATES}
        rows.append(
            {
                "name": name,
                "vendor": device.vendor,
                **rates,
                "hbm_bytes": device.hbm_bytes,
                "hbm_bandwidth": device.hbm_bandwidth,
                "source": device.source,
            }
        )
    return rows


def cluster_rows(text: str) -> Rows:
    """Return the clusters whose name contains `text`."""
    rows = []
    for name in _containing(text, cluster_names()):
        cluster = load_cluster(name, 1)
        tiers = [
            {"name": tier.name, "size": tier.size, "bandwidth": tier.bandwidth, "topology": tier.topology}
            for tier in cluster.tiers
        ]
        rows.append(
            {
                "name": name,
                "device": cluster.device.name,
                "devices_per_node": cluster.devices_per_node,
                "tiers": tiers,
                "source": cluster.source,
            }
        )
    return rows


def catalogue_view(kind: str, rows: Rows) -> Table:
    """Return rows as a table, one line each."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    columns = _COLUMNS[kind]
    for index, (header, _) in enumerate(columns):
        table.add_column(
            header, justify="left" if index == 0 or kind == "clusters" else "right", no_wrap=index == 0
        )
    for row in rows:
        table.add_row(*(cell(row) for _, cell in columns))
    return table


def _containing(text: str, names: tuple[str, ...]) -> list[str]:
    return [name for name in names if text.lower() in name]


def _tiers(row: dict[str, Any]) -> str:
    return "  ".join(
        f"{tier['name']} {tier['size'] or 'all'} × {words.prefixed(tier['bandwidth'], 'B/s')}"
        for tier in row["tiers"]
    )


def _rate(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda row: words.prefixed(row[name], "FLOP/s") if row[name] else "–"


_COLUMNS: dict[str, tuple[tuple[str, Callable[[dict[str, Any]], str]], ...]] = {
    "models": (
        ("model", lambda row: row["name"]),
        ("parameters", lambda row: format_count(row["params"])),
        ("active", lambda row: format_count(row["active_params"])),
        ("layers", lambda row: str(row["num_layers"])),
        ("hidden", lambda row: str(row["hidden_size"])),
        ("experts", lambda row: str(row["num_experts"] or "–")),
        ("context", lambda row: f"{row['max_seq_len']:,}" if row["max_seq_len"] else "–"),
    ),
    "devices": (
        ("device", lambda row: row["name"]),
        ("vendor", lambda row: row["vendor"]),
        ("bf16", _rate("bf16_flops")),
        ("fp8", _rate("fp8_flops")),
        ("fp4", _rate("fp4_flops")),
        ("memory", lambda row: format_bytes(row["hbm_bytes"])),
        ("bandwidth", lambda row: words.prefixed(row["hbm_bandwidth"], "B/s")),
    ),
    "clusters": (
        ("cluster", lambda row: row["name"]),
        ("device", lambda row: row["device"]),
        ("per node", lambda row: str(row["devices_per_node"])),
        ("tiers: devices × bandwidth each way", _tiers),
    ),
}
