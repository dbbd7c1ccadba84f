"""Plan files: one question (model, cluster, layout, workload) in TOML, read and written.

```toml
model = "llama-3.1-70b"        # catalogue name, Hugging Face config.json, or a table of fields (with `base`)
cluster = "h100-sxm"           # catalogue name, cluster file, or a table of fields (with `base`)
devices = 256                  # or nodes = 32
framework = "torchtitan"       # may be left out: what it does where the rest is silent, NAME or NAME@RELEASE

[strategy]                     # may be left out for a search; data parallel follows from `devices`
tp = 8

[workload]
seq_len = 8192
global_batch_size = 1024

[precision]
compute = "bf16"

[cost]                         # may be left out
compute = "auto"

[space]                        # may be left out: fields of `Space`, what a search may choose
pp = [1, 2, 4]
```

Beside `devices` there may be `objective`, `max_memory` and `safe`, the limits of a search. A framework completes
`[strategy]`; where that is left out and there is `[space.base]`, what a search starts from, it completes this.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, get_args

from annotated_types import Gt, Le

from forescale.catalogue.frameworks import load_framework
from forescale.cost.select import ComputeKind
from forescale.errors import ReaderError, SpecError, UnknownKeyError, UnknownNameError, shown
from forescale.files import check_plain, place_of
from forescale.io.named import build_cluster, cluster_of, model_of, named_cluster, named_model
from forescale.io.validation import build
from forescale.limits import AMOUNT, DEVICES, within
from forescale.question import Objective
from forescale.spec import Cluster, Model, Strategy, Workload
from forescale.spec.constraints import Constraint
from forescale.spec.framework import Framework, laid_over, rule_of, told_of
from forescale.spec.space import Space
from forescale.spec.workload import Precision
from forescale.syntax import deep_merge, dump_toml, load_mapping
from forescale.units import parse
from forescale.written import write_text

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SECTIONS = (
    "model",
    "cluster",
    "hardware_config",
    "devices",
    "nodes",
    "framework",
    "preset",
    "strategy",
    "workload",
    "precision",
    "cost",
    "space",
    "objective",
    "max_memory",
    "safe",
)
_TABLES = ("strategy", "workload", "precision", "cost", "space")
_UNCHANGED = "default"
"""What stands in a file for None among the values of a dimension: as the question, or the base layout, has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPlan:
    """The section `[cost]` of a plan file."""

    compute: ComputeKind = "auto"
    """Model of kernels: roofline, tile, measured; auto looks up what was measured, and leaves the rest to the model
    that the calibration was fitted with."""
    device_clock_mhz: Annotated[float, Gt(0), Le(10_000)] | None = None
    """Clock to predict for; the device's own where it is not given."""
    calibration: str | None = None
    """What was fitted to one's own runs, kernels and collectives, as `calibrate` writes it; the packaged fits to
    published ones where it is not given."""
    measurements: tuple[str, ...] = ()
    """Files of timed kernels and collectives: bench artifacts, kernel tables, output of nccl-tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One question, complete: what is trained on what, and how it is laid out."""

    model: Model
    cluster: Cluster
    workload: Workload
    strategy: Strategy | None = None
    """None leaves the layout to a search."""
    framework: Framework | None = None
    """What it is trained with; strategy and workload have its defaults already."""
    preset: str = "default"
    cost: CostPlan = field(default_factory=CostPlan)
    """Names and files of the cost models; `read_costs` of io/measurements reads them."""
    space: Space = field(default_factory=Space)
    """What a search may choose."""
    objective: Objective = "step_time"
    max_memory: float | None = None
    """Bytes per device that a layout may need."""
    safe: bool = False


def read_plan(path: str | Path, *, overrides: Iterable[str] = ()) -> Plan:
    """Return the plan that a TOML file holds, after `overrides` such as "strategy.tp=4".

    Raises
    ------
    ReaderError
        If the file is missing or is not TOML; the message says the line.
    SpecError
        If anything in it is unknown, missing, of the wrong type or impossible.
    """
    file = Path(path)
    return build_plan(with_overrides(read_plan_values(file), overrides), where=str(file), folder=file.parent)


def read_plan_values(path: str | Path) -> dict[str, Any]:
    """Return a plan file's values as they are written, unchecked."""
    file = Path(path)
    if file.suffix.lower() != ".toml":
        raise ReaderError(file, "a plan is a TOML file, with the suffix .toml")
    return load_mapping(file)


