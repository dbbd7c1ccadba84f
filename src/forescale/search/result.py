"""What a search says."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from forescale.brief import Brief
from forescale.projection.result import Projection
from forescale.search.landscape import Asked
from forescale.spec.strategy import Strategy

if TYPE_CHECKING:
    from forescale.search.pareto import ParetoResult

SCHEMA = "forescale.search/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxation:
    """What the best layout would gain if one limit were lifted."""

    constraint: str
    change: str
    step_time_s: float
    gain: float
    """Fraction of the time per token saved."""
    strategy: Strategy | None = None
    """The layout that gains it, where it was looked for."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SearchResult(Brief):
    """Layouts ranked by an objective, best first."""

    best: tuple[Projection, ...]
    surest: Projection | None
    """The fastest layout that fits even at the upper end of its range; None if there is none, or nobody asked."""
    objective: str
    num_legal: int
    num_feasible: int
    """Layouts that fit, of those that were evaluated: there are at least so many."""
    num_evaluated: int
    num_over_memory: int
    """Layouts proven, without evaluating them, to need more memory than twice the limit."""
    num_beaten: int
    """Layouts proven, without evaluating them, to be no better than the best."""
    gap: float
    """Fraction by which the best found may exceed the best there is; 0 if the search was not stopped."""
    elapsed_s: float
    refused: dict[str, int]
    """Layouts that each constraint refused."""
    relaxations: tuple[Relaxation, ...]
    asked: Asked = field(repr=False, compare=False)

    @property
    def num_feasible_is_exact(self) -> bool:
        """Say whether no more layouts fit: only where all were evaluated, or proven not to."""
        return self.num_evaluated + self.num_over_memory == self.num_legal

    @property
    def binding(self) -> Relaxation | None:
        """What would gain most of all that was relaxed; None if nothing would gain."""
        most = max(self.relaxations, key=lambda item: item.gain, default=None)
        return most if most is not None and most.gain > 0.0 else None

    def pareto(self) -> ParetoResult:
        """Return the Pareto front of the same question over step time and peak memory: all layouts are scored."""
        from forescale.search.pareto import front_of

        return front_of(self.asked)

    def to_json(self) -> dict[str, Any]:
        """Return the `forescale.search/1` document."""
        return {
            "schema": SCHEMA,
            "objective": self.objective,
            "num_legal": self.num_legal,
            "num_feasible": self.num_feasible,
            "num_feasible_is_exact": self.num_feasible_is_exact,
            "num_evaluated": self.num_evaluated,
            "num_over_memory": self.num_over_memory,
            "num_beaten": self.num_beaten,
            "gap": self.gap,
            "elapsed_s": self.elapsed_s,
            "refused": self.refused,
            "relaxations": [asdict(item) for item in self.relaxations],
            "binding": None if self.binding is None else self.binding.constraint,
            "surest": None if self.surest is None else self.surest.to_json(),
            "best": [projection.to_json() for projection in self.best],
        }
