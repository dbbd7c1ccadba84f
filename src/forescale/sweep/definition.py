"""A sweep: one base question, what is varied about it, and the question of every point."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import product
from typing import Any, TypeAlias

import numpy as np

from forescale import wording
from forescale.cost.select import Costs
from forescale.errors import SpecError, UnknownKeyError
from forescale.io.named import build, build_operations
from forescale.io.space import held_space
from forescale.numeric import Array
from forescale.question import Objective, Question
from forescale.spec import Cluster, Model, Workload
from forescale.spec.space import Space
from forescale.struct import Struct
from forescale.sweep.parameters import CASE, CLUSTER, MODEL, Draft, Plain, SweepParameter, TimesFactor, Value
from forescale.units import parse
from forescale.version import __version__

Assignment: TypeAlias = tuple[SweepParameter, Value]


class GridAxis(Struct, frozen=True, kw_only=True):
    """One parameter with its values on a grid."""

    parameter: SweepParameter
    values: tuple[Value, ...]

    @property
    def name(self) -> str:
        """What the axis is called."""
        return self.parameter.name


class Range(Struct, frozen=True, kw_only=True):
    """One parameter between two values; evenly spread, or evenly in its logarithm."""

    parameter: SweepParameter
    low: float
    high: float
    factors: bool
    """Whether the ends are factors."""
    log: bool
    multiple: int = 1
    """Whole numbers are rounded to a multiple of this."""

    @property
    def name(self) -> str:
        """What the range is called."""
        return self.parameter.name

    def at(self, share: float) -> Value:
        """Return the value at `share` of the way, 0 to 1."""
        if share in (0.0, 1.0):
            value = self.high if share else self.low
        elif self.log:
            value = float(np.exp((1.0 - share) * np.log(self.low) + share * np.log(self.high)))
        else:
            value = (1.0 - share) * self.low + share * self.high
        if self.factors:
            return TimesFactor(by=value)
        if self.parameter.kind == "whole":
            return self.multiple * max(1, round(value / self.multiple))
        return value

    def spread(self, steps: int) -> tuple[Value, ...]:
        """Return `steps` values from end to end, each once."""
        return tuple(dict.fromkeys(self.at(step / (steps - 1)) for step in range(steps)))


class SweepCase(Struct, frozen=True, kw_only=True):
    """A named set of parameters that change together."""

    name: str
    settings: tuple[Assignment, ...]


class SweepPoint(Struct, frozen=True, kw_only=True):
    """One question of a sweep."""

    index: int
    settings: tuple[Assignment, ...]
    """What is changed against the base, in the order in which it is applied."""
    shown: tuple[Plain, ...]
    """A value per column of what is varied; factors as numbers."""


class Axes(Struct, frozen=True, kw_only=True):
    """Everything that is varied."""

    cases: tuple[SweepCase, ...] = ()
    grid: tuple[GridAxis, ...] = ()
    ranges: tuple[Range, ...] = ()
    num_samples: int = 1
    """Samples of the ranges at each point of the grid; the same samples everywhere."""
    seed: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """Names of what is varied: cases first, then grids, then ranges."""
        named = [CASE] if self.cases else []
        return (*named, *(axis.name for axis in self.grid), *(item.name for item in self.ranges))

    @property
    def num_points(self) -> int:
        """Number of points."""
        sizes = [len(self.cases) or 1, *(len(axis.values) for axis in self.grid), self.num_samples]
        return math.prod(sizes)

    def points(self) -> tuple[SweepPoint, ...]:
        """Return all points; samples vary fastest, then the last grid, cases slowest."""
        samples = self._samples()
        choices = [[(axis.parameter, value) for value in axis.values] for axis in self.grid]
        sweep_points: list[SweepPoint] = []
        for case in self.cases or (None,):
            for selected in product(*choices):
                for sample in samples:
                    named = () if case is None else (case.name,)
                    shown = (*named, *(in_column(value) for _, value in (*selected, *sample)))
                    settings = (*(case.settings if case else ()), *selected, *sample)
                    ordered = tuple(sorted(settings, key=lambda item: item[0].phase))
                    sweep_points.append(SweepPoint(index=len(sweep_points), settings=ordered, shown=shown))
        return tuple(sweep_points)

    def _samples(self) -> list[tuple[Assignment, ...]]:
        if not self.ranges:
            return [()]
        shares = latin_hypercube(self.num_samples, len(self.ranges), seed=self.seed)
        return [
            tuple(
                (item.parameter, item.at(float(share))) for item, share in zip(self.ranges, row, strict=True)
            )
            for row in shares
        ]


def latin_hypercube(num_points: int, num_dimensions: int, *, seed: int) -> Array:
    """Return points in the unit cube (points, dimensions): one in each of `num_points` slices per dimension.

    McKay, Beckman and Conover 1979, "A Comparison of Three Methods for Selecting Values of Input Variables".
    """
    random = np.random.default_rng(seed)
    slices = [random.permutation(num_points) for _ in range(num_dimensions)]
    within = random.random((num_points, num_dimensions))
    return np.asarray((np.stack(slices, axis=1) + within) / num_points, dtype=np.float64)


def in_column(value: Value) -> Plain:
    """Return a value as a column holds it: factors as numbers, lists as text."""
    if isinstance(value, TimesFactor):
        return value.by
    return "+".join(value) if isinstance(value, tuple) else value


def varies(values: Sequence[Plain]) -> bool:
    """Whether there is more than one value."""
    return len(set(values)) > 1


class AskedPoint(Struct, frozen=True, kw_only=True):
    """What one point asks of the search, complete: all that a worker needs."""

    index: int
    shown: tuple[Any, ...]
    """Values of what is varied."""
    question: Question | None = None
    """None where the point asks for what cannot be."""
    problem: str = ""
    """Why it cannot be."""


class Plot(Struct, frozen=True, kw_only=True):
    """A picture that a sweep file or `--plot` asks for."""

    kind: str
    x: str | None = None
    y: str | None = None
    value: str | None = None
    by: str | None = None
    title: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Many questions that differ in a few parameters."""

    where: str
    """The file that it comes from, for messages."""
    name: str
    base: Draft
    always: tuple[Assignment, ...]
    """What every point sets, whatever else it changes."""
    costs: Costs
    axes: Axes
    models: Mapping[str, Model]
    """Models by the names that are varied."""
    clusters: Mapping[str, Cluster]
    objective: Objective = "step_time"
    max_memory: float | TimesFactor | None = None
    """Bytes per device, or a factor of its capacity."""
    plots: tuple[Plot, ...] = ()
    content: Mapping[str, Any] = field(default_factory=dict)
    """The definition as it was written, without its pictures."""
    asked: tuple[AskedPoint, ...] = field(init=False, repr=False, compare=False)
    """The question of every point; combinations that cannot be say why."""

    def __post_init__(self) -> None:
        """Build the question of every point."""
        known: dict[str, Space] = {}
        points = tuple(self._asked(point, known) for point in self.axes.points())
        object.__setattr__(self, "asked", points)

    def _asked(self, point: SweepPoint, known: dict[str, Space]) -> AskedPoint:
        try:
            question = self._question(point, known)
        except SpecError as error:
            return AskedPoint(index=point.index, shown=point.shown, problem=str(error))
        return AskedPoint(index=point.index, shown=point.shown, question=question)

    def _question(self, point: SweepPoint, known: dict[str, Space]) -> Question:
        """Return the question of one point; `known` keeps the spaces that points share."""
        draft = self.base.copy()
        for parameter, value in sorted((*self.always, *point.settings), key=lambda item: item[0].phase):
            if parameter.name == MODEL:
                draft.model = self.models[str(value)]
            elif parameter.name == CLUSTER:
                draft.place(self.clusters[str(value)])
            else:
                parameter.apply(draft, value)
        cluster = _cluster(draft)
        model, workload = draft.model, _workload(draft, cluster.num_devices)
        assert model is not None
        capacity, limit = cluster.device.hbm_bytes, self.max_memory
        key = repr((id(model), draft.held))
        if key not in known:
            known[key] = held_space(Space(), draft.held, model, where="space")
        return Question(
            model=model,
            cluster=cluster,
            workload=workload,
            space=known[key],
            preset=draft.preset,
            preset_options=draft.preset_options,
            objective=self.objective,
            max_memory=limit.by * capacity if isinstance(limit, TimesFactor) else limit,
            costs=self.costs,
            operations=build_operations(draft.operations, "operations"),
        )


