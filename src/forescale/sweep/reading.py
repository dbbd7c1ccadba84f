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

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from forescale.errors import SpecError, UnknownKeyError
from forescale.files import read_text
from forescale.io.files import parse_mapping, parse_toml
from forescale.io.named import cluster_of, model_of
from forescale.io.plan import with_overrides
from forescale.limits import SWEPT, within
from forescale.spec import Cluster
from forescale.sweep.axes import Axes, Axis, Case, Range, Setting, plain
from forescale.sweep.base import PRICE, read_base, read_max_memory, read_objective, read_price
from forescale.sweep.columns import column_names
from forescale.sweep.definition import Impossible, Plot, Sweep
from forescale.sweep.parameters import CLUSTER, DEVICES, MODEL, NODES, parameter, parameters
from forescale.sweep.plots import PLOT_KEYS, plot_of
from forescale.sweep.source import Source
from forescale.sweep.values import POINTS, RANGE_KEYS, axis_of, value_of

SECTIONS = (
    "name", "model", "cluster", "devices", "nodes", "scaling", "workload", "precision", "cost", "space",
    "search", "vary", "case", "sample", "plot",
)  # fmt: skip
SEARCH_KEYS = ("objective", "max_memory", PRICE)
SAMPLE_KEYS = ("points", "seed")
_TABLES = ("workload", "precision", "cost", "space", "search", "vary", "sample")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reader:
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
                    where = self.source.at("vary", *axis.name.split("."))
                    msg = f"{where}: {axis.name} = {plain(value)!r}: {first.problem}"
                    raise SpecError(msg)
        first = questions[0]
        if isinstance(first, Impossible) and all(isinstance(one, Impossible) for one in questions):
            msg = f"{self.source.where}: no point of the sweep can be; the first: {first.problem}"
            raise SpecError(msg)

    def _check_sections(self) -> None:
        for key, value in self.source.values.items():
            if key not in SECTIONS:
                raise UnknownKeyError(key, self.source.at(key), SECTIONS)
            if key in _TABLES and not isinstance(value, Mapping):
                msg = f"{self.source.at(key)}: {key} must be a table ([{key}]), got {value!r}"
                raise SpecError(msg)
            tables = isinstance(value, list) and all(isinstance(item, Mapping) for item in value)
            if key in _LISTS and not tables:
                msg = f"{self.source.at(key)}: {key} must be tables, each under [[{key}]], got {value!r}"
                raise SpecError(msg)
        for section, known in (("search", SEARCH_KEYS), ("sample", SAMPLE_KEYS)):
            for key in self.source.values.get(section, {}):
                if key not in known:
                    raise UnknownKeyError(key, f"{self.source.at(section, key)}, {section}", known)
        if not self.source.values.get("vary") and not self.source.values.get("case"):
            msg = f"{self.source.where}: a sweep varies something: give [vary] or [[case]]"
            raise SpecError(msg)

    def _named(self, key: str) -> Iterator[tuple[tuple[str | int, ...], str]]:
        """Return the models or clusters that are varied, each with its place in the file."""
        given = self.source.values.get("vary", {}).get(key, [])
        below = isinstance(given, Mapping)  # as in cluster.tiers.nvlink.bandwidth
        for name in given if isinstance(given, list) else [] if below else [given]:
            yield ("vary", key), str(name)
        for index, case in enumerate(self.source.values.get("case", [])):
            if key in case and not isinstance(case[key], Mapping):
                yield ("case", index, key), str(case[key])

    def _tiers(self, clusters: Mapping[str, Cluster]) -> tuple[str, ...]:
        """Return the names of the network tiers of all clusters in play."""
        names = [tier.name for cluster in clusters.values() for tier in cluster.tiers]
        given = self.source.values.get("cluster")
        if isinstance(given, str):
            base = self.source.load(lambda: cluster_of(given, 1, folder=self.source.folder), ("cluster",))
            names += [tier.name for tier in base.tiers]
        elif isinstance(given, Mapping):
            own = given.get("tiers", ())
            names += [str(tier.get("name")) for tier in own if isinstance(tier, Mapping)]
            if isinstance(given.get("base"), str):
                base = self.source.load(lambda: cluster_of(given["base"], 1), ("cluster", "base"))
                names += [tier.name for tier in base.tiers]
        return tuple(dict.fromkeys(names))

    def _axes(self, tiers: tuple[str, ...]) -> Axes:
        grid: list[Axis] = []
        ranges: list[Range] = []
        vary = self.source.values.get("vary", {})
        for name, given in _flat(vary, parameters(tiers)):
            where = self.source.at("vary", *name.split("."))
            found = axis_of(parameter(name, tiers, where=where), given, where=where)
            if isinstance(found, Axis):
                grid.append(found)
            else:
                ranges.append(found)
        sample = self.source.values.get("sample")
        if bool(ranges) != (sample is not None):
            msg = f"{self.source.where}: ranges without steps, such as {{ from = 1, to = 2 }}, go with [sample] points"
            raise SpecError(msg)
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

    def _case(self, index: int, tiers: tuple[str, ...]) -> Case:
        given = dict(self.source.values["case"][index])
        name = given.pop("name", None)
        if not isinstance(name, str) or not name:
            msg = f"{self.source.at('case', index)}: a case needs a name"
            raise SpecError(msg)
        settings: list[Setting] = []
        for key, value in _flat(given, parameters(tiers)):
            where = self.source.at("case", index, *key.split("."))
            kind = parameter(key, tiers, where=where)
            settings.append((kind, value_of(kind, value, where=where)))
        return Case(name=name, settings=tuple(settings))

    def _check_names(self, cases: tuple[Case, ...], varied: list[str]) -> None:
        """Refuse what would be set twice."""
        names = [case.name for case in cases]
        for index, name in enumerate(names):
            if name in names[:index]:
                msg = f"{self.source.at('case', index)}: two cases are called {name!r}"
                raise SpecError(msg)
        in_cases = {kind.name for case in cases for kind, _ in case.settings}
        for name in varied:
            if name in in_cases or varied.count(name) > 1:
                msg = f"{self.source.at('vary', *name.split('.'))}: {name} is varied twice"
                raise SpecError(msg)
        if {DEVICES, NODES} <= {*varied, *in_cases}:
            msg = f"{self.source.where}: devices and nodes say the same thing; vary one of them"
            raise SpecError(msg)

    def _plots(self, names: tuple[str, ...]) -> tuple[Plot, ...]:
        found = []
        for index, given in enumerate(self.source.values.get("plot", [])):
            for key in given:
                if key not in PLOT_KEYS:
                    raise UnknownKeyError(key, f"{self.source.at('plot', index, key)}, plot", PLOT_KEYS)
            found.append(plot_of(given, names, where=self.source.at("plot", index)))
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
