"""The search over a run: devices, layout, checkpoint interval and spares together, for a deadline or a budget.

The calendar is proportional to the step, by a factor that devices, interval and spares decide: of each number of
devices only the fastest layout matters, and only below the step from which some plan found before is both sooner and
cheaper. The search of that layout starts from there, so most numbers of devices are settled by its first bounds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from msgspec.structs import replace

from forescale.errors import InfeasibleError, SpecError, missing, required_with
from forescale.goodput.events import INTERVALS
from forescale.goodput.expected import expected
from forescale.goodput.operations import calendar, case_of, rates_of
from forescale.graph.counts import count_saved
from forescale.numeric import divisors
from forescale.project import project
from forescale.projection.result import SECONDS_PER_DAY, Calendar, Projection, scatter
from forescale.question import Question
from forescale.results import Result
from forescale.search.scan import Terms, least_step, usual_counts
from forescale.search.scenarios import fastest
from forescale.search.solve import Watch
from forescale.spec import Cluster
from forescale.spec.operations import Operations
from forescale.struct import Struct, attributes
from forescale.units import counted
from forescale.view.page import Chart
from forescale.whole_run.prices import published_prices

SCHEMA = "forescale.plans/1"
WORTH = 1e-4
"""Share of the run that a further spare saves at least; beyond none is tried."""
MOST_SPARES = 1_000
HOURS = 24.0
ROUND = 1.0 + 1e-9


class Limits(Struct, frozen=True, kw_only=True):
    """What a run may take; both must hold."""

    deadline: float | None = None
    """Days on the calendar."""
    budget: float | None = None
    """In the currency of the price, or device-hours where there is none."""

    def hold(self, days: float, cost: float) -> bool:
        """Whether a run keeps them."""
        return days <= (self.deadline or np.inf) and cost <= (self.budget or np.inf)


class Plan(Struct, frozen=True, kw_only=True):
    """One way to run: so many devices and spares, checkpoints so often, and the fastest layout there."""

    projection: Projection
    spares: int
    """Nodes beside those that train."""
    calendar: Calendar
    cost: float
    """Of all devices, spares too; device-hours where there is no price."""

    @property
    def days(self) -> float:
        """Expected days on the calendar."""
        return self.calendar.days.expected

    @property
    def num_devices(self) -> int:
        """Devices that are paid for."""
        return self.projection.cluster.num_devices + self.spares * self.projection.cluster.devices_per_node

    @property
    def machines(self) -> str:
        """The devices that train, and spare nodes, in words."""
        spares = f" and {counted(self.spares, 'spare node')}" if self.spares else ""
        return f"{counted(self.projection.cluster.num_devices, 'device')}{spares}"

    def row(self) -> dict[str, Any]:
        """Return its figures."""
        return {
            **attributes(self, "num_devices=projection.cluster.num_devices", "spares"),
            **attributes(self.calendar, "checkpoint_interval_s"),
            **attributes(self, "step_time_s=projection.step_time_s", "days"),
            **attributes(self.calendar, "days_low=days.low", "days_high=days.high"),
            **attributes(self, "ideal_days=projection.training_days", "goodput=calendar.goodput"),
            "device_hours": self.num_devices * self.days * HOURS,
            "cost": self.cost,
        }


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Plans(Result):
    """The plan asked for, and the front of days against cost within the limits, soonest first."""

    chosen: Plan
    """The cheapest that meets a deadline; else the soonest within the budget."""
    front: tuple[Plan, ...]
    limits: Limits
    price: float | None
    failures: str
    num_tried: int
    """Numbers of devices."""
    elapsed_s: float = field(compare=False)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per plan of the front, with its layout."""
        return [{**item.projection.rows()[0], **item.row()} for item in self.front]

    def pictures(self) -> Sequence[Chart]:
        """Return days against what they cost, with the plan asked for marked."""
        points = [(item.projection, item.days, item.cost) for item in self.front]
        cost = "device-hours" if self.price is None else "money"
        note = "plans none of which is both sooner and cheaper"
        return (scatter("Days and cost", note, ("days", cost), points, self.chosen.projection),)

    def to_json(self) -> dict[str, Any]:
        """Return the `forescale.plans/1` document."""
        return {
            "schema": SCHEMA,
            "limits": asdict(self.limits),
            "price_per_device_hour": self.price,
            **attributes(self, "failures", "num_tried", "elapsed_s"),
            "chosen": self.front.index(self.chosen),
            "front": [{**item.row(), "best": item.projection.to_json()} for item in self.front],
        }


