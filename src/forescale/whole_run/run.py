"""Phases, failures and prices together: days on the calendar, money, energy, and what their range comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from forescale.errors import SpecError
from forescale.formula import formula
from forescale.goodput.calendar import drawn, stretched
from forescale.goodput.events import Outcome, simulate
from forescale.goodput.expected import (
    PARTS,
    Case,
    daly_goodput,
    daly_interval,
    kokolis_goodput,
    young_interval,
)
from forescale.goodput.operations import Operations, Saving, case_of, published
from forescale.numeric import Array, Numeric
from forescale.projection.rates import SECONDS_PER_DAY, SECONDS_PER_HOUR
from forescale.projection.result import Interval, Projection
from forescale.results import Picture, Result

SCHEMA = "forescale.run/1"
DRAWS = 200
"""Runs that are drawn: the 10th and 90th percentiles of days move by less than 1 % with the seed."""
MWH = 3.6e9


@formula(unit="J", source="definition; rated power bounds the devices' draw from above")
def energy(*, power: Numeric, num_devices: Numeric, seconds: Numeric, pue: Numeric) -> Numeric:
    """Rated power × devices × seconds × what the data centre draws over what the devices draw."""
    return power * num_devices * seconds * pue


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """So many tokens trained one way."""

    name: str
    projection: Projection
    tokens: float

    @property
    def steps(self) -> float:
        """Optimizer steps."""
        return self.tokens / self.projection.workload.tokens_per_step

    def case(self, operations: Operations) -> tuple[Case, Saving]:
        """Return it as events see it, and what a checkpoint of it takes; raises as `case_of` does."""
        found = self.projection
        return case_of(
            operations,
            parameters=found.params.total,
            precision=found.workload.precision,
            cluster=found.cluster,
            seconds=self.steps * found.step_time_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What an hour and a kilowatt-hour cost."""

    device_hour: float | None = None
    """None is the catalogue's price of the device, where it has one."""
    pue: float | None = None
    carbon: str | float = "us-2023"
    """kg of CO2 per MWh, or the name of a published intensity."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunProjection(Result):
    """A whole run."""

    phases: tuple[Phase, ...]
    operations: Operations
    days: Interval
    ideal_days: float
    parts_days: Mapping[str, float] = field(hash=False)
    """Mean days by the names of Google's ml-goodput (`goodput.expected.PARTS`)."""
    interruptions: Mapping[str, float] = field(hash=False)
    """Expected unexpected ones, by cause."""
    planned: float
    mttf_s: float
    checkpoint: Saving
    interval_s: float
    closed_forms: Mapping[str, float] = field(hash=False)
    device_hours: Interval
    money: Interval | None
    mwh: float
    tonnes_co2: float
    spread: Mapping[str, float] = field(hash=False)
    """Shares of the variance of the days by what they come from, largest first."""
    sources: Mapping[str, str] = field(hash=False)

    @property
    def goodput(self) -> float:
        """Share of the calendar that trains."""
        return self.parts_days["goodput"] / sum(self.parts_days.values())

    def essentials(self) -> dict[str, Any]:
        """Return days, goodput and device-hours."""
        return {"days": self.days, "goodput": self.goodput, "device_hours": self.device_hours.expected}

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per phase."""
        return [
            {
                "phase": each.name,
                "devices": each.projection.cluster.num_devices,
                "seq_len": each.projection.workload.seq_len,
                "global_batch_size": each.projection.workload.global_batch_size,
                "tokens": each.tokens,
                "steps": each.steps,
                "step_time_s": each.projection.step_time_s,
                "mfu": each.projection.mfu,
                "verdict": each.projection.memory.verdict,
                "ideal_days": each.steps * each.projection.step_time_s / SECONDS_PER_DAY,
            }
            for each in self.phases
        ]

    def pictures(self) -> Sequence[Picture]:
        """Return where the days go."""
        return ({"days": dict(self.parts_days)},)

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
            "failures": self.operations.failures.name,
            "operations": operations,
            "phases": self.rows(),
            "days": asdict(self.days),
            "ideal_days": self.ideal_days,
            "goodput": self.goodput,
            "parts_days": dict(self.parts_days),
            "interruptions": dict(self.interruptions),
            "planned_interruptions": self.planned,
            "mttf_s": self.mttf_s,
            "checkpoint": {**asdict(self.checkpoint), "interval_s": self.interval_s},
            "closed_forms": dict(self.closed_forms),
            "device_hours": asdict(self.device_hours),
            "money": None if self.money is None else asdict(self.money),
            "mwh": self.mwh,
            "tonnes_co2": self.tonnes_co2,
            "spread": dict(self.spread),
            "sources": dict(self.sources),
        }


def project_run(
    phases: Sequence[Phase],
    operations: Operations,
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
        If there is no phase, or a checkpoint cannot be written between two failures.
    """
    if not phases:
        msg = "a run has at least one phase"
        raise SpecError(msg)
    told = prices or Prices()
    cases = [each.case(operations) for each in phases]
    devices = np.array([each.projection.cluster.num_devices for each in phases], dtype=np.float64)
    drawn = _drawn(phases, [case for case, _ in cases], operations, draws, seed)
    days = drawn.wall / SECONDS_PER_DAY
    hours = days @ devices * 24.0
    last = int(np.argmax(days.mean(axis=0)))
    (case, saved), cluster = cases[last], phases[last].projection.cluster
    price = told.device_hour or cluster.device.price_per_hour or None
    pue, pue_source = published("pue") if told.pue is None else (told.pue, "given")
    carbon, carbon_source = _carbon(told)
    joules = energy(
        power=cluster.device.power_w, num_devices=1, seconds=float(hours.mean()) * SECONDS_PER_HOUR, pue=pue
    )
    exposed = float((days.mean(axis=0) * devices).sum())
    failures = operations.failures
    return RunProjection(
        phases=tuple(phases),
        operations=operations,
        days=_interval(days.sum(axis=1)),
        ideal_days=sum(each.steps * each.projection.step_time_s for each in phases) / SECONDS_PER_DAY,
        parts_days=drawn.parts,
        interruptions={cause: rate * exposed for cause, rate in failures.per_device_day.items()},
        planned=failures.planned_per_device_day * exposed,
        mttf_s=float(case.mttf),
        checkpoint=saved,
        interval_s=case.interval,
        closed_forms=_closed_forms(case),
        device_hours=_interval(hours),
        money=None if price is None else _interval(hours * price),
        mwh=float(joules) / MWH,
        tonnes_co2=float(joules) / MWH * carbon / 1e3,
        spread=drawn.spread,
        sources={"failures": failures.source, "pue": pue_source, "carbon": carbon_source},
    )


