"""Devices and clusters by name, read from the data files beside this module.

Every entry says where its figures come from (`source`) and when they were read (`date`); fields that were
derived or estimated rather than published are listed under `estimated` and explained in `source`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from forescale.errors import MISSPELT, AmbiguousNameError, UnknownNameError, wrong_type
from forescale.files import packaged, packaged_names
from forescale.prepared import prepared
from forescale.records import record
from forescale.spec.cluster import Cluster, Device
from forescale.units import GB, format_bytes, parse

DEVICE_DIMENSIONS: Mapping[str, str] = MappingProxyType(
    {
        "vector_flops": "FLOP/s",
        "hbm_bytes": "byte",
        "hbm_bandwidth": "byte/s",
        "clock_hz": "hertz",
        "rated_clock_hz": "hertz",
        "l2_bytes": "byte",
        "host_bandwidth": "byte/s",
        "power_w": "watt",
        "node_power_w": "watt",
        "price_per_hour": "money/h",
    }
)
"""Fields of a device that may be written with a unit, and what they measure."""
RATE_TABLES = frozenset({"matrix_flops", "reduced_accumulation_flops"})
"""Fields of a device that are tables of rates by data type."""
TIER_DIMENSIONS: Mapping[str, str] = MappingProxyType(
    {"bandwidth": "byte/s", "latency": "second", "link_bandwidth": "byte/s"}
)
"""Fields of a tier that may be written with a unit, and what they measure."""
CLUSTER_DIMENSIONS: Mapping[str, str] = MappingProxyType({"host_memory_bytes": "byte"})
"""Fields of a cluster that may be written with a unit, and what they measure."""
LINK_DIMENSIONS: Mapping[str, str] = MappingProxyType(
    {"launch": "second", "exchange_launch": "second", "peer_latency": "second"}
)
"""The same of a tier's parameters."""

_REMARKS = frozenset({"date", "estimated", "paper"})
_COMPANIES = ("nvidia", "amd", "intel", "google", "gcp", "aws", "azure")
_MAKERS = frozenset({*_COMPANIES, "standard", "geforce", "tesla", "instinct", "dgx", "hgx"})
"""Words before a product's name that do not tell products apart."""
_BOARD = re.compile(r"(?:[rg]tx-?)?\d{4}(?:-?(?:ti|super|d))*")
"""Numbers of boards that people own."""
DGX = 8
"""Devices of a node called DGX or HGX; others of these names are a desk's one or a rack."""
OWN_DEVICE = "give a file of the device (its matrix_flops, hbm_bytes and hbm_bandwidth)"
"""What to give where the catalogue does not have a device."""
_COUNTED = re.compile(
    r"(?P<before>\d+) ?[x×] ?(?P<name>.+)|(?P<stem>.+?)(?: ?[x×*] ?(?P<after>\d+)|-\d+)", re.IGNORECASE
)
"""A cluster's name with the number of its devices, such as 8xH100 or v5e-256."""


def device_names() -> tuple[str, ...]:
    """Return the names of all catalogue devices, sorted."""
    return tuple(sorted(_entries("devices")))


def cluster_names() -> tuple[str, ...]:
    """Return the names of all catalogue clusters, sorted."""
    return tuple(sorted(_entries("clusters")))


def load_device(name: str) -> Device:
    """Return the catalogue device `name`; the short names of clusters mean their devices.

    Raises
    ------
    UnknownNameError
        If there is none; it names the nearest ones.
    AmbiguousNameError
        If a short name can mean several; it names them.
    """
    name = resolve_device_name(name)
    return record(Device, _device(_entries("devices")[name], name), "", f"catalogue device {name}")


def load_cluster(name: str, num_devices: int) -> Cluster:
    """Return the catalogue cluster `name`, in full or short (see `resolve_cluster_name`), with `num_devices` devices.

    Its nodes have the host memory of the type of instance that `name` is, if it is one.

    Raises
    ------
    UnknownNameError
        If there is none; it names the nearest ones.
    AmbiguousNameError
        If a short name can mean several; it names them.
    SpecError
        If the cluster cannot hold so many devices.
    """
    cluster = _of_one(resolve_cluster_name(name))
    if (host := packaged("instances")["host_memory"].get(_plain_name(name))) is not None:
        cluster = replace(cluster, host_memory_bytes=parse(host, "byte"))
    return cluster.sized(num_devices)


