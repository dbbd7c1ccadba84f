"""The default model: latency and bandwidth per tier, the best algorithm and wire protocol of the library."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np

from forescale.cost.collectives.algorithm import Algorithm
from forescale.cost.collectives.calibration import NetworkCalibration, calibrate
from forescale.cost.collectives.catalogue import ALGORITHMS
from forescale.cost.collectives.model import Provenance
from forescale.cost.collectives.route import Route, route
from forescale.cost.placement import Group
from forescale.formula import formula, named, value_of
from forescale.graph.ops import CollectiveKind
from forescale.numeric import Numeric
from forescale.spec.cluster import Cluster

_COPIES: frozenset[CollectiveKind] = frozenset(("all_gather", "reduce_scatter", "all_to_all"))


@formula(
    unit="s", source="NCCL documentation, collective operations: a rank's own part is copied on the device"
)
def collective_seconds(
    *, transfer: Numeric, num_bytes: Numeric, num_ranks: Numeric, copy_bandwidth: float
) -> Numeric:
    """Transfer + V/n / copy; nothing for one rank or an empty message."""
    needed = (num_ranks > 1.0) * (num_bytes > 0.0)
    return needed * (transfer + num_bytes / num_ranks / copy_bandwidth)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlphaBeta:
    """Alpha-beta over tiers: minimum over the algorithms and protocols that the library offers."""

    cluster: Cluster
    calibration: NetworkCalibration

    @classmethod
    def of(cls, cluster: Cluster) -> AlphaBeta:
        """Return the model of `cluster` with the calibrations of the catalogue."""
        return cls(cluster=cluster, calibration=calibrate(cluster))

    def seconds(self, *, kind: CollectiveKind, num_bytes: Numeric, group: Group) -> Numeric:
        """Return the seconds of one collective of `group`."""
        return self.on(group).seconds(kind=kind, num_bytes=num_bytes)

    def on(self, group: Group) -> Placed:
        """Return the model of one group: lay it out once, price many messages."""
        plain = Group(
            size=value_of(group.size), stride=value_of(group.stride),
            outer=tuple((value_of(size), value_of(stride)) for size, stride in group.outer),
        )  # fmt: skip
        return Placed(route=route(plain, self.cluster, self.calibration), algorithms=self._algorithms())

    def provenance(self, *, kind: CollectiveKind) -> Provenance:
        """Return the sources of the link calibrations, the worst residual first in mind."""
        links = self.calibration.links
        residuals = [float(r) for link in links if (r := link.provenance.get("residual")) is not None]
        sources = dict.fromkeys(str(link.provenance.get("source", link.name)) for link in links)
        return Provenance(
            basis="fitted" if len(residuals) == len(links) else "nominal",
            source=f"{kind}: {'; '.join(sources)}",
            residual=max(residuals, default=None),
        )

    def _algorithms(self) -> tuple[Algorithm, ...]:
        offered = {name for link in self.calibration.links for name in link.algorithms}
        return tuple(a for a in ALGORITHMS if a.name in offered)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """One group on its tiers."""

    route: Route
    algorithms: tuple[Algorithm, ...]

    def seconds(self, *, kind: CollectiveKind, num_bytes: Numeric) -> Numeric:
        """Return the seconds of one collective of the group."""
        ranks = self.route.num_ranks
        return collective_seconds(
            transfer=reduce(np.minimum, self._choices(kind, num_bytes)), num_bytes=num_bytes, num_ranks=ranks,
            copy_bandwidth=self.route.legs[0].link.copy_bandwidth if kind in _COPIES else float("inf"),
        )  # fmt: skip

    def _choices(self, kind: CollectiveKind, num_bytes: Numeric) -> list[Numeric]:
        protocols = self.route.legs[0].link.protocols
        return [
            named(
                algorithm.seconds(kind=kind, num_bytes=num_bytes, route=self.route, protocol=index),
                f"{algorithm.name} {wire.name}",
            )
            for algorithm in self.algorithms
            if kind in algorithm.kinds
            for index, wire in enumerate(protocols)
        ]