def fingerprint(asked_points: tuple[AskedPoint, ...]) -> str:
    """Return a digest of all questions, specifications included, and of the version that answers them."""
    digest = hashlib.sha256(__version__.encode())
    models: dict[int, bytes] = {}
    for one in asked_points:
        digest.update(repr((one.index, one.shown, one.problem)).encode())
        if (question := one.question) is not None:
            digest.update(models.setdefault(id(question.model), repr(question.model).encode()))
            rest = [getattr(question, item.name) for item in fields(question) if item.name != "model"]
            digest.update(repr(rest).encode())
    return digest.hexdigest()


def _cluster(draft: Draft) -> Cluster:
    devices = draft.num_devices
    if draft.num_nodes is not None:
        devices = draft.num_nodes * int(draft.cluster["devices_per_node"])
    return build(Cluster, {**draft.cluster, "num_devices": devices}, where="cluster")


def _workload(draft: Draft, num_devices: int) -> Workload:
    """Return the workload; under weak scaling its batch grows with the devices."""
    values = dict(draft.workload)
    if draft.scaling == "weak":
        assert draft.base_devices is not None
        batch, rest = divmod(values["global_batch_size"] * num_devices, draft.base_devices)
        if rest:
            raise wording.not_divisible(
                "the global batch size",
                values["global_batch_size"],
                draft.base_devices,
                "the number of devices it is given for",
                f"it makes no whole number on {num_devices} devices",
            ).at("weak scaling")
        values["global_batch_size"] = batch
    return build(Workload, values, where="workload")


