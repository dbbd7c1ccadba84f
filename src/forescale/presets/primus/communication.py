"""The communication of Primus's performance projection: gradient all-reduce and expert all-to-all.

Collectives are priced by every algorithm under every wire protocol, the fastest taken. Times are seconds, sizes bytes,
bandwidths byte/s per device and direction. In its source of 2026-08, phases inside and between nodes overlap, and calls
cost something.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType

from forescale.files import shipped
from forescale.formula import formula
from forescale.numeric import Numeric
from forescale.presets.primus.components import DOCUMENT
from forescale.question import Note
from forescale.spec.cluster import Cluster
from forescale.spec.layout import Layout
from forescale.spec.model import DenseFfn, Model, MoeFfn
from forescale.spec.workload import Workload
from forescale.struct import Struct

_PROTOCOLS: Mapping[str, tuple[float, float]] = {
    "simple": (math.inf, 8.0),
    "ll": (4.0, 8.0),
    "ll64": (56.0, 64.0),
    "ll128": (120.0, 128.0),
}
"""Payload and packet bytes; the simple protocol adds one header to the whole message."""
Algorithm = Callable[[float, int, str, "Network"], float]


@cache
def constants() -> Mapping[str, float]:
    """Return the figures that Primus's code assumes of networks, with their source."""
    record = shipped("presets/primus/network")
    return MappingProxyType({key: value for key, value in record.items() if isinstance(value, float)})


class Network(Struct, frozen=True, kw_only=True):
    """What Primus's collectives know of a cluster; bandwidths are after its efficiency."""

    node_size: int
    nics: int
    node_bandwidth: float
    pod_bandwidth: float
    """One NIC."""
    pod_latency: float
    vector_flops: float

    @classmethod
    def from_cluster(cls, cluster: Cluster) -> Network | None:
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


DOCUMENTED_ALL_REDUCE: Mapping[str, Algorithm] = {
    "ring": ring_all_reduce,
    "hypercube": hypercube_all_reduce,
    "bruck": bruck_all_reduce,
    "single_shot": single_shot_all_reduce,
}
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


ALGORITHMS: Mapping[str, Algorithm] = {
    "ring": ring_all_reduce,
    "hypercube": hypercube_all_reduce,
    "bruck": pipelined_bruck_all_reduce,
    "single_shot": single_shot_all_reduce,
    "hier": hierarchical_all_reduce,
}


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


AllReduce = Callable[[float, int, Network], float]
"""Seconds of an all-reduce of so many bytes among so many ranks."""
_GRADIENT_BYTES = 4.0
_TWO_NODE_SHARE = 0.5
_EXAMPLE = f"{DOCUMENT}, Example Output and Example Calculation"


@formula(unit="1", source=f"{_EXAMPLE}: gradient_allreduce message")
def primus_gradient_parameters(
    *, num_layers: Numeric, width: Numeric, hidden_size: Numeric, model_ranks: Numeric
) -> Numeric:
    """Layers·width·H over tp·pp (and ep for experts): 4·H per attention, 3·FFN per feed-forward.

    Grouped queries, routers, norms and the vocabulary are left out, so attention counts too much.
    """
    return num_layers * width * hidden_size / model_ranks


@formula(unit="s", source=f"{_EXAMPLE}: expert all-reduce, 483.2 ms across 2 nodes")
def primus_expert_all_reduce(*, num_bytes: Numeric, replicas: Numeric, bandwidth: Numeric) -> Numeric:
    """2·bytes·min((r − 1)/r, 1/2) / one NIC: the share is held at that of two nodes.

    A ring over r nodes moves (r − 1)/r per pass: beyond two nodes the formula is up to 2 times too fast.
    """
    return 2.0 * num_bytes * min((replicas - 1.0) / replicas, _TWO_NODE_SHARE) / bandwidth