def _carbon(prices: Prices) -> tuple[float, str]:
    given = prices.carbon
    return published("carbon_kg_per_mwh", given) if isinstance(given, str) else (given, "given")


def _closed_forms(case: Case) -> dict[str, float]:
    if not np.isfinite(case.mttf):
        return {}
    given = {"interval": case.interval, "restart": case.restart, "mttf": case.mttf}
    found = {
        "young_interval_s": young_interval(blocking=case.blocking, mttf=case.mttf),
        "daly_interval_s": daly_interval(blocking=case.blocking, mttf=case.mttf),
        "daly_goodput": daly_goodput(blocking=case.blocking, **given),
        "kokolis_goodput": kokolis_goodput(**given),
    }
    return {name: float(value) for name, value in found.items()}


@dataclass(frozen=True, slots=True)
class _Drawn:
    wall: Array
    """Seconds by drawn run and phase."""
    parts: dict[str, float]
    spread: dict[str, float]


def _drawn(
    phases: Sequence[Phase], cases: Sequence[Case], operations: Operations, draws: int, seed: int
) -> _Drawn:
    """Draw runs: one step error for all phases, which share model and devices, and one rate of failure."""
    rng = np.random.default_rng(seed)
    errors, rates = drawn(operations, draws, rng)
    work = np.array(
        [
            float(case.work) * stretched(each.projection.step_time, errors)
            for each, case in zip(phases, cases, strict=True)
        ]
    )
    outcomes: list[list[Outcome]] = [
        [
            simulate(replace(case, work=seconds, mttf=float(case.mttf) / rate), rng)
            for case, seconds in zip(cases, column, strict=True)
        ]
        for column, rate in zip(work.T.tolist(), rates.tolist(), strict=True)
    ]
    wall = np.array([[each.wall for each in run] for run in outcomes])
    parts = {
        name: float(np.mean([sum(each.parts[name] for each in run) for run in outcomes])) / SECONDS_PER_DAY
        for name in PARTS
    }
    return _Drawn(wall, parts, _spread(wall.sum(axis=1), work.sum(axis=0), rates))


def _spread(wall: Array, steps: Array, rates: Array) -> dict[str, float]:
    """Return the shares of the variance that step times and rates of failure explain, and the rest, chance."""
    if wall.std() == 0.0:
        return {}
    found = {
        "step time": float(np.corrcoef(steps, wall)[0, 1] ** 2) if steps.std() else 0.0,
        "rate of failures": float(np.corrcoef(rates, wall)[0, 1] ** 2) if rates.std() else 0.0,
    }
    found["when things fail"] = max(0.0, 1.0 - sum(found.values()))
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _interval(values: Array) -> Interval:
    low, high = np.quantile(values, (0.1, 0.9))
    return Interval(low=float(low), expected=float(values.mean()), high=float(high))
