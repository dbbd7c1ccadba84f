"""What a projection without detail says, for the inner loop of a tuner."""

from __future__ import annotations

from typing import Any

from msgspec import field

from forescale.projection.result import Interval, MemorySummary, Verdict
from forescale.question import Note, foremost
from forescale.results import Result
from forescale.struct import Struct, attributes
from forescale.units import format_bytes, format_seconds


class Estimate(Result, Struct, frozen=True, kw_only=True):
    """Step time, peak memory and verdict of one layout: a projection without detail, for the inner loop of a tuner."""

    step_time_s: float
    """Expected seconds per optimizer step."""
    step_time_low_s: float
    """Lower end of the 80 % interval."""
    step_time_high_s: float
    peak_bytes: float
    """Of the fullest device."""
    verdict: Verdict
    notes: tuple[Note, ...] = field(default=())
    """What was assumed of the layout, such as a recompute policy with which it fits."""

    @classmethod
    def from_parts(cls, step: Interval, memory: MemorySummary, notes: tuple[Note, ...]) -> Estimate:
        """Return the figures of a step time and a memory."""
        return cls(
            step_time_s=step.expected,
            step_time_low_s=step.low,
            step_time_high_s=step.high,
            **attributes(memory, "peak_bytes", "verdict"),
            notes=notes,
        )

    @property
    def details(self) -> tuple[str, ...]:
        """The notes that change the figures most."""
        return foremost(self.notes)

    @property
    def headline(self) -> str:
        """Step time with its interval, and memory on one line."""
        low, high = format_seconds(self.step_time_low_s), format_seconds(self.step_time_high_s)
        memory = f"{format_bytes(self.peak_bytes)} per device ({self.verdict})"
        return f"{format_seconds(self.step_time_s)} per step ({low} to {high}), {memory}"

    def rows(self) -> list[dict[str, Any]]:
        """Return one row: the figures."""
        return [attributes(self, *(name for name in Estimate.__dataclass_fields__ if name != "notes"))]

    def to_json(self) -> dict[str, Any]:
        """Return the fields, with the names that they have in the document of a projection."""
        return self.rows()[0]
