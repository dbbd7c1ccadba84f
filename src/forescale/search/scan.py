"""One search per number of devices, or per global batch: what the best layout of each reaches and costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from msgspec.structs import replace

from forescale.errors import ForescaleError, InfeasibleError, out_of_range, required_with
from forescale.numeric import divisors
from forescale.project import flops_of, peak_rate, project
from forescale.projection.result import (
    SECONDS_PER_DAY,
    Projection,
    cost_per_token,
    days_and_money,
    energy_per_token,
)
from forescale.question import Question
from forescale.repr import ReprMixin
from forescale.results import Result
from forescale.search.rank import search
from forescale.search.scenarios import by_time, scenarios
from forescale.spec.cluster import Cluster
from forescale.spec.layout import Layout
from forescale.spec.workload import Workload
from forescale.struct import Struct, attributes
from forescale.units import counted, format_seconds
from forescale.view.bars import Bar, BarChart
from forescale.workers import available_cores, in_rounds

if TYPE_CHECKING:
    from forescale.view.page import Chart

SCHEMA = "forescale.scan/1"
Varied: TypeAlias = Literal["num_devices", "global_batch_size"]
BETWEEN = 3
"""Numbers of devices tried at most between two powers of two of nodes."""
ROUND = 4
"""Points that are searched side by side; each knows the best layouts of the rounds before."""
ROUNDING = 1.0 + 1e-9
"""Widens a step that is projected to bound one that is searched."""
Known: TypeAlias = Mapping[int, Question]
"""The question of the best layout of some points, by what is varied."""


class Target(Struct, frozen=True, kw_only=True):
    """What a step, or the whole run, may take at most; where both are given both must hold."""

    step_time_s: float | None = None
    days: float | None = None
    """Days for the workload's `tokens`, on the calendar where it is known."""

    def __post_init__(self) -> None:
        """Check that something positive is asked."""
        values = [value for value in (self.step_time_s, self.days) if value is not None]
        if not values or min(values) <= 0.0:
            raise out_of_range("a target", values or "neither", "a step time or days greater than 0")

    def limit(self, workload: Workload) -> float:
        """Return the longest step that meets the target [s]."""
        limits = [] if self.step_time_s is None else [self.step_time_s]
        if self.days is not None:
            if workload.tokens is None:
                raise required_with("the tokens of the whole run (--tokens)", "a target in days")
            limits.append(self.days * SECONDS_PER_DAY * workload.tokens_per_step / workload.tokens)
        return min(limits)

    def met_by(self, one: Projection) -> bool:
        """Return whether a layout meets it; days are those on the calendar, with failures, where they are known."""
        days = days_of(one)
        in_time = self.days is None or (days is not None and days <= self.days)
        return one.step_time_s <= self.limit(one.workload) and in_time


def days_of(one: Projection) -> float | None:
    """Return the days of the whole run, on the calendar where failures are known; None without tokens."""
    return one.training_days if one.calendar is None else one.calendar.days.expected


FIGURES = (
    "step_time_s",
    "tokens_per_s_per_device",
    "communication_share",
    "bubble_share",
    "training_days",
)
"""Figures of the best layout that a point repeats."""


class Point(ReprMixin, Struct, frozen=True, kw_only=True):
    """One value of what is varied, with its best layout."""

    num_devices: int
    global_batch_size: int
    best: Projection | None = None
    """The fastest layout that fits, or None."""
    problem: str | None = None
    """Why there is no best layout."""
    num_feasible: int = 0
    meets_target: bool | None = None
    cost_per_million_tokens: float | None = None
    """In the currency of the price; None without a price."""
    energy_per_token_max_j: float | None = None
    """Joule of the devices at their rated power all the time; None where that is unknown."""

    @property
    def cost(self) -> float | None:
        """Price of the whole run; None without a price or tokens."""
        tokens = None if self.best is None else self.best.workload.tokens
        if tokens is None or self.cost_per_million_tokens is None:
            return None
        return self.cost_per_million_tokens * tokens / 1e6

    def to_json(self) -> dict[str, Any]:
        """Return the point with its figures beside its best layout."""
        best = self.best
        return {
            **attributes(self, "num_devices", "global_batch_size", "num_feasible", "problem", "meets_target"),
            **{name: getattr(best, name, None) for name in FIGURES},
            "calendar_days": None if best is None or best.calendar is None else asdict(best.calendar.days),
            **attributes(self, "cost", "cost_per_million_tokens", "energy_per_token_max_j", "best"),
        }


