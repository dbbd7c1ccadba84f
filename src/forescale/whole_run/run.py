"""Phases, failures and prices together: days on the calendar, money, energy, and what their range comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from forescale.errors import SpecError, empty, not_divisible, out_of_range
from forescale.formula import formula
from forescale.goodput.events import Outcome, best_interval_by_events, simulate
from forescale.goodput.expected import (
    PARTS,
    Case,
    daly_goodput,
    daly_interval,
    kokolis_goodput,
    nodes_away,
    young_interval,
)
from forescale.goodput.operations import (
    RATE,
    STEP,
    Saving,
    case_of,
    drawn,
    expected_parts,
    rates_of,
    sources_of,
    spread,
    stretched,
)
from forescale.graph.counts import count_saved
from forescale.limits import Amount, Count
from forescale.numeric import Array, Numeric
from forescale.project import project
from forescale.projection.result import SECONDS_PER_DAY, SECONDS_PER_HOUR, Interval, Projection
from forescale.question import Question, foremost
from forescale.results import Result
from forescale.spec import phrases
from forescale.spec.cluster import Device
from forescale.spec.layout import Layout
from forescale.spec.operations import Operations
from forescale.struct import Struct, attributes
from forescale.units import format_count, format_span
from forescale.view.bars import Bar, BarChart
from forescale.view.page import Chart
from forescale.whole_run.prices import PriceList, published_prices

SCHEMA = "forescale.run/1"
DRAWS = 200
"""Runs that are drawn: the 10th and 90th percentiles of days move by less than 1 % with the seed."""
REFINED, EXACT = 4, 1e-3
"""How often the tokens of a run of a given length are corrected, and the relative error from which they are not."""
KWH, MWH = 3.6e6, 3.6e9
HOURS = 24.0


@formula(unit="J", source="definition; rated power bounds the devices' draw from above")
def energy(*, power: Numeric, num_devices: Numeric, seconds: Numeric, pue: Numeric) -> Numeric:
    """Rated power × devices × seconds × what the data centre draws over what the devices draw."""
    return power * num_devices * seconds * pue


class Ramp(Struct, frozen=True, kw_only=True):
    """A batch that grows over the first samples of a phase, as Megatron-LM's `rampup_batch_size`."""

    start: Count
    """Sequences of the first steps."""
    increment: Count
    """By which they grow, in equal parts of the samples."""
    samples: Amount
    """Sequences until the batch is whole."""

    def parts(self, question: Question) -> list[Question]:
        """Return the question of each batch, its tokens those that it trains; the whole batch last.

        Raises
        ------
        SpecError
            If the batch does not grow to the question's in whole increments, or no tokens are left for that.
        """
        work = question.workload
        steps, rest = divmod(work.global_batch_size - self.start, self.increment)
        if rest or steps < 1:
            fix = f"start at {work.global_batch_size - max(1, steps) * self.increment}, for example"
            key = f"global_batch_size {work.global_batch_size} - start {self.start} ="
            raise not_divisible(key, work.global_batch_size - self.start, self.increment, "increment", fix)
        left = (work.tokens or 0.0) - self.samples * work.seq_len
        if left <= 0.0:
            raise out_of_range(
                "the tokens of the phase",
                work.tokens,
                f"greater than the {format_count(self.samples * work.seq_len)} over which the batch grows",
            )
        item = self.samples / steps * work.seq_len
        sizes = [(self.start + step * self.increment, item) for step in range(steps)]
        works = [replace(work, global_batch_size=batch, tokens=tokens) for batch, tokens in sizes]
        return [replace(question, workload=one) for one in (*works, replace(work, tokens=left))]


