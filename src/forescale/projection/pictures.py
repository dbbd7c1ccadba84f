"""Several projections in one picture: what is gained against what it costs."""

from __future__ import annotations

from collections.abc import Sequence

from forescale.projection.result import Projection
from forescale.spec.phrases import layout
from forescale.units import GIB, format_seconds
from forescale.view.axes import value_axis
from forescale.view.lines import Dot, Line, LineChart


def memory_and_time(found: Sequence[Projection], *, note: str) -> LineChart:
    """Return the memory of the fullest device against the step time."""
    return _scatter(
        "Memory and step time",
        note,
        ("GiB on the fullest device", "seconds per step"),
        [(one, one.memory.peak_bytes / GIB, one.step_time_s) for one in found],
    )


def days_and_money(
    found: Sequence[Projection], *, note: str, price: float | None = None
) -> tuple[LineChart, ...]:
    """Return days against money, where tokens are known and a price: of a device and hour, or the device's own."""
    points = []
    for one in found:
        hourly = one.cluster.device.price_per_hour if price is None else price
        money = one.run_cost(hourly or None)
        if one.training_days is not None and money is not None:
            points.append((one, one.training_days, money))
    if not points:
        return ()
    return (_scatter("Days and money", note, ("days", "money"), points),)


def _scatter(
    title: str, note: str, axes: tuple[str, str], points: Sequence[tuple[Projection, float, float]]
) -> LineChart:
    dots = tuple(Dot(x=x, y=y, remark=_remark(one)) for one, x, y in points)
    x, y = (
        value_axis(name, [getattr(dot, side) for dot in dots], log=False, say="{:,.6g}".format)
        for name, side in zip(axes, "xy", strict=True)
    )
    return LineChart(title=title, note=note, x=x, y=y, lines=(Line(name="layouts", dots=dots, joined=False),))


def _remark(one: Projection) -> str:
    step, memory = format_seconds(one.step_time_s), one.memory.peak_bytes / GIB
    return f"{one.cluster.num_devices:,} devices: {layout(one.strategy)}: {step}, {memory:.1f} GiB"
