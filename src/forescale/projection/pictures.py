"""Several projections in one picture: what is gained against what it costs."""

from __future__ import annotations

from collections.abc import Sequence

from forescale.projection.result import Projection
from forescale.spec.phrases import layout
from forescale.units import GIB, format_seconds
from forescale.view.axes import value_axis
from forescale.view.lines import Dot, Line, LineChart


def memory_and_time(found: Sequence[Projection], *, note: str, chosen: Projection | None = None) -> LineChart:
    """Return the memory of the fullest device against the step time, with one that is `chosen` marked."""
    several = found if chosen is None else (*found, chosen)
    return scatter(
        "Memory and step time",
        note,
        ("GiB on the fullest device", "seconds per step"),
        [(one, one.memory.peak_bytes / GIB, one.step_time_s) for one in several],
        chosen,
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
    return (scatter("Days and money", note, ("days", "money"), points),)


def scatter(
    title: str,
    note: str,
    axes: tuple[str, str],
    points: Sequence[tuple[Projection, float, float]],
    chosen: Projection | None = None,
) -> LineChart:
    """Return each projection as a point, with the one that is `chosen` marked."""
    x, y = (
        value_axis(name, values, log=False, say="{:,.6g}".format)
        for name, values in zip(axes, ([x for _, x, _ in points], [y for *_, y in points]), strict=True)
    )
    sides = {"layouts": [point for point in points if point[0] is not chosen]}
    sides |= {} if chosen is None else {"this one": [point for point in points if point[0] is chosen]}
    lines = (
        Line(name=name, joined=False, colour=colour, dots=tuple(Dot(x=x, y=y, remark=_remark(one)) for one, x, y in of))
        for colour, (name, of) in enumerate(sides.items())
    )  # fmt: skip
    return LineChart(title=title, note=note, x=x, y=y, lines=tuple(lines))


def _remark(one: Projection) -> str:
    step, memory = format_seconds(one.step_time_s), one.memory.peak_bytes / GIB
    return f"{one.cluster.num_devices:,} devices: {layout(one.strategy)}: {step}, {memory:.1f} GiB"
