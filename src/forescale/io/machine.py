"""Cluster and device files as fields of a cluster: over a base, tiers that fit its nodes, defaults filled in."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import isclose
from pathlib import Path
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from forescale.catalogue.clusters import (
    DEVICE_DIMENSIONS,
    TIER_DIMENSIONS,
    cluster_record,
    device_record,
    resolve_cluster_name,
    resolve_device_name,
)
from forescale.errors import (
    SpecError,
    UnknownKeyError,
    UnknownNameError,
    missing,
    not_a_factor,
    unknown_key,
    wrong_type,
)
from forescale.files import place_of
from forescale.spec.cluster import HOST_BANDWIDTH, Cluster
from forescale.struct import Struct
from forescale.synonyms import device_field, meant
from forescale.syntax import deep_merge, load_mapping
from forescale.units import GB, parse

DEVICES_PER_NODE = 8
"""Of a table that describes a new device and gives no size of its nodes."""
PCIE: Mapping[str, Any] = MappingProxyType({"name": "pcie", "latency": 5e-6, "topology": "switch"})
"""Inside a node of a table that describes a new device and gives no tiers; as fast as the device's link to its host."""
NETWORK: Mapping[str, Any] = MappingProxyType(
    {"name": "ethernet", "size": 0, "bandwidth": 12.5e9, "latency": 1e-5, "topology": "switch"}
)
"""Beyond its nodes: one 100 Gb/s NIC per device."""
OPTIONAL: Mapping[str, tuple[float, str]] = MappingProxyType(
    {
        "vector_flops": (1e12, " TFLOP/s"),
        "num_cores": (1.0, ""),
        "clock_hz": (1e6, " MHz"),
        "host_bandwidth": (GB, " GB/s"),
    }
)
"""Fields of a device whose defaults change projections, with the unit that they are stated in."""
INNER = ("nvlink", "pcie")
LINKS = (*INNER, "infiniband", "roce", "ethernet")
"""Links of a node and networks that a table in everyday words may give by their bandwidth per device and direction."""
OF_DEVICE = ("hbm_bytes", "hbm_bandwidth", "power_w")
"""Fields of a device that a cluster has no like of, so that their names alone say what is meant."""
_RATES = frozenset(("fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8"))
_FACTOR = re.compile(r"x(\d+(?:\.\d+)?)", re.ASCII)
_FILES = frozenset({".json", ".toml", ".yaml", ".yml"})
_REMARKS = ("date", "estimated", "paper")


UNNAMED = "cluster"
"""Name of a cluster that neither a table nor a file names."""


class Fields(Struct, frozen=True, kw_only=True):
    """The fields of a cluster, and what of them are defaults."""

    values: dict[str, Any]
    defaults: tuple[str, ...] = ()
    """Fields of the cluster that the table left out."""
    device_defaults: tuple[str, ...] = ()
    """The same of its device, where it is a new one."""
    doubled: tuple[str, ...] = ()
    """Tiers twice as fast as those of its base, as links are whose two directions are added."""

    def stated(self, cluster: Cluster) -> str:
        """Return the defaults of the cluster that was built from these fields, in one sentence; empty for none."""
        if self.doubled:
            links = ", ".join(
                f"{tier.name} {tier.bandwidth / GB:g} GB/s"
                for tier in cluster.tiers
                if tier.name in self.doubled
            )
            return f"{links}: twice that of its base; a bandwidth is that of one device and one direction"
        device, parts = cluster.device, []
        if "devices_per_node" in self.defaults:
            parts.append(f"{cluster.devices_per_node} devices per node")
        if "tiers" in self.defaults:
            parts += [f"{tier.name} {tier.bandwidth / GB:g} GB/s per device" for tier in cluster.tiers]
        parts += [
            f"{name} {getattr(device, name) / scale:g}{unit}"
            for name, (scale, unit) in OPTIONAL.items()
            if name in self.device_defaults
        ]
        return f"defaults of {cluster.name}: {', '.join(parts)}" if parts else ""