def is_cluster_name(text: object) -> bool:
    """Return whether the catalogue has a cluster of this name, in full or short."""
    try:
        return isinstance(text, str) and bool(resolve_cluster_name(text))
    except (UnknownNameError, AmbiguousNameError):
        return False


@lru_cache(maxsize=256)
def resolve_cluster_name(name: str) -> str:
    """Return the full name of the catalogue cluster that `name` means.

    A name is the cluster's own, one of the alias file, or some of the words of exactly one name, in their order
    ("v5p", "a100-40gb"). Case, underscores, spaces and the maker's name do not matter. Clusters that a paper or an
    example describes are meant by their full names only.

    Raises
    ------
    UnknownNameError
        If there is none; it names the nearest ones.
    AmbiguousNameError
        If a short name can mean several; it names them.
    """
    entries, aliases = _entries("clusters"), short_names()
    if name in entries:
        return name
    plain = _plain_name(name)
    if plain in entries or plain in aliases:
        return aliases.get(plain, plain)
    real = [item for item, entry in entries.items() if not entry.get("paper")]
    candidates = [item for item in real if _abbreviates(plain, item)]
    if len(candidates) > 1:
        raise AmbiguousNameError("cluster", name, sorted(candidates))
    if not candidates:
        _refuse_count(name)
        papers = [entry for entry in entries if entry not in real]
        boards = [item for item in real if item.startswith("rtx-")] if _BOARD.fullmatch(plain) else []
        like = get_close_matches(plain, [*papers, *_instances()], 3, MISSPELT)
        known = boards or [*real, *like]
        raise UnknownNameError("cluster", name, known, OWN_DEVICE)
    return candidates[0]


@lru_cache(maxsize=256)
def resolve_device_name(name: str) -> str:
    """Return the full name of the catalogue device that `name` means: its own, or that of a cluster of it.

    Raises
    ------
    UnknownNameError
        If there is none; it names the nearest ones.
    AmbiguousNameError
        If a short name can mean several; it names them.
    """
    entries = _entries("devices")
    plain = _plain_name(name)
    if result := next((item for item in (name, plain) if item in entries), None):
        return result
    candidates = [entry for entry in entries if _abbreviates(plain, entry)]
    if is_cluster_name(name):
        return str(_entries("clusters")[resolve_cluster_name(name)]["device"])
    if len(candidates) > 1:
        raise AmbiguousNameError("device", name, sorted(candidates))
    if not candidates:
        raise UnknownNameError("device", name, entries)
    return candidates[0]


def meaning_of(name: str) -> str:
    """Return a sentence that states what a short cluster name means; empty for a full name."""
    full = resolve_cluster_name(name)
    if full == name:
        return ""
    return f"{name} means {full}: {_sizes(_of_one(full))}"


def meaning_within(cluster: Cluster, base: str) -> str:
    """Return a sentence that states what a cluster over a base is; empty if the base is a full name and unchanged."""
    full = resolve_cluster_name(base)
    if full == base and _sizes(cluster) == _sizes(_of_one(full)):
        return ""
    start = f"{base} means {full}" if cluster.name == full else f"{cluster.name}, over the base {full}"
    return f"{start}: {_sizes(cluster)}"


def _sizes(cluster: Cluster) -> str:
    """Return the nodes, the memory and the links of a cluster."""
    tiers = ", ".join(f"{tier.name} {tier.bandwidth / GB:g} GB/s" for tier in cluster.tiers)
    memory = format_bytes(cluster.device.hbm_bytes)
    return f"{cluster.devices_per_node} devices of {memory} per node, {tiers} per device"


@cache
def short_names() -> Mapping[str, str]:
    """Return the full name of a cluster by each of its aliases, types of instances included."""
    aliases = {alias: name for name, several in packaged("cluster_aliases").items() for alias in several}
    return MappingProxyType(
        {**aliases, **{kind: name for kind, (name, _) in _instances().items() if kind != name}}
    )


@cache
def _instances() -> Mapping[str, tuple[str, int]]:
    """Return the cluster that a type of instance is a node of, and the devices of one, by its name."""
    kinds = packaged("instances")["devices"].items()
    return {kind: (name, count) for name, several in kinds for kind, count in several.items()}


def instance_of(name: str) -> tuple[str, int] | None:
    """Return the cluster and the devices of a type of instance, or of a node such as DGX H100; None of others."""
    if (known := _instances().get(_plain_name(name))) is not None:
        return known
    if not re.match(r"(nvidia[-_ ])?[dh]gx[-_ ]", name.strip(), re.IGNORECASE) or not is_cluster_name(name):
        return None
    full = resolve_cluster_name(name)
    size = _of_one(full).devices_per_node
    return (full, size) if size == DGX else None


