"""Two projections term by term: what differs between the questions, and where the time and the bytes go."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeAlias

from forescale.errors import SpecError, shown, wrong_format, wrong_type
from forescale.limits import Interval, within
from forescale.memory.peak import PARTS
from forescale.projection.result import SCHEMA as PROJECTION
from forescale.projection.result import TIME_PARTS, Projection
from forescale.results import Result
from forescale.struct import Struct, attributes, jsonable
from forescale.units import GIB, format_bytes, format_seconds
from forescale.view.bars import Bar, BarChart

if TYPE_CHECKING:
    from forescale.view.page import Chart

SCHEMA = "forescale.comparison/1"
Document: TypeAlias = Mapping[str, Any]
"""A `forescale.projection/1` document."""
QUESTION = ("model", "cluster", "workload", "preset")
"""What two plans should share; the rest of the layout is `strategy`."""
FIGURES = (
    "step_time_s",
    "tokens_per_s_per_device",
    "mfu",
    "mfu_full_attention",
    "hfu",
    "num_microbatches",
    "training_days",
)
FIGURE = Interval(ge=0, le=1e24)
SAME = 1e-6
"""Of a whole, what its parts may differ from it."""


class _ContradictionError(SpecError):
    """A document that contradicts itself."""


class Change(Struct, frozen=True, kw_only=True):
    """A choice that differs: its path, such as "strategy.tp" or "workload.precision.compute"."""

    name: str
    a: Any
    b: Any


class Difference(Struct, frozen=True, kw_only=True):
    """A number of both; `difference` is b − a, None where either is unknown."""

    name: str
    a: float | None
    b: float | None

    @property
    def difference(self) -> float | None:
        """What b has more than a."""
        return None if self.a is None or self.b is None else self.b - self.a

    @property
    def ratio(self) -> float | None:
        """What b is of a."""
        return None if not self.a or self.b is None else self.b / self.a

    def to_json(self) -> dict[str, Any]:
        """Return both numbers, their difference and ratio."""
        return {**asdict(self), "difference": self.difference, "ratio": self.ratio}


class MemoryDifference(Struct, frozen=True, kw_only=True):
    """The fullest stage of each: their parts [bytes] and how they stand to the device."""

    stage_a: int
    stage_b: int
    verdict_a: str
    verdict_b: str
    peak: Difference
    parts: tuple[Difference, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the stages, the verdicts and the parts."""
        return {
            "a": {"stage": self.stage_a, "verdict": self.verdict_a},
            "b": {"stage": self.stage_b, "verdict": self.verdict_b},
            "peak_bytes": self.peak.to_json(),
            "parts_bytes": [part.to_json() for part in self.parts],
        }


class Comparison(Result, Struct, frozen=True, kw_only=True):
    """Projection b against projection a."""

    name_a: str
    name_b: str
    question: tuple[Change, ...]
    """Differences of model, cluster, workload and preset: with any, the layouts are not alone in what differs."""
    layout: tuple[Change, ...]
    figures: tuple[Difference, ...]
    time_parts: tuple[Difference, ...]
    """Parts of the step [s] that either has; their differences add up to that of the step."""
    memory: MemoryDifference

    @property
    def step_time(self) -> Difference:
        """The step [s]."""
        return self.figures[0]

    @property
    def headline(self) -> str:
        """Step time and peak memory of both on one line."""
        step, peak, memory = self.step_time, self.memory.peak, self.memory
        change = "" if step.ratio is None else f"; step time {step.ratio - 1.0:+.1%}"
        sides = (
            f"{name}: {'' if seconds is None else f'{format_seconds(seconds)} per step, '}"
            f"{format_bytes(size or 0.0)} ({verdict})"
            for name, seconds, size, verdict in (
                (self.name_a, step.a, peak.a, memory.verdict_a),
                (self.name_b, step.b, peak.b, memory.verdict_b),
            )
        )
        return "; ".join(sides) + change

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per figure, part of the step and part of the memory."""
        parts = (*self.figures, *self.time_parts, self.memory.peak, *self.memory.parts)
        return [part.to_json() for part in parts]

    def pictures(self) -> Sequence[Chart]:
        """Return the parts of both steps, and of both memories."""
        memory = {
            part.name: tuple(value / GIB for value in (part.a or 0.0, part.b or 0.0))
            for part in self.memory.parts
        }
        steps = {time_part.name: (time_part.a or 0.0, time_part.b or 0.0) for time_part in self.time_parts}
        return tuple(
            BarChart(title=title, note="", axis="", unit=unit, bars=tuple(
                Bar(label=name, values={part: pair[side] for part, pair in parts.items()})
                for side, name in enumerate((self.name_a, self.name_b))
            ))
            for title, unit, parts in (("Time of a step", "s", steps), ("Memory of the fullest device", "GiB", memory))
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Return the `forescale.comparison/1` document."""
        return {
            "schema": SCHEMA,
            "a": self.name_a,
            "b": self.name_b,
            **attributes(self, "question", "layout", "figures"),
            "time_parts_s": jsonable(self.time_parts),
            "memory": self.memory.to_json(),
        }


