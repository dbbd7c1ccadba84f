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

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from forescale.errors import ForescaleError, SpecError, UnknownKeyError
from forescale.io.files import parse_mapping, parse_toml, read_text
from forescale.io.lines import line_of
from forescale.io.named import cluster_of, model_of
from forescale.io.plan import build_plan, with_overrides
from forescale.io.space import held_space
from forescale.search import Space
from forescale.spec import Cluster, Model
from forescale.sweep.axes import Axes, Axis, Case, Range, Setting, plain
from forescale.sweep.columns import column_names
from forescale.sweep.definition import Impossible, Plot, Sweep
from forescale.sweep.draft import Draft, Factor
from forescale.sweep.parameters import CLUSTER, DEVICES, MODEL, NODES, Parameter, parameter, parameters
from forescale.sweep.plots import PLOT_KEYS, plot_of
from forescale.sweep.values import RANGE_KEYS, axis_of, factor_of, value_of, words_of
from forescale.units import parse

SECTIONS = (
    "name", "model", "cluster", "devices", "nodes", "scaling", "workload", "precision", "space", "search",
    "vary", "case", "sample", "plot",
)  # fmt: skip
SEARCH_KEYS = ("objective", "max_memory", "price_per_device_hour")
SAMPLE_KEYS = ("points", "seed")
_TABLES = ("workload", "precision", "space", "search", "vary", "sample")
_LISTS = ("case", "plot")
_SUBJECT = re.compile(r"unknown key '([\w.]+)'|(?:^|[:;,] )([\w.]+) (?:must be|= )")


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
    return _Reader(values=values, where=where, folder=folder, text=text).sweep()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reader:
    """One sweep file being read."""

    values: Mapping[str, Any]
    where: str
    folder: Path | None
    text: str

    def sweep(self) -> Sweep:
        """Return the sweep."""
        self._check_sections()
        models: dict[str, Model] = {}
        clusters: dict[str, Cluster] = {}
        for path, name in self._named(MODEL):
            models[name] = self._load(lambda name=name: model_of(name, folder=self.folder), path)
        for path, name in self._named(CLUSTER):
            clusters[name] = self._load(lambda name=name: cluster_of(name, 1, folder=self.folder), path)
        tiers = self._tiers(clusters)
        axes = self._axes(tiers)
        base = self._base(axes, tiers)
        sweep = Sweep(
            where=self.where,
            name=str(self.values.get("name", Path(self.where).stem)),
            base=base,
            axes=axes,
            models=models,
            clusters=clusters,
            objective=self._objective(),
            max_memory=self._max_memory(),
            content={key: value for key, value in self.values.items() if key not in ("plot", "name")},
        )
        self._check_points(sweep)
        return replace(sweep, plots=self._plots(sweep))

    def _check_points(self, sweep: Sweep) -> None:
        """Refuse words that no point can have, such as a data type that does not exist, and sweeps of nothing."""
        points, questions = sweep.axes.points(), sweep.questions()
        for axis in sweep.axes.grid:
            for value in axis.values if axis.parameter.kind == "text" else ():
                asked = [
                    question
                    for point, question in zip(points, questions, strict=True)
                    if (axis.parameter, value) in point.settings
                ]
                first = asked[0]
                if isinstance(first, Impossible) and all(isinstance(one, Impossible) for one in asked):
                    where = self.at("vary", *axis.name.split("."))
                    msg = f"{where}: {axis.name} = {plain(value)!r}: {first.problem}"
                    raise SpecError(msg)
        first = questions[0]
        if isinstance(first, Impossible) and all(isinstance(one, Impossible) for one in questions):
            msg = f"{self.where}: no point of the sweep can be; the first: {first.problem}"
            raise SpecError(msg)

    def at(self, *path: str | int) -> str:
        """Return file and line of a key, for messages."""
        line = line_of(self.text, path)
        return self.where if line is None else f"{self.where}, line {line}"

    def _check_sections(self) -> None:
        for key, value in self.values.items():
            if key not in SECTIONS:
                raise UnknownKeyError(key, self.at(key), SECTIONS)
            if key in _TABLES and not isinstance(value, Mapping):
                msg = f"{self.at(key)}: {key} must be a table ([{key}]), got {value!r}"
                raise SpecError(msg)
            tables = isinstance(value, list) and all(isinstance(item, Mapping) for item in value)
            if key in _LISTS and not tables:
                msg = f"{self.at(key)}: {key} must be tables, each under [[{key}]], got {value!r}"
                raise SpecError(msg)
        for section, known in (("search", SEARCH_KEYS), ("sample", SAMPLE_KEYS)):
            for key in self.values.get(section, {}):
                if key not in known:
                    raise UnknownKeyError(key, f"{self.at(section, key)}, {section}", known)
        if not self.values.get("vary") and not self.values.get("case"):
            msg = f"{self.where}: a sweep varies something: give [vary] or [[case]]"
            raise SpecError(msg)

    def _named(self, key: str) -> Iterator[tuple[tuple[str | int, ...], str]]:
        """Return the models or clusters that are varied, each with its place in the file."""
        given = self.values.get("vary", {}).get(key, [])
        below = isinstance(given, Mapping)  # as in cluster.tiers.nvlink.bandwidth
        for name in given if isinstance(given, list) else [] if below else [given]:
            yield ("vary", key), str(name)
        for index, case in enumerate(self.values.get("case", [])):
            if key in case and not isinstance(case[key], Mapping):
                yield ("case", index, key), str(case[key])

    def _load(self, load: Any, path: tuple[str | int, ...]) -> Any:  # noqa: ANN401
        try:
            return load()
        except ForescaleError as error:
            msg = f"{self.at(*path)}: {error}"
            raise SpecError(msg) from error

    def _tiers(self, clusters: Mapping[str, Cluster]) -> tuple[str, ...]:
        """Return the names of the network tiers of all clusters in play."""
        names = [tier.name for cluster in clusters.values() for tier in cluster.tiers]
        given = self.values.get("cluster")
        if isinstance(given, str):
            base = self._load(lambda: cluster_of(given, 1, folder=self.folder), ("cluster",))
            names += [tier.name for tier in base.tiers]
        elif isinstance(given, Mapping):
            own = given.get("tiers", ())
            names += [str(tier.get("name")) for tier in own if isinstance(tier, Mapping)]
            if isinstance(given.get("base"), str):
                base = self._load(lambda: cluster_of(given["base"], 1), ("cluster", "base"))
                names += [tier.name for tier in base.tiers]
        return tuple(dict.fromkeys(names))

    def _axes(self, tiers: tuple[str, ...]) -> Axes:
        grid: list[Axis] = []
        ranges: list[Range] = []
        vary = self.values.get("vary", {})
        for name, given in _flat(vary, parameters(tiers)):
            where = self.at("vary", *name.split("."))
            found = axis_of(parameter(name, tiers, where=where), given, where=where)
            if isinstance(found, Axis):
                grid.append(found)
            else:
                ranges.append(found)
        sample = self.values.get("sample")
        if bool(ranges) != (sample is not None):
            msg = (
                f"{self.where}: ranges without steps, such as {{ from = 1, to = 2 }}, go with [sample] points"
            )
            raise SpecError(msg)
        cases = tuple(self._case(index, tiers) for index in range(len(self.values.get("case", []))))
        self._check_names(cases, [*(axis.name for axis in grid), *(item.name for item in ranges)])
        return Axes(
            cases=cases,
            grid=tuple(grid),
            ranges=tuple(ranges),
            num_samples=1 if sample is None else self._count("sample", "points", least=1),
            seed=0 if sample is None else self._count("sample", "seed", least=0, default=0),
        )

    def _case(self, index: int, tiers: tuple[str, ...]) -> Case:
        given = dict(self.values["case"][index])
        name = given.pop("name", None)
        if not isinstance(name, str) or not name:
            msg = f"{self.at('case', index)}: a case needs a name"
            raise SpecError(msg)
        settings: list[Setting] = []
        for key, value in _flat(given, parameters(tiers)):
            where = self.at("case", index, *key.split("."))
            kind = parameter(key, tiers, where=where)
            settings.append((kind, value_of(kind, value, where=where)))
        return Case(name=name, settings=tuple(settings))

    def _check_names(self, cases: tuple[Case, ...], varied: list[str]) -> None:
        """Refuse what would be set twice."""
        names = [case.name for case in cases]
        for name in names:
            if names.count(name) > 1:
                msg = f"{self.at('case', len(names) - 1 - names[::-1].index(name))}: two cases are called {name!r}"
                raise SpecError(msg)
        in_cases = {kind.name for case in cases for kind, _ in case.settings}
        for name in varied:
            if name in in_cases or varied.count(name) > 1:
                msg = f"{self.at('vary', *name.split('.'))}: {name} is varied twice"
                raise SpecError(msg)
        if {DEVICES, NODES} <= {*varied, *in_cases}:
            msg = f"{self.where}: devices and nodes say the same thing; vary one of them"
            raise SpecError(msg)

    def _count(self, section: str, key: str, *, least: int, default: int | None = None) -> int:
        value = self.values[section].get(key, default)
        if type(value) is not int or value < least:
            msg = f"{self.at(section, key)}: {section}.{key} must be a whole number of {least} or more, got {value!r}"
            raise SpecError(msg)
        return value

    def _base(self, axes: Axes, tiers: tuple[str, ...]) -> Draft:
        """Return the question that points start from; what is only varied has its first value there."""
        wanted = ("model", "cluster", "devices", "nodes", "workload", "precision")
        values = {key: deepcopy(self.values[key]) for key in wanted if key in self.values}
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
        try:
            plan = build_plan(values, where=self.where, folder=self.folder)
        except ForescaleError as error:
            raise self._located(error) from error
        draft = Draft(model=plan.model, num_devices=plan.cluster.num_devices)
        draft.place(plan.cluster)
        draft.base_devices = plan.cluster.num_devices
        draft.num_nodes = values.get("nodes")
        draft.workload = asdict(plan.workload)
        self._set(draft, "scaling", self.values.get("scaling", "strong"), ("scaling",), tiers)
        price = self.values.get("search", {}).get("price_per_device_hour")
        if price is not None:
            name = "price_per_device_hour"
            self._set(draft, name, price, ("search", name), tiers)
        draft.held = {name: words_of(given) for name, given in self.values.get("space", {}).items()}
        self._check_space(draft)
        return draft

    def _set(
        self, draft: Draft, name: str, value: object, path: tuple[str, ...], tiers: tuple[str, ...]
    ) -> None:
        where = self.at(*path)
        kind: Parameter = parameter(name, tiers, where=where)
        try:
            kind.apply(draft, value_of(kind, value, where=where))
        except SpecError as error:
            raise error if str(error).startswith(where) else SpecError(f"{where}: {error}") from error

    def _check_space(self, draft: Draft) -> None:
        assert draft.model is not None
        for name, words in draft.held.items():
            held_space(Space(), {name: words}, draft.model, where=f"{self.at('space', name)}, space")

    def _located(self, error: ForescaleError) -> ForescaleError:
        """Return an error of a section with the line of the key that it is about."""
        name = error.key if isinstance(error, UnknownKeyError) else None
        if name is None:
            match = _SUBJECT.search(str(error).removeprefix(f"{self.where}, ").removeprefix(self.where))
            name = (match[1] or match[2]) if match else None
        if name is None:
            return error
        for section in ("workload", "precision", "cluster", "model"):
            for path in ((section, *name.split(".")), (section, *name.split(".")[1:])):
                line = line_of(self.text, path)
                if len(path) > 1 and line is not None and line != line_of(self.text, path[:-1]):
                    text = str(error).replace(self.where, f"{self.where}, line {line}", 1)
                    return SpecError(text)
        line = line_of(self.text, (name,))
        return (
            error
            if line is None
            else SpecError(str(error).replace(self.where, f"{self.where}, line {line}", 1))
        )

    def _objective(self) -> Any:  # noqa: ANN401 (one of two words)
        given = self.values.get("search", {}).get("objective", "step_time")
        if given not in ("step_time", "peak_memory"):
            msg = (
                f"{self.at('search', 'objective')}: objective must be step_time or peak_memory, got {given!r}"
            )
            raise SpecError(msg)
        return given

    def _max_memory(self) -> float | Factor | None:
        given = self.values.get("search", {}).get("max_memory")
        if given is None:
            return None
        where = self.at("search", "max_memory")
        try:
            found = factor_of(given) or parse(given, "byte")
        except (SpecError, TypeError) as error:
            allowed = "a size such as '70 GiB' or a factor of the capacity such as 'x0.9'"
            msg = f"{where}: max_memory is {allowed}; got {given!r}"
            raise SpecError(msg) from error
        if (found.by if isinstance(found, Factor) else found) <= 0.0:
            msg = f"{where}: max_memory must be greater than 0, got {given!r}"
            raise SpecError(msg)
        return found

    def _plots(self, sweep: Sweep) -> tuple[Plot, ...]:
        found = []
        for index, given in enumerate(self.values.get("plot", [])):
            for key in given:
                if key not in PLOT_KEYS:
                    raise UnknownKeyError(key, f"{self.at('plot', index, key)}, plot", PLOT_KEYS)
            found.append(plot_of(given, column_names(sweep), where=self.at("plot", index)))
        return tuple(found)


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


def _first_values(axes: Axes) -> dict[str, Any]:
    """Return the first value of everything that is set, for the question that points start from."""
    settings = [setting for case in axes.cases[:1] for setting in case.settings]
    settings += [(axis.parameter, axis.values[0]) for axis in axes.grid]
    settings += [(item.parameter, item.at(0.0)) for item in axes.ranges]
    return {kind.name: value for kind, value in settings if not isinstance(value, Factor)}


def _sized(cluster: object) -> bool:
    return isinstance(cluster, Mapping) and "num_devices" in cluster