def cluster_fields(
    values: Mapping[str, Any], *, where: str, name: str | None, folder: Path | None = None
) -> Fields:
    """Return the fields of the cluster that a table describes, or of a cluster of the one device that it describes.

    Parameters
    ----------
    values
        The table. `base` is a catalogue cluster; `device` a catalogue name, a file beside this one or a table.
    where
        Its origin, for messages.
    name
        Name of a cluster that has none, such as that of its file; if it is None, that of its base.
    folder
        Folder that the file of a device is in.
    """
    count = _called(values, "nodes")
    if count is not None and "num_devices" not in values:
        return _of_nodes(values, count, where, name, folder)
    if is_device(values := in_our_words(values)):
        values = {"device": dict(values), **({"name": values["name"]} if "name" in values else {})}
    if isinstance(values.get("device"), Mapping):
        values = {**values, "device": _device_in_our_words(values["device"])}
    entry = on_base(values, cluster_record, where)
    base, device = values.get("base"), entry.get("device")
    local = isinstance(device, Mapping) or is_file(device)
    if is_file(device):
        entry["device"] = _device_file(str(device), folder)
    elif isinstance(device, str):
        full = resolve_device_name(device)
        if not {"devices_per_node", "tiers"} & entry.keys():
            raise missing("devices_per_node and tiers", f"or give base = a cluster of {full}").at(where)
        entry["device"] = {**_plain(device_record(full)), "name": full}
    elif isinstance(device, Mapping):
        below = device.get("base") or (base and cluster_record(base)["device"])
        inside = {"base": below, **device} if below else device
        shown = resolve_device_name(below) if isinstance(below, str) else name or UNNAMED
        entry["device"] = {"name": shown, **on_base(inside, device_record, f"{where}, device")}
        local = not below
    if base is not None and "tiers" not in values and "devices_per_node" in values:
        before, now = cluster_record(base)["devices_per_node"], values["devices_per_node"]
        entry["tiers"] = tiers_of_node(entry["tiers"], before, now, where)
    usual = resolve_cluster_name(base) if isinstance(base, str) else UNNAMED
    entry = {"name": name or usual, **entry}
    if local and base is None:
        return _completed(entry)
    return Fields(values=entry, doubled=() if base is None else _doubled(entry["tiers"], base))


def devices_in(values: Mapping[str, Any], where: str, folder: Path | None = None) -> object:
    """Return how many devices the table of a cluster counts, by nodes too; None if it counts none."""
    if "num_devices" in values or _called(values, "nodes") is None:
        return values.get("num_devices")
    return cluster_fields(values, where=where, name="cluster", folder=folder).values["num_devices"]


