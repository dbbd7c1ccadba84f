"""Memory beyond what the allocator hands out: context, and what the allocator holds besides."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from forescale.formula import formula
from forescale.numeric import Numeric
from forescale.spec.strategy import Allocator


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """A number with what 8 cases in 10 should lie between."""

    low: Numeric
    expected: Numeric
    high: Numeric


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """What no operator owns, from the calibration file of memory."""

    context: Bounds
    """Driver context and libraries, outside the allocator [byte]."""
    fragmentation: Mapping[Allocator, Bounds]
    """Reserved over allocated, by how the allocator takes memory."""
    source: str


@cache
def read_table(name: str) -> Any:  # noqa: ANN401  (JSON)
    """Return one calibration file of memory."""
    place = resources.files("forescale.catalogue") / "calibrations" / "memory" / f"{name}.json"
    return json.loads(place.read_text("utf-8"))


@cache
def load_overhead() -> Overhead:
    """Return the packaged overhead figures."""
    data = read_table("overhead")
    ratios = data["fragmentation"]
    return Overhead(
        context=_bounds(data["context_bytes"]),
        fragmentation=MappingProxyType({name: _bounds(each["bounds"]) for name, each in ratios.items()}),
        source=" ".join([data["context_source"], *(each["source"] for each in ratios.values())]),
    )


def _bounds(values: tuple[float, float, float]) -> Bounds:
    low, expected, high = values
    return Bounds(low=low, expected=expected, high=high)


@formula(
    unit="byte", source="measured ratios of reserved to allocated memory: calibrations/memory/overhead.json"
)
def fragmentation_bytes(*, allocated: Numeric, ratio: float) -> Numeric:
    """Allocated × (reserved over allocated − 1)."""
    return allocated * (ratio - 1.0)