class ScanResult(Result, Struct, frozen=True, kw_only=True):
    """Points by ascending value of what is varied; at least one has a layout."""

    points: tuple[Point, ...]
    varied: Varied
    target: Target | None
    price_per_device_hour: float | None
    elapsed_s: float

    @property
    def chosen(self) -> Point | None:
        """The first point that meets the target, None if none does; without a target the best per device."""
        if self.target is not None:
            return next((point for point in self.points if point.meets_target), None)
        with_best = [(-point.best.tokens_per_s_per_device, point) for point in self.points if point.best]
        return min(with_best, key=lambda pair: pair[0])[1]

    @property
    def cheapest(self) -> Point | None:
        """Of the points that meet the target, the one that spends the least device time; None if none does."""
        met = [(-p.best.tokens_per_s_per_device, p) for p in self.points if p.best and p.meets_target]
        return min(met, key=lambda pair: pair[0])[1] if met else None

    @property
    def headline(self) -> str:
        """How many values were searched, and the layout of the chosen one."""
        point, name = self.chosen, self.varied.removeprefix("num_").replace("_", " ")
        best = None if point is None else point.best
        result = "none meets the target" if best is None else best.headline
        return f"{counted(len(self.points), 'value')} of {name}; {result}"

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per point, with its best layout; the same columns for points without."""
        rows = []
        for point in self.points:
            figures = {name: value for name, value in point.to_json().items() if name != "best"}
            rows.append({**figures, **({} if point.best is None else point.best.rows()[0])})
        columns = dict.fromkeys(name for row in rows for name in row)
        return [{name: row.get(name) for name in columns} for row in rows]

    def pictures(self) -> Sequence[Chart]:
        """Return the parts of the best step of every point, and days against money where they are known."""
        best = [point.best for point in self.points if point.best is not None]
        named = [(f"{getattr(point, self.varied):,}", point.best) for point in self.points if point.best]
        bars = tuple(Bar(label=name, values=one.time_s) for name, one in named)
        axis = self.varied.replace("num_", "").replace("_", " ")
        return (
            BarChart(title="Time of a step", note="the best layout of each", axis=axis, unit="s", bars=bars),
            *days_and_money(best, note="the best layout of each", price=self.price_per_device_hour),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the `forescale.scan/1` document."""
        target, selected, cheapest = self.target, self.chosen, self.cheapest
        return {
            "schema": SCHEMA,
            "varied": self.varied,
            "target": None if target is None else {"step_time_s": target.step_time_s, "days": target.days},
            "price_per_device_hour": self.price_per_device_hour,
            "chosen": None if selected is None else getattr(selected, self.varied),
            "cheapest": None if cheapest is None else getattr(cheapest, self.varied),
            **attributes(self, "elapsed_s", "points"),
        }


class Terms(Struct, frozen=True, kw_only=True):
    """By what the points of a scan are judged.

    `price_per_device_hour` is in any currency; None takes the device's own, if it has one.
    """

    target: Target | None = None
    price_per_device_hour: float | None = None
    jobs: int | None = 1
    """Processes that search; None is one per core. Points do not depend on how many there are."""
    max_host_memory: float | None = None
    """Memory of this machine that they may take together [byte]."""

    @property
    def host_limit(self) -> float:
        """Memory that each process may take [byte]."""
        if self.max_host_memory is None:
            return float("inf")
        return self.max_host_memory / (self.jobs or available_cores())

    def price(self, cluster: Cluster) -> float | None:
        """Return the price of a device and hour, or None where nobody said."""
        price_per_hour = cluster.device.price_per_hour
        price = (price_per_hour or None) if self.price_per_device_hour is None else self.price_per_device_hour
        if price is not None and price < 0.0:
            raise out_of_range("the price per device-hour", price, "0 or more")
        return price


def scan_devices(
    question: Question, device_counts: Sequence[int], *, terms: Terms | None = None
) -> ScanResult:
    """Return the best layout on each number of devices of a cluster.

    Raises
    ------
    InfeasibleError
        If nothing fits on any of them.
    """
    started, terms = time.perf_counter(), terms or Terms()
    counts = _whole("numbers of devices", device_counts)
    question.cluster.check_sizes(counts)
    one = partial(_point, question, terms, "num_devices")
    points = [point for _, point in _in_rounds(one, counts, terms)]
    return _result(points, "num_devices", question.cluster, terms, started)


