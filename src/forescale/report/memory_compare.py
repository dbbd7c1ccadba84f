"""One model's memory under several policies or sizes, side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from forescale.escaping import script, xml
from forescale.projection.result import Projection, StageMemory
from forescale.report.bars import Bar, BarChart, Part, to_svg, to_vega_lite
from forescale.units import GIB

SCHEMA = "forescale.memory_compare/1"
PARTS = {
    "weights": "#4e79a7",
    "gradients": "#f2a154",
    "optimizer": "#6aa56e",
    "activations": "#d9605b",
    "buffers": "#a883b8",
    "overhead": "#b5b0aa",
}
"""Parts of memory from the bottom of a bar upwards, and their colours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One value of what is compared, and its projection."""

    value: str
    projection: Projection

    @property
    def fullest(self) -> StageMemory:
        """The pipeline rank that needs most."""
        return max(self.projection.memory.stages, key=lambda stage: stage.peak_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryComparison:
    """Projections that differ in one thing."""

    across: str
    """What differs, as its option is spelt: recompute, seq-len, zero, tp, micro-batch-size."""
    rows: tuple[Row, ...]
    refused: dict[str, str]
    """Values that make no legal layout, and why."""

    def to_json(self) -> dict[str, Any]:
        """Return the `forescale.memory_compare/1` document."""
        first = self.rows[0].projection
        return {
            "schema": SCHEMA,
            "model": first.model.name,
            "cluster": first.cluster.name,
            "num_devices": first.cluster.num_devices,
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
        parts=tuple(Part(name=name, colour=colour) for name, colour in PARTS.items()),
        bars=tuple(
            Bar(
                label=row.value,
                values=tuple(getattr(row.fullest, f"{name}_bytes") / GIB for name in PARTS),
                remark=row.projection.memory.verdict,
            )
            for row in comparison.rows
        ),
        limit=capacity,
        limit_name=f"{first.cluster.device.name}: {capacity:.0f} GiB",
    )


def memory_page(comparison: MemoryComparison) -> str:
    """Return one HTML page with picture, figures and the Vega-Lite specification; it loads nothing."""
    chart = memory_bars(comparison)
    heads = "".join(f"<th>{xml(name)}</th>" for name in (comparison.across, *PARTS, "peak", "verdict"))
    lines = "".join(_line(bar) for bar in chart.bars)
    spec = script(to_vega_lite(chart))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{xml(chart.title)}</title><style>"
        "body{font:14px ui-sans-serif,Helvetica,Arial,sans-serif;color:#1b2430;margin:24px}"
        "table{border-collapse:collapse;margin-top:16px}td,th{padding:4px 12px;text-align:right}"
        "td:first-child,th:first-child{text-align:left}tr+tr td{border-top:1px solid #e3e6ea}svg{max-width:100%}"
        f"</style></head><body>\n{to_svg(chart)}\n<table><tr>{heads}</tr>{lines}</table>"
        f"<p>All figures in {xml(chart.unit)}.</p>\n"
        f'<script type="application/json" id="vega-lite">{spec}</script>\n</body></html>\n'
    )


def _line(bar: Bar) -> str:
    cells = [bar.label, *(f"{value:.2f}" for value in (*bar.values, bar.total)), bar.remark]
    return "<tr>" + "".join(f"<td>{xml(cell)}</td>" for cell in cells) + "</tr>"


def _row(row: Row) -> dict[str, Any]:
    stage, projection = row.fullest, row.projection
    return {
        "value": row.value,
        "stage": stage.stage,
        **{f"{name}_bytes": getattr(stage, f"{name}_bytes") for name in (*PARTS, "peak")},
        "verdict": projection.memory.verdict,
        "step_time_s": projection.step_time_s or None,
    }
