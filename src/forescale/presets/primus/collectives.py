"""The collectives of Primus: every algorithm under every wire protocol, the fastest taken.

Times are seconds, sizes bytes, bandwidths byte/s per device and direction. In its source of 2026-08, phases inside and
between nodes overlap, and calls cost something.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from forescale.spec.cluster import Cluster

_PROTOCOLS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {"simple": (math.inf, 8.0), "ll": (4.0, 8.0), "ll64": (56.0, 64.0), "ll128": (120.0, 128.0)}
)
"""Payload and packet bytes; the simple protocol adds one header to the whole message."""
Algorithm = Callable[[float, int, str, "Network"], float]


@cache
def constants() -> Mapping[str, float]:
    """Return the figures that Primus's code assumes of networks, with their source."""
    text = files("forescale.presets.primus").joinpath("network.json").read_text(encoding="utf-8")
    record: dict[str, Any] = json.loads(text)
    return MappingProxyType({key: value for key, value in record.items() if isinstance(value, float)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """What Primus's collectives know of a cluster; bandwidths are after its efficiency."""

    node_size: int
    nics: int
    node_bandwidth: float
    pod_bandwidth: float
    """One NIC."""
    pod_latency: float
    vector_flops: float

    @classmethod
    def of(cls, cluster: Cluster) -> Network | None:
        """Return the network of a cluster, or None where it has one tier only."""
        if len(cluster.tiers) < 2:
            return None
        node, pod = cluster.tiers[:2]
        efficiency = constants()["bandwidth_efficiency"]
        return cls(
            node_size=cluster.devices_per_node,
            nics=round(cluster.devices_per_node * pod.nics_per_device),
            node_bandwidth=node.bandwidth * efficiency,
            pod_bandwidth=pod.bandwidth * efficiency,
            pod_latency=pod.latency,
            vector_flops=cluster.device.vector_flops,
        )


def wire(size: float, protocol: str) -> tuple[float, float]:
    """Return seconds before the first byte and bytes on the wire of one message."""
    c = constants()
    payload, packet = _PROTOCOLS[protocol]
    if protocol == "simple":
        return 2.0 * c["write_latency_s"] + c["response_latency_s"] + c["hbm_latency_s"], size + packet
    return c["write_latency_s"] + c["hbm_latency_s"], math.ceil(size / payload) * packet


def steps(count: float) -> int:
    """Return ceil(log2 count)."""
    return math.ceil(math.log2(count)) if count > 1 else 0


def reduction(size: float, network: Network) -> float:
    """Return the seconds of adding up `size` bytes in bf16."""
    return size / 2.0 / network.vector_flops


def ring_all_reduce(size: float, ranks: int, protocol: str, network: Network) -> float:
    """Return two passes of g − 1 steps; the reduction is charged for all ranks' parts, g times too much."""
    latency, part = wire(int(size * (ranks - 1) / ranks), protocol)
    if ranks <= network.node_size:
        bandwidth = network.node_bandwidth
    else:
        latency = network.pod_latency
        bandwidth = min(network.node_bandwidth, network.node_size * network.pod_bandwidth)
    moved = 2.0 * (latency * (ranks - 1) + part / bandwidth)
    return moved + reduction(part * ranks, network) + constants()["launch_latency_s"]


def hypercube_all_reduce(size: float, ranks: int, protocol: str, network: Network) -> float:
    """Send the whole message to every rank of the node, then in doublings outwards."""
    latency, part = wire(size, protocol)
    if ranks <= network.node_size:
        moved = part * (ranks - 1) / network.node_bandwidth + latency * steps(ranks)
    else:
        inside = part * (network.node_size - 1) / network.node_bandwidth + latency * steps(network.node_size)
        outside = part * steps(ranks - network.node_size) / network.pod_bandwidth
        moved = inside + outside + network.pod_latency * steps(ranks / network.node_size)
    return moved + reduction(part * ranks, network) + constants()["launch_latency_s"]


def bruck_all_reduce(size: float, ranks: int, protocol: str, network: Network) -> float:
    """Reduce-scatter and all-gather in doublings; outside a node one after the other with the inside."""
    return _bruck(size, ranks, protocol, network, lambda inside, outside, _: inside + outside)


def _bruck(
    size: float,
    ranks: int,
    protocol: str,
    network: Network,
    together: Callable[[float, float, float], float],
) -> float:
    """Return the seconds where `together` says what phases inside and outside a node take, given a chunk's bytes."""
    node = min(ranks, network.node_size)
    latency, part = wire(int(size * (ranks - 1) / ranks), protocol)
    moved = part / network.node_bandwidth + latency * steps(ranks)
    if ranks > node:
        share = part * (node - 1) / node
        inside = share / network.node_bandwidth + latency * steps(node)
        outside = (part - share) / network.pod_bandwidth + network.pod_latency * steps(ranks / node)
        moved = together(inside, outside, part * ranks / (ranks - 1) / node)
    return 2.0 * (moved + constants()["launch_latency_s"]) + reduction(part, network)


def single_shot_all_reduce(size: float, ranks: int, protocol: str, network: Network) -> float:
    """Send from every rank to every other at once, nodes and NICs side by side."""
    part = math.ceil(size / ranks)
    inside_ranks = min(ranks, network.node_size) - 1
    latency, packet = wire(part, protocol)
    moved = latency + packet * inside_ranks / network.node_bandwidth
    outside_ranks = ranks - min(ranks, network.node_size)
    if outside_ranks:
        moved = max(moved, network.pod_latency + part * outside_ranks / network.pod_bandwidth)
    return 2.0 * moved + reduction(part * (ranks - 1), network) + constants()["launch_latency_s"]


DOCUMENTED_ALL_REDUCE: Mapping[str, Algorithm] = MappingProxyType(
    {
        "ring": ring_all_reduce,
        "hypercube": hypercube_all_reduce,
        "bruck": bruck_all_reduce,
        "single_shot": single_shot_all_reduce,
    }
)
"""Best of Ring/Hypercube/Bruck/Single-shot (Primus projection documentation, Communication Modeling)."""


def all_reduce(size: float, ranks: int, network: Network, algorithms: Mapping[str, Algorithm]) -> float:
    """Return the seconds of the fastest algorithm under its best protocol."""
    if ranks <= 1 or size <= 0.0:
        return 0.0
    return min(
        algorithm(size, ranks, protocol, network)
        for algorithm in algorithms.values()
        for protocol in _PROTOCOLS
    )


def documented_all_reduce(size: float, ranks: int, network: Network) -> float:
    """Return the seconds of the fastest of the documented algorithms."""
    return all_reduce(size, ranks, network, DOCUMENTED_ALL_REDUCE)


def overlapped(inside: float, outside: float, chunk: float) -> float:
    """Return the time of two phases that hide up to 90 % of the shorter, less for chunks below 32 MiB."""
    c = constants()
    hidden = c["phase_overlap"] * min(1.0, chunk / c["phase_warmup_bytes"])
    return max(inside, outside) + (1.0 - hidden) * min(inside, outside)


def pipelined_bruck_all_reduce(size: float, ranks: int, protocol: str, network: Network) -> float:
    """Reduce-scatter and all-gather in doublings, each with its two phases overlapped."""
    return _bruck(size, ranks, protocol, network, overlapped)


def hierarchical_all_reduce(size: float, ranks: int, protocol: str, network: Network) -> float:
    """Reduce-scatter in the node, all-reduce between nodes over one NIC each, all-gather in the node."""
    node = network.node_size
    if ranks <= node:
        return bruck_all_reduce(size, ranks, protocol, network) - constants()["launch_latency_s"]
    nodes = math.ceil(ranks / node)
    latency, part = wire(size * (node - 1) / node, protocol)
    inside = 2.0 * (part / network.node_bandwidth + latency * steps(node)) + reduction(part, network)
    share = size / node * (nodes - 1) / nodes
    outside = 2.0 * (share / network.pod_bandwidth + network.pod_latency * steps(nodes))
    outside += reduction(share, network)
    return overlapped(inside, outside, size / node) + constants()["launch_latency_s"]


ALGORITHMS: Mapping[str, Algorithm] = MappingProxyType(
    {
        "ring": ring_all_reduce,
        "hypercube": hypercube_all_reduce,
        "bruck": pipelined_bruck_all_reduce,
        "single_shot": single_shot_all_reduce,
        "hier": hierarchical_all_reduce,
    }
)


def pipelined_all_reduce(size: float, ranks: int, network: Network) -> float:
    """Return the fastest algorithm's seconds, a call's overhead, and the set-up of NICs for short messages."""
    if ranks <= 1 or size <= 0.0:
        return 0.0
    c = constants()
    seconds = all_reduce(size, ranks, network, ALGORITHMS) + c["call_overhead_s"]
    if ranks > network.node_size:
        rounds = max(1, steps(ranks // network.node_size))
        filled = min(1.0, size / (network.nics * rounds) / c["nic_warmup_bytes"])
        seconds += c["nic_setup_s"] * rounds * (1.0 - filled ** c["nic_warmup_exponent"])
    return seconds
