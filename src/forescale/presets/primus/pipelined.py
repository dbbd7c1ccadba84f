"""All-reduce as Primus's source of 2026-08 has it: phases inside and between nodes overlap, calls cost something."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from forescale.presets.primus.collectives import (
    Algorithm,
    Network,
    all_reduce,
    bruck_all_reduce,
    constants,
    hypercube_all_reduce,
    reduction,
    ring_all_reduce,
    single_shot_all_reduce,
    steps,
    wire,
)


def overlapped(inside: float, outside: float, chunk: float) -> float:
    """Return the time of two phases that hide up to 90 % of the shorter, less for chunks below 32 MiB."""
    c = constants()
    hidden = c["phase_overlap"] * min(1.0, chunk / c["phase_warmup_bytes"])
    return max(inside, outside) + (1.0 - hidden) * min(inside, outside)


def pipelined_bruck_all_reduce(size: float, ranks: int, protocol: str, network: Network) -> float:
    """Reduce-scatter and all-gather in doublings, each with its two phases overlapped."""
    node = network.node_size
    if ranks <= node:
        return bruck_all_reduce(size, ranks, protocol, network)
    latency, part = wire(int(size * (ranks - 1) / ranks), protocol)
    share = part * (node - 1) / node
    inside = share / network.node_bandwidth + latency * steps(node)
    outside = (part - share) / network.pod_bandwidth + network.pod_latency * steps(ranks / node)
    moved = overlapped(inside, outside, part * ranks / (ranks - 1) / node)
    return 2.0 * (moved + constants()["launch_latency_s"]) + reduction(part, network)


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