def fewest_devices(question: Question, target: Target, *, terms: Terms | None = None) -> ScanResult:
    """Return the fewest devices, of those tried and at most the cluster's, whose best layout meets a target.

    Tried are the divisors of a node, powers of two of nodes, whole nodes between them (all of them up to eight
    nodes, three per power of two beyond) and the cluster itself, upwards until one meets the target; of those
    above it only the powers of two, for comparison. Numbers between powers of two are points only where they meet
    the target: elsewhere it is enough to know that no layout does. More devices are not always faster: layouts must
    divide them.
    """
    started = time.perf_counter()
    terms = replace(terms or Terms(), target=target)
    cluster = question.cluster
    ladder, counts = usual_counts(cluster)
    points: list[Point] = []
    met = False

    def wanted(count: int) -> bool:
        return not met or count in ladder

    one = partial(_point, question, terms, "num_devices", ladder=ladder)
    for count, point in _in_rounds(one, counts, terms, wanted):
        if wanted(count) and (point.best is not None or count in ladder):
            points.append(point)
        met = met or bool(point.meets_target)
    return _result(points, "num_devices", question.cluster, terms, started)


def scan_batches(question: Question, batches: Sequence[int], *, terms: Terms | None = None) -> ScanResult:
    """Return the best layout at each global batch size [sequences per step].

    Raises
    ------
    InfeasibleError
        If nothing fits at any of them.
    """
    started, terms = time.perf_counter(), terms or Terms()
    sizes = _whole("global batch sizes", batches)
    one = partial(_point, question, terms, "global_batch_size")
    points = [point for _, point in _in_rounds(one, sizes, terms)]
    return _result(points, "global_batch_size", question.cluster, terms, started)


