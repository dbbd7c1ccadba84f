"""Primus's `--hardware-config` files: the network of a cluster in YAML, laid over a cluster of ours.

Keys and units are those of Primus's collective model: GB/s per device (`node_bw`) or per NIC (`pod_bw`,
`cluster_bw`), microseconds, shares of 1. What its model has and ours has not is named, not dropped in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from forescale.errors import SpecError, UnknownKeyError, not_one_of, out_of_range, wrong_type
from forescale.limits import Interval, within
from forescale.positions import says_lines
from forescale.spec.cluster import Cluster, LinkParameters, Tier
from forescale.struct import Struct
from forescale.syntax import load_mapping

SECTION = "hardware_config"
GIGA, MICRO = 1e9, 1e-6
USED = (
    "node_size", "pod_size", "nics_per_node", "nics", "node_bw", "pod_bw", "cluster_bw", "node_lat", "pod_lat",
    "cluster_lat", "bw_eff", "p2p_bw_eff", "vector_flops", "switch_topology", "node_topology",
    "kernel_launch_latency", "rccl_overhead", "a2a_peer_lat",
)  # fmt: skip
OWN = (
    "hbm_latency", "write_latency", "write_resp", "ar_overlap", "ar_warmup", "nic_rdma_setup", "nic_warmup",
    "a2a_intra_sync", "a2a_intra_peer", "a2a_mesh_contention", "a2a_rccl", "a2a_remote_contention", "hp", "cp", "ep",
)  # fmt: skip
"""Keys of Primus's own model without a counterpart here."""
AMBIGUOUS = ("intra_node_bandwidth_gbps", "inter_node_bandwidth_gbps")
"""Keys of an older example, one in GB/s of both directions and one in Gbit/s; Primus itself refuses them."""
TOPOLOGIES = ("mesh", "switch")
POSITIVE = ("_bw", "_size", "nics_per_node", "nics", "vector_flops")
"""Endings of keys that must not be 0."""


class HardwareConfig(Struct, frozen=True, kw_only=True):
    """The values of one file, checked."""

    where: str
    values: Mapping[str, Any]

    @property
    def unused(self) -> tuple[str, ...]:
        """Keys that change nothing here."""
        return tuple(key for key in self.values if key in OWN)

    def applied(self, cluster: Cluster) -> Cluster:
        """Return `cluster` with the node and network of this file; what it does not say stays.

        Raises
        ------
        SpecError
            If the network that results is impossible.
        """
        size = int(self._get("node_size", cluster.devices_per_node))
        nics = float(self._get("nics_per_node", self._get("nics", size)))
        node = self._tier(cluster.tiers[0], "node", size=size, devices=1.0)
        node = replace(node, topology=self._topology(node.topology))
        if node.topology == "mesh":
            node = replace(node, link_bandwidth=node.bandwidth / max(size - 1, 1))
        outer = cluster.tiers[1] if len(cluster.tiers) > 1 else cluster.tiers[0]
        farthest = "cluster_bw" in self.values or len(cluster.tiers) > 2
        pod_size = int(self._get("pod_size", outer.size)) if farthest else 0
        tiers = [node, self._tier(outer, "pod", size=pod_size, devices=nics / size)]
        if farthest:
            last = cluster.tiers[2] if len(cluster.tiers) > 2 else outer
            tiers.append(self._tier(last, "cluster", size=0, devices=nics / size))
        flops = float(self._get("vector_flops", cluster.device.vector_flops))
        return replace(
            cluster,
            devices_per_node=size,
            tiers=tuple(tiers),
            device=replace(cluster.device, vector_flops=flops),
            source=f"{cluster.source}; network of {self.where}",
        )

    def _tier(self, base: Tier, prefix: str, *, size: int, devices: float) -> Tier:
        """Return one tier; `devices` are the NICs per device of its bandwidth."""
        bandwidth, latency = self._get(f"{prefix}_bw", None), self._get(f"{prefix}_lat", None)
        inner = prefix == "node"
        return replace(
            base,
            name=base.name if inner or base.size != size else prefix,
            size=size,
            bandwidth=base.bandwidth if bandwidth is None else float(bandwidth) * GIGA * devices,
            latency=base.latency if latency is None else float(latency) * MICRO,
            nics_per_device=1.0 if inner else devices,
            parameters=self._parameters(base.parameters),
        )

    def _parameters(self, base: LinkParameters | None) -> LinkParameters | None:
        seconds = [
            float(self.values[key])
            for key in ("kernel_launch_latency", "rccl_overhead")
            if key in self.values
        ]
        values: dict[str, Any] = {
            "efficiency": self._get("bw_eff", None),
            "exchange_efficiency": self._get("p2p_bw_eff", None),
            "launch": sum(seconds) * MICRO if seconds else None,
            "peer_latency": self.values["a2a_peer_lat"] * MICRO if "a2a_peer_lat" in self.values else None,
        }
        known: dict[str, Any] = {name: float(value) for name, value in values.items() if value is not None}
        return replace(base or LinkParameters(), **known) if known else base

    def _topology(self, base: Any) -> Any:  # noqa: ANN401 (a topology)
        if "node_topology" in self.values:
            return self.values["node_topology"]
        if "switch_topology" in self.values:
            return "switch" if self.values["switch_topology"] else "mesh"
        return base

    def _get(self, key: str, default: Any) -> Any:  # noqa: ANN401 (as it was written)
        return self.values.get(key, default)


