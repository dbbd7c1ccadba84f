"""What a sweep may vary: short names and dotted paths, and what each does to a question.

A parameter is set to a value or scaled by a factor. Short names of the machine change what belongs together:
`link_bandwidth` all tiers of the scale-up domain, `nic_bandwidth` all tiers beyond it, in proportion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from types import NoneType
from typing import Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

from forescale import wording
from forescale.catalogue.clusters import DEVICE_DIMENSIONS, TIER_DIMENSIONS
from forescale.errors import UnknownKeyError
from forescale.io.named import build
from forescale.question import PresetOptions
from forescale.spec import Cluster, Device, MatrixRates, Model, Precision, Tier, Workload
from forescale.spec.cluster import LinkParameters
from forescale.spec.operations import SAVING_DIMENSIONS, SPANS, Checkpointing, Operations
from forescale.spec.space import NAMES
from forescale.spec.workload import Outer
from forescale.struct import Struct

Path: TypeAlias = tuple[str | int, ...]
Plain: TypeAlias = int | float | str | bool | tuple[str, ...]
Scaling: TypeAlias = Literal["strong", "weak"]


class TimesFactor(Struct, frozen=True, kw_only=True):
    """Times what it would be otherwise."""

    by: float


Value: TypeAlias = TimesFactor | Plain


@dataclass(slots=True, kw_only=True)
class Draft:
    """What one point asks, open to changes; empty tables where nothing was given yet."""

    model: Model | None = None
    cluster: dict[str, Any] = field(default_factory=dict)
    """Fields of a cluster, its device and tiers as tables."""
    num_devices: int | None = None
    num_nodes: int | None = None
    """Nodes instead of devices: how many devices they are depends on the cluster."""
    base_devices: int | None = None
    """Devices that the batch belongs to under weak scaling."""
    workload: dict[str, Any] = field(default_factory=lambda: {"precision": {}})
    operations: dict[str, Any] = field(default_factory=lambda: {"checkpointing": {}})
    scaling: Scaling = "strong"
    held: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Words of the dimensions of the search that are held."""
    preset: str = "default"
    preset_options: PresetOptions = field(default_factory=PresetOptions)

    def copy(self) -> Draft:
        """Return a draft whose tables are its own."""
        local = {item.name: getattr(self, item.name) for item in fields(self)}
        return Draft(**{**local, **{name: deepcopy(local[name]) for name in TABLES}})

    def place(self, cluster: Cluster) -> None:
        """Ask the question of another cluster."""
        self.cluster = asdict(cluster)

    def at(self, path: Path) -> Any:  # noqa: ANN401 (whatever a specification holds)
        """Return the value at `path`, None where nothing was given."""
        value: Any = self._table(path[0])
        for key in path[1:]:
            value = value.get(key) if isinstance(value, dict) else None if value is None else value[key]
        return value

    def put(self, path: Path, value: object) -> None:
        """Set the value at `path`."""
        place: Any = self._table(path[0])
        for key in path[1:-1]:
            if place[key] is None:  # a table of which nothing was given
                place[key] = {}
            place = place[key]
        place[path[-1]] = value

    def _table(self, name: str | int) -> dict[str, Any]:
        values: dict[str, Any] = getattr(self, str(name))
        return values


TABLES = ("cluster", "workload", "operations")
"""Tables of a draft, in which paths begin."""
Kind: TypeAlias = Literal["whole", "number", "text"]
Paths: TypeAlias = Callable[[Draft], tuple[Path, ...]]
"""Finds the fields that a parameter changes."""
_PLAIN = frozenset({int, float, bool, str, NoneType})
_DELAYS = ("launch", "exchange_launch", "peer_latency")
DEVICES, NODES, MODEL, CLUSTER, SCALING, CASE = "devices", "nodes", "model", "cluster", "scaling", "case"
PRESET, TENSOR_PARALLEL = "preset", "preset_options.tensor_parallel"