class EqualBudget(Result, Struct, frozen=True, kw_only=True):
    """What each of some questions gets for the same money: its soonest run."""

    budget: float
    found: Mapping[str, Plan | str]
    """By name; where nothing is so cheap, why."""

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per question; of one without a plan its problem alone."""
        return [
            {"name": name, "problem": plan}
            if isinstance(plan, str)
            else {"name": name, "cluster": plan.projection.cluster.name, **plan.row()}
            for name, plan in self.found.items()
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the `forescale.equal-budget/1` document."""
        return {"schema": "forescale.equal-budget/1", "budget": self.budget, "runs": self.rows()}


class _Option(Struct, frozen=True, kw_only=True):
    """So many devices and spares, checkpoints at their best: what a second of step makes of the run."""

    question: Question
    operations: Operations
    days: float
    """Per second of step."""
    cost: float
    """Per second of step."""


def plan_run(
    question: Question,
    device_counts: Sequence[int],
    limits: Limits,
    *,
    price: float | None = None,
    watch: Watch = lambda _: True,
) -> Plans:
    """Return the best plan of a run within limits, of all numbers of devices, layouts, intervals and spares.

    Raises
    ------
    InfeasibleError
        If no plan keeps the limits; the message says what the nearest one takes.
    SpecError
        If the tokens of the run are not known.
    """
    started = time.perf_counter()
    if question.workload.tokens is None:
        fix = "forescale check --solve tokens finds how many a budget or a deadline allows"
        raise required_with("the number of training tokens (--tokens 15T)", "a plan of a run", fix=fix)
    question.cluster.check_sizes(device_counts)
    counts = sorted(set(device_counts), key=lambda count: (-len(divisors(count)), -count))
    plans = _plans(question, counts, limits, price, watch)
    front = _front(plans)
    if not front:
        raise _nothing(question, counts, limits, price, watch)
    best = min(front, key=lambda item: item.cost) if limits.deadline else front[0]
    return Plans(
        chosen=best,
        front=front,
        limits=limits,
        price=price,
        failures=rates_of(question.operations, question.cluster.devices_per_node).name,
        num_tried=len(counts),
        elapsed_s=time.perf_counter() - started,
    )


def at_equal_budget(questions: Mapping[str, Question], budget: float) -> EqualBudget:
    """Return the soonest run that each question gets for a budget, on up to as many devices as its cluster has.

    Raises
    ------
    SpecError
        If the price of a device or the tokens of a run are not known.
    """
    plans: dict[str, Plan | str] = {}
    for name, question in questions.items():
        price = hourly_price(question.cluster)
        if price is None:
            device = question.cluster.device.name
            fix = "give price_per_hour of the device in its cluster"
            raise missing(f"the price of an hour of {device}", fix).at(name)
        (_, counts), limits = usual_counts(question.cluster), Limits(budget=budget)
        try:
            plans[name] = plan_run(question, counts, limits, price=price).chosen
        except InfeasibleError as error:
            plans[name] = str(error)
    return EqualBudget(budget=budget, found=plans)


def hourly_price(cluster: Cluster, value: float | None = None) -> float | None:
    """Return the price of a device and hour: as given, the cluster's own, or the middle of the published ones.

    Of devices that cost nothing device-hours are counted: None.
    """
    price = Terms(price_per_device_hour=value).price(cluster)
    listed = published_prices().price(cluster.device.name)
    return listed[0].expected if price is None and listed is not None else price or None


def _plans(
    question: Question,
    counts: Sequence[int],
    limits: Limits,
    price: float | None,
    watch: Watch,
    least: tuple[str, ...] = ("days", "cost"),
) -> list[Plan]:
    """Return plans within the limits, among them the front, or those with the `least` days or cost alone."""
    plans: list[Plan] = []
    for count in counts:
        sized = replace(question, cluster=question.cluster.sized(count))
        try:
            options = list(_options(sized, price)) if sized.site.cluster.num_devices else []
        except SpecError:  # nothing is ever saved, or devices are no whole number of sites
            continue
        cutoff = max((_cutoff(option, limits, plans, least) for option in options), default=0.0)
        if cutoff <= 0.0 or least_step(sized) > cutoff:
            continue
        try:
            best = fastest(sized, watch=watch, cutoff=cutoff * ROUND)
        except InfeasibleError:
            continue
        if best.question is None or best.strategy is None:
            continue
        projection = project(best.question.with_layout(best.strategy))
        for option in options:
            step = projection.step_time_s
            if limits.hold(option.days * step, option.cost * step):
                plans.append(_plan(option, projection))
    return plans


