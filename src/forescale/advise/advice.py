"""What advice consists of: steps with the layouts that each tried, and what the exact search says of the outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from msgspec.structs import replace

from forescale.advise.check import verdict_within
from forescale.errors import SpecError
from forescale.presets.playbook.preset import Ratio
from forescale.project import project
from forescale.projection.result import Projection, Verdict
from forescale.question import Question
from forescale.results import Result
from forescale.search.compare import Comparison
from forescale.spec.cluster import Cluster
from forescale.spec.framework import replayed
from forescale.spec.layout import Layout, Recompute
from forescale.spec.model import Model
from forescale.spec.space import DEGREE_NAMES, Space, default_recompute
from forescale.spec.workload import Workload
from forescale.struct import Struct, attributes

if TYPE_CHECKING:
    from forescale.view.page import Chart


class Case(Struct, frozen=True, kw_only=True):
    """What is asked, for all steps."""

    question: Question

    @property
    def start(self) -> Layout:
        """The layout of which nothing is chosen yet: one device, with what is not searched as the space has it."""
        layout = Layout()
        selected = {name: getattr(layout, name) for name in (*DEGREE_NAMES, "recompute")}
        return replace(self.question.space.base, **selected)

    @property
    def policies(self) -> tuple[Recompute, ...]:
        """Kinds of recompute that are tried, which end where those of the framework do."""
        model, framework = self.question.model, self.question.framework
        usual = default_recompute(model)
        return (
            usual if framework is None else replayed(framework, Space(recompute=usual), model).recompute or ()
        )

    def filled(self, layout: Layout) -> Layout | None:
        """Return `layout` with all remaining devices as data-parallel shards; None if they do not divide."""
        rest, remainder = divmod(self.question.cluster.num_devices, layout.tp * layout.cp * layout.pp)
        return None if remainder or not rest else replace(layout, dp_replicate=1, dp_shard=rest)

    def tried(self, move: str, layout: Layout) -> tuple[Trial, Projection | None]:
        """Return how `layout` does; a layout that is not legal has its reason instead."""
        try:
            result = project(self.question.with_layout(layout))
        except SpecError as error:
            return Trial(move=move, strategy=layout, problem=str(error)), None
        memory, limit = result.memory, self.question.memory_limit
        trial = Trial(
            move=move,
            strategy=layout,
            step_time_s=result.step_time_s,
            peak_bytes=memory.peak_bytes,
            fits=(memory.peak_high_bytes if self.question.safe else memory.peak_bytes) <= limit,
            verdict=verdict_within(result, limit),
        )
        return trial, result


def first(
    case: Case,
    layouts: Iterable[tuple[str, Layout]],
    *,
    refuse: Callable[[Projection], str | None],
) -> tuple[list[Trial], int | None]:
    """Try layouts in order until one fits that `refuse` has nothing against; return all trials and its place.

    If there is none, the first that fits at all is taken.
    """
    trials: list[Trial] = []
    fallback: int | None = None
    for move, layout in layouts:
        trial, result = case.tried(move, layout)
        objection = refuse(result) if trial.fits and result is not None else None
        trials.append(replace(trial, problem=trial.problem or objection))
        if trial.fits and objection is None:
            return trials, len(trials) - 1
        if trial.fits and fallback is None:
            fallback = len(trials) - 1
    return trials, fallback


SCHEMA = "forescale.advice/1"
AGREEMENT = 0.01
"""A step within this of the exact best is the same advice."""
StepName: TypeAlias = Literal["fit", "batch", "throughput", "sites"]


class Trial(Struct, frozen=True, kw_only=True):
    """One layout that a step tried."""

    move: str
    """What it does, such as "tensor parallel 4"."""
    strategy: Layout
    step_time_s: float | None = None
    peak_bytes: float | None = None
    fits: bool = False
    """Whether its peak is within the limit: as expected, or at the upper end of its range where that is asked for."""
    verdict: Verdict | None = None
    """Against the limit; None if it is not legal."""
    taken: bool = False
    problem: str | None = None
    """Why it is out of the question: not legal, or its communication cannot hide."""


class Fact(Struct, frozen=True, kw_only=True):
    """One number that a step rests on."""

    name: str
    value: float
    unit: str


class Step(Struct, frozen=True, kw_only=True):
    """One step of the process: its question, numbers, trials and finding."""

    name: StepName
    question: str
    facts: tuple[Fact, ...]
    trials: tuple[Trial, ...]
    finding: str


class Advice(Result, Struct, frozen=True, kw_only=True):
    """The layout that the process arrives at, and the exact search's."""

    model: Model
    cluster: Cluster
    workload: Workload
    steps: tuple[Step, ...]
    advised: Projection
    ratios: tuple[Ratio, ...]
    """Communication to compute of the advised layout; below 1 it can hide."""
    verdict: Verdict
    """Of the advised layout, against the limit of the question."""
    comparison: Comparison | None = None
    """The exact best (b) against the advised layout (a); None if it was not asked for."""
    best: Projection | None = None

    @property
    def excess(self) -> float | None:
        """By how much of the best step the advised one is longer."""
        return None if self.best is None else self.advised.step_time_s / self.best.step_time_s - 1.0

    @property
    def agrees(self) -> bool | None:
        """Whether the exact search finds nothing noticeably faster."""
        return None if self.excess is None else self.excess <= AGREEMENT

    @property
    def headline(self) -> str:
        """The advised layout, and how far from the best it is."""
        rest = "" if self.excess is None else f"; {self.excess:.1%} longer than the best layout"
        return f"{self.advised.headline}{rest}"

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per trial of every step: what it does, its degrees, seconds and bytes."""
        says = ("step_time_s", "peak_bytes", "fits", "verdict", "taken", "problem")
        return [
            {"step": step.name, "move": trial.move}
            | {name: getattr(trial.strategy, name) for name in DEGREE_NAMES}
            | {name: getattr(trial, name) for name in says}
            for step in self.steps
            for trial in step.trials
        ]

    def pictures(self) -> Sequence[Chart]:
        """Return the parts of the step and of the memory, next to those of the best layout if it is known."""
        return (self.advised if self.comparison is None else self.comparison).pictures()

    def to_json(self) -> dict[str, Any]:
        """Return the `forescale.advice/1` document."""
        names = ("steps", "advised", "verdict", "ratios", "best", "excess", "agrees", "comparison")
        return {"schema": SCHEMA, **attributes(self, *names)}
