"""Models, clusters and frameworks from one text: a catalogue name, or a file in any format that can be read.

Cluster files have the fields of a cluster in TOML, JSON or YAML, its device by name or in place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from forescale import wording
from forescale.catalogue.clusters import (
    CLUSTER_DIMENSIONS,
    DEVICE_DIMENSIONS,
    LINK_DIMENSIONS,
    TIER_DIMENSIONS,
    cluster_names,
    instance_of,
    is_cluster_name,
    load_cluster,
    meaning_of,
    meaning_within,
)
from forescale.catalogue.frameworks import NONE, load_framework
from forescale.catalogue.models import hub_name, load_model, model_names, vocabulary_of
from forescale.cost.collectives.algorithms import ALGORITHM_NAMES
from forescale.errors import ReaderError, SpecError, UnknownKeyError, UnknownNameError
from forescale.files import exists, packaged, place_of
from forescale.goodput.operations import rates_of
from forescale.limits import LAYERS, within
from forescale.patterns import pattern
from forescale.positions import says_lines
from forescale.question import Note
from forescale.records import Units, Walk, kept_by_value, required
from forescale.spec import Cluster, Device, LinkParameters, MatrixRates, Model, Tier, Workload
from forescale.spec.cluster import SiteLink
from forescale.spec.framework import Framework
from forescale.spec.operations import (
    SAVING_DIMENSIONS,
    SPANS,
    Checkpointing,
    FailureCounts,
    Failures,
    Operations,
)
from forescale.struct import asdict
from forescale.syntax import load_mapping

T = TypeVar("T")
_UNITS: Units = MappingProxyType(
    {
        Device: DEVICE_DIMENSIONS,
        Cluster: CLUSTER_DIMENSIONS,
        Tier: TIER_DIMENSIONS,
        LinkParameters: LINK_DIMENSIONS,
        MatrixRates: {field.name: "FLOP/s" for field in fields(MatrixRates)},
        Workload: {"tokens": "token"},
        SiteLink: {"bandwidth": "byte/s", "latency": "second"},
        Operations: SPANS,
        Checkpointing: SAVING_DIMENSIONS,
    }
)


def build(kind: type[T], values: Mapping[str, Any], *, where: str) -> T:
    """Return a `kind` (a specification dataclass) from plain `values`.

    Parameters
    ----------
    kind
        `Model`, `Cluster`, `Layout`, `Workload` or any dataclass that they are made of.
    values
        Fields by name; tables inside are mappings, tuples are lists, and a field measured in SI units may be
        text with a unit such as "450 GB/s".
    where
        What `values` are, for messages, such as "plan.toml, strategy".

    Raises
    ------
    UnknownKeyError
        If the one thing wrong is a key that `kind` does not have.
    SpecError
        If anything else is wrong; its text names every problem with its path.
    """
    built: T = _built(kind, values, where)
    return built


@kept_by_value
def _built(kind: type[Any], values: Mapping[str, Any], where: str) -> Any:  # noqa: ANN401 (a `kind`)
    walk = Walk(where, _UNITS)
    built = walk.visit(kind, values, ())
    if not walk.problems:
        return built
    if len(walk.problems) == 1:
        raise walk.problems[0].at("" if isinstance(walk.problems[0], UnknownKeyError) else where)
    raise SpecError(f"{where}: " + "; ".join(str(violation) for violation in walk.problems))


def checked_model(model: Model, *, where: str) -> Model:
    """Return a model that a reader made, if `build` would make it from its fields."""
    values = {item.name: getattr(model, item.name) for item in fields(Model)}
    if model.traces:
        return model
    values["layers"] = [asdict(kind) for kind in model.layer_kinds]
    values["patches"] = None if model.patches is None else asdict(model.patches)
    build(Model, values, where=where)
    return model


_ADDRESS = pattern(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
HUGGINGFACE_KEYS = frozenset({"model_type", "architectures"})
"""Keys of a Hugging Face configuration that no model of ours has."""
_SUFFIXES = frozenset({".json", ".toml", ".yaml", ".yml", ".sh", ".txt", ".py"})


def model_of(text: str, *, folder: Path | None = None) -> Model:
    """Return the model that `text` means: a catalogue name, or a file or folder that describes one.

    Raises
    ------
    UnknownNameError
        If it is neither; the message names the nearest catalogue models.
    ReaderError
        If it is a file that cannot be read as a model.
    """
    file = file_of(text, folder, known=text in model_names())
    if file is None:
        return load_model(text)
    from forescale.frameworks.readers import is_bare_model, read_file, read_model
    from forescale.frameworks.reading import Options

    options = Options(vocabulary_of=vocabulary_of, model_of=load_model, strict=False)
    reading = read_model(file, options) if is_bare_model(file) else read_file(file, options)
    if reading.model is None:
        raise ReaderError(file, wording.incomplete("model"))
    return checked_model(reading.model, where=str(file))


def cluster_of(text: str, num_devices: int | None = None, *, folder: Path | None = None) -> Cluster:
    """Return the cluster of `num_devices` devices that `text` means: a catalogue name or a cluster file.

    Where nobody says how many, it is what the file says, or one.
    """
    file = file_of(text, folder, known=is_cluster_name(text))
    return load_cluster(text, num_devices or 1) if file is None else read_cluster_file(file, num_devices)


def devices_told(values: Mapping[str, Any], folder: Path | None = None) -> object:
    """Return how many devices a question says there are; where it counts nothing, its cluster's table or file."""
    cluster, where = values.get("cluster"), "cluster"
    if values.get("devices") is not None or values.get("nodes") is not None:
        return values.get("devices")
    if isinstance(cluster, Cluster):
        return cluster.num_devices
    if isinstance(cluster, str):
        file = file_of(cluster, folder, known=is_cluster_name(cluster))
        if file is None:
            return None
        where, cluster, folder = str(file), load_mapping(file), file.parent
    if not isinstance(cluster, Mapping):
        return None
    from forescale.io.machine import devices_in

    return devices_in(cluster, where, folder)


