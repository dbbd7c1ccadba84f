"""Devices and clusters by name, read from the data files beside this module.

Every entry says where its figures come from (`source`) and when they were read (`date`); fields that were
derived or estimated rather than published are listed under `estimated` and explained in `source`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from forescale.errors import UnknownNameError
from forescale.records import record
from forescale.spec.cluster import Cluster, Device
from forescale.units import parse

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
    }
)
"""Fields of a device that may be written with a unit, and what they measure."""
TIER_DIMENSIONS: Mapping[str, str] = MappingProxyType(
    {"bandwidth": "byte/s", "latency": "second", "link_bandwidth": "byte/s"}
)
"""Fields of a tier that may be written with a unit, and what they measure."""
LINK_DIMENSIONS: Mapping[str, str] = MappingProxyType(
    {"launch": "second", "exchange_launch": "second", "peer_latency": "second"}
)
"""The same of a tier's parameters."""

_REMARKS = frozenset({"date", "estimated"})


def device_names() -> tuple[str, ...]:
    """Return the names of all catalogue devices, sorted."""
    return tuple(sorted(_entries("devices")))


def cluster_names() -> tuple[str, ...]:
    """Return the names of all catalogue clusters, sorted."""
    return tuple(sorted(_entries("clusters")))


def load_device(name: str) -> Device:
    """Return the catalogue device `name`.

    Raises
    ------
    UnknownNameError
        If there is none; it names the nearest ones.
    """
    return record(Device, _device(_entry("devices", "device", name), name), "", f"catalogue device {name}")


def load_cluster(name: str, num_devices: int) -> Cluster:
    """Return the catalogue cluster `name` with `num_devices` devices; the first words of one name alone will do.

    Raises
    ------
    UnknownNameError
        If there is none; it names the nearest ones.
    SpecError
        If the cluster cannot hold so many devices.
    """
    return _of_one(name).sized(num_devices)


@cache
def _of_one(name: str) -> Cluster:
    """Return a catalogue cluster of one device, which is read once."""
    begun = [each for each in cluster_names() if each.startswith(f"{name.lower()}-")]
    name = begun[0] if name not in cluster_names() and len(begun) == 1 else name
    entry = _plain(_entry("clusters", "cluster", name), {})
    device = entry["device"]
    if isinstance(device, str):
        device = {**_entry("devices", "device", device), "name": device}
    values = {
        **entry,
        "name": name,
        "num_devices": 1,
        "device": _device(device, device.get("name", name)),
        "tiers": [_plain(tier, TIER_DIMENSIONS) for tier in entry["tiers"]],
    }
    return record(Cluster, values, "", f"catalogue cluster {name}")


def device_record(name: str) -> Mapping[str, Any]:
    """Return the raw entry of device `name`: figures in human units, `source`, `date`, `estimated`."""
    return MappingProxyType(_entry("devices", "device", name))


def cluster_record(name: str) -> Mapping[str, Any]:
    """Return the raw entry of cluster `name`, with `source` and `date`."""
    return MappingProxyType(_entry("clusters", "cluster", name))


def hardware_device(hardware: str) -> str:
    """Return the catalogue device that a published run's `hardware` column means."""
    return load_cluster(hardware_cluster(hardware), 1).device.name


def hardware_cluster(hardware: str) -> str:
    """Return the catalogue cluster that a published run's `hardware` column means."""
    aliases = _data("hardware_aliases.json")
    if hardware in aliases:
        return str(aliases[hardware])
    if hardware in _entries("clusters"):
        return hardware
    raise UnknownNameError("hardware", hardware, [*aliases, *cluster_names()])


def _device(entry: Mapping[str, Any], name: str) -> dict[str, Any]:
    values = _plain(entry, DEVICE_DIMENSIONS)
    rates = {kind: parse(rate, "FLOP/s") for kind, rate in values["matrix_flops"].items()}
    return {**values, "name": name, "matrix_flops": rates}


def _plain(entry: Mapping[str, Any], dimensions: Mapping[str, str]) -> dict[str, Any]:
    """Copy `entry` without remarks, its quantities turned into SI numbers."""
    return {
        key: parse(value, dimensions[key]) if key in dimensions else value
        for key, value in entry.items()
        if key not in _REMARKS
    }


def _entry(folder: str, kind: str, name: str) -> dict[str, Any]:
    entries = _entries(folder)
    if name not in entries:
        met = set(_data("hardware_aliases.json").values())  # before those that an account imagines
        begun = [each for each in entries if each.startswith(f"{name.lower()}-") and each in met]
        raise UnknownNameError(kind, name, begun or entries)
    return dict(entries[name])


@cache
def _entries(folder: str) -> Mapping[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = {}
    for path in sorted((files("forescale.catalogue") / folder).iterdir(), key=lambda item: item.name):
        if path.name.endswith(".json"):
            found.update(json.loads(path.read_text(encoding="utf-8")))
    return MappingProxyType(found)


@cache
def _data(name: str) -> Mapping[str, Any]:
    text = (files("forescale.catalogue") / name).read_text(encoding="utf-8")
    return MappingProxyType(json.loads(text))
