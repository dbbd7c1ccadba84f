"""What the operation of a run means for it: mean time to failure, what a checkpoint takes, how often one is best."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from forescale.arrays import np
from forescale.errors import UnknownNameError, cannot_finish, out_of_range
from forescale.files import packaged
from forescale.formula import formula
from forescale.numeric import Array, Numeric
from forescale.projection.result import SECONDS_PER_DAY, SECONDS_PER_HOUR, Calendar, Interval
from forescale.spec import Cluster, Workload
from forescale.spec.operations import FailureCounts, Failures, Operations
from forescale.spec.workload import STORAGE_BYTES, Precision, moment_bytes
from forescale.struct import Struct

if TYPE_CHECKING:
    from forescale.goodput.expected import Case

STEP, RATE = "step time", "rate of failures"
"""What the range of a run comes from."""
DRAWS = 500
BAND = 1.2815515594
"""Standard deviations between the middle and the ends of an 80 % interval."""
ENDLESS = 100.0
"""Calendar over days without interruptions beyond which a run is said not to end."""


def calendar(
    parameters: float,
    cluster: Cluster,
    workload: Workload,
    step: Interval,
    operations: Operations,
) -> Calendar | None:
    """Return calendar days of a run of steps of so many seconds; None where its tokens are unknown.

    They are expected values; the range is the 80 % interval over step times and failure rates.

    Raises
    ------
    SpecError
        If the run never ends, or its operation contradicts itself; the message says what would do.
    """
    if workload.tokens is None:
        return None
    failures = rates_of(operations, cluster.devices_per_node)
    seconds = workload.tokens / workload.tokens_per_step * step.expected
    case, _ = case_of(
        operations, parameters=parameters, precision=workload.precision, cluster=cluster, seconds=seconds
    )
    result = {name: expected_part / SECONDS_PER_DAY for name, expected_part in expected_parts(case).items()}
    total = sum(result.values())
    errors, rates = drawn(failures, DRAWS, np.random.default_rng(0))
    days = walls(case, step, errors, rates) / SECONDS_PER_DAY
    low, high = np.quantile(days, (0.1, 0.9))
    return Calendar(
        days=Interval(low=float(min(low, total)), expected=total, high=float(max(high, total))),
        parts_days=result,
        spread=spread(days, {STEP: stretched(step, errors), RATE: rates}),
        failures=failures.name,
        checkpoint_interval_s=float(case.interval),
    )


def expected_parts(case: Case) -> dict[str, float]:
    """Return the expected seconds of a run by what they are spent on.

    Raises
    ------
    SpecError
        If it never ends.
    """
    from forescale.goodput.expected import expected

    result = {name: float(item) for name, item in expected(case).items()}
    if not sum(result.values()) < ENDLESS * float(case.work):
        raise cannot_finish(
            "the run",
            f"failures come every {float(case.mttf):.3g} s, restart and reload take {case.restart + case.reload:.3g} s",
            "give fewer failures, a shorter restart or repair or more spares",
        )
    return result


def spread(values: Array, causes: Mapping[str, Array]) -> dict[str, float]:
    """Return the share of the variance of `values` that each drawn cause explains, the largest first."""
    if values.std() == 0.0:
        return {}
    result = {
        name: float(np.corrcoef(cause, values)[0, 1] ** 2) if cause.std() else 0.0
        for name, cause in causes.items()
    }
    return dict(sorted(result.items(), key=lambda item: -item[1]))


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
    from forescale.goodput.expected import expected

    many = replace(case, work=case.work * stretched(step, errors), mttf=case.mttf / rates)
    return np.asarray(sum(expected(many).values()))


REMARKS = ("restart_source", "observed_source")
"""Keys of published failures that are for readers."""


@formula(unit="s", source="definition; Kokolis et al. 2024, arXiv:2410.21680, section III: MTTF = 1 / (N r)")
def mean_time_to_failure(*, num_devices: Numeric, per_device_day: Numeric) -> Numeric:
    """One failure over devices × failures per device and day, in seconds."""
    return SECONDS_PER_DAY / (num_devices * per_device_day)


@formula(unit="byte", source="definition: what a run needs to go on")
def checkpoint_bytes(
    *, parameters: Numeric, weight_bytes: Numeric, master_bytes: Numeric, moment_bytes: Numeric
) -> Numeric:
    """Parameters × (weight + master copy + two moments)."""
    return parameters * (weight_bytes + master_bytes + 2.0 * moment_bytes)


class Saving(Struct, frozen=True):
    """Seconds and bytes of one checkpoint."""

    bytes: float
    blocking: float
    """Seconds that training stops."""
    written: float
    """Seconds until it can be gone back to."""
    reload: float


@lru_cache(maxsize=64)
def load_failures(name: str) -> Failures:
    """Return published rates of failure by name.

    Raises
    ------
    UnknownNameError
        If there are none of that name.
    """
    records = packaged("operations")["failures"]
    if name not in records:
        raise UnknownNameError("failure rates", name, list(records))
    record = {key: value for key, value in records[name].items() if key not in REMARKS}
    return FailureCounts(name=name, **record).rates


def rates_of(operations: Operations, devices_per_node: int) -> Failures:
    """Return the rates of failure that a run is operated under: given, published, or so many per node and day.

    `devices_per_node` is that of the cluster.

    Raises
    ------
    UnknownNameError
        If there are no published ones of the name.
    """
    failures, factor = operations.failures, operations.failure_factor
    if isinstance(failures, float | int):
        failures = Failures(per_device_day={"all": failures / devices_per_node})
    elif isinstance(failures, str):
        failures = load_failures(failures)
    if factor == 1.0:
        return failures
    return replace(
        failures,
        name=f"{failures.name} × {factor:g}",
        per_device_day={cause: rate * factor for cause, rate in failures.per_device_day.items()},
        planned_per_device_day=failures.planned_per_device_day * factor,
    )


def published(name: str, *keys: str) -> tuple[float, str]:
    """Return a published figure of operations and its source."""
    record = packaged("operations")[name]
    for key in keys:
        if key not in record:
            raise UnknownNameError(name, key, list(record))
        record = record[key]
    return float(record["value"]), str(record["source"])


def sources_of(operations: Operations, devices_per_node: int) -> dict[str, str]:
    """Return where the figures are from that a run is operated with."""
    rates, saved = rates_of(operations, devices_per_node), operations.checkpointing
    restarts = rates.source if rates.restart is not None else published("restart_s")[1]
    return {
        "failures": rates.source,
        "restart": restarts if operations.restart is None else "given",
        "stall": published("save_stall_s")[1] if saved.stall is None else "given",
        "storage": published("storage_bytes_per_device_second")[1]
        if saved.storage_bandwidth is None
        else "given",
    }


def checkpoint_of(parameters: Numeric, precision: Precision) -> Numeric:
    """Return the bytes of a checkpoint of so many trained parameters."""
    return checkpoint_bytes(
        parameters=parameters,
        weight_bytes=STORAGE_BYTES[precision.parameters],
        master_bytes=0.0 if precision.master == "none" else STORAGE_BYTES[precision.master],
        moment_bytes=moment_bytes(precision) / 2.0,
    )


def saving(operations: Operations, parameters: float, precision: Precision, cluster: Cluster) -> Saving:
    """Return what one checkpoint of a model takes on a cluster.

    Raises
    ------
    SpecError
        If a checkpoint takes longer to write than the time between two of them.
    """
    size = float(checkpoint_of(parameters, precision))
    checkpointing = operations.checkpointing
    devices = cluster.num_devices
    storage = checkpointing.storage_bandwidth or published("storage_bytes_per_device_second")[0] * devices
    stall = published("save_stall_s")[0] if checkpointing.stall is None else checkpointing.stall
    copied, stored = stall + size / devices / cluster.device.host_bandwidth, size / storage
    peers = size / devices / min(cluster.tiers[-1].bandwidth, cluster.device.host_bandwidth)
    if checkpointing.mode == "sync":
        result = Saving(size, stall + stored, stall + stored, stored)
    elif checkpointing.mode == "async":
        result = Saving(size, copied, copied + stored, stored)
    else:
        result = Saving(size, copied, copied + peers, peers)
    if checkpointing.interval is not None and checkpointing.interval < result.written:
        fix = f"give an interval of {result.written:.3g} s or more, or more storage bandwidth"
        allowed = f"less than the {checkpointing.interval:.3g} s between two"
        raise out_of_range("the time to write a checkpoint", f"{result.written:.3g} s", allowed, fix)
    return result


def case_of(
    operations: Operations, *, parameters: float, precision: Precision, cluster: Cluster, seconds: float
) -> tuple[Case, Saving]:
    """Return a run of so many `seconds` of steps as events see it, and what a checkpoint of it takes.

    Raises
    ------
    SpecError
        If a checkpoint cannot be written between two failures.
    """
    from forescale.goodput.expected import Case, slowest_share

    rates, devices = rates_of(operations, cluster.devices_per_node), cluster.num_devices
    mttf = _mean_time(devices, rates.total)
    saved = saving(operations, parameters, precision, cluster)
    if saved.written > mttf:
        restart = _restart(operations, rates)
        room = mttf - (saved.written - saved.reload)
        storage = f"{saved.bytes / room:.3g} byte/s of storage would do, or " if room > 0.0 else ""
        fix = (
            f"{storage}checkpoints in the memory of peers"
            if restart < mttf
            else f"nor does a restart of {restart:.3g} s end; give fewer failures"
        )
        raise cannot_finish(
            "the run",
            f"a checkpoint takes {saved.written:.3g} s to write, failures come every {mttf:.3g} s: no work is saved",
            fix,
        )
    slower = float(slowest_share(spread=operations.stragglers, num_devices=devices))
    case = Case(
        work=seconds * (1.0 + slower) / (1.0 - operations.evaluation),
        interval=operations.checkpointing.interval or best_interval(saved, mttf),
        blocking=saved.blocking,
        written=saved.written,
        restart=_restart(operations, rates),
        reload=saved.reload,
        mttf=mttf,
        planned_mttf=_mean_time(devices, rates.planned_per_device_day),
        planned=operations.planned,
        spares=operations.spares,
        repair=operations.repair,
        fatal=operations.fatal,
        replica_share=1.0 / max(1, devices // cluster.devices_per_node) if operations.elastic else None,
        evaluation=operations.evaluation,
        stragglers=slower,
    )
    return case, saved


def _restart(operations: Operations, failures: Failures) -> float:
    value = (operations.restart, failures.restart)
    return next((item for item in value if item is not None), published("restart_s")[0])


def best_interval(saved: Saving, mttf: float) -> float:
    """Return the seconds between checkpoints that lose the least, but no fewer than one takes to write."""
    from forescale.goodput.expected import daly_interval

    if not math.isfinite(mttf):
        return max(saved.written, SECONDS_PER_HOUR)
    return max(float(daly_interval(blocking=saved.blocking, mttf=mttf)), saved.written)


def _mean_time(devices: int, rate: float) -> float:
    from forescale.goodput.expected import NEVER

    mean = float(mean_time_to_failure(num_devices=devices, per_device_day=rate)) if rate else math.inf
    return mean if mean < NEVER else math.inf
