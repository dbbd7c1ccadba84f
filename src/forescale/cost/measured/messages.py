"""Measured collectives: timed messages where there are any, another model where there are none."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import mul
from statistics import median
from typing import Any, cast

import numpy as np

from forescale.cost.collectives import CollectiveModel, Priced
from forescale.cost.collectives.measured import MeasuredCollective
from forescale.cost.measured.compute import REPEATED, where_timed
from forescale.cost.model import Provenance
from forescale.cost.placement import Group, ranks_within
from forescale.formula import formula, value_of
from forescale.graph.ops import CollectiveKind
from forescale.numeric import Array, Numeric
from forescale.spec.cluster import Cluster

Curve = tuple[Array, Array]
"""Bytes in ascending order, and seconds."""


@formula(unit="s", source="timed messages: straight lines between the sizes")
def timed_message(*, num_bytes: Numeric, sizes: Array, seconds: Array) -> Numeric:
    """Seconds of the sizes below and above, in proportion."""
    return cast("Numeric", np.interp(num_bytes, sizes, seconds))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredMessages:
    """Looks messages up by collective, ranks, ranks per node and size; others go to `base`."""

    base: CollectiveModel
    cluster: Cluster
    curves: Mapping[tuple[CollectiveKind, int, int], Curve]
    """By collective, ranks of the group and ranks that share a node."""
    source: str

    def seconds(self, *, kind: CollectiveKind, num_bytes: Numeric, group: Group) -> Numeric:
        """Return the seconds of one collective."""
        return self.within(kind=kind, group=group)(num_bytes)

    def within(self, *, kind: CollectiveKind, group: Group) -> Priced:
        """Return the price of messages of `kind` in `group`."""
        base = self.base.within(kind=kind, group=group)
        ranks, per_node = value_of(group.num_ranks), value_of(_ranks_per_node(group, self.cluster))
        timed = [
            (np.logical_and(ranks == key[1], per_node == key[2]), curve)
            for key, curve in self.curves.items()
            if key[0] == kind
        ]
        timed = [(where, curve) for where, curve in timed if np.any(where)]
        if not timed:
            return base

        def priced(num_bytes: Numeric) -> Numeric:
            result, size = base(num_bytes), value_of(num_bytes)
            for where, (sizes, seconds) in timed:
                inside: Any = where & (size >= sizes[0]) & (size <= sizes[-1])
                if np.any(inside):
                    measured = timed_message(num_bytes=num_bytes, sizes=sizes, seconds=seconds)
                    result = where_timed(timed=inside, measured=measured, otherwise=result)
            return result

        return priced

    def provenance(self, *, kind: CollectiveKind) -> Provenance:
        """Return the measurements where there are any of `kind`, beside what covers the rest."""
        origin = self.base.provenance(kind=kind)
        if all(key[0] != kind for key in self.curves):
            return origin
        source = f"{self.source} where it covers group and size; else {origin.source}"
        return Provenance(
            kind="interpolated",
            source=source,
            low=min(origin.low, REPEATED[0]),
            high=max(origin.high, REPEATED[1]),
        )


def curves_of(rows: tuple[MeasuredCollective, ...]) -> Mapping[tuple[CollectiveKind, int, int], Curve]:
    """Return the timed messages by collective, ranks and ranks per node; of equal sizes the median."""
    found: dict[tuple[CollectiveKind, int, int], dict[float, list[float]]] = defaultdict(dict)
    for row in rows:
        key = (row.kind, row.num_ranks, row.ranks_per_node)
        found[key].setdefault(row.num_bytes, []).append(row.seconds)
    return {
        key: (np.array(sorted(sizes)), np.array([median(sizes[size]) for size in sorted(sizes)]))
        for key, sizes in found.items()
    }


def _ranks_per_node(group: Group, cluster: Cluster) -> Numeric:
    per_axis = (
        ranks_within(
            size=size,
            stride=stride,
            tier_size=float(cluster.devices_per_node),
            num_devices=float(cluster.num_devices),
        )
        for size, stride in group.axes
    )
    return reduce(mul, per_axis)