def _plain_name(name: str) -> str:
    sized = re.sub(r"(?<=[-_ ])(\d{2,3}) ?g(?:i?b)?\b", r"\1gb", name.strip().lower())
    parts = re.sub("[_ ]+", "-", sized).split("-")
    while len(parts) > 1 and parts[0] in _MAKERS:
        parts = parts[1:]
    return "-".join(parts)


def _abbreviates(short: str, name: str) -> bool:
    """Return whether all words of `short` are in `name`, in the same order."""
    parts = iter(name.split("-"))
    return all(word in parts for word in short.split("-"))


def counted_cluster(name: str) -> tuple[str, str] | None:
    """Return the cluster, and the number of devices, that a name such as 8xH100 means; None if none.

    The number is empty where the name may end in something else, such as bytes.
    """
    counted = _COUNTED.fullmatch(name.strip())
    stem = "" if counted is None else counted["name"] or counted["stem"]
    if counted is None or not is_cluster_name(stem):
        return None
    return resolve_cluster_name(stem), counted["before"] or counted["after"] or ""


def refuse_parts(name: str, nodes: int) -> None:
    """Refuse a number of nodes of a type of instance that has a part of a node of its cluster."""
    cluster, size = instance_of(name) or ("", 0)
    if cluster and size != (node := _of_one(cluster).devices_per_node):
        fix = f"{name} has {size}: write --devices {nodes * size}"
        raise wrong_type("--nodes", f"{nodes}", f"of whole nodes, {node} devices each", fix)


def _refuse_count(name: str) -> None:
    """Refuse a cluster's name that is written with a number of devices."""
    if counted := counted_cluster(name):
        stem, count = counted
        fix = f"write {stem}, and give the number of devices separately: devices = {count or 'N'}"
        raise UnknownNameError("cluster", name, (), fix)


@prepared("cluster")
def _of_one(name: str) -> Cluster:
    """Return a catalogue cluster of one device, which is read once."""
    entry = _plain(_entries("clusters")[name], CLUSTER_DIMENSIONS)
    device = str(entry["device"])
    values = {
        **entry,
        "name": name,
        "num_devices": 1,
        "device": _device(_entries("devices")[device], device),
        "tiers": [_plain(tier, TIER_DIMENSIONS) for tier in entry["tiers"]],
    }
    return record(Cluster, values, "", f"catalogue cluster {name}")


def device_record(name: str) -> Mapping[str, Any]:
    """Return the raw entry of device `name`: figures in human units, `source`, `date`, `estimated`."""
    return MappingProxyType(dict(_entries("devices")[resolve_device_name(name)]))


def cluster_record(name: str) -> Mapping[str, Any]:
    """Return the raw entry of cluster `name`, with `source` and `date`."""
    return MappingProxyType(dict(_entries("clusters")[resolve_cluster_name(name)]))


def hardware_device(hardware: str) -> str:
    """Return the catalogue device that a published run's `hardware` column means."""
    return load_cluster(hardware_cluster(hardware), 1).device.name


def hardware_cluster(hardware: str) -> str:
    """Return the catalogue cluster that a published run's `hardware` column means."""
    aliases = packaged("hardware_aliases")
    if hardware in aliases:
        return str(aliases[hardware])
    if hardware in _entries("clusters"):
        return hardware
    raise UnknownNameError("hardware", hardware, [*aliases, *cluster_names()])


def _device(entry: Mapping[str, Any], name: str) -> dict[str, Any]:
    values = _plain(entry, DEVICE_DIMENSIONS)
    for field in RATE_TABLES & values.keys():
        values[field] = {kind: parse(rate, "FLOP/s") for kind, rate in values[field].items()}
    return {**values, "name": name}


def _plain(entry: Mapping[str, Any], dimensions: Mapping[str, str]) -> dict[str, Any]:
    """Copy `entry` without remarks, its quantities turned into SI numbers."""
    return {
        key: parse(value, dimensions[key]) if key in dimensions else value
        for key, value in entry.items()
        if key not in _REMARKS
    }


@cache
def _entries(folder: str) -> Mapping[str, Mapping[str, Any]]:
    values: dict[str, Mapping[str, Any]] = {}
    for name in packaged_names(folder):
        values.update(packaged(f"{folder}/{name}"))
    return MappingProxyType(values)
