"""A group laid over the tiers: hops, usable bandwidth and latency, the raw material of every algorithm."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forescale.cost.collectives.calibration import LinkCalibration, NetworkCalibration
from forescale.cost.placement import Group, ranks_per_tier
from forescale.formula import formula
from forescale.numeric import Numeric
from forescale.spec.cluster import Cluster, Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """One tier as one group sees it."""

    tier: Tier
    link: LinkCalibration
    inner: Numeric
    """Ranks of the group that share the next inner tier (1 in the innermost)."""
    shared: Numeric
    """Ranks of the group that share this tier."""
    bandwidth: Numeric
    """byte/s per device and direction that the group can use here, all its links together."""
    exchange_bandwidth: Numeric
    """The same for traffic between all pairs."""
    neighbour_bandwidth: float
    """byte/s between two neighbours."""

    @property
    def crossed(self) -> Numeric:
        """1 where the group needs this tier, else 0."""
        return 1.0 * (self.shared > self.inner)

    def hop_latency(self, protocol: int) -> float:
        """Seconds per hop: what was measured through the library, at least the tier's own latency."""
        return max(self.tier.latency, self.link.protocols[protocol].hop_latency)

    def pooled(self, protocol: int) -> Numeric:
        """byte/s through which the ranks of one inner block together reach the rest of this tier."""
        link = self.link
        share = self.inner / (self.inner + link.member_half) if link.member_half else 1.0
        return self.inner * self.bandwidth * (link.protocols[protocol].efficiency * share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """All tiers of one group, innermost first."""

    num_ranks: Numeric
    legs: tuple[Leg, ...]
    num_protocols: int

    def launch(self, protocol: int) -> Numeric:
        """Seconds before the first byte: those of the slowest tier that is needed."""
        first, *others = self.legs
        launch: Numeric = first.link.protocols[protocol].launch
        for leg in others:
            launch = np.maximum(launch, leg.crossed * leg.link.protocols[protocol].launch)
        return launch

    def seconds_per_byte(self, protocol: int) -> Numeric:
        """Of a pipeline through all ranks (ring, chain): that of the tightest tier."""
        slowest: Numeric = 0.0
        for leg in self.legs:
            slowest = np.maximum(slowest, leg.crossed / leg.pooled(protocol))
        return slowest


def route(group: Group, cluster: Cluster, calibration: NetworkCalibration) -> Route:
    """Lay `group` over the tiers of `cluster`."""
    shared = ranks_per_tier(group, cluster)
    inner: Numeric = 1.0
    legs = []
    for tier, link, ranks in zip(cluster.tiers, calibration.links, shared, strict=True):
        ring, exchange, neighbour = _bandwidths(tier, inner, ranks, cluster)
        legs.append(
            Leg(
                tier=tier, link=link, inner=inner, shared=ranks,
                bandwidth=ring, exchange_bandwidth=exchange, neighbour_bandwidth=neighbour,
            )
        )  # fmt: skip
        inner = ranks
    return Route(num_ranks=group.num_ranks, legs=tuple(legs), num_protocols=len(legs[0].link.protocols))


def _bandwidths(
    tier: Tier, inner: Numeric, shared: Numeric, cluster: Cluster
) -> tuple[Numeric, Numeric, float]:
    size = float(min(tier.size or cluster.num_devices, cluster.num_devices))
    if tier.topology == "mesh":
        pair = tier.link_bandwidth or tier.bandwidth / max((tier.size or size) - 1.0, 1.0)
        usable = mesh_bandwidth(bandwidth=tier.bandwidth, link_bandwidth=pair, num_ranks=shared)
        return usable, usable, pair
    if tier.topology == "torus":
        dimensions = max(tier.dimensions, 1)
        link = tier.link_bandwidth or tier.bandwidth / (2.0 * dimensions)
        side = round(size ** (1.0 / dimensions), 9)
        members = shared / inner
        ring = torus_bandwidth(link_bandwidth=link, num_ranks=members, side=side, dimensions=dimensions)
        exchange = torus_exchange_bandwidth(
            ring_bandwidth=ring, link_bandwidth=link, num_ranks=members, side=side
        )
        return ring, exchange, link
    return tier.bandwidth, tier.bandwidth, min(tier.link_bandwidth or tier.bandwidth, tier.bandwidth)


@formula(
    unit="byte/s", source="AMD CDNA 3 white paper (fully connected xGMI): a pair of devices has one link"
)
def mesh_bandwidth(*, bandwidth: Numeric, link_bandwidth: Numeric, num_ranks: Numeric) -> Numeric:
    """min(bandwidth, (g - 1)·link): g ranks of a fully connected mesh use only the links among themselves."""
    return np.minimum(bandwidth, np.maximum(num_ranks - 1.0, 1.0) * link_bandwidth)


@formula(
    unit="byte/s",
    source="How to Scale Your Model (Google DeepMind, 2025), section 3: bandwidth of ICI collectives",
)
def torus_bandwidth(*, link_bandwidth: Numeric, num_ranks: Numeric, side: float, dimensions: int) -> Numeric:
    """2·d·link for a group over d dimensions of a torus with wraparound; link for a part of one dimension."""
    used: Numeric = 0.5 + 0.5 * (num_ranks >= side)
    for dimension in range(1, dimensions):
        used = used + (num_ranks > side**dimension)
    return 2.0 * used * link_bandwidth


@formula(
    unit="byte/s", source="How to Scale Your Model (Google DeepMind, 2025), section 3: all-to-all on a ring"
)
def torus_exchange_bandwidth(
    *, ring_bandwidth: Numeric, link_bandwidth: Numeric, num_ranks: Numeric, side: float
) -> Numeric:
    """min(ring, 8·link / k): messages of an all-to-all cross k / 4 links of each ring of k devices on average."""
    length = np.maximum(np.minimum(num_ranks, side), 1.0)
    return np.minimum(ring_bandwidth, 8.0 * link_bandwidth / length)
