"""Days on the calendar of a projected step, with what they may be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from forescale.errors import SpecError
from forescale.goodput.expected import Case, expected
from forescale.goodput.operations import Operations, case_of, load_failures
from forescale.numeric import Array
from forescale.projection.rates import SECONDS_PER_DAY
from forescale.projection.result import Calendar, Interval
from forescale.spec import Cluster, Workload

USUAL = "llama-3"
"""Rates of failure that are counted where nobody says: the only published ones of a run on more than 10,000 devices."""
DRAWS = 500
BAND = 1.2815515594
"""Standard deviations between the middle and the ends of an interval that holds 8 cases in 10."""
ENDLESS = 100.0
"""Calendar over ideal days beyond which a run is said not to end."""


def calendar(
    parameters: float,
    cluster: Cluster,
    workload: Workload,
    step: Interval,
    operations: Operations | None = None,
) -> Calendar | None:
    """Return calendar days of a run of steps of so many seconds; None where tokens are unknown or it never ends.

    They are expected values; the range holds 8 cases in 10 of step times and of rates of failure.
    """
    if workload.tokens is None:
        return None
    operated = operations or Operations(failures=load_failures(USUAL))
    seconds = workload.tokens / workload.tokens_per_step * step.expected
    precision = workload.precision
    try:
        case, _ = case_of(
            operated, parameters=parameters, precision=precision, cluster=cluster, seconds=seconds
        )
    except SpecError:
        return None
    found = {name: float(each) / SECONDS_PER_DAY for name, each in expected(case).items()}
    total = sum(found.values())
    if not total * SECONDS_PER_DAY < ENDLESS * seconds:
        return None
    errors, rates = drawn(operated, DRAWS, np.random.default_rng(0))
    low, high = np.quantile(walls(case, step, errors, rates), (0.1, 0.9)) / SECONDS_PER_DAY
    return Calendar(
        days=Interval(low=float(min(low, total)), expected=total, high=float(max(high, total))),
        parts_days=found,
        failures=operated.failures.name,
        checkpoint_interval_s=float(case.interval),
    )


def drawn(operations: Operations, draws: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return errors of step times in standard deviations, and rates of failure over the expected one.

    A count of failures leaves their rate open as a gamma distribution does.
    """
    observed = operations.failures.observed
    errors = rng.standard_normal(draws)
    return errors, rng.gamma(observed, size=draws) / observed if observed else np.ones(draws)


def stretched(step: Interval, errors: Array) -> Array:
    """Return step times over the expected one, so many standard deviations away."""
    end = np.where(errors > 0.0, step.high, step.low)
    return np.asarray((end / step.expected) ** (np.abs(errors) / BAND))


def walls(case: Case, step: Interval, errors: Array, rates: Array) -> Array:
    """Return the expected seconds of runs that differ in step time and rate of failure."""
    many = replace(case, work=case.work * stretched(step, errors), mttf=case.mttf / rates)
    return np.asarray(sum(expected(many).values()))