POINTS = 10_000
"""Steps of one range, and samples."""
RANGE_KEYS = ("from", "to", "steps", "scale", "multiple")
_FACTOR = re.compile(r"^\s*[x×]\s*([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*$")


def factor_of(value: object) -> TimesFactor | None:
    """Return the factor that text such as "x2" or "×0.5" is, or None if it is none."""
    match = _FACTOR.match(value) if isinstance(value, str) else None
    return None if match is None else TimesFactor(by=float(match[1]))


def value_of(parameter: SweepParameter, value: object, *, where: str) -> Value:
    """Return one value of a parameter.

    Raises
    ------
    SpecError
        If the parameter cannot have it; the message says what it can.
    """
    factor = factor_of(value) if parameter.takes_factors else None
    if factor is not None:
        if factor.by <= 0.0:
            raise wording.out_of_range(f"the factor of {parameter.name}", value, "greater than 0").at(where)
        return factor
    if not parameter.takes_values:
        allowed = "factors such as 'x2'"
        raise wording.wrong_type(parameter.name, value, allowed, "one type has a value: flops.bf16").at(where)
    if parameter.kind == "text":
        return _word(parameter, value, where)
    if isinstance(value, str) and parameter.dimension is not None:
        try:
            value = parse(value, parameter.dimension)
        except SpecError as error:
            raise error.worded(f"{where}: {parameter.name}: {error}; or a factor such as 'x2'") from error
    number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    if number is None or (parameter.kind == "whole" and not number.is_integer()):
        requested = "a whole number" if parameter.kind == "whole" else "a number"
        raise wording.out_of_range(parameter.name, value, f"{requested} or a factor such as 'x2'").at(where)
    return int(number) if parameter.kind == "whole" else number


