"""One model's memory under several policies or sizes, side by side."""

from __future__ import annotations

from typing import Any

from forescale.projection.result import MEMORY_PARTS, Projection, StageMemory
from forescale.struct import Struct, attributes
from forescale.units import GIB
from forescale.view.bars import Bar, BarChart

SCHEMA = "forescale.memory_compare/1"


class ComparedValue(Struct, frozen=True, kw_only=True):
    """One value of what is compared, and its projection."""

    value: str
    projection: Projection

    @property
    def fullest(self) -> StageMemory:
        """The pipeline rank that needs most."""
        return max(self.projection.memory.stages, key=lambda stage: stage.peak_bytes)


class MemoryComparison(Struct, frozen=True, kw_only=True):
    """Projections that differ in one thing."""

    across: str
    """What differs, as its option is spelt: recompute, seq-len, zero, tp, micro-batch-size."""
    rows: tuple[ComparedValue, ...]
    refused: dict[str, str]
    """Values that make no legal layout, and why."""

    def to_json(self) -> dict[str, Any]:
        """Return the `forescale.memory_compare/1` document."""
        first = self.rows[0].projection
        return {
            "schema": SCHEMA,
            **attributes(
                first, "model=model.name", "cluster=cluster.name", "num_devices=cluster.num_devices"
            ),
            "preset": first.preset,
            "across": self.across,
            "capacity_bytes": first.memory.capacity_bytes,
            "rows": [_row(row) for row in self.rows],
            "refused": [{"value": value, "reason": reason} for value, reason in self.refused.items()],
        }


def memory_bars(comparison: MemoryComparison) -> BarChart:
    """Return the parts of memory of the fullest rank as stacked bars, against the device's memory."""
    first = comparison.rows[0].projection
    capacity = first.memory.capacity_bytes / GIB
    return BarChart(
        title=f"Memory of {first.model.name} by {comparison.across}",
        note=f"fullest device of {first.cluster.num_devices:,} × {first.cluster.name}, preset {first.preset}",
        axis=comparison.across,
        unit="GiB",
        bars=tuple(
            Bar(label=row.value, values=row.fullest.parts, remark=row.projection.memory.verdict)
            for row in comparison.rows
        ),
        limit=capacity,
        limit_name=f"{first.cluster.device.name}: {capacity:.0f} GiB",
    )


def _row(row: ComparedValue) -> dict[str, Any]:
    return {
        "value": row.value,
        **attributes(row.fullest, "stage", *(f"{name}_bytes" for name in (*MEMORY_PARTS, "peak"))),
        "verdict": row.projection.memory.verdict,
        "step_time_s": row.projection.step_time_s or None,
    }