def devices_of_node(values: Mapping[str, Any]) -> int | None:
    """Return the devices of the type of instance, or of node, that a question names as its cluster and counts not."""
    cluster = values.get("cluster")
    is_counted = values.get("devices") is not None or values.get("nodes") is not None
    instance = instance_of(cluster) if isinstance(cluster, str) and not is_counted else None
    return None if instance is None else instance[1]


def is_uncounted(values: Mapping[str, Any], folder: Path | None = None) -> bool:
    """Return whether a question gives neither devices nor nodes, nor a cluster that says how many there are."""
    is_open = values.get("nodes") is None and devices_told(values, folder) is None
    return is_open and devices_of_node(values) is None


def model_given(value: object, where: str, folder: Path | None = None) -> Model:
    """Return the model that was given as a value, name, file or table; `where` it was written, for messages.

    A table has the fields of `Model`, over `base` if it has one, or the keys of a Hugging Face configuration.
    """
    if isinstance(value, Model):
        return value
    if isinstance(value, str):
        return model_of(value, folder=folder)
    if not isinstance(value, Mapping):
        raise wording.wrong_type("model", value, "a name, a file or a table").at(where)
    values = dict(value)
    if HUGGINGFACE_KEYS & values.keys():
        return _of_huggingface(values, f"{where}, model")
    if "base" not in values and not isinstance(values.get("layers"), (list, tuple)) and len(values) > 1:
        from forescale.frameworks.described import described_model

        return checked_model(described_model(values, f"{where}, model").model, where=f"{where}, model")
    base = values.pop("base", None)
    if base is not None:
        base_model = base if isinstance(base, Model) else model_of(str(base), folder=folder)
        values = {field.name: getattr(base_model, field.name) for field in fields(Model)} | values
    else:
        _refuse_name_alone(values, Model, model_names(), f"{where}, model")
    if isinstance(values.get("layers"), (list, tuple)):
        values["layers"] = _repeated(values["layers"], f"{where}, model")
    return build(Model, values, where=f"{where}, model")


def _repeated(layers: Sequence[Any], where: str) -> list[Any]:
    """Return one entry per layer, from entries that may have a `count` of equal layers in a row."""
    values: list[Any] = []
    for index, entry in enumerate(layers):
        if not isinstance(entry, Mapping) or "count" not in entry:
            values.append(entry)
            continue
        count = within(entry["count"], LAYERS, f"{where}: layers.{index}.count", whole=True)
        values += [{key: value for key, value in entry.items() if key != "count"}] * count
        within(len(values), LAYERS, f"{where}: number of layers", whole=True)
    return values


def _of_huggingface(config: Mapping[str, Any], where: str) -> Model:
    """Return the model that the keys of a config.json describe, named as they name it."""
    from forescale.frameworks.huggingface import read_huggingface

    named = config.get("_name_or_path") or config.get("model_type") or "model"
    name = str(named).rstrip("/").rpartition("/")[2]
    return checked_model(read_huggingface(config, name=name, where=where).model, where=where)