def axis_of(parameter: SweepParameter, raw: object, *, where: str) -> GridAxis | Range:
    """Return what `raw` makes of a parameter: a list is a grid, a table a range, anything else one value."""
    if isinstance(raw, Mapping):
        return _range(parameter, raw, where)
    listed = raw if isinstance(raw, list | tuple) else [raw]
    values = tuple(value_of(parameter, item, where=where) for item in listed)
    if not values:
        raise wording.empty(parameter.name).at(where)
    if len({isinstance(value, TimesFactor) for value in values}) > 1:
        fix = "give one or the other"
        raise wording.conflicts([f"values of {parameter.name}", "factors"], fix=fix).at(where)
    twice = [value for index, value in enumerate(values) if value in values[:index]]
    if twice:
        raise wording.given_twice(f"{listed[values.index(twice[0])]!r} of {parameter.name}").at(where)
    return GridAxis(parameter=parameter, values=values)


def _word(parameter: SweepParameter, value: object, where: str) -> Value:
    if parameter.name.startswith("space.") and isinstance(value, list | tuple) and value:
        return words_of(value)
    if not isinstance(value, str | int | bool):
        raise wording.wrong_type(parameter.name, value, "one word or number").at(where)
    return value


def words_of(value: object) -> tuple[str, ...]:
    """Return one or several values of a dimension of the search as words."""
    listed = value if isinstance(value, list | tuple) else [value]
    return tuple(str(item).lower() if isinstance(item, bool) else str(item) for item in listed)


def _range(parameter: SweepParameter, values: Mapping[str, Any], where: str) -> GridAxis | Range:
    for key in values:
        if key not in RANGE_KEYS:
            raise UnknownKeyError(key, f"{where}, {parameter.name}", RANGE_KEYS)
    if parameter.kind == "text":
        raise wording.unsupported_by(parameter.name, "a range", "list its values").at(where)
    missing = [key for key in ("from", "to") if key not in values]
    if missing:
        raise wording.required_with(missing, f"the range of {parameter.name}").at(where)
    low, high = (value_of(parameter, values[key], where=where) for key in ("from", "to"))
    if isinstance(low, TimesFactor) != isinstance(high, TimesFactor):
        fix = "give two of one kind"
        raise wording.conflicts([f"a value of {parameter.name}", "a factor"], fix=fix).at(where)
    return _built(
        parameter, values, _plain_number(low), _plain_number(high), isinstance(low, TimesFactor), where
    )


def _built(
    parameter: SweepParameter, values: Mapping[str, Any], low: float, high: float, factors: bool, where: str
) -> GridAxis | Range:
    scale, multiple, steps = values.get("scale", "log"), values.get("multiple", 1), values.get("steps")
    error = None
    if scale not in ("log", "linear"):
        error = wording.not_one_of("scale", scale, ("log", "linear"))
    elif not low < high:
        error = wording.out_of_range("from", values["from"], f"less than to {values['to']}")
    elif scale == "log" and low <= 0.0:
        error = wording.out_of_range("from", values["from"], "greater than 0", "or give scale = 'linear'")
    elif type(multiple) is not int or multiple < 1:
        error = wording.wrong_type("multiple", multiple, wording.whole_from(1))
    elif multiple > 1 and (parameter.kind != "whole" or factors):
        error = wording.no_effect("multiple", "it applies to ranges of whole numbers only")
    elif steps is not None and (type(steps) is not int or not 2 <= steps <= POINTS):
        error = wording.wrong_type("steps", steps, f"a whole number from 2 to {POINTS:,}")
    if error is not None:
        raise error.at(f"{where}, {parameter.name}")
    result = Range(
        parameter=parameter, low=low, high=high, factors=factors, log=scale == "log", multiple=multiple
    )
    return result if steps is None else GridAxis(parameter=parameter, values=result.spread(steps))


def _plain_number(value: Value) -> float:
    by = value.by if isinstance(value, TimesFactor) else value
    assert isinstance(by, int | float)
    return float(by)