def with_overrides(values: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Return `values` with each `a.b=c` of `overrides` laid over them, later ones over earlier ones.

    The right side is read as TOML (8, true, [4, 4], "text"); whatever is not TOML is text. A name on the way,
    as in `cluster.device.hbm_bytes=96 GiB` over `cluster = "h100-sxm"`, becomes the base of a table.
    """
    changed = dict(values)
    for override in overrides:
        path, equals, text = override.partition("=")
        keys = [key.strip() for key in path.split(".")]
        if not equals or not all(keys):
            msg = f"the override {override!r} must look like section.key=value, such as strategy.tp=4"
            raise SpecError(msg)
        _set(changed, keys, _literal(text.strip()), override)
    return changed


def build_plan(values: Mapping[str, Any], *, where: str, folder: Path | None = None) -> Plan:
    """Return the plan that `values` (the sections of a plan file) describe.

    Parameters
    ----------
    values
        Sections by name, as in the module's example; model, cluster, strategy and workload may be specifications too.
    where
        Their origin, for messages.
    folder
        Folder that relative paths in `values` start from; the working directory if None.
    """
    _check_sections(values, where)
    devices = _count(values, "devices", where)
    nodes = _count(values, "nodes", where)
    cluster = _cluster(values["cluster"], where, folder, config=values.get("hardware_config"))
    cluster = _sized(cluster, values["cluster"], devices, nodes, where)
    model = _model(values["model"], where, folder)
    framework = _framework(values.get("framework"), where)
    strategy, space = _told(values.get("strategy")), values.get("space", {})
    workload = {**(_told(values["workload"]) or {})}
    if "precision" in values:
        workload["precision"] = {**workload.get("precision", {}), **values["precision"]}
    if framework is not None:
        searched = strategy is None and isinstance(space.get("base"), Mapping)
        words = space["base"] if searched else strategy or {}
        words, workload = framework.completed(words, workload, model, cluster)
        strategy, space = (None, {**space, "base": words}) if searched else (words, space)
    return Plan(
        model=model,
        cluster=cluster,
        workload=build(Workload, workload, where=f"{where}, workload"),
        strategy=None if strategy is None else build_strategy(strategy, cluster.num_devices, where=where),
        framework=framework,
        preset=str(values.get("preset", "default")),
        cost=build_cost_plan(values.get("cost", {}), where=where, folder=folder),
        space=_space(space, where),
        **_limits(values, where),
    )


def build_strategy(values: Mapping[str, Any], num_devices: int, *, where: str) -> Strategy:
    """Return the layout that `values` describe on `num_devices` devices.

    What is not given of dp_replicate and dp_shard follows from the devices that are left; all of it is
    dp_shard if states are sharded (zero of 1 or more) or experts fold over it, else dp_replicate.
    """
    given = build(Strategy, values, where=f"{where}, strategy")
    fixed = given.tp * given.cp * given.pp
    if "dp_replicate" in values and "dp_shard" in values:
        return given
    shards = given.zero > 0 or given.ep * given.etp > 1
    free = "dp_shard" if "dp_replicate" in values or ("dp_shard" not in values and shards) else "dp_replicate"
    fixed *= given.dp
    if num_devices % fixed:
        below, above = num_devices // fixed * fixed, -(-num_devices // fixed) * fixed
        nearest = f"{below} or {above}" if below else str(above)
        msg = (
            f"{where}, strategy: the number of devices, {num_devices}, is no multiple of the {fixed} that "
            f"tp {given.tp}, cp {given.cp}, pp {given.pp} and the data parallel degree given need; "
            f"the nearest are {nearest}"
        )
        raise SpecError(msg)
    return build(Strategy, {**values, free: num_devices // fixed}, where=f"{where}, strategy")


def write_plan(plan: Plan, path: str | Path) -> None:
    """Write `plan` as a TOML file that `read_plan` turns into an equal plan."""
    write_text(Path(path), dump_toml(plan_values(plan)))


def plan_values(plan: Plan) -> dict[str, Any]:
    """Return `plan` as the plain values of a plan file: names that the catalogue knows, else fields."""
    strategy, workload = _words(plan)
    precision = workload.pop("precision", {})
    values: dict[str, Any] = {
        "model": named_model(plan.model) or asdict(plan.model),
        "cluster": named_cluster(plan.cluster) or asdict(plan.cluster),
        "devices": plan.cluster.num_devices,
    }
    if plan.preset != "default":
        values["preset"] = plan.preset
    if plan.framework is not None:
        values["framework"] = plan.framework.label
    if plan.strategy is not None:
        degrees = {"dp_replicate": plan.strategy.dp_replicate, "dp_shard": plan.strategy.dp_shard}
        values["strategy"] = {**degrees, **strategy}
    if cost := _changed(plan.cost):
        values["cost"] = cost
    limits = {name: getattr(plan, name) for name in _LIMITS if getattr(plan, name) != _LIMITS[name]}
    space = _space_values(plan.space)
    if plan.strategy is None and plan.framework is not None:
        space["base"] = strategy
    return (
        values | limits | {"workload": workload, "precision": precision} | ({"space": space} if space else {})
    )


_LIMITS = MappingProxyType({"objective": "step_time", "max_memory": None, "safe": False})
"""Limits of a question, and what they usually are."""


def _limits(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    found = dict(_LIMITS) | {name: values[name] for name in _LIMITS if name in values}
    if found["objective"] not in get_args(Objective):
        msg = (
            f"{where}: objective must be {' or '.join(get_args(Objective))}, got {shown(found['objective'])}"
        )
        raise SpecError(msg)
    if not isinstance(found["safe"], bool):
        msg = f"{where}: safe must be true or false, got {shown(found['safe'])}"
        raise SpecError(msg)
    if (limit := found["max_memory"]) is not None:
        given = parse(limit, "byte") if isinstance(limit, str) else limit
        found["max_memory"] = within(given, AMOUNT, f"{where}: max_memory", whole=False)
    return found


def _space(values: Mapping[str, Any], where: str) -> Space:
    """Return the space of a plan; rules are named as frameworks have them."""
    given = {
        name: [None if each == _UNCHANGED else each for each in value] if isinstance(value, list) else value
        for name, value in values.items()
    }
    rules = tuple(_rule(str(name)) for name in given.pop("rules", None) or ())
    return replace(build(Space, given, where=f"{where}, space"), rules=rules)


def _space_values(space: Space) -> dict[str, Any]:
    """Return the dimensions of a space that are not as usual."""
    found = _changed(replace(space, rules=()))
    rules = [rule.name for rule in space.rules]
    words = {
        name: [_UNCHANGED if each is None else each for each in value] if isinstance(value, tuple) else value
        for name, value in found.items()
    }
    return words | ({"rules": rules} if rules else {})


def _rule(name: str) -> Constraint:
    framework, _, rule = name.partition(": ")
    found = load_framework(framework).limits
    if found is None or rule not in found.rules:
        kind = "rule"
        raise UnknownNameError(
            kind, name, [] if found is None else [f"{framework}: {each}" for each in found.rules]
        )
    return rule_of(framework, rule, found.rules[rule])


def _words(plan: Plan) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the words of layout and workload that differ from the defaults, and from those of the framework.

    Where there is no layout, they are those of what a search starts from.
    """
    given = plan.space.base if plan.strategy is None else plan.strategy
    strategy, workload = _changed(given), _changed(plan.workload)
    if plan.framework is None:
        return strategy, workload
    layout, run = plan.framework.completed(strategy, workload, plan.model, plan.cluster)
    against = told_of(given, laid_over(Strategy(), layout))
    types = told_of(plan.workload.precision, laid_over(Precision(), run["precision"]))
    return _joined(strategy, against), _joined(workload, {"precision": types} if types else {})


def _told(given: Any) -> Any:  # noqa: ANN401 (a section of a plan)
    """Return the words of a specification; what is none stays as it is."""
    if isinstance(given, Strategy):
        return {"dp_replicate": given.dp_replicate, "dp_shard": given.dp_shard, **_changed(given)}
    return _changed(given) if isinstance(given, Workload) else given


def _joined(words: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    plain = {name: _plain(value) for name, value in more.items()}
    return deep_merge(words, plain)


def _framework(given: object, where: str) -> Framework | None:
    if given is None or isinstance(given, Framework):
        return given
    if not isinstance(given, str):
        msg = f"{where}: framework must be a name, such as torchtitan or nemo@24.07; got {shown(given)}"
        raise SpecError(msg)
    return load_framework(given)


def _check_sections(values: Mapping[str, Any], where: str) -> None:
    for key in values:
        if key not in SECTIONS:
            raise UnknownKeyError(key, where, SECTIONS)
    missing = [key for key in ("model", "cluster", "workload") if key not in values]
    if missing:
        msg = f"{where}: {' and '.join(missing)} must be given"
        raise SpecError(msg)
    for key in _TABLES:
        if key in values and not isinstance(values[key], Mapping | Strategy | Workload):
            msg = f"{where}: {key} must be a table ([{key}]), got {shown(values[key])}"
            raise SpecError(msg)


def _count(values: Mapping[str, Any], key: str, where: str) -> int | None:
    count = values.get(key)
    return None if count is None else within(count, DEVICES, f"{where}: {key}", whole=True)


def _cluster(given: object, where: str, folder: Path | None, *, config: object) -> Cluster:
    """Return the cluster that was given, of any size, with the network of a hardware configuration."""
    if isinstance(given, Cluster):
        cluster = given
    elif isinstance(given, str):
        cluster = cluster_of(given, 1, folder=folder)
    elif isinstance(given, Mapping):
        inside = {key: value for key, value in given.items() if key != "num_devices"}
        cluster = build_cluster(inside, 1, where=f"{where}, cluster", name="cluster")
    else:
        msg = f"{where}: cluster must be a name, a file or a table, got {shown(given)}"
        raise SpecError(msg)
    if config is None:
        return cluster
    if not isinstance(config, str):
        msg = f"{where}: hardware_config must be a file, got {shown(config)}"
        raise SpecError(msg)
    from forescale.frameworks.primus.hardware import read_hardware_config

    return read_hardware_config((folder or Path()) / place_of(config)).applied(cluster)


def _sized(cluster: Cluster, given: object, devices: int | None, nodes: int | None, where: str) -> Cluster:
    """Return the cluster with as many devices as were given in one of the three ways."""
    if isinstance(given, Cluster) and devices is None and nodes is None:
        return cluster
    if isinstance(given, Mapping) and devices is None and nodes is None:
        devices = _count(given, "num_devices", f"{where}, cluster")
    if (devices is None) == (nodes is None):
        msg = f"{where}: exactly one of devices and nodes must be given"
        raise SpecError(msg)
    return cluster.sized(devices if devices is not None else (nodes or 0) * cluster.devices_per_node)


def _model(given: object, where: str, folder: Path | None) -> Model:
    if isinstance(given, Model):
        return given
    if isinstance(given, str):
        return model_of(given, folder=folder)
    if not isinstance(given, Mapping):
        msg = f"{where}: model must be a name, a file or a table, got {shown(given)}"
        raise SpecError(msg)
    values = dict(given)
    base = values.pop("base", None)
    if base is not None:
        base_model = model_of(str(base), folder=folder)
        values = {field.name: getattr(base_model, field.name) for field in fields(Model)} | values
    return build(Model, values, where=f"{where}, model")


def _set(values: dict[str, Any], keys: list[str], value: object, override: str) -> None:
    """Put `value` at the path `keys`, making copies and tables on the way."""
    place = values
    for key in keys[:-1]:
        below = place.get(key, {})
        if isinstance(below, str) and key in ("model", "cluster", "device"):
            below = {"base": below}
        if not isinstance(below, Mapping):
            msg = f"the override {override!r} goes through {key!r}, which holds {shown(below)} and no table"
            raise SpecError(msg)
        place[key] = dict(below)
        place = place[key]
    place[keys[-1]] = value


def _literal(text: str) -> object:
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text
    check_plain(value, "--set")
    return value


def _changed(spec: DataclassInstance) -> dict[str, Any]:
    """Return the fields of `spec` that differ from their defaults, dataclasses as tables."""
    default = Workload(seq_len=1, global_batch_size=1) if isinstance(spec, Workload) else type(spec)()
    found = {}
    for item in fields(spec):
        value, usual = getattr(spec, item.name), getattr(default, item.name)
        always = isinstance(spec, Workload) and item.name in ("seq_len", "global_batch_size")
        if value != usual or always:
            found[item.name] = _plain(value)
    return found


def _plain(value: object) -> object:
    """Return a value of a plan with its dataclasses as tables."""
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in value)
    nested = is_dataclass(value) and not isinstance(value, type)
    return _changed(value) if nested else value  # type: ignore[arg-type]


def build_cost_plan(values: object, *, where: str, folder: Path | None) -> CostPlan:
    """Return the section that plain values describe; paths in it start from `folder`."""
    if not isinstance(values, Mapping):
        msg = f"{where}: cost must be a table ([cost]), got {values!r}"
        raise SpecError(msg)
    given: dict[str, Any] = dict(values)
    if isinstance(given.get("measurements"), str):
        given["measurements"] = [given["measurements"]]
    plan = build(CostPlan, given, where=f"{where}, cost")
    start = folder or Path()
    return CostPlan(
        compute=plan.compute,
        device_clock_mhz=plan.device_clock_mhz,
        calibration=None if plan.calibration is None else _path(plan.calibration, start),
        measurements=tuple(_path(text, start) for text in plan.measurements),
    )


def _path(text: str, folder: Path) -> str:
    return str(folder / place_of(text))
