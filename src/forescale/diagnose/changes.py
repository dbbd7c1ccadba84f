"""What changed between two profiles of the same job, part by part, kernel by kernel and shape by shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from forescale.diagnose.measured import trace_files
from forescale.diagnose.work import mean
from forescale.profiles import TraceSummary, part_of, summarise
from forescale.results import Result
from forescale.search.compare import Difference
from forescale.struct import Struct, attributes

SCHEMA = "forescale.profile_comparison/1"
FIGURES = ("step_s", "computing_s", "busy_s", "idle_s", "data_s", "pauses_s", "launches", "updates")


class KernelChange(Struct, frozen=True, kw_only=True):
    """Calls and seconds of a kernel or operator in a step of both profiles."""

    name: str
    part: str
    calls_a: float
    calls_b: float
    seconds_a: float
    seconds_b: float

    @property
    def difference_s(self) -> float:
        """Seconds that b takes more."""
        return self.seconds_b - self.seconds_a

    @property
    def by_calls_s(self) -> float:
        """Of these, seconds of more or fewer calls; the rest is the time of a call."""
        if not self.calls_a or not self.calls_b:
            return self.difference_s
        return (self.calls_b - self.calls_a) * self.seconds_a / self.calls_a

    def to_json(self) -> dict[str, Any]:
        """Return all figures."""
        return {
            **attributes(self, *self.__struct_fields__),
            "difference_s": self.difference_s,
            "by_calls_s": self.by_calls_s,
        }


class ProfileComparison(Result, Struct, frozen=True, kw_only=True):
    """Profile b against profile a; per step, the mean over ranks."""

    name_a: str
    name_b: str
    ranks: tuple[int, int]
    figures: tuple[Difference, ...]
    parts: tuple[Difference, ...]
    """Seconds of kernels by kind of work."""
    exposed: tuple[Difference, ...]
    """Seconds of communication that nothing else overlaps."""
    kernels: tuple[KernelChange, ...]
    """The largest difference first."""
    shapes: tuple[Difference, ...]
    """FLOP of products by type, calls of attention by its shape, calls of messages by their bytes."""

    @property
    def step(self) -> Difference:
        """The step [s]."""
        return self.figures[0]

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per kernel."""
        return [item.to_json() for item in self.kernels]

    def to_json(self) -> dict[str, Any]:
        """Return the `forescale.profile_comparison/1` document."""
        tables = {
            "figures": self.figures,
            "parts_s": self.parts,
            "exposed_s": self.exposed,
            "shapes": self.shapes,
        }
        return {
            "schema": SCHEMA, "a": self.name_a, "b": self.name_b, "ranks": self.ranks, "kernels": self.rows(),
            **{key: [item.to_json() for item in rows] for key, rows in tables.items()},
        }  # fmt: skip


def compare_profiles(a: Path, b: Path, progress: Callable[[int], None] = lambda _: None) -> ProfileComparison:
    """Return how profile b differs from profile a; each is a trace, or a folder with the traces of several ranks.

    Raises
    ------
    ReaderError
        If either is no trace.
    """
    sides = [[summarise(file, progress) for file in trace_files(path)] for path in (a, b)]
    return ProfileComparison(
        name_a=str(a),
        name_b=str(b),
        ranks=(len(sides[0]), len(sides[1])),
        figures=_differences(sides, lambda one: {name: getattr(one, name) for name in FIGURES}),
        parts=_differences(sides, lambda one: one.parts_s),
        exposed=_differences(sides, lambda one: one.exposed_s),
        kernels=_kernels(sides),
        shapes=_differences(sides, _shapes),
    )


Sides = Sequence[Sequence[TraceSummary]]


def _differences(
    sides: Sides, figures: Callable[[TraceSummary], Mapping[str, float]]
) -> tuple[Difference, ...]:
    one, other = (mean([figures(rank) for rank in side]) for side in sides)
    return tuple(
        Difference(name=name, a=one.get(name, 0.0), b=other.get(name, 0.0))
        for name in dict.fromkeys([*one, *other])
    )


def _kernels(sides: Sides) -> tuple[KernelChange, ...]:
    calls = _differences(sides, lambda one: {row.name: row.calls for row in one.kernels})
    seconds = _differences(sides, lambda one: {row.name: row.seconds for row in one.kernels})
    rows = (
        KernelChange(
            name=count.name,
            part=part_of(count.name)[0],
            calls_a=count.a or 0.0,
            calls_b=count.b or 0.0,
            seconds_a=time.a or 0.0,
            seconds_b=time.b or 0.0,
        )
        for count, time in zip(calls, seconds, strict=True)
    )
    return tuple(sorted(rows, key=lambda row: -abs(row.difference_s)))


def _shapes(one: TraceSummary) -> dict[str, float]:
    shapes = one.shapes
    return {
        **{f"FLOP of {dtype} products": value for dtype, value in shapes.flops.items()},
        **{f"attention {way}": calls for way, calls in shapes.attention.items()},
        **{f"attention of {n} × {length} tokens": calls for (n, length), calls in shapes.sequences.items()},
        **{f"{part} of {size:.0f} bytes": calls for (part, size), calls in shapes.messages.items()},
    }