def is_hardware_config(values: Mapping[str, Any]) -> bool:
    """Say whether plain values are such a file and no cluster file of ours."""
    return SECTION in values or any(key in values for key in ("node_bw", "pod_bw", "node_lat", "pod_lat"))


@says_lines
def read_hardware_config(path: str | Path) -> HardwareConfig:
    """Return the file at `path`; its keys may stand under `hardware_config`.

    Raises
    ------
    ReaderError
        If it cannot be read.
    SpecError
        If a key is unknown or a value impossible.
    """
    file = Path(path)
    return build_hardware_config(load_mapping(file), where=file.name)


def build_hardware_config(values: Mapping[str, Any], *, where: str) -> HardwareConfig:
    """Return the configuration that plain values describe."""
    inside = values.get(SECTION, values)
    if not isinstance(inside, Mapping):
        raise wrong_type(SECTION, inside, "a table").at(where)
    raw = {key: value for key, value in inside.items() if value is not None and key != "base"}
    for key, value in raw.items():
        _check(key, value, where)
    return HardwareConfig(where=where, values=raw)


def _check(key: str, value: Any, where: str) -> None:  # noqa: ANN401 (as written)
    if key in AMBIGUOUS:
        msg = f"{where}: {key} has no certain unit; give node_bw (GB/s per device) and pod_bw (GB/s per NIC)"
        raise SpecError(msg)
    if key not in (*USED, *OWN):
        raise UnknownKeyError(key, where, (*USED, *OWN))
    if key == "node_topology" and value not in TOPOLOGIES:
        raise not_one_of("node_topology", value, ("mesh", "switch")).at(where)
    if key == "switch_topology" and not isinstance(value, bool):
        raise wrong_type("switch_topology", value, "true or false").at(where)
    if key in ("node_topology", "switch_topology"):
        return
    whole = key.endswith("_size")
    within(value, Interval(ge=0, le=2**24 if whole else 1e15), f"{where}: {key}", whole=whole)
    if key in ("bw_eff", "p2p_bw_eff") and not 0 < value <= 1:
        raise wrong_type(key, value, "a share of the bandwidth, above 0 and at most 1").at(where)
    if key.endswith(POSITIVE) and value == 0:
        raise out_of_range(key, value, "greater than 0", "leave it out where it is not known").at(where)
