"""Days on the calendar of a projected step, with what they may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from forescale.errors import SpecError
from forescale.goodput.expected import Case, expected
from forescale.goodput.operations import case_of, rates_of
from forescale.numeric import Array
from forescale.projection.result import SECONDS_PER_DAY, Calendar, Interval
from forescale.spec import Cluster, Workload
from forescale.spec.operations import Failures, Operations

STEP, RATE = "step time", "rate of failures"
"""What the range of a run comes from."""
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
    operations: Operations,
) -> Calendar | None:
    """Return calendar days of a run of steps of so many seconds; None where its tokens are unknown.

    They are expected values; the range holds 8 cases in 10 of step times and of rates of failure.

    Raises
    ------
    SpecError
        If the run never ends, or its operation contradicts itself; the message says what would do.
    """
    if workload.tokens is None:
        return None
    failures = rates_of(operations)
    seconds = workload.tokens / workload.tokens_per_step * step.expected
    case, _ = case_of(
        operations, parameters=parameters, precision=workload.precision, cluster=cluster, seconds=seconds
    )
    found = {name: float(each) / SECONDS_PER_DAY for name, each in expected(case).items()}
    total = sum(found.values())
    if not total * SECONDS_PER_DAY < ENDLESS * seconds:
        msg = (
            f"it never ends: something fails every {float(case.mttf):.3g} s, and to restart and read a checkpoint "
            f"takes {case.restart + case.reload:.3g} s; give fewer failures, a shorter restart or more spares"
        )
        raise SpecError(msg)
    errors, rates = drawn(failures, DRAWS, np.random.default_rng(0))
    days = walls(case, step, errors, rates) / SECONDS_PER_DAY
    low, high = np.quantile(days, (0.1, 0.9))
    return Calendar(
        days=Interval(low=float(min(low, total)), expected=total, high=float(max(high, total))),
        parts_days=found,
        spread=spread(days, {STEP: stretched(step, errors), RATE: rates}),
        failures=failures.name,
        checkpoint_interval_s=float(case.interval),
    )


def spread(values: Array, causes: Mapping[str, Array]) -> dict[str, float]:
    """Return the share of the variance of `values` that each drawn cause explains, the largest first."""
    if values.std() == 0.0:
        return {}
    found = {
        name: float(np.corrcoef(each, values)[0, 1] ** 2) if each.std() else 0.0
        for name, each in causes.items()
    }
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def drawn(failures: Failures, draws: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return errors of step times in standard deviations, and rates of failure over the expected one.

    A count of failures leaves their rate open as a gamma distribution does.
    """
    observed = failures.observed
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
