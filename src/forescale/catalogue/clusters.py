"""Devices and clusters by name, read from the data files beside this module.

Every entry says where its figures come from (`source`) and when they were read (`date`); fields that were
derived or estimated rather than published are listed under `estimated` and explained in `source`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from forescale.errors import SpecError, UnknownKeyError, UnknownNameError
from forescale.spec.cluster import Cluster, Device, MatrixRates, Tier
from forescale.units import parse

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

DEVICE_DIMENSIONS: Mapping[str, str] = MappingProxyType(
    {
        "vector_flops": "FLOP/s",
        "hbm_bytes": "byte",
        "hbm_bandwidth": "byte/s",
        "clock_hz": "hertz",
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
    return build_device(_entry("devices", "device", name), name=name)


def load_cluster(name: str, num_devices: int) -> Cluster:
    """Return the catalogue cluster `name` with `num_devices` devices.

    Raises
    ------
    UnknownNameError
        If there is none; it names the nearest ones.
    SpecError
        If the cluster cannot hold so many devices.
    """
    return build_cluster(_entry("clusters", "cluster", name), name=name, num_devices=num_devices)


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
    kind = "hardware"
    raise UnknownNameError(kind, hardware, [*aliases, *cluster_names()])


def build_device(entry: Mapping[str, Any], *, name: str) -> Device:
    """Return a device from an entry whose quantities are SI numbers or strings with a unit."""
    values = _plain(entry, Device, DEVICE_DIMENSIONS, f"device {name}") | {"name": name}
    rates = values.get("matrix_flops", {})
    if not isinstance(rates, Mapping):
        msg = f"device {name}: matrix_flops lists rates by type, such as bf16 = '989 TFLOP/s'; got {rates!r}"
        raise SpecError(msg)
    _refuse_unknown(rates, MatrixRates, f"device {name}, matrix_flops")
    values["matrix_flops"] = MatrixRates(**{kind: parse(rate, "FLOP/s") for kind, rate in rates.items()})
    _require(values, Device, f"device {name}")
    return Device(**values)


def build_cluster(entry: Mapping[str, Any], *, name: str, num_devices: int) -> Cluster:
    """Return a cluster from an entry; its device is a catalogue name or an entry of its own."""
    where = f"cluster {name}"
    values = _plain(entry, Cluster, {}, where) | {"name": name, "num_devices": num_devices}
    device = values.get("device")
    if isinstance(device, str):
        values["device"] = load_device(device)
    elif isinstance(device, Mapping):
        values["device"] = build_device(device, name=str(device.get("name", name)))
    tiers = values.get("tiers")
    if isinstance(tiers, list | tuple):
        values["tiers"] = tuple(_tier(tier, f"{where}, tier {index}") for index, tier in enumerate(tiers))
    _require(values, Cluster, where)
    return Cluster(**values)


def _tier(entry: object, where: str) -> Tier:
    if not isinstance(entry, Mapping):
        msg = f"{where}: a tier is a table with name, size, bandwidth and latency; got {entry!r}"
        raise SpecError(msg)
    values = _plain(entry, Tier, TIER_DIMENSIONS, where)
    _require(values, Tier, where)
    return Tier(**values)


def _plain(
    entry: Mapping[str, Any], kind: type[DataclassInstance], dimensions: Mapping[str, str], where: str
) -> dict[str, Any]:
    """Copy `entry` without remarks, its quantities turned into SI numbers."""
    values = {key: value for key, value in entry.items() if key not in _REMARKS}
    _refuse_unknown(values, kind, where)
    return {
        key: parse(value, dimensions[key]) if key in dimensions else value for key, value in values.items()
    }


def _refuse_unknown(values: Mapping[str, Any], kind: type[DataclassInstance], where: str) -> None:
    known = [field.name for field in fields(kind)]
    for key in values:
        if key not in known:
            raise UnknownKeyError(key, where, known)


def _require(values: Mapping[str, Any], kind: type[DataclassInstance], where: str) -> None:
    needed = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]
    missing = [name for name in needed if name not in values]
    if missing:
        msg = f"{where}: {', '.join(missing)} must be given"
        raise SpecError(msg)


def _entry(folder: str, kind: str, name: str) -> dict[str, Any]:
    entries = _entries(folder)
    if name not in entries:
        raise UnknownNameError(kind, name, entries)
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