class SweepParameter(Struct, frozen=True, kw_only=True):
    """One thing that may differ between the points of a sweep."""

    name: str
    phase: int
    """Parameters of a lower phase are set first: a cluster before its bandwidth."""
    kind: Kind
    apply: Callable[[Draft, Value], None]
    dimension: str | None = None
    """What a value with a unit is measured in."""
    takes_values: bool = True
    """Whether it can be set, not only scaled."""

    @property
    def takes_factors(self) -> bool:
        """Whether it can be scaled."""
        return self.kind != "text"


def parameter(name: str, tiers: Iterable[str], *, where: str) -> SweepParameter:
    """Return the parameter called `name`; `tiers` are the names of network tiers that there are.

    Raises
    ------
    UnknownKeyError
        If there is none; it names the nearest ones.
    """
    known = parameters(tiers)
    for long, short in _LONG_NAMES:
        if name.startswith(long):
            name = short + name.removeprefix(long)
    if name not in known:
        raise UnknownKeyError(name, where, known)
    return known[name]


def parameters(tiers: Iterable[str] = ()) -> dict[str, SweepParameter]:
    """Return everything that may be varied, by name."""
    result = {
        MODEL: SweepParameter(name=MODEL, phase=0, kind="text", apply=_read_before),
        CLUSTER: SweepParameter(name=CLUSTER, phase=0, kind="text", apply=_read_before),
        DEVICES: SweepParameter(name=DEVICES, phase=1, kind="whole", apply=_set_devices),
        NODES: SweepParameter(name=NODES, phase=1, kind="whole", apply=_set_nodes),
        SCALING: SweepParameter(name=SCALING, phase=1, kind="text", apply=_set_scaling),
        PRESET: SweepParameter(name=PRESET, phase=1, kind="text", apply=_set_preset),
        TENSOR_PARALLEL: SweepParameter(
            name=TENSOR_PARALLEL, phase=1, kind="text", apply=_set_tensor_parallel
        ),
    }
    for name, (paths, kind, dimension, phase) in _short_names().items():
        result[name] = _changing(name, paths, kind, dimension, phase)
    for name, (path, kind, dimension) in _places(tiers).items():
        phase = 3 if path[0] == "cluster" else 2
        result[name] = _changing(name, partial(_own, path), kind, dimension, phase)
    for name in NAMES:
        hold = partial(_hold, name)
        result[f"space.{name}"] = SweepParameter(name=f"space.{name}", phase=4, kind="text", apply=hold)
    return result


def scale_up_tier(tiers: Iterable[Mapping[str, Any]], devices_per_node: int) -> int:
    """Return the tier of the scale-up domain: the outermost within a node, else the innermost."""
    within = [index for index, tier in enumerate(tiers) if 0 < tier["size"] <= devices_per_node]
    return max(within, default=0)


def _changing(name: str, paths: Paths, kind: Kind, dimension: str | None, phase: int) -> SweepParameter:
    change = partial(_change, paths, name)
    values = name != "flops"
    return SweepParameter(
        name=name, phase=phase, kind=kind, apply=change, dimension=dimension, takes_values=values
    )


def _short_names() -> dict[str, tuple[Paths, Kind, str | None, int]]:
    """Return the names of what is varied most: fields, kind, dimension and phase of each."""
    speed, delay = ("bandwidth", "link_bandwidth"), ("latency",)
    return {
        "seq_len": (_field("workload", "seq_len"), "whole", "length", 2),
        "global_batch_size": (_field("workload", "global_batch_size"), "whole", None, 2),
        "tokens": (_field("workload", "tokens"), "number", "token", 2),
        "optimizer": (_field("workload", "optimizer"), "text", None, 2),
        "precision": (_field("workload", "precision", "compute"), "text", None, 2),
        "flops": (_rates, "number", "FLOP/s", 3),
        "vector_flops": (_field("cluster", "device", "vector_flops"), "number", "FLOP/s", 3),
        "hbm_capacity": (_field("cluster", "device", "hbm_bytes"), "number", "byte", 3),
        "hbm_bandwidth": (_field("cluster", "device", "hbm_bandwidth"), "number", "byte/s", 3),
        "price_per_device_hour": (_field("cluster", "device", "price_per_hour"), "number", "money/h", 3),
        "domain_size": (_domain, "whole", None, 3),
        "link_bandwidth": (_tiers("link_bandwidth", speed, outer=False), "number", "byte/s", 3),
        "link_latency": (_tiers("link_latency", delay, outer=False), "number", "second", 3),
        "nic_bandwidth": (_tiers("nic_bandwidth", speed, outer=True), "number", "byte/s", 3),
        "nic_latency": (_tiers("nic_latency", delay, outer=True), "number", "second", 3),
    }


