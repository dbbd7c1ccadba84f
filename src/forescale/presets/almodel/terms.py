"""On which terms a table of the analysis was made: rates of the network, reserve, and stated constants."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Any, cast

from forescale.graph.ops import CollectiveKind
from forescale.presets.almodel.bandwidth_table import BandwidthTable, load_bandwidth_table
from forescale.presets.almodel.quirks import Quirks
from forescale.units import parse

MEASURED = "almodel"
"""The catalogue's table of the rates that the analysis prints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the formulas take beside model, layout and batch."""

    name: str
    rates: BandwidthTable
    reserve: float
    """Share of everything modelled that is set aside for buffers and temporaries of XLA."""
    overlap: float
    """Share of compute behind which FSDP's messages hide."""
    optimizer_bytes_per_parameter: float
    layer_bytes: float
    """Kept without any recompute: bytes per token, hidden element and layer."""
    score_bytes: float
    """Kept without any recompute: bytes per attention score."""
    quirks: Quirks = field(default_factory=Quirks)


@cache
def measured_terms() -> Terms:
    """Return the terms of the detailed configurations and of the ten slowest: the rates of the hardware table."""
    raw = _assumptions()
    table = load_bandwidth_table(MEASURED)
    rates = replace(
        table, bandwidth={**table.bandwidth, "all_to_all": _rates(raw["all_to_all"]["bandwidth"])}
    )
    return Terms(
        name="measured",
        rates=rates,
        reserve=raw["reserve"],
        overlap=raw["overlap"],
        optimizer_bytes_per_parameter=float(raw["optimizer_bytes_per_parameter"]),
        layer_bytes=raw["save_all"]["layer_bytes"],
        score_bytes=float(raw["save_all"]["score_bytes"]),
    )


@cache
def first_table_terms() -> Terms:
    """Return the terms of the first table: other rates, and 25 % in reserve."""
    usual, raw = measured_terms(), _assumptions()["first_table"]
    own = {cast("CollectiveKind", kind): _rates(rates) for kind, rates in raw["bandwidth"].items()}
    table = BandwidthTable(
        name="first table", bandwidth={**usual.rates.bandwidth, **own}, source=raw["source"]
    )
    return replace(usual, name="first-table", rates=table, reserve=raw["reserve"])


def _assumptions() -> Any:  # noqa: ANN401
    path = resources.files("forescale.presets.almodel") / "assumptions.json"
    return json.loads(path.read_text(encoding="utf-8"))


def _rates(row: Mapping[str, str]) -> dict[int, float]:
    return {int(size): parse(rate, "byte/s") for size, rate in row.items()}
