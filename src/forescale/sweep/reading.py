"""Sweep files: a base question, what is varied about it, and the pictures wanted, in TOML.

```toml
model = "llama-3.1-405b"
cluster = "h100-sxm"
devices = 1024

[workload]
seq_len = 8192
global_batch_size = 2048

[space]                                  # what the search of each point may choose from
cp = 1

[vary]
devices = [512, 1024, 2048]              # a grid
hbm_capacity = ["x1", "x1.5", "x2"]      # factors of what the device has
nic_bandwidth = { from = "25 GB/s", to = "400 GB/s" }   # sampled

[sample]
points = 64
seed = 1
```
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from forescale import wording
from forescale.cost.select import Costs
from forescale.errors import ForescaleError, SpecError, UnknownKeyError, UnknownNameError
from forescale.files import read_text
from forescale.io.merge import with_overrides
from forescale.io.named import cluster_of, model_of
from forescale.io.question import build_question
from forescale.io.space import held_space
from forescale.limits import SWEPT, Interval, within
from forescale.positions import line_of, located, with_line
from forescale.question import Objective
from forescale.spec import Cluster
from forescale.spec.cluster import WAN
from forescale.spec.space import Space
from forescale.struct import Struct
from forescale.sweep.definition import (
    POINTS,
    RANGE_KEYS,
    AskedPoint,
    Assignment,
    Axes,
    GridAxis,
    Plot,
    Range,
    Sweep,
    SweepCase,
    axis_of,
    factor_of,
    in_column,
    value_of,
    words_of,
)
from forescale.sweep.parameters import (
    CLUSTER,
    DEVICES,
    MODEL,
    NODES,
    SCALING,
    Draft,
    TimesFactor,
    parameter,
    parameters,
)
from forescale.sweep.result import column_names
from forescale.syntax import parse_mapping, parse_toml
from forescale.units import parse

T = TypeVar("T")


class Source(Struct, frozen=True, kw_only=True):
    """The content of a sweep file."""

    values: Mapping[str, Any]
    where: str
    """Its name, for messages."""
    folder: Path | None
    """Folder that relative paths start from."""
    text: str
    """What the values were read from, for line numbers."""

    def at(self, *path: str | int) -> str:
        """Return file and line of a key, for messages."""
        line = line_of(self.text, path)
        return self.where if line is None else f"{self.where}, line {line}"

    def section(self, name: str) -> Mapping[str, Any]:
        """Return a table, empty where it is not given."""
        values: Mapping[str, Any] = self.values.get(name, {})
        return values

    def tables(self, name: str) -> list[Mapping[str, Any]]:
        """Return the tables of a list, in order."""
        return list(self.values.get(name, []))

    def load(self, load: Callable[[], T], path: tuple[str | int, ...]) -> T:
        """Return what `load` reads; its errors say where it was asked for."""
        try:
            return load()
        except ForescaleError as error:
            raise SpecError(error).at(self.at(*path)) from error

    def count(self, section: str, key: str, *, least: int, most: int, default: int | None = None) -> int:
        """Return a whole number of a section."""
        value = self.values[section].get(key, default)
        what = f"{self.at(section, key)}: {section}.{key}"
        return within(value, Interval(ge=least, le=most), what, whole=True)  # type: ignore[no-any-return]


PRICE = "price_per_device_hour"
_PLAN_SECTIONS = (
    "model",
    "cluster",
    "devices",
    "nodes",
    "sites",
    "preset",
    "preset_options",
    "workload",
    "precision",
    "operations",
    "cost",
)


def read_base(source: Source, axes: Axes) -> tuple[Draft, Costs]:
    """Return the question that points start from, and the cost models that price all of them."""
    values = _plan_values(source, axes)
    _refuse_measurements(source)
    try:
        base = build_question(values, where=source.where, folder=source.folder)
    except SpecError as error:
        with_line(error, source.where, source.text, suffix=".toml")
        raise
    draft = Draft(
        model=base.model,
        num_devices=base.cluster.num_devices,
        preset=base.preset,
        preset_options=base.preset_options,
    )
    draft.place(base.cluster)
    draft.base_devices = base.cluster.num_devices
    draft.num_nodes = values.get("nodes")
    draft.workload, draft.operations = asdict(base.workload), asdict(base.operations)
    if SCALING in source.values:
        scaling, value = _setting(source, SCALING, source.values[SCALING], (SCALING,))
        source.load(lambda: scaling.apply(draft, value), (SCALING,))
    draft.held = {name: words_of(item) for name, item in source.section("space").items()}
    for name, item in draft.held.items():
        held_space(Space(), {name: item}, base.model, where=f"{source.at('space', name)}, space")
    return draft, base.costs


def read_price(source: Source) -> tuple[Assignment, ...]:
    """Return the price of a device and hour, where the file says one."""
    price = source.section("search").get(PRICE)
    if price is None:
        return ()
    kind, value = _setting(source, PRICE, price, ("search", PRICE))
    if isinstance(value, (int, float)) and value < 0:
        raise wording.out_of_range(PRICE, price, "0 or more").at(source.at("search", PRICE))
    return ((kind, value),)


def read_objective(source: Source) -> Objective:
    """Return what a search minimises."""
    objective = source.section("search").get("objective", "step_time")
    if objective not in ("step_time", "peak_memory"):
        where = source.at("search", "objective")
        raise wording.not_one_of("objective", objective, ("step_time", "peak_memory")).at(where)
    return cast("Objective", objective)


def read_max_memory(source: Source) -> float | TimesFactor | None:
    """Return the bytes that a layout may need, or their share of the capacity."""
    max_memory = source.section("search").get("max_memory")
    if max_memory is None:
        return None
    where = source.at("search", "max_memory")
    try:
        factor = factor_of(max_memory) or parse(max_memory, "byte")
    except (SpecError, TypeError) as error:
        allowed = "a size such as '70 GiB' or a factor of the capacity such as 'x0.9'"
        raise wording.wrong_type("max_memory", max_memory, allowed).at(where) from error
    if (factor.by if isinstance(factor, TimesFactor) else factor) <= 0.0:
        raise wording.out_of_range("max_memory", max_memory, "greater than 0").at(where)
    return factor


def _plan_values(source: Source, axes: Axes) -> dict[str, Any]:
    """Return the base as a plan file; what is only varied has its first value there."""
    values = {key: deepcopy(source.values[key]) for key in _PLAN_SECTIONS if key in source.values}
    values.setdefault("workload", {})
    first = _first_values(axes)
    sized = "devices" in values or "nodes" in values or _sized(values.get("cluster"))
    for name in (MODEL, CLUSTER, *(() if sized else (DEVICES, NODES))):
        if name in first:
            values.setdefault(name, first[name])
    for name in ("seq_len", "global_batch_size"):
        for spelt in (name, f"workload.{name}"):
            if spelt in first:
                values["workload"].setdefault(name, first[spelt])
    return values


def _refuse_measurements(source: Source) -> None:
    cost = source.values.get("cost")
    if isinstance(cost, Mapping) and cost.get("measurements"):
        where = source.at("cost", "measurements")
        reason = "they are of one device, and a sweep changes it"
        raise wording.no_effect("measurements", reason, "leave them out of [cost]").at(where)


def _setting(source: Source, name: str, value: object, path: tuple[str, ...]) -> Assignment:
    where = source.at(*path)
    kind = parameter(name, (), where=where)
    return kind, value_of(kind, value, where=where)


def _first_values(axes: Axes) -> dict[str, Any]:
    """Return the first value of everything that is set, for the question that points start from."""
    settings = [setting for case in axes.cases[:1] for setting in case.settings]
    settings += [(axis.parameter, axis.values[0]) for axis in axes.grid]
    settings += [(item.parameter, item.at(0.0)) for item in axes.ranges]
    return {kind.name: value for kind, value in settings if not isinstance(value, TimesFactor)}


def _sized(cluster: object) -> bool:
    return isinstance(cluster, Mapping) and "num_devices" in cluster


KINDS: Mapping[str, tuple[str, ...]] = {
    "scaling": ("by", "title"),
    "line": ("x", "y", "by", "title"),
    "bars": ("x", "title"),
    "map": ("x", "y", "value", "title"),
}
"""Kinds of pictures and the keys that each takes."""
PLOT_KEYS = ("kind", "x", "y", "value", "by", "title")


def plot_of(values: Mapping[str, Any], columns: Collection[str], *, where: str) -> Plot:
    """Return one picture.

    Raises
    ------
    SpecError
        If it asks for a column that the sweep does not have, or lacks one that its kind needs.
    """
    kind = str(values.get("kind"))
    if kind not in KINDS:
        raise wording.not_one_of("a plot's kind", kind, KINDS).at(where)
    for key, value in values.items():
        if key != "kind" and key not in KINDS[kind]:
            raise UnknownKeyError(key, f"{where}, plot of kind {kind}", KINDS[kind])
        if not isinstance(value, str):
            raise wording.wrong_type(f"{key} of a plot", value, "the name of a column").at(where)
        if key in ("x", "y", "value", "by") and value not in columns:
            raise UnknownNameError(f"column ({where}, {key} of plot)", value, columns)
    needed = [key for key in ("x", "y") if key in KINDS[kind] and key not in values]
    if needed:
        raise wording.required_with(needed, f"a plot of kind {kind}").at(where)
    return Plot(**values)


def parse_plot(text: str, columns: Collection[str]) -> Plot:
    """Return the picture that `--plot` asks for: "map:x=hbm_capacity,y=nic_bandwidth,value=mfu"."""
    kind, _, rest = text.partition(":")
    texts: dict[str, str] = {"kind": kind.strip()}
    for part in filter(None, (piece.strip() for piece in rest.split(","))):
        key, equals, value = part.partition("=")
        if not equals or not value.strip():
            allowed = "KIND:KEY=COLUMN,KEY=COLUMN, such as line:x=devices,y=mfu"
            raise wording.wrong_type("--plot", text, allowed)
        texts[key.strip()] = value.strip()
    return plot_of(texts, columns, where=f"--plot {text}")


SECTIONS = (
    "name", "model", "cluster", "devices", "nodes", "sites", "preset", "preset_options", "scaling", "workload",
    "precision", "operations", "cost", "space", "search", "vary", "case", "sample", "plot",
)  # fmt: skip
SEARCH_KEYS = ("objective", "max_memory", PRICE)
SAMPLE_KEYS = ("points", "seed")
_TABLES = (
    "sites",
    "preset_options",
    "workload",
    "precision",
    "operations",
    "cost",
    "space",
    "search",
    "vary",
    "sample",
)
_LISTS = ("case", "plot")


def read_sweep(path: str | Path, *, overrides: Iterable[str] = ()) -> Sweep:
    """Return the sweep that a TOML file describes, after `overrides` such as "devices=512".

    Raises
    ------
    ReaderError
        If the file is missing or is not TOML; the message says the line.
    SpecError
        If anything in it is unknown, missing or impossible; the message says file, line and key.
    """
    file = Path(path)
    text = read_text(file)
    with located(file):
        values = with_overrides(parse_mapping(text, file, parse_toml), overrides)
    return build_sweep(values, where=str(file), folder=file.parent, text=text)


def build_sweep(
    values: Mapping[str, Any], *, where: str = "sweep", folder: Path | None = None, text: str = ""
) -> Sweep:
    """Return the sweep that `values` (the content of a sweep file) describe.

    Parameters
    ----------
    where
        Their origin, for messages.
    folder
        Folder that relative paths in `values` start from; the working directory if None.
    text
        The text that they were read from, for line numbers in messages.
    """
    return _Reader(source=Source(values=values, where=where, folder=folder, text=text)).sweep()


class _Reader(Struct, frozen=True, kw_only=True):
    """One sweep file being read."""

    source: Source

    def sweep(self) -> Sweep:
        """Return the sweep."""
        self._check_sections()
        source, folder = self.source, self.source.folder
        models = {
            name: source.load(partial(model_of, name, folder=folder), path)
            for path, name in self._named(MODEL)
        }
        clusters = {
            name: source.load(partial(cluster_of, name, 1, folder=folder), path)
            for path, name in self._named(CLUSTER)
        }
        tiers = self._tiers(clusters)
        axes = self._axes(tiers)
        base, costs = read_base(source, axes)
        sweep = Sweep(
            where=source.where,
            name=str(source.values.get("name", Path(source.where).stem)),
            base=base,
            always=read_price(source),
            costs=costs,
            axes=axes,
            models=models,
            clusters=clusters,
            objective=read_objective(source),
            max_memory=read_max_memory(source),
            plots=self._plots(column_names(axes)),
            content={key: value for key, value in source.values.items() if key not in ("plot", "name")},
        )
        self._check_points(sweep)
        return sweep

    def _check_points(self, sweep: Sweep) -> None:
        """Refuse words that no point can have, such as a data type that does not exist, and sweeps of nothing."""
        points, question = sweep.axes.points(), sweep.asked
        for axis in sweep.axes.grid:
            for value in axis.values if axis.parameter.kind == "text" else ():
                setting = (axis.parameter, value)
                have = [one for point, one in zip(points, question, strict=True) if setting in point.settings]
                where = self.source.at("vary", *axis.name.split("."))
                _refuse_all(have, f"{where}: {axis.name} = {in_column(value)!r}: ")
        _refuse_all(question, f"{self.source.where}: no point of the sweep can be; the first: ")

    def _check_sections(self) -> None:
        for key, value in self.source.values.items():
            if key not in SECTIONS:
                raise UnknownKeyError(key, self.source.at(key), SECTIONS)
            if key in _TABLES and not isinstance(value, Mapping):
                raise wording.wrong_type(key, value, f"a table ([{key}])").at(self.source.at(key))
            tables = isinstance(value, list) and all(isinstance(item, Mapping) for item in value)
            if key in _LISTS and not tables:
                raise wording.wrong_type(key, value, f"tables, each under [[{key}]]").at(self.source.at(key))
        for section, known in (("search", SEARCH_KEYS), ("sample", SAMPLE_KEYS)):
            for key in self.source.values.get(section, {}):
                if key not in known:
                    raise UnknownKeyError(key, f"{self.source.at(section, key)}, {section}", known)
        if not self.source.values.get("vary") and not self.source.values.get("case"):
            raise wording.missing("[vary] or [[case]]").at(self.source.where)

    def _named(self, key: str) -> Iterator[tuple[tuple[str | int, ...], str]]:
        """Return the models or clusters that are varied, each with its place in the file."""
        value = self.source.values.get("vary", {}).get(key, [])
        below = isinstance(value, Mapping)  # as in cluster.tiers.nvlink.bandwidth
        for name in value if isinstance(value, list) else [] if below else [value]:
            yield ("vary", key), str(name)
        for index, case in enumerate(self.source.values.get("case", [])):
            if key in case and not isinstance(case[key], Mapping):
                yield ("case", index, key), str(case[key])

    def _tiers(self, clusters: Mapping[str, Cluster]) -> tuple[str, ...]:
        """Return the names of the network tiers of all clusters in play."""
        names = [tier.name for cluster in clusters.values() for tier in cluster.tiers]
        names += [WAN] if "sites" in self.source.values else []
        value = self.source.values.get("cluster")
        if isinstance(value, str):
            base = self.source.load(lambda: cluster_of(value, folder=self.source.folder), ("cluster",))
            names += [tier.name for tier in base.tiers]
        elif isinstance(value, Mapping):
            tiers = value.get("tiers", ())
            names += [str(tier.get("name")) for tier in tiers if isinstance(tier, Mapping)]
            if isinstance(value.get("base"), str):
                base = self.source.load(lambda: cluster_of(value["base"]), ("cluster", "base"))
                names += [tier.name for tier in base.tiers]
        return tuple(dict.fromkeys(names))

    def _axes(self, tiers: tuple[str, ...]) -> Axes:
        grid: list[GridAxis] = []
        ranges: list[Range] = []
        vary = self.source.values.get("vary", {})
        for name, value in _flat(vary, parameters(tiers)):
            where = self.source.at("vary", *name.split("."))
            result = axis_of(parameter(name, tiers, where=where), value, where=where)
            if isinstance(result, GridAxis):
                grid.append(result)
            else:
                ranges.append(result)
        sample = self.source.values.get("sample")
        if bool(ranges) != (sample is not None):
            other = "a range without steps, such as { from = 1, to = 2 }"
            raise wording.required_with("[sample] points", other).at(self.source.where)
        cases = tuple(self._case(index, tiers) for index in range(len(self.source.values.get("case", []))))
        self._check_names(cases, [*(axis.name for axis in grid), *(item.name for item in ranges)])
        axes = Axes(
            cases=cases,
            grid=tuple(grid),
            ranges=tuple(ranges),
            num_samples=1 if sample is None else self.source.count("sample", "points", least=1, most=POINTS),
            seed=0 if sample is None else self.source.count("sample", "seed", least=0, most=2**32, default=0),
        )
        within(axes.num_points, SWEPT, f"{self.source.where}: the number of points")
        return axes

    def _case(self, index: int, tiers: tuple[str, ...]) -> SweepCase:
        values = dict(self.source.values["case"][index])
        name = values.pop("name", None)
        if not isinstance(name, str) or not name:
            raise wording.required_with("a name", "a case").at(self.source.at("case", index))
        settings: list[Assignment] = []
        for key, value in _flat(values, parameters(tiers)):
            where = self.source.at("case", index, *key.split("."))
            kind = parameter(key, tiers, where=where)
            settings.append((kind, value_of(kind, value, where=where)))
        return SweepCase(name=name, settings=tuple(settings))

    def _check_names(self, cases: tuple[SweepCase, ...], varied: list[str]) -> None:
        """Refuse what would be set twice."""
        names = [case.name for case in cases]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise wording.given_twice(f"the case {name!r}").at(self.source.at("case", index))
        in_cases = {kind.name for case in cases for kind, _ in case.settings}
        for name in varied:
            if name in in_cases or varied.count(name) > 1:
                raise wording.given_twice(name).at(self.source.at("vary", *name.split(".")))
        if {DEVICES, NODES} <= {*varied, *in_cases}:
            raise wording.conflicts(["devices", "nodes"], fix="vary one of them").at(self.source.where)

    def _plots(self, names: tuple[str, ...]) -> tuple[Plot, ...]:
        result = []
        for index, item in enumerate(self.source.values.get("plot", [])):
            for key in item:
                if key not in PLOT_KEYS:
                    raise UnknownKeyError(key, f"{self.source.at('plot', index, key)}, plot", PLOT_KEYS)
            result.append(plot_of(item, names, where=self.source.at("plot", index)))
        return tuple(result)


def _refuse_all(asked_points: Sequence[AskedPoint], what: str) -> None:
    """Refuse points none of which can be."""
    if all(one.question is None for one in asked_points):
        raise SpecError(what + asked_points[0].problem)


def _flat(table: Mapping[str, Any], known: Collection[str], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Return the entries of a table with dotted names: `a.b = 1` is a table within a table to TOML."""
    for key, value in table.items():
        name = f"{prefix}{key}"
        inside = any(other.startswith(f"{name}.") for other in known)
        is_range = isinstance(value, Mapping) and bool(set(value) & set(RANGE_KEYS))
        if isinstance(value, Mapping) and not is_range and (inside or name not in known):
            yield from _flat(value, known, f"{name}.")
        else:
            yield name, value
