"""What a search says."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from forescale.projection.result import Projection

SCHEMA = "forescale.search/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxation:
    """What the best layout would gain if one limit were lifted."""

    constraint: str
    change: str
    step_time_s: float
    gain: float
    """Fraction of the step time saved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """Layouts ranked by an objective, best first."""

    best: tuple[Projection, ...]
    objective: str
    num_legal: int
    num_feasible: int
    elapsed_s: float
    refused: dict[str, int]
    """Layouts that each constraint refused."""
    relaxations: tuple[Relaxation, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the `forescale.search/1` document."""
        return {
            "schema": SCHEMA,
            "objective": self.objective,
            "num_legal": self.num_legal,
            "num_feasible": self.num_feasible,
            "elapsed_s": self.elapsed_s,
            "refused": self.refused,
            "relaxations": [asdict(item) for item in self.relaxations],
            "best": [projection.to_json() for projection in self.best],
        }
