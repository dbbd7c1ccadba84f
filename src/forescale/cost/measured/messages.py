"""Measured collectives: timed messages where there are any, another model where there are none."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial, reduce
from operator import mul
from statistics import median
from typing import Any, cast

import numpy as np

from forescale.cost.collectives import CollectiveModel, Priced, Prices
from forescale.cost.collectives.masks import Condition
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
        return self.within(group)(kind)(num_bytes)

    def within(self, group: Group) -> Prices:
        """Return the prices of `group`."""
        others = self.base.within(group)
        ranks, per_node = value_of(group.num_ranks), value_of(_ranks_per_node(group, self.cluster))
        where = {
            key: inside
            for key in self.curves
            if np.any(inside := np.logical_and(ranks == key[1], per_node == key[2]))
        }

        def prices(kind: CollectiveKind) -> Priced:
            timed = [(inside, self.curves[key]) for key, inside in where.items() if key[0] == kind]
            return partial(_priced, others(kind), timed) if timed else others(kind)

        return prices

    def covers(self, *, kind: CollectiveKind, group: Group, num_bytes: Numeric | None = None) -> bool:
        """Say whether all messages of these sizes (by default of some size) in these groups are looked up."""
        ranks, per_node = value_of(group.num_ranks), value_of(_ranks_per_node(group, self.cluster))
        found: Any = False
        for (timed, count, near), (sizes, _) in self.curves.items():
            size = sizes[0] if num_bytes is None else value_of(num_bytes)
            here = np.logical_and(ranks == count, per_node == near) & (timed == kind)
            found = found | (here & (size >= sizes[0]) & (size <= sizes[-1]))
        return bool(np.all(found))

    @property
    def timed(self) -> str:
        """What was timed, in words."""
        return ", ".join(
            f"{kind} among {ranks} ranks, {near} a node, {sizes[0]:,.0f} to {sizes[-1]:,.0f} bytes"
            for (kind, ranks, near), (sizes, _) in self.curves.items()
        )

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


def _priced(otherwise: Priced, timed: list[tuple[Condition, Curve]], num_bytes: Numeric) -> Numeric:
    """Return the seconds of timed sizes in timed groups, and of all others by `otherwise`."""
    result, size = otherwise(num_bytes), value_of(num_bytes)
    for where, (sizes, seconds) in timed:
        inside: Any = where & (size >= sizes[0]) & (size <= sizes[-1])
        if np.any(inside):
            measured = timed_message(num_bytes=num_bytes, sizes=sizes, seconds=seconds)
            result = where_timed(timed=inside, measured=measured, otherwise=result)
    return result


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
