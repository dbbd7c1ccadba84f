"""Bandwidth measured by collective and group size, as in the ALModel analysis."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import cast

import numpy as np

from forescale.cost.mesh import Group
from forescale.cost.model import Priced, Prices, Provenance
from forescale.errors import SpecError, UnknownNameError
from forescale.formula import formula, value_of
from forescale.graph.ops import CollectiveKind
from forescale.numeric import Numeric, indicator
from forescale.units import parse


@formula(unit="byte", source="nccl-tests, doc/PERFORMANCE.md: factors from algorithm to bus bandwidth")
def bus_bytes(*, num_bytes: Numeric, num_ranks: Numeric, passes: Numeric) -> Numeric:
    """passes·(n - 1)/n·V: what each rank has to send and receive."""
    return passes * (num_ranks - 1.0) / num_ranks * num_bytes


@formula(
    unit="s",
    source="ALModel parallelism strategy analysis, communication tables: volume over measured bandwidth",
)
def table_seconds(*, volume: Numeric, num_ranks: Numeric, bandwidth: Numeric) -> Numeric:
    """Volume over bandwidth, nothing for one rank."""
    return indicator(num_ranks > 1.0) * volume / bandwidth


def _listed(rates: Mapping[int, float], num_ranks: Numeric) -> Numeric:
    """Return the bandwidth of the largest listed group that is not larger than `num_ranks`."""
    sizes = np.array(sorted(rates), dtype=np.float64)
    index = np.maximum(np.searchsorted(sizes, value_of(num_ranks), side="right") - 1, 0)
    return cast("Numeric", np.array([rates[int(size)] for size in sizes])[index])


@dataclass(frozen=True, slots=True, kw_only=True)
class BandwidthTable:
    """Time is the bytes that a rank sends over a measured bandwidth; no latency."""

    name: str
    bandwidth: Mapping[CollectiveKind, Mapping[int, float]]
    """byte/s by collective and group size."""
    source: str = ""

    def seconds(self, *, kind: CollectiveKind, num_bytes: Numeric, group: Group) -> Numeric:
        """Return the seconds of one collective.

        Raises
        ------
        SpecError
            If the table has no figures for `kind`.
        """
        rates = self.bandwidth.get(kind)
        if rates is None:
            known = ", ".join(self.bandwidth)
            msg = f"bandwidth table {self.name}: no figures for {kind}; it has {known}"
            raise SpecError(msg)
        num_ranks = group.num_ranks
        volume = (
            num_bytes
            if kind in ("p2p", "broadcast", "reduce")
            else bus_bytes(
                num_bytes=num_bytes, num_ranks=num_ranks, passes=2.0 if kind == "all_reduce" else 1.0
            )
        )
        return table_seconds(volume=volume, num_ranks=num_ranks, bandwidth=_listed(rates, num_ranks))

    def within(self, group: Group) -> Prices:
        """Return the prices of `group`."""

        def prices(kind: CollectiveKind) -> Priced:
            return lambda num_bytes: self.seconds(kind=kind, num_bytes=num_bytes, group=group)

        return prices

    def provenance(self, *, kind: CollectiveKind) -> Provenance:
        """Return the table's source; group sizes beside the listed ones are guesses."""
        return Provenance(kind="measured", source=f"{kind}: {self.source}", low=0.8, high=1.25)


def load_bandwidth_table(name: str) -> BandwidthTable:
    """Return the catalogue table `name`."""
    folder = resources.files("forescale.catalogue") / "calibrations" / "network" / "tables"
    known = [item.name.removesuffix(".json") for item in folder.iterdir() if item.name.endswith(".json")]
    if name not in known:
        kind = "bandwidth table"
        raise UnknownNameError(kind, name, known)
    raw = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    rates = {
        cast("CollectiveKind", kind): {int(size): parse(rate, "byte/s") for size, rate in row.items()}
        for kind, row in raw["bandwidth"].items()
    }
    return BandwidthTable(name=name, bandwidth=rates, source=raw["source"])
