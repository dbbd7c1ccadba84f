"""The machine as the paper sees it: two rates, one memory, a fast domain and slow links, and rings over both."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

import numpy as np

from forescale.errors import SpecError
from forescale.formula import formula
from forescale.graph.ops import CollectiveKind
from forescale.numeric import Numeric, indicator
from forescale.presets.subramanian2024.formulas import PAPER
from forescale.presets.subramanian2024.layers import Quirks
from forescale.spec.cluster import Cluster
from forescale.units import parse


@formula(unit="s", source=f"{PAPER}, section 3 and its code: ring over fast domains and slow links")
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


@formula(unit="s", source=f"{PAPER}, section 3 and its code: point to point, mean over the pipeline's hops")
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
class Machine:
    """Peak rates, their efficiencies, and the two networks; SI units."""

    matrix_rate: float
    """FLOP/s of the matrix units, before the efficiency."""
    vector_rate: float
    """FLOP/s of the vector units, before the efficiency."""
    compute_efficiency: float
    operation_latency: float
    """Seconds that every operation costs in each direction."""
    hbm_bandwidth: float
    hbm_bytes: float
    domain: int
    """Devices on the fast network."""
    links: Mapping[str, float]
    """Effective bandwidths and latencies of both networks, under the names of the two-level formulas."""
    nics: float
    """Network cards per device."""

    def collective(
        self, *, kind: CollectiveKind, num_bytes: Numeric, num_ranks: Numeric, near: Numeric, quirks: Quirks
    ) -> Numeric:
        """Return the seconds of one collective over `num_ranks` ranks, `near` of them in each fast domain."""
        passes = 2.0 if kind == "all_reduce" else 1.0
        return two_level_ring(
            num_bytes=num_bytes,
            num_ranks=num_ranks,
            per_domain=near,
            nics=self.nics,
            share=1.0 if kind in ("reduce", "broadcast") else (num_ranks - 1.0) / num_ranks,
            passes=passes,
            single_level_passes=1.0 if quirks.single_level_all_reduce else passes,
            **self.links,
        )

    def message(self, *, num_bytes: Numeric, pp: Numeric, near: Numeric, quirks: Quirks) -> Numeric:
        """Return the seconds of one message to the next stage, the mean over the pipeline's hops."""
        share = 0.0 if quirks.free_slow_hops else 1.0
        return two_level_message(
            num_bytes=num_bytes, num_ranks=pp, per_domain=near, slow_share=share, **self.links
        )


def machine_of(cluster: Cluster) -> Machine:
    """Return the machine that a cluster is under the paper's assumptions.

    Raises
    ------
    SpecError
        If the cluster has one network tier, or no half-precision rate.
    """
    assumed, device = assumptions(), cluster.device
    rate = device.matrix_flops.fp16 or device.matrix_flops.bf16
    if rate is None:
        msg = f"cluster {cluster.name}: preset subramanian2024 needs a rate for fp16; {device.name} has none"
        raise SpecError(msg)
    if len(cluster.tiers) < 2:
        msg = (
            f"cluster {cluster.name}: preset subramanian2024 needs a fast and a slow network tier; it has one"
        )
        raise SpecError(msg)
    fast, slow = cluster.tiers[:2]
    efficiency = assumed["network_efficiency_by_device"].get(device.name, assumed["network_efficiency"])
    links = {
        "fast_bandwidth": fast.bandwidth * efficiency,
        "slow_bandwidth": slow.bandwidth * efficiency,
        "fast_latency": fast.latency,
        "slow_latency": slow.latency,
    }
    return Machine(
        matrix_rate=rate,
        vector_rate=device.vector_flops,
        compute_efficiency=assumed["compute_efficiency"],
        operation_latency=parse(assumed["operation_latency"], "second"),
        hbm_bandwidth=device.hbm_bandwidth,
        hbm_bytes=device.hbm_bytes,
        domain=fast.size,
        links=MappingProxyType(links),
        nics=slow.nics_per_device,
    )


@cache
def assumptions() -> Mapping[str, Any]:
    """Return what the paper assumed of efficiencies and limits, with source and residual."""
    text = files(__package__).joinpath("assumptions.json").read_text(encoding="utf-8")
    return MappingProxyType(json.loads(text))