class Phase(Struct, frozen=True, kw_only=True):
    """So many tokens trained one way."""

    name: str
    projection: Projection
    tokens: float
    origin: str = ""
    """How the layout was chosen; empty if it was given."""

    @property
    def steps(self) -> float:
        """Optimizer steps."""
        return self.tokens / self.projection.workload.tokens_per_step

    def case(self, operations: Operations) -> tuple[Case, Saving]:
        """Return it as events see it, and what a checkpoint of it takes; raises as `case_of` does."""
        projection = self.projection
        case, saved = case_of(
            operations,
            parameters=count_saved(projection.model, projection.workload.trainable),
            precision=projection.workload.precision,
            cluster=projection.cluster,
            seconds=self.steps * projection.step_time_s,
        )
        if not operations.elastic:
            return case, saved
        _, replicas = _replicas(projection.strategy)
        nodes = projection.cluster.num_devices // replicas // projection.cluster.devices_per_node
        return replace(
            case, replica_nodes=max(1, nodes), replica_share=lost_with_a_replica(projection)
        ), saved


def _replicas(layout: Layout) -> tuple[str, int]:
    """Return the degree that shrinks when devices are lost, and its size: of replicated shards a copy goes whole."""
    name = "dp_replicate" if layout.dp_replicate > 1 else "dp_shard"
    return name, getattr(layout, name)


