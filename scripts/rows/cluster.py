"""The cluster of a row: that of its hardware, with the node and network that the row's remarks state."""

from __future__ import annotations

import json
import re
from importlib.resources import files

from msgspec.structs import replace
from scripts.rows.columns import Notes
from scripts.rows.tables import first_match

from forescale.catalogue.clusters import cluster_names, hardware_cluster, load_cluster
from forescale.errors import UnknownNameError, nearest
from forescale.files import Row
from forescale.spec.cluster import Cluster
from forescale.units import GB
from forescale.validation.case import InexpressibleError


def cluster_of(row: Row, notes: Notes) -> Cluster:
    """Return the cluster of `row`; what had to be changed or assumed is appended to `notes`.

    Raises
    ------
    InexpressibleError
        If no catalogue cluster is of that hardware.
    """
    devices = row.integer("n_gpus") or 1
    cluster = load_cluster(_name(row, notes), devices)
    cluster = _with_nodes(row, cluster, notes)
    cluster = _with_slices(row, cluster, notes)
    return _with_network(row, cluster, notes)


def _name(row: Row, notes: Notes) -> str:
    """Return the catalogue cluster of the row's hardware, its remarks in brackets dropped if need be."""
    hardware = row.text("hardware")
    bare = re.sub(r"\s*[(,;].*$", "", hardware)
    name = _cluster(hardware) or _cluster(bare) or _cluster(bare.lower().replace(" ", "-"))
    name = name or _cluster(_akin(bare, notes))
    if name is None:
        close = nearest(hardware.lower(), cluster_names())
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        msg = f"no catalogue cluster is of hardware {hardware!r}{hint} (--cluster says which they ran on)"
        raise InexpressibleError(msg)
    return _counted_in_cores(row, name, notes)


def _cluster(hardware: str) -> str | None:
    try:
        return hardware_cluster(hardware)
    except UnknownNameError:
        return None


def _akin(hardware: str, notes: Notes) -> str:
    """Return the longest known spelling that `hardware` starts with, or the shortest that starts with it."""
    text = files("forescale.catalogue").joinpath("hardware_aliases.json").read_text(encoding="utf-8")
    known, question = sorted(json.loads(text), key=len), hardware.lower()
    longer = [name for name in known if question.startswith(name.lower())]
    shorter = [name for name in known if len(question) > 3 and name.lower().startswith(question)]
    result = longer[-1] if longer else shorter[0] if shorter else hardware
    if result != hardware:
        notes.append(f"hardware {hardware} taken as {result}")
    return result


def _counted_in_cores(row: Row, name: str, notes: Notes) -> str:
    """Return the cluster that counts half chips where the row has twice the catalogue's devices in a node."""
    halves = f"{name}-cores"
    if halves in cluster_names() and row.integer("gpus_per_node") == load_cluster(halves, 1).devices_per_node:
        notes.append("devices are half chips, two of them in a chip")
        return halves
    return name


def _with_nodes(row: Row, cluster: Cluster, notes: Notes) -> Cluster:
    size, integer = cluster.devices_per_node, row.integer("gpus_per_node")
    if not integer or integer == size:
        return cluster
    tiers = tuple(replace(tier, size=integer) if tier.size == size else tier for tier in cluster.tiers)
    notes.append(f"{integer} devices in a node instead of {size}")
    return replace(cluster, devices_per_node=integer, tiers=tiers)


def _with_slices(row: Row, cluster: Cluster, notes: Notes) -> Cluster:
    """Return the cluster with its torus cut into the row's slices, which the outer network joins."""
    result = re.search(r"(\d+) slice\(s\)|slices=(\d+)|= (\d+) chips", row.text("notes"))
    inner = cluster.tiers[0]
    if not result or inner.topology != "torus" or len(cluster.tiers) == 1:
        return cluster
    slices = int(result[1] or result[2] or 0)
    size = int(result[3]) if result[3] else cluster.num_devices // max(1, slices)
    if size >= (inner.size or size) or size >= cluster.num_devices:
        return cluster
    notes.append(f"slices of {size} devices")
    return replace(cluster, tiers=(replace(inner, size=size), *cluster.tiers[1:]))


def _with_network(row: Row, cluster: Cluster, notes: Notes) -> Cluster:
    """Return the cluster with the bandwidth between nodes that the row's remarks state."""
    remarks = row.text("notes")
    entry = first_match("fabrics", remarks)
    if not entry:
        return cluster
    if "network_of" in entry:  # a site whose network the catalogue knows by what was measured of it
        outer = load_cluster(entry["network_of"], cluster.num_devices).tiers[-1]
        notes.append(f"between nodes as {entry['network_of']}")
        return cluster if len(cluster.tiers) == 1 else replace(cluster, tiers=(*cluster.tiers[:-1], outer))
    named = re.search(entry["match"], remarks, re.IGNORECASE)
    assert named is not None
    count, sharing = named.groupdict().get("count"), cluster.devices_per_node if entry["per"] == "node" else 1
    bandwidth = int(count or 1) * float(named["gbit"]) * GB / 8 / sharing
    outer = cluster.tiers[-1]
    if count:
        outer = replace(outer, nics_per_device=int(count) / sharing)
    if len(cluster.tiers) == 1 or replace(outer, bandwidth=bandwidth) == cluster.tiers[-1]:
        return cluster
    notes.append(f"{bandwidth / GB:g} GB/s between nodes for each device instead of {outer.bandwidth / GB:g}")
    return replace(cluster, tiers=(*cluster.tiers[:-1], replace(outer, bandwidth=bandwidth)))