def compare(
    a: Projection | Document, b: Projection | Document, *, name_a: str = "a", name_b: str = "b"
) -> Comparison:
    """Return how projection `b` differs from projection `a`, both as values or as their JSON documents.

    Raises
    ------
    SpecError
        If a document is not a `forescale.projection/1`, or lacks a part of it.
    """
    one, other = _document(a, name_a), _document(b, name_b)
    try:
        _check_sums(one, name_a)
        _check_sums(other, name_b)
        return Comparison(
            name_a=name_a,
            name_b=name_b,
            question=_changes(one, other, QUESTION),
            layout=_changes(one, other, ("strategy",)),
            figures=tuple(_difference(name, one[name], other[name]) for name in FIGURES),
            time_parts=tuple(time_parts(one["time_s"], other["time_s"])),
            memory=_memory(one["memory"], other["memory"]),
        )
    except _ContradictionError:
        raise
    except SpecError as error:
        error.at(f"{name_a} or {name_b}")
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else error
        raise wrong_format(f"a complete {PROJECTION} document", str(what)).at(
            f"{name_a} or {name_b}"
        ) from error


def _document(projection: Projection | Document, name: str) -> Document:
    document = projection.to_json() if isinstance(projection, Projection) else projection
    schema = document.get("schema") if isinstance(document, Mapping) else None
    if schema != PROJECTION:
        unnamed = "it has no schema" if isinstance(document, Mapping | list) else f"it is {shown(projection)}"
        reason = f"it is {schema}" if schema else unnamed
        raise wrong_format(f"a projection, or a {PROJECTION} document of one", reason).at(name)
    return document


def _check_sums(document: Document, name: str) -> None:
    """Refuse a document whose parts are not those of its step and of its stages."""
    stages = document["memory"]["stages"]
    if not isinstance(stages, list | tuple) or not stages:
        raise TypeError("memory.stages lists no stage")
    sums = [("time_s", "step_time_s", sum(document["time_s"].values()), document["step_time_s"])]
    sums += [
        (
            "the parts of a stage",
            "peak_bytes",
            sum(stage[f"{part}_bytes"] for part in PARTS),
            stage["peak_bytes"],
        )
        for stage in stages
    ]
    fullest = max(stage["peak_bytes"] for stage in stages)
    sums.append(("the fullest stage", "memory.peak_bytes", fullest, document["memory"]["peak_bytes"]))
    for parts, whole, result, message in sums:
        if message is not None and not math.isclose(
            result, within(message, FIGURE, whole), rel_tol=SAME, abs_tol=SAME
        ):
            raise _ContradictionError(f"{name}: {parts} makes {result:g}, but {whole} is {message:g}")


def _changes(a: Document, b: Document, names: tuple[str, ...]) -> tuple[Change, ...]:
    """Return what differs below the named keys, path by path; a key that one lacks is None there."""
    left = dict(_leaves({name: a[name] for name in names}))
    right = dict(_leaves({name: b[name] for name in names}))
    return tuple(
        Change(name=path, a=left.get(path), b=right.get(path))
        for path in dict.fromkeys([*left, *right])
        if left.get(path) != right.get(path)
    )


def _leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield every value that is no table, with its path; lists and tuples are alike."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(inner, f"{path}.{name}" if path else str(name))
    else:
        yield path, list(value) if isinstance(value, tuple) else value


def time_parts(a: Mapping[str, float], b: Mapping[str, float]) -> Iterator[Difference]:
    """Yield the parts of two steps [s] that either has, in the order of reports."""
    for name in dict.fromkeys([*TIME_PARTS, *a, *b]):
        difference = _difference(name, a.get(name, 0.0), b.get(name, 0.0))
        if difference.a or difference.b:
            yield difference


def _difference(name: str, a: object, b: object) -> Difference:
    """Return two figures side by side; they are numbers, or unknown."""
    one, other = (None if item is None else float(within(item, FIGURE, name)) for item in (a, b))
    return Difference(name=name, a=one, b=other)


def _verdict(memory: Document) -> str:
    if not isinstance(memory["verdict"], str):
        raise wrong_type("verdict", memory["verdict"], "text")
    return memory["verdict"]


def _memory(a: Document, b: Document) -> MemoryDifference:
    one, other = (max(item["stages"], key=lambda stage: stage["peak_bytes"]) for item in (a, b))
    return MemoryDifference(
        stage_a=one["stage"],
        stage_b=other["stage"],
        verdict_a=_verdict(a),
        verdict_b=_verdict(b),
        peak=_difference("peak", one["peak_bytes"], other["peak_bytes"]),
        parts=tuple(_difference(name, one[f"{name}_bytes"], other[f"{name}_bytes"]) for name in PARTS),
    )