def lost_with_a_replica(projection: Projection) -> float:
    """Return the share of the tokens per second that a layout with one data-parallel replica less lacks.

    With replicas smaller than a node, all that a node holds go with it. The batch shrinks with them. Where none is
    left, everything is lost; where the smaller layout is not legal or its experts do not divide, the loss is in
    proportion.
    """
    layout = projection.strategy
    name, count = _replicas(layout)
    fewer = count - -(-projection.cluster.devices_per_node * count // projection.cluster.num_devices)
    if fewer < 1:
        return 1.0
    left = fewer / count
    smaller = replace(layout, **{name: fewer})
    work = replace(projection.workload, global_batch_size=round(projection.workload.global_batch_size * left))
    try:
        slower = project(projection.model, projection.cluster.sized(smaller.num_devices), smaller, work)
        same = project(projection.model, projection.cluster, layout, projection.workload)
    except SpecError:
        return 1.0 - left
    return float(1.0 - left * same.step_time_s / slower.step_time_s)


class Prices(Struct, frozen=True, kw_only=True):
    """What an hour and a kilowatt-hour cost; what is None is as the list says."""

    device_hour: float | None = None
    pue: float | None = None
    carbon: str | float = "us-2023"
    """kg of CO2 per MWh, or the name of a place in the list."""
    electricity: float | None = None
    """Of a kilowatt-hour."""
    listed: PriceList = msgspec.field(default_factory=published_prices)

    def of(self, device: Device) -> tuple[Interval, str] | None:
        """Return the price of a device and hour, with its source; None where nobody said."""
        price_per_hour = device.price_per_hour if self.device_hour is None else self.device_hour
        if self.device_hour is None and not price_per_hour:
            return self.listed.price(device.name)
        return Interval(low=price_per_hour, expected=price_per_hour, high=price_per_hour), "given"

    def bill(self, joules: float) -> float | None:
        """Return the cost of so much energy; None where the price of electricity is not given."""
        return None if self.electricity is None else joules / KWH * self.electricity

    def energy(self) -> tuple[tuple[float, str], tuple[float, str]]:
        """Return PUE and carbon intensity [kg of CO2 per MWh], each with its source."""
        pue, carbon = self.listed.pue, self.carbon
        ratio = (self.pue, "given") if self.pue is not None or pue is None else (pue.value, pue.source)
        if not isinstance(carbon, str):
            return (ratio[0] or 1.0, ratio[1]), (carbon, "given")
        result = self.listed.carbon(carbon)
        return (ratio[0] or 1.0, ratio[1]), (result.value, result.source)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunProjection(Result):
    """A whole run."""

    phases: tuple[Phase, ...]
    operations: Operations
    days: Interval
    """On the calendar, failures included."""
    ideal_days: float
    """Without failures, saving and pauses."""
    parts_days: Mapping[str, float] = field(hash=False)
    """Mean days by the names of Google's ml-goodput (`goodput.expected.PARTS`)."""
    interruptions: Mapping[str, float] = field(hash=False)
    """Expected unexpected ones, by cause."""
    planned: float
    """Expected planned interruptions."""
    mttf_s: float
    """Mean seconds between unexpected interruptions."""
    checkpoint: Saving
    interval_s: float
    """Seconds from one checkpoint to the next."""
    closed_forms: Mapping[str, float] = field(hash=False)
    """Goodput and best interval by Daly, Young and Kokolis."""
    device_hours: Interval
    money: Interval | None
    """Of the devices; None without a price."""
    currency: str
    """Of the published price of a device and hour; empty where a price was given without one."""
    mwh: float
    """Energy of the devices at their rated power, with PUE."""
    node_mwh: float
    """Most that whole nodes draw, with hosts, fans and network cards; 0 where their power is unknown."""
    tonnes_co2: float
    """Of the energy of the devices."""
    spread: Mapping[str, float] = field(hash=False)
    """Shares of the variance of the days by what they come from, largest first."""
    money_spread: Mapping[str, float] = field(hash=False)
    """The same of the money; empty without a price."""
    sources: Mapping[str, str] = field(hash=False)
    """Where rates, prices and intensities are from."""
    electricity: float | None = None
    """Cost of the energy; None without a price of electricity."""

    @property
    def failures(self) -> str:
        """Name of the rates of failure."""
        return rates_of(self.operations, self.phases[0].projection.cluster.devices_per_node).name

    @property
    def nodes_away(self) -> float:
        """Mean number of nodes that are away for repairs."""
        repaired = attributes(self.operations, "fatal", "repair")
        return float(nodes_away(**repaired, mttf=self.mttf_s))

    @property
    def node_electricity(self) -> float | None:
        """Cost of the energy of whole nodes; None without a price of electricity, or where their power is unknown."""
        if self.electricity is None or not self.node_mwh:
            return None
        return self.electricity * self.node_mwh / self.mwh

    @property
    def goodput(self) -> float:
        """Share of the calendar that trains."""
        return self.parts_days["goodput"] / sum(self.parts_days.values())

    @property
    def headline(self) -> str:
        """Days, goodput and device-hours on one line."""
        days = f"{self.days.expected:.3g} days ({self.days.low:.3g} to {self.days.high:.3g})"
        return f"{days}, goodput {self.goodput:.1%}, {self.device_hours.expected:,.0f} device-hours"

    @property
    def details(self) -> tuple[str, ...]:
        """Verdict of every phase, failures and checkpoints, money, energy, and the notes that change them most."""
        unexpected = sum(self.interruptions.values())
        apart = f", one every {format_span(self.mttf_s)}" if isfinite(self.mttf_s) else ""
        lines = [f"phase {phase.name}: {phase.projection.headline}" for phase in self.phases]
        saved = format_span(self.interval_s)
        lines.append(f"{unexpected:,.0f} unexpected interruptions{apart}; a checkpoint every {saved}")
        if self.money is not None:
            lines.append(f"money: {self.money.expected:,.0f} {self.currency}".rstrip())
        if self.mwh:
            lines.append(f"energy: {self.node_mwh or self.mwh:,.0f} MWh")
        return (*lines, *foremost(note for phase in self.phases for note in phase.projection.notes))

    def essentials(self) -> dict[str, Any]:
        """Return days, goodput and device-hours."""
        return {"days": self.days, "goodput": self.goodput, "device_hours": self.device_hours.expected}

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per phase."""
        return [
            {
                **attributes(phase, "phase=name", "devices=projection.cluster.num_devices"),
                **attributes(phase.projection.workload, "seq_len", "global_batch_size"),
                **attributes(phase, "tokens", "steps"),
                **attributes(phase.projection, "step_time_s", "mfu", "verdict=memory.verdict"),
                "layout": phrases.layout(phase.projection.strategy),
                "layout_origin": phase.origin or "given",
                "ideal_days": phase.steps * phase.projection.step_time_s / SECONDS_PER_DAY,
            }
            for phase in self.phases
        ]

    def pictures(self) -> Sequence[Chart]:
        """Return where the days go."""
        bars = (Bar(label="run", values=self.parts_days),)
        return (BarChart(title="Where the days go", note="", axis="", unit="days", bars=bars),)

    def to_json(self) -> dict[str, Any]:
        """Return the `forescale.run/1` document."""
        first = self.phases[0].projection
        operations = {
            name: value for name, value in asdict(self.operations).items() if name not in ("failures",)
        }
        return {
            "schema": SCHEMA,
            "model": first.model.name,
            "cluster": first.cluster.name,
            "failures": self.failures,
            "operations": operations,
            "phases": self.rows(),
            "days": asdict(self.days),
            **attributes(self, "ideal_days", "goodput", "parts_days", "interruptions"),
            "planned_interruptions": self.planned,
            "mttf_s": self.mttf_s,
            "checkpoint": {**asdict(self.checkpoint), "interval_s": self.interval_s},
            **attributes(
                self, "closed_forms", "device_hours", "money", "currency", "mwh", "node_mwh", "tonnes_co2"
            ),
            "electricity": self.electricity,
            **attributes(self, "spread", "money_spread", "sources"),
        }


def project_run(
    phases: Sequence[Phase],
    operations: Operations | None = None,
    prices: Prices | None = None,
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> RunProjection:
    """Return what a run of `phases`, one after another, takes on the calendar.

    Step times are drawn from their intervals, rates of failure from what their count leaves open, and each drawn run is
    simulated from failure to failure.

    Raises
    ------
    SpecError
        If there is no phase, one never ends, or a checkpoint cannot be written between two failures.
    """
    if not phases:
        raise empty("the list of phases", "a run has at least one")
    explicit, operations = prices or Prices(), operations or Operations()
    cases = [phase.case(operations) for phase in phases]
    for case, _ in cases:
        expected_parts(case)  # no simulation of what never ends
    devices = np.array([phase.projection.cluster.num_devices for phase in phases], dtype=np.float64)
    drawn = _drawn(phases, [case for case, _ in cases], operations, draws, seed)
    days = drawn.wall / SECONDS_PER_DAY
    hours = days @ devices * HOURS
    (case, saved), cluster = cases[at := int(np.argmax(days.mean(axis=0)))], phases[at].projection.cluster
    price, (pue, carbon) = explicit.of(cluster.device), explicit.energy()
    joules, of_nodes = _joules(cluster.device, float(hours.mean()), pue[0])
    exposed = float((days.mean(axis=0) * devices).sum())
    failures = rates_of(operations, per_node := cluster.devices_per_node)
    return RunProjection(
        phases=tuple(phases),
        operations=operations,
        days=_interval(days.sum(axis=1)),
        ideal_days=sum(phase.steps * phase.projection.step_time_s for phase in phases) / SECONDS_PER_DAY,
        parts_days=drawn.parts,
        interruptions={cause: rate * exposed for cause, rate in failures.per_device_day.items()},
        planned=failures.planned_per_device_day * exposed,
        mttf_s=float(case.mttf),
        checkpoint=saved,
        interval_s=float(case.interval),
        closed_forms=_closed_forms(case),
        device_hours=_interval(hours),
        money=None if price is None else _interval(hours * drawn.prices(price[0])),
        currency="" if price is None or price[1] == "given" else explicit.listed.currency,
        mwh=joules / MWH,
        node_mwh=of_nodes / MWH,
        electricity=explicit.bill(joules),
        tonnes_co2=joules / MWH * carbon[0] / 1e3,
        spread=drawn.spread(days.sum(axis=1)),
        money_spread={} if price is None else drawn.spread(hours * drawn.prices(price[0]), price[0]),
        sources={**sources_of(operations, per_node), "pue": pue[1], "carbon": carbon[1]}
        | ({} if price is None else {"price": price[1]}),
    )


def _joules(device: Device, device_hours: float, pue: float) -> tuple[float, float]:
    """Return the energy that the devices draw at most, and that whole nodes do."""
    spent = {"num_devices": 1, "seconds": device_hours * SECONDS_PER_HOUR, "pue": pue}
    return float(energy(power=device.power_w, **spent)), float(energy(power=device.node_power_w, **spent))


def project_days(
    phases: Sequence[Phase],
    days: float | None,
    operations: Operations | None = None,
    prices: Prices | None = None,
    *,
    seed: int = 0,
) -> RunProjection:
    """Return the run of one phase that is expected to take so many days on the calendar; without days, of its tokens.

    The phase gives its tokens to start from; those of the result are a whole number of steps, at least one.
    """
    result = project_run(phases, operations, prices, seed=seed)
    if days is None:
        return result
    [phase] = phases
    step = phase.projection.workload.tokens_per_step
    for _ in range(REFINED):  # the interval between checkpoints depends on the length of the run
        tokens = float(step * max(1, round(phase.tokens / step * days / result.days.expected)))
        work = replace(phase.projection.workload, tokens=tokens)
        phase = replace(phase, tokens=tokens, projection=replace(phase.projection, workload=work))
        result = project_run((phase,), operations, prices, seed=seed)
        if abs(result.days.expected / days - 1.0) < EXACT:
            break
    return result


def _closed_forms(case: Case) -> dict[str, float]:
    if not np.isfinite(case.mttf):
        return {}
    values = {"interval": case.interval, "restart": case.restart, "mttf": case.mttf}
    result = {
        "young_interval_s": young_interval(blocking=case.blocking, mttf=case.mttf),
        "daly_interval_s": daly_interval(blocking=case.blocking, mttf=case.mttf),
        "events_interval_s": best_interval_by_events(case),
        "daly_goodput": daly_goodput(blocking=case.blocking, **values),
        "kokolis_goodput": kokolis_goodput(**values),
    }
    return {name: float(value) for name, value in result.items()}


class _Drawn(Struct, frozen=True):
    wall: Array
    """Seconds by drawn run and phase."""
    parts: dict[str, float]
    steps: Array
    """Seconds of training of each drawn run."""
    rates: Array
    """Rates of failure over the expected one."""
    chances: Array
    """Where in its range the price of each lies, 0 to 1."""

    def prices(self, price: Interval) -> Array:
        """Return the price of a device and hour of each drawn run, evenly over its range."""
        return price.low + self.chances * (price.high - price.low)

    def spread(self, values: Array, price: Interval | None = None) -> dict[str, float]:
        """Return the shares of the variance that each uncertain input explains, and the rest, chance."""
        explicit = {STEP: self.steps, RATE: self.rates}
        if price is not None:
            explicit["price"] = self.prices(price)
        if result := spread(values, explicit):
            result["when things fail"] = max(0.0, 1.0 - sum(result.values()))
        return dict(sorted(result.items(), key=lambda item: -item[1]))


def _drawn(
    phases: Sequence[Phase], cases: Sequence[Case], operations: Operations, draws: int, seed: int
) -> _Drawn:
    """Draw runs: one step error for all phases, which share model and devices, and one rate of failure."""
    rng = np.random.default_rng(seed)
    errors, rates = drawn(rates_of(operations, phases[0].projection.cluster.devices_per_node), draws, rng)
    work = np.array(
        [
            float(case.work) * stretched(phase.projection.step_time, errors)
            for phase, case in zip(phases, cases, strict=True)
        ]
    )
    outcomes: list[list[Outcome]] = [
        [
            simulate(replace(case, work=seconds, mttf=float(case.mttf) / rate), rng)
            for case, seconds in zip(cases, column, strict=True)
        ]
        for column, rate in zip(work.T.tolist(), rates.tolist(), strict=True)
    ]
    wall = np.array([[item.wall for item in run] for run in outcomes])
    parts = {
        name: float(np.mean([sum(item.parts[name] for item in run) for run in outcomes])) / SECONDS_PER_DAY
        for name in PARTS
    }
    return _Drawn(wall, parts, work.sum(axis=0), rates, rng.random(draws))


def _interval(values: Array) -> Interval:
    low, high = np.quantile(values, (0.1, 0.9))
    return Interval(low=float(low), expected=float(values.mean()), high=float(high))
