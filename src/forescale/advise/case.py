"""One user's case: the question, and a layout tried on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from forescale.advise.advice import Trial
from forescale.errors import SpecError
from forescale.project import project
from forescale.projection.result import Projection
from forescale.question import Question
from forescale.spec.strategy import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is asked, for all steps."""

    question: Question

    @property
    def domain(self) -> int:
        """Devices on the fastest network, such as one node's."""
        cluster = self.question.cluster
        return min(cluster.tiers[0].size or cluster.num_devices, cluster.num_devices)

    def filled(self, layout: Strategy) -> Strategy | None:
        """Return `layout` with all remaining devices as data-parallel shards; None if they do not divide."""
        rest, remainder = divmod(self.question.cluster.num_devices, layout.tp * layout.cp * layout.pp)
        return None if remainder or not rest else replace(layout, dp_replicate=1, dp_shard=rest)

    def tried(self, move: str, layout: Strategy) -> tuple[Trial, Projection | None]:
        """Return how `layout` does; a layout that is not legal has its reason instead."""
        try:
            found = project(self.question.of(layout))
        except SpecError as error:
            return Trial(move=move, strategy=layout, problem=str(error)), None
        trial = Trial(
            move=move,
            strategy=layout,
            step_time_s=found.step_time_s,
            peak_bytes=found.memory.peak_bytes,
            fits=found.memory.peak_bytes <= self.question.memory_limit,
        )
        return trial, found


def first(
    case: Case,
    layouts: Iterable[tuple[str, Strategy]],
    *,
    refuse: Callable[[Projection], str | None],
) -> tuple[list[Trial], int | None]:
    """Try layouts in order until one fits that `refuse` has nothing against; return all trials and its place.

    If there is none, the first that fits at all is taken.
    """
    trials: list[Trial] = []
    fallback: int | None = None
    for move, layout in layouts:
        trial, found = case.tried(move, layout)
        objection = refuse(found) if trial.fits and found is not None else None
        trials.append(replace(trial, problem=trial.problem or objection))
        if trial.fits and objection is None:
            return trials, len(trials) - 1
        if trial.fits and fallback is None:
            fallback = len(trials) - 1
    return trials, fallback