@formula(unit="byte", source=f"{DOCUMENT}, Expert Parallelism: All-to-All Message Size")
def primus_dispatch_bytes(*, tokens: Numeric, hidden_size: Numeric, top_k: Numeric) -> Numeric:
    """tokens·H·top_k·2 (bf16)."""
    return tokens * hidden_size * top_k * 2.0


class GradientTraffic(Struct, frozen=True, kw_only=True):
    """One step's gradient all-reduce on a rank."""

    expert_bytes: float
    other_bytes: float
    expert_s: float
    other_s: float
    expert_replicas: float


def gradient_traffic(
    model: Model, layout: Layout, network: Network, all_reduce: AllReduce
) -> GradientTraffic:
    """Return bytes and seconds of the gradient all-reduce, in fp32, as Primus approximates parameters."""
    ranks, hidden = float(layout.tp * layout.pp), float(model.hidden_size)
    expert = other = 0.0
    for layer in model.layers:
        width = 4.0 * hidden
        if isinstance(layer.ffn, MoeFfn):
            expert += float(
                primus_gradient_parameters(
                    num_layers=1.0,
                    width=3.0 * layer.ffn.ffn_hidden_size * layer.ffn.num_experts,
                    hidden_size=hidden,
                    model_ranks=ranks * layout.ep,
                )
            )
        elif isinstance(layer.ffn, DenseFfn):
            width += 3.0 * layer.ffn.ffn_hidden_size
        other += float(
            primus_gradient_parameters(num_layers=1.0, width=width, hidden_size=hidden, model_ranks=ranks)
        )
    replicas = float(max(layout.dp // layout.ep, 1))
    apart = layout.ep > 1 and expert > 0.0 and replicas > 1
    expert_bytes, other_bytes = expert * _GRADIENT_BYTES, other * _GRADIENT_BYTES
    if not apart:
        expert_bytes, other_bytes = 0.0, other_bytes + expert_bytes
    expert_s = primus_expert_all_reduce(
        num_bytes=expert_bytes, replicas=replicas, bandwidth=network.pod_bandwidth
    )
    other_s = all_reduce(other_bytes, layout.dp, network)
    return GradientTraffic(
        expert_bytes=expert_bytes,
        other_bytes=other_bytes,
        expert_s=float(expert_s),
        other_s=other_s,
        expert_replicas=replicas,
    )


def communication_notes(
    model: Model, layout: Layout, workload: Workload, network: Network | None, all_reduce: AllReduce
) -> tuple[Note, ...]:
    """Return what Primus says of communication on this layout, and where that is wrong."""
    notes = []
    if network is not None and layout.dp > 1:
        text = _reduction_text(gradient_traffic(model, layout, network, all_reduce))
        notes.append(Note(topic="data_comm", text=text))
    if model.moe is not None and layout.ep > 1:
        tokens = layout.micro_batch_size * workload.seq_len / layout.tp
        size = float(
            primus_dispatch_bytes(
                tokens=tokens, hidden_size=float(model.hidden_size), top_k=float(model.moe.top_k)
            )
        )
        notes.append(
            Note(
                topic="expert_comm",
                text=f"its all-to-all message is {size / 2**20:.2f} MB per layer; the time it prints is measured on "
                "one node, not computed",
            )
        )
    return tuple(notes)


def _reduction_text(traffic: GradientTraffic) -> str:
    together = (traffic.expert_s + traffic.other_s) * 1e3
    how = "4·H² per attention, no vocabulary"
    if traffic.expert_bytes == 0.0:
        return f"its gradient all-reduce takes {together:.1f} ms ({how}; experts, if any, as if all replicas held them)"
    return (
        f"its gradient all-reduce takes {together:.1f} ms: experts {traffic.expert_s * 1e3:.1f} ms over "
        f"{traffic.expert_replicas:.0f} replicas, their share held at that of two nodes (too fast beyond), the rest "
        f"{traffic.other_s * 1e3:.1f} ms ({how})"
    )