def usual_counts(cluster: Cluster) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the numbers of devices that are tried where none are named: powers of two, and those between them too.

    Of sites whose number is given, each has as many.
    """
    sites, node = cluster.tiers[-1].sites or 1, cluster.devices_per_node
    ladder = device_ladder(cluster.num_devices // sites, node=node)
    between = with_between(ladder, node=node)
    return tuple(sites * count for count in ladder), tuple(sites * count for count in between)


def device_ladder(most: int, *, node: int) -> tuple[int, ...]:
    """Return the divisors of a node, powers of two of nodes, and `most`; none above `most`."""
    nodes = [node << power for power in range(most.bit_length())]
    return tuple(sorted({count for count in (*divisors(node), *nodes) if count <= most} | {most}))


def with_between(ladder: Sequence[int], *, node: int) -> tuple[int, ...]:
    """Return a ladder with up to `BETWEEN` evenly spaced numbers of whole nodes between its neighbours."""
    result = set(ladder)
    for low, high in pairwise(ladder):
        step = node * max(1, -(-(high - low) // (node * (BETWEEN + 1))))
        result.update(range((low // step + 1) * step, high, step))
    return tuple(sorted(result))


def _in_rounds(
    one: Callable[[tuple[int, Known]], tuple[Point, Question | None]],
    values: Sequence[int],
    terms: Terms,
    wanted: Callable[[int], bool] = lambda _: True,
) -> Iterator[tuple[int, Point]]:
    """Yield the point of each value; the best layouts of earlier rounds bound what is searched."""
    known: dict[int, Question] = {}
    several = in_rounds(
        one, values, lambda value: (value, {**known}), size=ROUND, jobs=terms.jobs, wanted=wanted
    )
    for value, (point, best) in several:
        known |= {} if best is None else {value: best}
        yield value, point


def _with_value(question: Question, varied: Varied, value: int) -> Question:
    if varied == "num_devices":
        return replace(question, cluster=question.cluster.sized(value))
    return replace(question, workload=replace(question.workload, global_batch_size=value))


def reached(varied: Varied, value: int, known: Known) -> float:
    """Return a step that some layout reaches which fits [s], infinite where none is known.

    It is the best of the nearest smaller value, with more replicas, stages, or ranks that share a layer. Whether it is
    one of those that are searched is not known.
    """
    for nearest in sorted((other for other in known if other < value), reverse=True):
        question = known[nearest]
        times, rest = divmod(value, nearest) if varied == "num_devices" else (1, 0)
        if rest == 0 and question.cluster.num_sites <= 1:
            wider = _with_value(question, varied, value)
            steps = [_step(wider.with_layout(layout)) for layout in _stretched(question.strategy, times)]
            return min(steps) * ROUNDING
    return np.inf


def _stretched(layout: Layout | None, times: int) -> list[Layout]:
    """Return a layout with so many times its degree of each kind of parallelism."""
    if layout is None:
        return []
    layout = replace(layout, placement=None)
    if times == 1:
        return [layout]
    names = ("dp_shard" if layout.dp_shard > 1 else "dp_replicate", "pp", "tp", "cp")
    return [replace(layout, **{name: times * getattr(layout, name)}) for name in names]


def _step(question: Question) -> float:
    """Return the step of a layout [s]; infinite where it is illegal or does not fit."""
    try:
        projection = project(question)
    except ForescaleError:
        return np.inf
    return projection.step_time_s if projection.memory.peak_bytes <= question.memory_limit else np.inf


def _best(question: Question, terms: Terms, least: float, most: float) -> tuple[Question, int] | None:
    """Return the question of the fastest layout whose step is at most `most`, and how many at least fit; None if none.

    `least` is a step that some layout reaches, though perhaps none that is searched and fits.

    Raises
    ------
    InfeasibleError
        If no layout fits, however long its step.
    """
    for cutoff in sorted({min(least, most), most}):
        ranking = by_time(question, watch=lambda _: True, cutoff=cutoff, host_limit=terms.host_limit)
        if result := ranking.best():
            scenario, layout, _ = result[0]
            return question.over_sites(scenario.with_layout(layout)), ranking.num_feasible
    if most == np.inf:
        ranking.check(question.site)
    return None


def _searched(
    question: Question, terms: Terms, least: float, most: float
) -> tuple[Projection, int, Question | None] | None:
    """Return the projection of the best layout and how many at least fit, and the question of the layout itself.

    Where the step is not that of our engine on one site, nothing bounds it.
    """
    if question.workload.outer is not None or question.preset != "default":
        result = search(question, top=1, max_host_memory=terms.host_limit)
        return result.best[0], result.num_feasible, None
    if (found := _best(question, terms, least, most)) is None:
        return None
    return project(found[0]), found[1], found[0]


def _point(
    question: Question,
    terms: Terms,
    varied: Varied,
    given: tuple[int, Known],
    *,
    ladder: Sequence[int] | None = None,
) -> tuple[Point, Question | None]:
    """Return the point of a value and the question of its best layout, None without one.

    `given` is the value, and what is known of smaller ones. A value outside a `ladder` has no layout unless it meets
    the target.
    """
    value, known = given
    question = replace(_with_value(question, varied, value), objective="step_time")
    workload = question.workload
    point = Point(num_devices=question.cluster.num_devices, global_batch_size=workload.global_batch_size)
    limit = None if terms.target is None else terms.target.limit(workload)
    if limit is not None and (floor := least_step(question)) > limit:
        violation = f"a step takes at least {format_seconds(floor)}, even at the devices' peak rate"
        return replace(point, problem=violation, meets_target=False), None
    most = np.inf if limit is None or ladder is None or value in ladder else limit
    try:
        found = _searched(question, terms, reached(varied, value, known), most)
    except InfeasibleError as error:
        return replace(point, problem=str(error), meets_target=None if limit is None else False), None
    if found is None:
        violation = f"no layout takes {format_seconds(most)} or less"
        return replace(point, problem=violation, meets_target=False), None
    best, num_feasible, of_best = found
    return _with_best(point, question, terms, best, num_feasible), of_best


def _with_best(point: Point, question: Question, terms: Terms, best: Projection, num_feasible: int) -> Point:
    """Return a point with its best layout, what that costs, and whether it meets the target."""
    cluster, workload = question.cluster, question.workload
    spent = {
        "num_devices": cluster.num_devices,
        "step_time": best.step_time_s,
        "tokens": workload.tokens_per_step,
    }
    price, power = terms.price(cluster), cluster.device.power_w
    met = None if terms.target is None else terms.target.met_by(best)
    return replace(
        point,
        best=best,
        num_feasible=num_feasible,
        meets_target=met,
        cost_per_million_tokens=None
        if price is None
        else 1e6 * float(cost_per_token(price_per_device_hour=price, **spent)),
        energy_per_token_max_j=float(energy_per_token(power=power, **spent)) if power else None,
    )


def least_step(question: Question) -> float:
    """Return the shortest step that the devices' peak rate allows [s], in any scenario: no layout is faster."""
    one = flops_of(question.model, question.space.base.routing, question.workload).masked
    flops = one * question.workload.global_batch_size
    rate = max(peak_rate(scenario.cluster, scenario.workload) for scenario in scenarios(question))
    return flops / (rate * question.costs.clock_share(question.cluster.device) * question.cluster.num_devices)


def _result(
    points: Sequence[Point], varied: Varied, cluster: Cluster, terms: Terms, started: float
) -> ScanResult:
    """Return the result, refusing a scan that found nothing at all."""
    if terms.target is None and not any(point.best for point in points):
        values = ", ".join(str(getattr(point, varied)) for point in points)
        what = "number of devices" if varied == "num_devices" else "global batch size"
        raise InfeasibleError(f"nothing fits at any {what} of {values}; at the last: {points[-1].problem}")
    return ScanResult(
        points=tuple(points),
        varied=varied,
        target=terms.target,
        price_per_device_hour=terms.price(cluster),
        elapsed_s=time.perf_counter() - started,
    )


def _whole(what: str, values: Sequence[int]) -> list[int]:
    if not values or min(values) < 1:
        raise out_of_range(what, list(values) or "none", "whole numbers of 1 or more")
    return sorted(set(values))
