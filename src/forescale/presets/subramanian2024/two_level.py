"""The two-level ring formula of Subramanian et al. 2024, with its quirks on a switch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forescale.cost.mesh import Group, ranks_per_tier
from forescale.cost.model import Priced, Prices, Provenance
from forescale.errors import SpecError
from forescale.formula import formula
from forescale.graph.ops import CollectiveKind
from forescale.numeric import Numeric, indicator
from forescale.spec.cluster import Cluster

_SUBRAMANIAN = "Subramanian et al. 2024, arXiv:2410.00273"


@formula(unit="s", source=f"{_SUBRAMANIAN}, section 3 and its code: ring over fast domains and slow links")
def two_level_ring(
    *,
    num_bytes: Numeric,
    num_ranks: Numeric,
    per_domain: Numeric,
    fast_bandwidth: Numeric,
    slow_bandwidth: Numeric,
    fast_latency: Numeric,
    slow_latency: Numeric,
    nics: float,
    share: Numeric,
    passes: float,
    single_level_passes: float,
) -> Numeric:
    """k·max(c·V/(nics·g·bs), c·V/bf) + ls·(d - 1) + lf·(n - d) with d = n // g domains of g ranks.

    One rank per domain: ls·(n - 1) + k'·c·V/bs. One domain: lf·(n - 1) + k'·c·V/bf.
    """
    domains = np.floor(num_ranks / per_domain)
    fast, slow = share * num_bytes / fast_bandwidth, share * num_bytes / slow_bandwidth
    both = (
        passes * np.maximum(slow / (nics * per_domain), fast)
        + slow_latency * (domains - 1.0)
        + fast_latency * (num_ranks - domains)
    )
    alone = slow_latency * (num_ranks - 1.0) + single_level_passes * slow
    inside = fast_latency * (num_ranks - 1.0) + single_level_passes * fast
    is_alone, is_inside = indicator(per_domain <= 1.0), indicator(domains <= 1.0)
    one = is_alone * alone + (1.0 - is_alone) * (is_inside * inside + (1.0 - is_inside) * both)
    return indicator(num_ranks > 1.0) * indicator(num_bytes > 0.0) * one


@formula(
    unit="s", source=f"{_SUBRAMANIAN}, section 3 and its code: point to point, mean over the pipeline's hops"
)
def two_level_message(
    *,
    num_bytes: Numeric,
    num_ranks: Numeric,
    per_domain: Numeric,
    fast_bandwidth: Numeric,
    slow_bandwidth: Numeric,
    fast_latency: Numeric,
    slow_latency: Numeric,
    slow_share: float,
) -> Numeric:
    """Fast/links·(lf + V/bf) + slow/links·(ls + V/bs); slow = n // g - 1 of n - 1 links, all if g = 1."""
    links = np.maximum(num_ranks - 1.0, 1.0)
    is_alone = indicator(per_domain <= 1.0)
    slow_links = np.maximum(np.floor(num_ranks / per_domain - 1.0), 0.0)
    slow = slow_latency + num_bytes / slow_bandwidth
    fast = fast_latency + num_bytes / fast_bandwidth
    mixed = (links - slow_links) / links * fast + slow_links / links * slow_share * slow
    hop = is_alone * slow + (1.0 - is_alone) * mixed
    return indicator(num_ranks > 1.0) * indicator(num_bytes > 0.0) * hop


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoLevel:
    """Rings over a fast domain (the innermost tier) and slow links (the next), without contention."""

    cluster: Cluster
    efficiency: float
    """Share of both networks' bandwidths."""
    quirks: bool = True
    """As the published code: all-reduce counts once where one level is enough, and slow hops of a pipeline
    that has fast ones too are free. Without: all-reduce counts twice, and slow hops cost something."""

    def __post_init__(self) -> None:
        """Check that there are two levels."""
        if len(self.cluster.tiers) < 2:
            msg = f"cluster {self.cluster.name}: the two-level formula needs two network tiers; it has one"
            raise SpecError(msg)

    def seconds(self, *, kind: CollectiveKind, num_bytes: Numeric, group: Group) -> Numeric:
        """Return the seconds of one collective; the model has no all-to-all: it is an all-gather here."""
        fast, slow = self.cluster.tiers[:2]
        num_ranks = group.num_ranks
        levels = {
            "per_domain": ranks_per_tier(group, self.cluster)[0],
            "fast_bandwidth": fast.bandwidth * self.efficiency,
            "slow_bandwidth": slow.bandwidth * self.efficiency,
            "fast_latency": fast.latency,
            "slow_latency": slow.latency,
        }
        if kind == "p2p":
            share = 0.0 if self.quirks else 1.0
            return two_level_message(num_bytes=num_bytes, num_ranks=num_ranks, slow_share=share, **levels)
        passes = 2.0 if kind == "all_reduce" else 1.0
        return two_level_ring(
            num_bytes=num_bytes,
            num_ranks=num_ranks,
            nics=slow.nics_per_device,
            share=1.0 if kind in ("reduce", "broadcast") else (num_ranks - 1.0) / num_ranks,
            passes=passes,
            single_level_passes=1.0 if self.quirks else passes,
            **levels,
        )

    def within(self, group: Group) -> Prices:
        """Return the prices of `group`."""

        def prices(kind: CollectiveKind) -> Priced:
            return lambda num_bytes: self.seconds(kind=kind, num_bytes=num_bytes, group=group)

        return prices

    def provenance(self, *, kind: CollectiveKind) -> Provenance:
        """Return the publication; against Perlmutter's long messages it is off by up to a factor of 2."""
        return Provenance(kind="roofline", source=f"{kind}: {_SUBRAMANIAN}, section 3", low=0.8, high=1.85)
