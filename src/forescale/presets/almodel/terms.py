"""What the analysis asks, and on which terms its tables were made: rates of the network, reserve, stated constants."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib import resources
from typing import Any, cast

import numpy as np

from forescale.formula import formula, value_of
from forescale.graph.ops import CollectiveKind
from forescale.numeric import Numeric, indicator
from forescale.units import parse

ANALYSIS = "ALModel parallelism strategy analysis"


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyQuestion:
    """Names of the catalogue, and the batch."""

    model: str
    cluster: str
    devices: int
    seq_len: int
    global_batch_size: int


QUESTION = StudyQuestion(
    model="almodel", cluster="almodel-pod", devices=128, seq_len=4096, global_batch_size=5120
)
"""17.43 B parameters on 128 devices, 5,120 sequences of 4,096 tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quirks:
    """True is what reproduces the printed figures, False what was evidently meant."""

    gib_as_gb: bool = True
    """Volumes are counted in units of 2^30 bytes and divided by rates in units of 1e9: 7.4 % too fast."""
    replays_everything: bool = True
    """Recompute runs every product again whose result is not kept: the head, which lies outside the
    rematerialised layers, and the last products of a layer, whose results backward does not need."""
    reduces_over_dp_only: bool = True
    """Gradients are summed over DP and FSDP only; the ranks of CP, and for all but experts those of EP, hold
    other tokens too."""
    scores_shrink_twice: bool = True
    """Scores that save_all keeps are (sequence / CP)² per sequence, though keys and values are gathered whole."""
    gathers_fp32: bool = True
    """Weights are gathered in fp32 although the products take bf16."""

    @classmethod
    def none(cls) -> Quirks:
        """Return the analysis as it was meant."""
        return cls(**{item.name: False for item in fields(cls)})


@formula(unit="s", source=f"{ANALYSIS}, communication tables: volume over measured bandwidth")
def almodel_message_time(*, volume: Numeric, num_ranks: Numeric, bandwidth: Numeric) -> Numeric:
    """Volume over bandwidth, nothing for one rank."""
    return indicator(num_ranks > 1.0) * volume / bandwidth


def listed(rates: Mapping[int, float], num_ranks: Numeric) -> Numeric:
    """Return the bandwidth of the largest listed group that is not larger than `num_ranks`."""
    sizes = np.array(sorted(rates), dtype=np.float64)
    index = np.maximum(np.searchsorted(sizes, value_of(num_ranks), side="right") - 1, 0)
    return cast("Numeric", np.array([rates[int(size)] for size in sizes])[index])


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the formulas take beside model, layout and batch."""

    name: str
    rates: Mapping[CollectiveKind, Mapping[int, float]]
    """byte/s by collective and group size; no latency."""
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
    return Terms(
        name="measured",
        rates=_rates(raw["measured"]["bandwidth"] | raw["all_to_all"]["bandwidth"]),
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
    rates = {**usual.rates, **_rates(raw["bandwidth"])}
    return replace(usual, name="first-table", rates=rates, reserve=raw["reserve"])


def _assumptions() -> Any:  # noqa: ANN401
    path = resources.files("forescale.presets.almodel") / "assumptions.json"
    return json.loads(path.read_text(encoding="utf-8"))


def _rates(table: Mapping[CollectiveKind, Mapping[str, str]]) -> dict[CollectiveKind, dict[int, float]]:
    return {
        kind: {int(size): parse(rate, "byte/s") for size, rate in row.items()} for kind, row in table.items()
    }