_LONG_NAMES = (
    ("cluster.device.", "device."),
    ("workload.precision.", "precision."),
    ("device.matrix_flops.", "flops."),
)


def _places(tiers: Iterable[str]) -> dict[str, tuple[Path, Kind, str | None]]:
    """Return the place of every plain field of a question: path, kind and dimension by dotted name."""
    paths: dict[str, tuple[Path, Kind, str | None]] = {}

    def add(prefix: str, path: Path, owner: type, dimensions: Mapping[str, str], skipped: set[str]) -> None:
        for name, kind in _kinds(owner).items():
            if name not in skipped:
                paths[f"{prefix}.{name}"] = ((*path, name), kind, dimensions.get(name))

    rates = {item.name: "FLOP/s" for item in fields(MatrixRates)}
    add("flops", ("cluster", "device", "matrix_flops"), MatrixRates, rates, set())
    add(
        "device",
        ("cluster", "device"),
        Device,
        DEVICE_DIMENSIONS,
        {"matrix_flops", "reduced_accumulation_flops", "name", "source"},
    )
    add("cluster", ("cluster",), Cluster, {}, {"name", "device", "num_devices", "tiers", "source"})
    for tier in tiers:
        add(f"cluster.tiers.{tier}", ("cluster", "tiers", tier), Tier, TIER_DIMENSIONS, {"name"})
        text, delays = f"cluster.tiers.{tier}.parameters", dict.fromkeys(_DELAYS, "second")
        add(text, ("cluster", "tiers", tier, "parameters"), LinkParameters, delays, set())
    lengths = dict.fromkeys(("seq_len", "document_len"), "length")
    add("workload", ("workload",), Workload, {"tokens": "token", **lengths}, {"precision"})
    add("workload.outer", ("workload", "outer"), Outer, {}, set())
    add("precision", ("workload", "precision"), Precision, {}, set())
    paths["operations.failures"] = (("operations", "failures"), "text", None)
    add("operations", ("operations",), Operations, SPANS, {"failures"})
    saved = ("operations", "checkpointing")
    add("operations.checkpointing", saved, Checkpointing, SAVING_DIMENSIONS, set())
    return paths


def _kinds(owner: type) -> dict[str, Kind]:
    """Return what kind of value each plain field of a specification holds, read from its annotations."""
    kinds: dict[str, Kind] = {}
    for name, hint in get_type_hints(owner).items():
        parts = set(get_args(hint) or (hint,))
        if not all(part in _PLAIN or isinstance(part, str) or get_origin(part) is Literal for part in parts):
            continue
        kinds[name] = "whole" if int in parts else "number" if float in parts else "text"
    return kinds


def _read_before(_: Draft, value: Value) -> None:
    raise AssertionError(f"models and clusters are placed by the sweep that read them; got {value!r}")


def _set_devices(draft: Draft, value: Value) -> None:
    draft.num_devices, draft.num_nodes = _whole(value, draft.num_devices, DEVICES), None


def _set_nodes(draft: Draft, value: Value) -> None:
    draft.num_nodes, draft.num_devices = _whole(value, draft.num_nodes, NODES), None


