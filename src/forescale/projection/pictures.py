"""Several projections in one picture: what is gained against what it costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from forescale.projection.result import Projection
from forescale.spec.phrases import layout
from forescale.units import GIB, format_count, format_seconds
from forescale.view.axes import value_axis
from forescale.view.lines import Dot, Line, LineChart

WIDE = 5.0
"""From this ratio of the greatest to the least value on an axis is logarithmic."""


def memory_and_time(
    found: Sequence[Projection],
    *,
    note: str,
    chosen: Projection | None = None,
    link: Callable[[Projection], str] | None = None,
) -> LineChart:
    """Return memory of the fullest device against step time, with one `chosen`; `link` is where a point leads."""
    several = found if chosen is None else (*found, chosen)
    points = [(one, one.memory.peak_bytes / GIB, one.step_time_s) for one in several]
    axes = ("GiB on the fullest device", "seconds per step")
    return scatter("Memory and step time", note, axes, points, chosen, link)


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
    return (scatter("Days and money", note, ("days", "money"), points),)


def scatter(
    title: str,
    note: str,
    axes: tuple[str, str],
    points: Sequence[tuple[Projection, float, float]],
    chosen: Projection | None = None,
    link: Callable[[Projection], str] | None = None,
) -> LineChart:
    """Return each projection as a point, with the one that is `chosen` marked; `link` is where a point leads."""
    x, y = (
        value_axis(name, values, log=max(values) > WIDE * min(values) > 0, say=_amount)
        for name, values in zip(axes, ([x for _, x, _ in points], [y for *_, y in points]), strict=True)
    )
    sides = {"layouts": [point for point in points if point[0] is not chosen]}
    sides |= {} if chosen is None else {"this one": [point for point in points if point[0] is chosen]}
    lines = []
    for colour, (name, several) in enumerate(sides.items()):
        dots = (
            Dot(x=across, y=up, remark=_remark(one), link="" if link is None else link(one))
            for one, across, up in several
        )
        lines.append(Line(name=name, joined=False, colour=colour, dots=tuple(dots)))
    return LineChart(title=title, note=note, x=x, y=y, lines=tuple(lines))


def _amount(value: float) -> str:
    return f"{value:,.6g}" if value < 1e5 else format_count(value)


def _remark(one: Projection) -> str:
    step, memory = format_seconds(one.step_time_s), one.memory.peak_bytes / GIB
    return f"{one.cluster.num_devices:,} devices: {layout(one.strategy)}: {step}, {memory:.1f} GiB"