def _options(question: Question, price: float | None) -> Iterator[_Option]:
    """Yield each number of spares worth trying, with the checkpoint interval that loses least.

    Raises
    ------
    SpecError
        If no work is ever saved.
    """
    cluster, workload, operations = question.cluster, question.workload, question.operations
    assert workload.tokens is not None
    steps = workload.tokens / workload.tokens_per_step
    before = np.inf
    for spares in range(MOST_SPARES) if operations.spares is None else (operations.spares,):
        explicit = replace(operations, spares=spares)
        case, saved = case_of(
            explicit,
            parameters=count_saved(question.model, workload.trainable),
            precision=workload.precision,
            cluster=cluster,
            seconds=steps,
        )
        intervals = np.maximum(case.interval * INTERVALS, saved.written)
        if operations.checkpointing.interval is not None:
            intervals = np.array([operations.checkpointing.interval])
        walls = np.asarray(sum(expected(replace(case, interval=intervals)).values()))
        days = float(walls.min()) / SECONDS_PER_DAY
        if not days < before * (1.0 - WORTH):
            return
        before = days
        interval = float(intervals[int(np.argmin(walls))])
        paid = cluster.num_devices + spares * cluster.devices_per_node
        yield _Option(
            question=question,
            operations=replace(explicit, checkpointing=replace(explicit.checkpointing, interval=interval)),
            days=days,
            cost=days * HOURS * paid * (1.0 if price is None else price),
        )


def _cutoff(option: _Option, limits: Limits, plans: Sequence[Plan], least: tuple[str, ...]) -> float:
    """Return the step [s] beyond which an option breaks the limits, or some plan is better in what is to be `least`."""
    most = min((limits.deadline or np.inf) / option.days, (limits.budget or np.inf) / option.cost)
    beaten = [max(getattr(item, name) / getattr(option, name) for name in least) for item in plans]
    return float(min([most, *beaten]))


def _plan(option: _Option, projection: Projection) -> Plan:
    model, cluster, workload = projection.model, projection.cluster, projection.workload
    saved = count_saved(model, workload.trainable)
    days = calendar(saved, cluster, workload, projection.step_time, option.operations)
    assert days is not None
    assert option.operations.spares is not None
    return Plan(
        projection=projection,
        spares=option.operations.spares,
        calendar=days,
        cost=option.cost * projection.step_time_s,
    )


def _front(plans: Sequence[Plan]) -> tuple[Plan, ...]:
    """Return the plans that no other beats in both days and cost, soonest first."""
    front: list[Plan] = []
    for item in sorted(plans, key=lambda plan: (plan.days, plan.cost, plan.num_devices)):
        if not front or item.cost < front[-1].cost:
            front.append(item)
    return tuple(front)


def _nothing(
    question: Question,
    counts: Sequence[int],
    limits: Limits,
    price: float | None,
    watch: Watch,
) -> InfeasibleError:
    """Return the error where nothing keeps the limits: what the nearest plan takes."""
    unit = "device-hours" if price is None else "in all"
    tried = f"none of the {len(counts)} numbers of devices tried"
    for what, least in (("budget", "cost"), ("deadline", "days")):
        if getattr(limits, what) is None:
            continue
        order = sorted(counts, reverse=least == "days")
        left = replace(limits, **{what: None})
        if front := _front(_plans(question, order, left, price, watch, (least,))):
            soonest, cheapest = front[0], front[-1]
            if what == "budget":
                text = f"costs at most {limits.budget:,.0f} {unit}: the cheapest costs {cheapest.cost:,.0f}"
                text += f" on {cheapest.machines} in {cheapest.days:,.1f} days"
            else:
                text = f"ends within {limits.deadline:,.3g} days: the soonest takes {soonest.days:,.1f}"
                text += f" on {soonest.machines}"
            return InfeasibleError(f"{tried} {text}; give a {what} of that or more")
    for count in sorted(counts):
        sized = replace(question, cluster=question.cluster.sized(count))
        try:
            options = list(_options(sized, price))
        except SpecError as error:
            return InfeasibleError(f"{tried} ends: on {count:,}, {error}")
        if options:
            break
    return InfeasibleError(f"{tried} has a layout that fits and a run that ends; try other devices")
