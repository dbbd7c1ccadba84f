"""The number of devices of a question: as given, or inferred, with a note that says from what."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import gcd
from pathlib import Path
from typing import Any

from forescale.errors import conflicts, exactly_one, missing
from forescale.io.named import build, devices_of_node, devices_told
from forescale.limits import DEVICES, within
from forescale.question import Note
from forescale.spec import Cluster, Model
from forescale.spec.cluster import Device, SiteLink
from forescale.units import counted, format_count

DEGREES = ("tp", "cp", "pp", "dp_replicate", "dp_shard")
"""Degrees whose product is the number of devices."""
USUAL_LENGTH = 4096
"""Longest sequence that is assumed where no length is given, in tokens."""
PER_PARAMETER = re.compile(r"\s*(\d{1,9}(?:\.\d{1,9})?)x\s*", re.ASCII)
"""Tokens of a run per active parameter, such as 20x."""
EXPERT_DEGREES = ("ep", "etp")
"""Degrees that share the devices of tp × cp × dp_shard."""


def fewest_devices(layout: Mapping[str, Any]) -> int:
    """Return the fewest devices that the degrees of a layout occupy; a degree that is absent or invalid counts as 1.

    Experts are placed on tp × cp × dp_shard devices, so a dp_shard that is not given is the smallest one that
    makes this product divisible by ep × etp.
    """
    degree = {name: _degree(layout.get(name)) for name in (*DEGREES, *EXPERT_DEGREES)}
    inner, experts = degree["tp"] * degree["cp"], degree["ep"] * degree["etp"]
    shards = experts // gcd(experts, inner) if layout.get("dp_shard") is None else degree["dp_shard"]
    return inner * degree["pp"] * degree["dp_replicate"] * shards


def size_note(devices: int, origin: str) -> Note:
    """Return the note that says from what a number of devices was inferred."""
    return Note(topic="devices", text=f"devices = {devices:,}, inferred from {origin}")


FOR_MORE = "for more"
"""End of the note of a number of devices that is the fewest, as nothing states it."""


def is_fewest(notes: Iterable[Note]) -> bool:
    """Return whether notes of a question say that its number of devices is not stated, but the fewest."""
    return any(note.topic == "devices" and note.text.endswith(FOR_MORE) for note in notes)


def with_usual(
    workload: Mapping[str, Any], model: Model, device: Device, where: str
) -> tuple[dict[str, Any], tuple[Note, ...]]:
    """Return the fields of a workload with the usual length and type where they have none, and their origin.

    Tokens given per parameter, such as 20x, become those of the run.
    """
    completed, length = _with_length(workload, model, where)
    completed, compute = _with_compute(completed, device)
    completed, tokens = _with_tokens(completed, model)
    return completed, (*length, *compute, *tokens)


def _with_tokens(workload: dict[str, Any], model: Model) -> tuple[dict[str, Any], tuple[Note, ...]]:
    """Return the fields of a workload with its tokens where they are a multiple of the active parameters."""
    multiple = PER_PARAMETER.fullmatch(str(workload.get("tokens", "")))
    if multiple is None:
        return workload, ()
    from forescale.graph.counts import count_parameters

    active = count_parameters(model).active
    tokens = float(round(float(multiple[1]) * active))
    text = (
        f"tokens = {format_count(tokens)}: {multiple[1]} for each of {format_count(active)} active parameters"
    )
    return {**workload, "tokens": tokens}, (Note(topic="tokens", text=text),)


def _with_length(
    workload: Mapping[str, Any], model: Model, where: str
) -> tuple[dict[str, Any], tuple[Note, ...]]:
    """Return the fields of a workload with the usual sequence length of a model if they have none, and its origin.

    Raises
    ------
    SpecError
        If the global batch size is missing: nothing is assumed of it.
    """
    if workload.get("global_batch_size") is None:
        fix = "give the sequences of one optimizer step, such as 64"
        raise missing("global_batch_size", fix).at(f"{where}, workload")
    if workload.get("seq_len") is not None:
        return dict(workload), ()
    length = min(model.max_seq_len or USUAL_LENGTH, USUAL_LENGTH)
    longest = f", the longest of {model.name}" if length == model.max_seq_len else ""
    note = Note(
        topic="length", text=f"sequence length = {length:,} tokens, not given{longest}; --seq-len changes it"
    )
    return {**workload, "seq_len": length}, (note,)


def _with_compute(workload: dict[str, Any], device: Device) -> tuple[dict[str, Any], tuple[Note, ...]]:
    """Return the fields of a workload in fp16 on a device without bf16 if they name no type, and why."""
    types = workload.get("precision", {})
    rates = device.matrix_flops
    if not isinstance(types, Mapping) or "compute" in types or rates.bf16 or not rates.fp16:
        return workload, ()
    note = Note(
        topic="compute", text=f"compute type = fp16, as {device.name} has no bf16; --precision changes it"
    )
    return {**workload, "precision": {**types, "compute": "fp16"}}, (note,)


def _devices_in(values: Mapping[str, Any], where: str, folder: Path | None) -> object:
    from forescale.io.machine import devices_in

    return devices_in(values, where, folder)


def sized_cluster(
    values: Mapping[str, Any],
    cluster: Cluster,
    where: str,
    folder: Path | None,
    *,
    layout: Mapping[str, Any] | None,
) -> tuple[Cluster, tuple[Note, ...]]:
    """Return the cluster of as many devices as a plan's values say, and the origin of an inferred number.

    Parameters
    ----------
    values
        Sections of a plan: `devices` or `nodes`, or a cluster that has a number of devices.
    cluster
        The cluster that they name, of any size.
    where
        Their origin, for messages.
    folder
        Folder that relative paths start from.
    layout
        Degrees that give the number where nothing else does; None if it is required.

    Raises
    ------
    SpecError
        If the number is given twice, is invalid, or is missing where no layout is given.
    """
    value = values["cluster"]
    devices = _count({"devices": devices_told(values, folder)}, "devices", where)
    nodes = _count(values, "nodes", where)
    origin = ""
    link = build(SiteLink, values["sites"], where=f"{where}, sites") if "sites" in values else None
    if devices is None and nodes is None and (count := devices_of_node(values)):
        sites = 1 if link is None else link.count
        if layout is None or sites * fewest_devices(layout) <= count:
            devices, origin = count, f"one {value}"
    if devices is None and nodes is None and layout is not None:
        sites = 1 if link is None or "dp_replicate" in layout else link.count
        devices = sites * fewest_devices(layout)
        origin = _degrees_text(layout, sites)
    if (devices is None) == (nodes is None):
        fix = "enter the number of devices, or of nodes"
        raise exactly_one(["devices", "nodes"], devices is not None, fix).at(where)
    count = devices if devices is not None else (nodes or 0) * cluster.devices_per_node
    if nodes is not None:
        origin = f"{counted(nodes, 'node')} × {counted(cluster.devices_per_node, 'device')} per node of {cluster.name}"
    elif values.get("devices") is None and not origin and not isinstance(value, Cluster):
        origin = "num_devices of the cluster"
    if isinstance(value, Mapping) and _devices_in(value, where, folder) not in (None, count):
        fix = "leave cluster.num_devices out"
        raise conflicts(["cluster.num_devices", f"{count} devices"], fix=fix).at(where)
    sized = cluster.sized(count) if link is None else cluster.over_sites(link, count)
    return sized, ((size_note(count, origin),) if origin else ())


def _degrees_text(layout: Mapping[str, Any], sites: int) -> str:
    """Return the degrees above 1 as the origin of a number of devices."""
    degrees = {name: _degree(layout.get(name)) for name in (*DEGREES, *EXPERT_DEGREES)}
    larger = [f"{name} {degree}" for name, degree in degrees.items() if degree > 1]
    larger += [counted(sites, "site")] if sites > 1 else []
    if not larger:
        return f"a layout without parallel degrees; give devices or nodes {FOR_MORE}"
    return f"{' × '.join(larger)}, the fewest that this layout occupies; give devices or nodes {FOR_MORE}"


def _degree(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 1


def _count(values: Mapping[str, Any], key: str, where: str) -> int | None:
    count = values.get(key)
    return None if count is None else within(count, DEVICES, f"{where}: {key}", whole=True)


def microbatch_note(
    values: Mapping[str, Any], completed: Mapping[str, Any], framework: str
) -> tuple[Note, ...]:
    """Return the origin of a micro-batch that a layout does not give and the default of a framework does."""
    if "micro_batch_size" in values or "micro_batch_size" not in completed:
        return ()
    text = f"micro_batch_size = {completed['micro_batch_size']}, inferred from the gradient accumulation of {framework}"
    return (Note(topic="layout", text=text),)