def cluster_given(
    values: object, where: str, folder: Path | None = None, *, config: object = None
) -> Cluster:
    """Return the cluster that was given as a value, name, file or table, with the network of a hardware configuration.

    Its size is still to be set. `where` says where it was written, for messages.
    """
    if isinstance(values, Cluster):
        cluster = values
    elif isinstance(values, str):
        cluster = cluster_of(values, folder=folder)
    elif isinstance(values, Mapping):
        from forescale.io.machine import uncounted

        cluster = build_cluster(uncounted(values), 1, where=f"{where}, cluster", name=None, folder=folder)
    else:
        raise wording.wrong_type("cluster", values, "a name, a file or a table").at(where)
    if config is None:
        return cluster
    if not isinstance(config, str):
        raise wording.wrong_type("hardware_config", config, "a file").at(where)
    from forescale.frameworks.primus.hardware import read_hardware_config

    return read_hardware_config((folder or Path()) / place_of(config)).applied(cluster)


def framework_given(value: object, where: str) -> Framework | None:
    """Return the framework that was given as a value or name, None for "none"; `where` it was written, for messages."""
    if value is None or isinstance(value, Framework):
        return value
    if value == NONE:
        return None
    if not isinstance(value, str):
        raise wording.wrong_type("framework", value, "a name, such as torchtitan or nemo@24.07").at(where)
    return load_framework(value)


def failures_given(value: object, folder: Path | None) -> object:
    """Return rates of failure as `operations.failures` has them; those that a file counted are read."""
    if not isinstance(value, str):
        return value
    path = file_of(value, folder, known=value in packaged("operations")["failures"])
    return value if path is None else read_failures(path)


def build_operations(values: Mapping[str, Any], where: str, folder: Path | None = None) -> Operations:
    """Return how a run is operated as `values` describe it; failures may be a file's, seen from `folder`.

    Raises
    ------
    SpecError
        If anything in it is unknown or impossible, the name of published rates included.
    """
    if isinstance(values, Mapping) and "failures" in values:
        values = {**values, "failures": failures_given(values["failures"], folder)}
    built = build(Operations, values, where=where)
    rates_of(built, 1)  # refuses the name of rates that are not published
    return built


@says_lines
def read_failures(path: Path) -> Failures:
    """Return the rates of failure of a file (JSON, TOML or YAML) with the fields of `FailureCounts`.

    Raises
    ------
    ReaderError
        If the file is missing or has a syntax error.
    SpecError
        If a field is unknown, missing or impossible.
    """
    values = {"name": path.stem, "source": path.name, **load_mapping(path)}
    return build(FailureCounts, values, where=str(path)).rates


def named_model(model: Model, *, images: int = 1) -> str | None:
    """Return the catalogue name of `model`, of which no tower is left where there are no `images`; None without one."""
    if model.name not in model_names():
        return None
    whole = load_model(model.name)
    return model.name if model == (whole if images else whole.text) else None


def named_cluster(cluster: Cluster) -> str | None:
    """Return the catalogue name of `cluster`, or None if the catalogue has no equal one."""
    known = (
        cluster.name in cluster_names()
        and load_cluster(cluster.name, 1).sized(cluster.num_devices) == cluster
    )
    return cluster.name if known else None


def file_of(text: str, folder: Path | None, *, known: bool) -> Path | None:
    """Return the path that `text` is, or None if it is a name; a catalogue name beats a file of that name.

    ORGANISATION/NAME is a file if there is one, and else a name; so is the address of a model on huggingface.co.

    Raises
    ------
    SpecError
        If it is another address.
    """
    if (known and _is_plain_name(text)) or not text.strip() or hub_name(text):
        return None
    if _ADDRESS.match(text):
        fix = "Forescale does not use the network: download the file and give its path"
        raise wording.not_found("local file", fix).at(text)
    path = (folder or Path()) / place_of(text)
    if "/" in text:
        named = text.count("/") == 1 and Path(text).suffix not in _SUFFIXES and text[0].isalnum()
        return None if named and not exists(path) else path
    looks = Path(text).suffix in _SUFFIXES
    return path if looks or (not known and exists(path)) else None


OWN_CLUSTER = (
    'write base = "h100" in it and what differs, such as network = "25 GB/s" for each device, or below [device] '
    'memory = "192 GB", bandwidth = "6 TB/s" and flops = "2 PFLOP/s"'
)
"""What a cluster's file may hold."""


@lru_cache(maxsize=256)
def _is_plain_name(text: str) -> bool:
    """Return whether a text cannot be a path or an address: it has no folder, and no suffix of a file."""
    return "/" not in text and Path(text).suffix not in _SUFFIXES


