"""Memory of communicators (NCCL, RCCL): buffers of their connections, outside PyTorch's allocator."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import cast

import numpy as np

from forescale.formula import formula
from forescale.memory.overhead import read_table
from forescale.numeric import Numeric, smaller
from forescale.spec.cluster import Device

P2P = "NCCL 2.30, src/transport/p2p.cc"


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """How a device's communication library connects: channels, and bytes of what each of them needs."""

    connection_bytes: float
    """Both sides of a connection with one neighbour on one channel."""
    collective: float
    """Channels of rings and trees among devices of one node."""
    multicast: float
    """Channels that use the reducing switches."""
    multicast_bytes: float
    """Of one channel and local rank."""
    multicast_ranks: float
    """Most ranks that are counted."""
    exchange: float
    """Channels of sends and receives with each peer of one node."""
    collective_across: float
    """Channels of rings and trees over several nodes."""
    exchange_across: float
    """Channels of sends and receives over several nodes: all together, sharing one buffer each."""
    exchange_per_peer: float
    """Channels for each peer within the node of a group over several nodes."""
    fixed_bytes: tuple[float, float, float]
    """Of one communicator beyond its connections: low, expected, high."""


@formula(unit="byte", source=f"{P2P}: p2pSendConnect, p2pRecvConnect")
def connection_bytes(*, simple: float, ll: float, ll128: float, granularity: float) -> float:
    """Receiver: its three buffers and a page, rounded up; sender: a page, rounded up."""
    return float(np.ceil((simple + ll + ll128 + 1.0) / granularity) + 1.0) * granularity


@formula(unit="1", source="NCCL chooses channels by the slowest link of a communicator")
def channels_used(*, size: Numeric, within: Numeric, inside: float, across: float) -> Numeric:
    """`inside` where all ranks share a node, else `across`."""
    return np.where(np.asarray(size) > within, across, inside)


@formula(unit="byte", source=f"{P2P}; rings and chains of trees have two neighbours at any size")
def ring_bytes(*, size: Numeric, channels: Numeric, connection: float, neighbours: float) -> Numeric:
    """Channels × bytes of a connection × min(size − 1, neighbours)."""
    return channels * connection * smaller(size - 1.0, neighbours)


@formula(unit="byte", source="NCCL 2.30, src/transport/nvls.cc: ncclNvlsSetup")
def multicast_bytes(
    *, size: Numeric, within: Numeric, channels: float, rank_bytes: float, most_ranks: float
) -> Numeric:
    """Channels × bytes × min(ranks, most), where more than two ranks all share the reducing switches."""
    together = (np.asarray(size) > 2.0) & (np.asarray(size) <= within)
    return np.where(together, channels * rank_bytes * smaller(within, most_ranks), 0.0)


@formula(
    unit="byte", source=f"{P2P}, src/transport/net.cc: sends to other nodes share one buffer per channel"
)
def exchange_bytes(
    *, near: Numeric, far: Numeric, per_peer: Numeric, shared: float, connection: float
) -> Numeric:
    """Bytes of a connection × (near peers × channels for each + shared channels where there are far peers)."""
    return connection * (near * per_peer + smaller(far, 1.0) * shared)


@cache
def communication_of(vendor: str, architecture: str) -> Communication | None:
    """Return how the devices of a vendor's generation communicate; None where it is not through PyTorch."""
    table = read_table("communicators")
    if vendor not in table["vendors"]:
        return None
    sizes = {name: size for name, size in table["buffers"].items() if name != "source"}
    inside = table["channels"].get(architecture, table["channels"]["other"])
    across, multicast = table["across_nodes"], table["multicast"]
    return Communication(
        connection_bytes=connection_bytes(**sizes),
        collective=inside["collective"],
        multicast=inside["multicast"],
        multicast_bytes=2.0 * multicast["steps"] * multicast["chunk"],
        multicast_ranks=multicast["most_ranks"],
        exchange=inside["exchange"],
        collective_across=across["collective"],
        exchange_across=across["exchange"],
        exchange_per_peer=across["exchange_per_peer"],
        fixed_bytes=cast("tuple[float, float, float]", tuple(table["fixed_bytes"])),
    )


def device_communication(device: Device) -> Communication | None:
    """Return how a device communicates."""
    return communication_of(device.vendor, device.architecture)