def uncounted(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table of a cluster without its number of devices or nodes."""
    counts = ("num_devices", _called(values, "nodes"))
    return {key: value for key, value in values.items() if key not in counts}


def _of_nodes(
    values: Mapping[str, Any], count: str, where: str, name: str | None, folder: Path | None
) -> Fields:
    """Return the fields of a cluster whose table counts nodes in place of devices."""
    nodes = values[count]
    if not isinstance(nodes, int) or isinstance(nodes, bool) or nodes < 1:
        raise wrong_type(count, nodes, "a whole number of at least 1").at(where)
    others = {key: value for key, value in values.items() if key != count}
    fields = cluster_fields(others, where=where, name=name, folder=folder)
    return replace(fields, values={**fields.values, "num_devices": nodes * fields.values["devices_per_node"]})


def _doubled(tiers: Sequence[Mapping[str, Any]], base: str) -> tuple[str, ...]:
    """Return the names of the tiers of a base that are twice as fast as there."""
    before = {tier["name"]: _bandwidth(tier) for tier in cluster_record(base)["tiers"]}
    return tuple(
        str(tier["name"])
        for tier in tiers
        if tier.get("name") in before and isclose(_bandwidth(tier), 2 * before[tier["name"]], rel_tol=0.01)
    )


def _bandwidth(tier: Mapping[str, Any]) -> float:
    try:
        return parse(tier.get("bandwidth", 0.0), TIER_DIMENSIONS["bandwidth"])
    except SpecError:  # named where the cluster is built
        return 0.0


def in_our_words(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a table of everyday words for a device, its node and its network in our fields; others as they are."""
    values = _of_known_device(values)
    if "base" in values:
        return _with_device(values)
    if values.keys() & {"device", "tiers", "matrix_flops"} or not any(map(device_field, map(str, values))):
        return values
    device = _device_in_our_words(values)
    links = {key: device.pop(key) for key in LINKS if key in device}
    size = device.pop("devices_per_node", None)
    if not links and size is None:
        return device
    rate = device.get("host_bandwidth", HOST_BANDWIDTH)
    inner = {**PCIE, "size": DEVICES_PER_NODE if size is None else size, "bandwidth": rate}
    inner |= _tier(links, "nvlink", "pcie")
    outer = {**NETWORK, **_tier(links, "infiniband", "roce", "ethernet")}
    return {
        **({"name": device["name"]} if "name" in device else {}),
        "device": device,
        "devices_per_node": inner["size"],
        "tiers": [outer] if inner["size"] == 1 else [inner, outer],
    }


def _of_known_device(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a cluster of a device of the catalogue over the cluster of this device, where it gives no tiers."""
    key = _called(values, "device")
    device = values.get(key) if key else None
    if not isinstance(device, str) or is_file(device) or "tiers" in values or "base" in values:
        return values
    try:
        base = resolve_cluster_name(device)
    except UnknownNameError:
        return values
    size = {name: "devices_per_node" for name in values if device_field(name) == "devices_per_node"}
    return {"base": base, **{size.get(name, name): value for name, value in values.items() if name != key}}


def _called(values: Mapping[str, Any], field: str) -> str | None:
    """Return the key of a table that people use for a field; None where it has none."""
    return next((key for key in values if isinstance(key, str) and meant(key, {field}) == field), None)


def _with_device(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return changes of a cluster with everyday words for its device, such as memory, in a table of the device."""
    if "bandwidth" in values and not any(device_field(key) == "hbm_bytes" for key in values):
        fix = "write network.bandwidth, or device.hbm_bandwidth for that of the memory"
        raise unknown_key("bandwidth", "a cluster", (), fix)
    words = {key for key in values if (device_field(key) or key) in {*OF_DEVICE, *_RATES}}
    changes = {key: values[key] for key in words}
    if not words or isinstance(values.get("device", {}), str):
        return values
    others = {key: value for key, value in values.items() if key not in words}
    return {**others, "device": {**values.get("device", {}), **changes}}


def _device_in_our_words(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table of everyday words for a device in our fields, its rates in a table of their own."""
    named = {device_field(key) or key: value for key, value in values.items()}
    rates = {key: named.pop(key) for key in sorted(named.keys() & _RATES)}
    return {**named, "matrix_flops": {**named.get("matrix_flops", {}), **rates}} if rates else named


def _tier(links: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return name and bandwidth of the first of some links that is given."""
    return next(({"name": name, "bandwidth": links[name]} for name in names if name in links), {})


def is_device(values: Mapping[str, Any]) -> bool:
    """Return whether a table describes a device rather than a cluster."""
    return "matrix_flops" in values and "device" not in values


def is_file(device: object) -> bool:
    """Return whether the device of a cluster is given as a file."""
    return isinstance(device, str) and Path(device).suffix.lower() in _FILES


def on_base(values: Mapping[str, Any], record: Callable[[str], Any], where: str) -> dict[str, Any]:
    """Return `values` merged over the catalogue entry that their `base` names, if they have one.

    Quantities may be factors of what the entry has ("x0.5"), and tiers a table by the names of the entry's.
    """
    plain = _plain({key: value for key, value in values.items() if key != "base"})
    base = values.get("base")
    if base is None:
        return plain
    if not isinstance(base, str):
        raise wrong_type("base", base, "a catalogue name").at(where)
    below = _plain(record(base))
    plain = _in_tiers(plain, below.get("tiers", ()), where)
    if isinstance(tiers := plain.get("tiers"), Mapping) and "tiers" in below:
        plain["tiers"] = changed_tiers(below["tiers"], tiers, where)
    return deep_merge(below, scaled(below, plain, DEVICE_DIMENSIONS))


def _in_tiers(changes: dict[str, Any], tiers: Sequence[Mapping[str, Any]], where: str) -> dict[str, Any]:
    """Return changes whose links are among those of `tiers`: by their names, or as `network` the outermost.

    A quantity is the bandwidth of its link.

    Raises
    ------
    SpecError
        If a text is not a quantity; the error has the key that was given.
    """
    named = {str(tier["name"]): str(tier["name"]) for tier in tiers}
    if not named or not isinstance(changes.get("tiers", {}), Mapping):
        return changes
    first, *_, last = *named, *named
    others, links = dict[str, Any](), dict[str, Any]()
    for key, value in changes.items():
        link = key if key in named else device_field(key)
        tier = last if key == "network" else named.get(link or "", first if link in INNER else last)
        if key != "network" and link not in {*named, *LINKS}:
            others[key] = value
            continue
        renamed: dict[str, Any] = {} if key == "network" or link == tier else {"name": link}
        is_table = isinstance(value, Mapping)
        fields = value if is_table else {"bandwidth": value}
        _check_quantities(
            {f"{key}.{name}" if is_table else key: (name, fields[name]) for name in fields}, where
        )
        links[tier] = {**renamed, **fields}
    return deep_merge(others, {"tiers": links}) if links else changes


def _check_quantities(given: Mapping[str, tuple[str, object]], where: str) -> None:
    """Raise SpecError unless texts are quantities of a tier, or factors; `given` are names and values by key."""
    for key, (name, value) in given.items():
        if not isinstance(value, str) or name not in TIER_DIMENSIONS or _FACTOR.fullmatch(value):
            continue
        try:
            parse(value, TIER_DIMENSIONS[name])
        except SpecError as error:
            raise error.worded(f"{key} = {error}").at(where) from None


def changed_tiers(
    tiers: Sequence[Mapping[str, Any]], changes: Mapping[str, Any], where: str
) -> list[dict[str, Any]]:
    """Return the tiers of a base with the values that `changes` gives by the name of a tier.

    Raises
    ------
    UnknownKeyError
        If the base has no such tier.
    """
    names = [str(tier["name"]) for tier in tiers]
    for name, change in changes.items():
        if name not in names:
            fix = f"name a tier, such as tiers.{names[-1]}.{name}" if name in TIER_DIMENSIONS else ""
            raise UnknownKeyError.of([name], f"{where}, tiers of the base", names, {}, fix)
        if not isinstance(change, Mapping):
            raise wrong_type(f"tiers.{name}", change, "a table of its values").at(where)
        _check_quantities({f"tiers.{name}.{key}": (key, change[key]) for key in change}, where)
    return [
        {**tier, **scaled(tier, changes.get(name, {}), TIER_DIMENSIONS)}
        for name, tier in zip(names, tiers, strict=True)
    ]


def scaled(
    below: Mapping[str, Any], changes: Mapping[str, Any], dimensions: Mapping[str, str]
) -> dict[str, Any]:
    """Return changes whose factors, such as "x0.5", are multiplied with the quantity that the base has."""
    result = dict(changes)
    for key, value in changes.items():
        factor = _FACTOR.fullmatch(value) if isinstance(value, str) else None
        if factor is not None and key in dimensions and key in below:
            result[key] = float(factor[1]) * parse(below[key], dimensions[key])
    return result


def tiers_of_node(
    tiers: Sequence[Mapping[str, Any]], before: int, now: object, where: str
) -> list[dict[str, Any]]:
    """Return the tiers of a base whose nodes of `before` devices have `now`: what joined a node still does.

    Raises
    ------
    SpecError
        If a tier does not fill such nodes evenly, or none would join the devices of one.
    """
    if now == before or not isinstance(now, int) or isinstance(now, bool) or now < 1:
        return [dict(tier) for tier in tiers]
    fix = "give tiers, innermost first, or leave out devices_per_node"
    if before == 1:
        msg = (
            f"{where}: devices_per_node is {now}, but no tier of the base joins devices inside a node; {fix}"
        )
        raise SpecError(msg)
    values: list[dict[str, Any]] = []
    for tier in tiers:
        size = now if tier["size"] == before else tier["size"]
        if size and size % now and now % size:
            joins = f"tier {tier['name']!r} of the base joins {size} devices"
            raise not_a_factor(joins, "which nodes", f"the devices of {now}", fix=fix).at(where)
        if not size or size > (values[-1]["size"] if values else 1):
            values.append({**tier, "size": size})
    return values


def _device_file(text: str, folder: Path | None) -> dict[str, Any]:
    file = (folder or Path()) / place_of(text)
    return {"name": file.stem, **on_base(load_mapping(file), device_record, str(file))}


def _completed(entry: dict[str, Any]) -> Fields:
    """Return the fields of a cluster of a new device with defaults for its nodes and network."""
    defaults = tuple(name for name in ("devices_per_node", "tiers") if name not in entry)
    device = entry["device"]
    size = entry.get("devices_per_node", DEVICES_PER_NODE)
    rate = device.get("host_bandwidth", HOST_BANDWIDTH)
    inner = {**PCIE, "size": size, "bandwidth": rate}
    outer = {**NETWORK, "bandwidth": min(NETWORK["bandwidth"], parse(rate, TIER_DIMENSIONS["bandwidth"]))}
    tiers = [outer] if size == 1 else [inner, outer]
    absent = tuple(name for name in OPTIONAL if name not in device)
    values = {"devices_per_node": size, "tiers": tiers, **entry}
    return Fields(values=values, defaults=defaults, device_defaults=absent)


def _plain(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key not in _REMARKS}