@says_lines
def read_cluster_file(path: str | Path, num_devices: int | None = None) -> Cluster:
    """Return the cluster that a file describes, with `num_devices` devices, by default those it says, or one.

    The file has the fields of `Cluster` (`name` defaults to the file's); quantities may have units. `base`
    names a catalogue cluster whose fields the others replace; what joins the devices of its nodes follows
    `devices_per_node`. `device` is a catalogue name, a file beside this one, or a table of fields that may have a
    `base` of its own; of a new device, nodes and tiers have defaults. A file of one device is a cluster of it. A
    hardware configuration of Primus is read too.

    Raises
    ------
    ReaderError
        If the file is missing or has a syntax error.
    SpecError
        If a field is unknown, missing or impossible.
    """
    from forescale.frameworks.primus.hardware import is_hardware_config

    file = Path(path)
    values = load_mapping(file, hint=OWN_CLUSTER)
    if is_hardware_config(values):
        return _of_hardware_config(values, file).sized(num_devices or 1)
    return build_cluster(values, num_devices, where=str(file), name=file.stem, folder=file.parent)


def _of_hardware_config(values: Mapping[str, Any], file: Path) -> Cluster:
    """Return the cluster of a Primus hardware configuration: over its `base`, or the one its name says."""
    from forescale.frameworks.primus.hardware import build_hardware_config

    base = values.get("base", file.stem.lower())
    if not is_cluster_name(base):
        fix = "add `base: NAME` of a catalogue cluster, or give --cluster NAME --hardware-config FILE"
        raise wording.required_with("its device", "a hardware configuration", fix=fix).at(file)
    config = build_hardware_config(values, where=file.name)
    return config.applied(load_cluster(base, 1))


def build_cluster(
    values: Mapping[str, Any],
    num_devices: int | None,
    *,
    where: str,
    name: str | None,
    folder: Path | None = None,
) -> Cluster:
    """Return the cluster that a table describes (see `read_cluster_file`); `name` is its file's, None without one."""
    from forescale.io.machine import cluster_fields

    if values.get("base") is None:
        _refuse_name_alone(values, Cluster, cluster_names(), where)
    entry = cluster_fields(values, where=where, name=name, folder=folder).values
    value = entry.setdefault("num_devices", num_devices or 1)
    if num_devices not in (None, value):
        raise wording.differs(
            "its number of devices", value, "the number asked for", num_devices, "leave one of them out"
        ).at(where)
    cluster = build(Cluster, entry, where=where)
    algorithms = [tier.parameters.algorithms or () for tier in cluster.tiers if tier.parameters is not None]
    for algorithm in chain.from_iterable(algorithms):
        if algorithm not in ALGORITHM_NAMES:
            raise UnknownNameError("collective algorithm", algorithm, ALGORITHM_NAMES)
    return cluster


def cluster_notes(value: object, where: str, folder: Path | None = None) -> tuple[Note, ...]:
    """Return what a short name of a cluster means, or which defaults a file or table of one has."""
    name, place = None, folder
    file = None if not isinstance(value, str) else file_of(value, folder, known=is_cluster_name(value))
    if isinstance(value, str) and file is None:
        return _cluster_said(meaning_of(value))
    from forescale.frameworks.primus.hardware import is_hardware_config
    from forescale.io.machine import cluster_fields

    if file is not None:
        value, name, place = load_mapping(file), file.stem, file.parent
        if is_hardware_config(value):
            return ()
    if not isinstance(value, Mapping):
        return ()
    result = cluster_fields(value, where=where, name=name, folder=place)
    cluster = build_cluster(value, None, where=where, name=name, folder=place)
    stated = result.stated(cluster)
    defaults = (Note(topic="hardware", text=stated),) if stated else ()
    base = value.get("base")
    return (*defaults, *_cluster_said(meaning_within(cluster, base) if isinstance(base, str) else ""))


def _cluster_said(text: str) -> tuple[Note, ...]:
    return (Note(topic="cluster", text=text),) if text else ()


def _refuse_name_alone(
    values: Mapping[str, Any], kind: type[Model | Cluster], known: Sequence[str], where: str
) -> None:
    """Refuse a table that names an entry of the catalogue as if the name brought its fields."""
    name = values.get("name")
    if name in known and set(required(kind)) - values.keys() - {"num_devices"}:
        fix = f"name only names it; base = {name!r} copies the fields of the catalogue's"
        raise wording.incomplete("fields", "the table", fix).at(where)