def _set_scaling(draft: Draft, value: Value) -> None:
    if value not in ("strong", "weak"):
        allowed = "strong (the same batch) or weak (it grows with the devices)"
        raise wording.wrong_type("scaling", value, allowed)
    draft.scaling = "strong" if value == "strong" else "weak"


def _set_preset(draft: Draft, value: Value) -> None:
    draft.preset = str(value)


def _set_tensor_parallel(draft: Draft, value: Value) -> None:
    draft.preset_options = build(
        PresetOptions, {**asdict(draft.preset_options), "tensor_parallel": value}, where="preset_options"
    )


def _hold(dimension: str, draft: Draft, value: Value) -> None:
    parts = value if isinstance(value, tuple) else (str(value).lower(),)
    draft.held = {**draft.held, dimension: parts}


def _change(paths: Paths, name: str, draft: Draft, value: Value) -> None:
    """Set the first of `paths` and keep the others in proportion to it; a factor scales them all."""
    result = paths(draft)
    if not isinstance(value, TimesFactor):
        first = draft.at(result[0])
        draft.put(result[0], value)
        if len(result) == 1:
            return
        assert isinstance(value, int | float)
        value, result = TimesFactor(by=value / first), result[1:]
    for path in result:
        have = draft.at(path)
        if not have:
            reason = f"{name} is {have if have == 0 else 'not given'}"
            raise wording.no_effect(f"{name} = x{value.by:g}", reason)
        draft.put(path, _whole(value, have, name) if isinstance(have, int) else have * value.by)


def _whole(value: Value, have: float | None, name: str) -> int:
    """Return a whole number, given or scaled."""
    if isinstance(value, TimesFactor):
        if have is None:
            raise wording.required_with(name, f"{name} = x{value.by:g}")
        value = value.by * have
    if not isinstance(value, int | float) or value < 1 or not float(value).is_integer():
        raise wording.out_of_range(name, value, "a whole number of 1 or more")
    return int(value)


def _field(*path: str) -> Paths:
    """Return how to find one field."""

    def paths(_: Draft) -> tuple[Path, ...]:
        return (path,)

    return paths


def _own(path: Path, draft: Draft) -> tuple[Path, ...]:
    """Return `path` with the name of a tier turned into its place."""
    if path[:2] != ("cluster", "tiers"):
        return (path,)
    names = [item["name"] for item in draft.cluster["tiers"]]
    if path[2] not in names:
        raise UnknownKeyError(str(path[2]), f"the tiers of {draft.cluster['name']}", names)
    return (("cluster", "tiers", names.index(str(path[2])), *path[3:]),)


def _rates(draft: Draft) -> tuple[Path, ...]:
    rates = draft.cluster["device"]["matrix_flops"]
    return tuple(("cluster", "device", "matrix_flops", kind) for kind, rate in rates.items() if rate)


def _domain(draft: Draft) -> tuple[Path, ...]:
    tiers = draft.cluster["tiers"]
    index = scale_up_tier(tiers, draft.cluster["devices_per_node"])
    if not tiers[index]["size"]:
        raise wording.unsupported_by(
            draft.cluster["name"], "domain_size: it has one network for all devices and no scale-up domain"
        )
    return (("cluster", "tiers", index, "size"),)


def _tiers(name: str, keys: tuple[str, ...], *, outer: bool) -> Paths:
    """Return how to find fields of the tiers of the scale-up domain, or of those beyond it."""

    def paths(draft: Draft) -> tuple[Path, ...]:
        tiers = draft.cluster["tiers"]
        last = scale_up_tier(tiers, draft.cluster["devices_per_node"])
        last -= 0 if tiers[last]["size"] else 1
        selected = range(last + 1, len(tiers)) if outer else range(last, -1, -1)
        if not selected:
            kind = "network beyond its scale-up domain" if outer else "scale-up domain"
            raise wording.incomplete(kind, draft.cluster["name"]).at(name)
        return tuple(
            ("cluster", "tiers", index, key) for index in selected for key in keys if tiers[index][key]
        )

    return paths
