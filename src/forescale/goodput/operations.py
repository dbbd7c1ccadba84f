"""How a run is operated: what fails how often, how states are saved, how long a restart takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeAlias

import numpy as np
from annotated_types import Ge, Gt, Le, Lt

from forescale.errors import SpecError, UnknownNameError
from forescale.files import packaged
from forescale.formula import formula
from forescale.goodput.expected import Case, daly_interval, slowest_share
from forescale.numeric import Numeric
from forescale.projection.rates import SECONDS_PER_DAY, SECONDS_PER_HOUR
from forescale.spec import Cluster
from forescale.spec.workload import STORAGE_BYTES, Precision

NODE = 8
"""Devices of the nodes that published rates count."""
Seconds: TypeAlias = Annotated[float, Ge(0), Le(1e7)]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Interruptions by cause, per device and day."""

    name: str
    source: str
    per_device_day: Mapping[str, float] = field(hash=False)
    """Unexpected ones: the work since the last checkpoint is lost."""
    planned_per_device_day: float = 0.0
    """Planned ones: a checkpoint is written before them."""
    restart: float | None = None
    """Seconds from an interruption until all processes run again, published with the rates."""
    observed: float = 0.0
    """Unexpected ones that the rates were counted from: what their uncertainty follows from."""

    @property
    def total(self) -> float:
        """Unexpected interruptions per device and day."""
        return sum(self.per_device_day.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointing:
    """How states are saved."""

    mode: Literal["sync", "async", "peer"] = "async"
    """sync stops training until storage has them; async until host memory has them, and writes beside training; peer
    keeps a copy in other nodes' memory, from where it is read again."""
    interval: Annotated[float, Gt(0), Le(1e7)] | None = None
    """Seconds of training between checkpoints; None is the best."""
    storage_bandwidth: Annotated[float, Gt(0), Le(1e18)] | None = None
    """byte/s of all devices together; None is what a published cluster relied on for each device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """Everything about operating a run that is not its step."""

    failures: Failures
    checkpointing: Checkpointing = field(default_factory=Checkpointing)
    restart: Seconds | None = None
    """From a failure until every process runs again: detection, scheduling, start, initialisation of communication;
    None is what was published with the rates, or else of another run."""
    planned: Seconds = 1800.0
    """How long a planned interruption lasts."""
    spares: Annotated[int, Ge(0), Le(2**20)] | None = None
    """Nodes that wait to take the place of failed ones; None is always enough."""
    repair: Seconds = 86400.0
    """Until a failed node is back."""
    elastic: bool = False
    """Where no spare is left, training goes on with fewer data-parallel replicas instead of waiting for a repair."""
    fatal: Annotated[float, Ge(0), Le(1)] = 0.5
    """Share of the failures that take a node out of service; the rest are over with a restart."""
    evaluation: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Share of the time that goes into evaluation, warm-up and compilation."""
    stragglers: Annotated[float, Ge(0), Le(1)] = 0.0
    """Spread (standard deviation over mean) of the devices' speeds; a step waits for the slowest."""


@dataclass(frozen=True, slots=True)
class Saving:
    """Seconds and bytes of one checkpoint."""

    bytes: float
    blocking: float
    """Seconds that training stops."""
    written: float
    """Seconds until it can be gone back to."""
    reload: float


def load_failures(name: str) -> Failures:
    """Return published rates of failure by name.

    Raises
    ------
    UnknownNameError
        If there are none of that name.
    """
    records = packaged("operations")["failures"]
    if name not in records:
        kind = "failure rates"
        raise UnknownNameError(kind, name, list(records))
    record = records[name]
    exposure = record["devices"] * record["days"]
    return Failures(
        name=name,
        source=record["source"],
        per_device_day={cause: count / exposure for cause, count in record["causes"].items()},
        planned_per_device_day=record["planned"] / exposure,
        restart=record.get("restart_s"),
        observed=sum(record["causes"].values()),
    )


def failures_of(text: str) -> Failures:
    """Return published rates by their name, or a rate of one's own, per node of eight devices and day.

    Raises
    ------
    SpecError
        If the rate is negative or not finite, or there is no such name.
    """
    try:
        rate = float(text)
    except ValueError:
        return load_failures(text)
    if not 0.0 <= rate < np.inf:
        msg = f"--failures must be 0 or more per node and day, or a name; got {text}"
        raise SpecError(msg)
    return Failures(name="given", source="given", per_device_day={"all": rate / NODE})


def published(name: str, *keys: str) -> tuple[float, str]:
    """Return a published figure of operations and its source."""
    record = packaged("operations")[name]
    for key in keys:
        if key not in record:
            raise UnknownNameError(name, key, list(record))
        record = record[key]
    return float(record["value"]), str(record["source"])


def saving(operations: Operations, parameters: float, precision: Precision, cluster: Cluster) -> Saving:
    """Return what one checkpoint of a model takes on a cluster.

    Raises
    ------
    SpecError
        If a checkpoint takes longer to write than the time between two of them.
    """
    master = 0.0 if precision.master == "none" else STORAGE_BYTES[precision.master]
    size = float(
        checkpoint_bytes(
            parameters=parameters,
            weight_bytes=STORAGE_BYTES[precision.parameters],
            master_bytes=master,
            moment_bytes=STORAGE_BYTES[precision.moments],
        )
    )
    told = operations.checkpointing
    devices = cluster.num_devices
    storage = told.storage_bandwidth or published("storage_bytes_per_device_second")[0] * devices
    copied, stored = size / devices / cluster.device.host_bandwidth, size / storage
    peers = size / devices / min(cluster.tiers[-1].bandwidth, cluster.device.host_bandwidth)
    if told.mode == "sync":
        found = Saving(size, stored, stored, stored)
    elif told.mode == "async":
        found = Saving(size, copied, copied + stored, stored)
    else:
        found = Saving(size, copied, copied + peers, peers)
    if told.interval is not None and told.interval < found.written:
        msg = (
            f"a checkpoint takes {found.written:.3g} s to write, longer than the {told.interval:.3g} s between two; "
            f"give an interval of {found.written:.3g} s or more, or more storage bandwidth"
        )
        raise SpecError(msg)
    return found


def case_of(
    operations: Operations, *, parameters: float, precision: Precision, cluster: Cluster, seconds: float
) -> tuple[Case, Saving]:
    """Return a run of so many `seconds` of steps as events see it, and what a checkpoint of it takes.

    Raises
    ------
    SpecError
        If a checkpoint cannot be written between two failures.
    """
    told, devices = operations.failures, cluster.num_devices
    mttf = _mean_time(devices, told.total)
    saved = saving(operations, parameters, precision, cluster)
    if saved.written > mttf:
        msg = (
            f"a checkpoint takes {saved.written:.3g} s to write and something fails every {mttf:.3g} s: no work is "
            f"ever saved; {saved.bytes / mttf:.3g} byte/s of storage would do, or checkpoints in the memory of peers"
        )
        raise SpecError(msg)
    slower = float(slowest_share(spread=operations.stragglers, num_devices=devices))
    case = Case(
        work=seconds * (1.0 + slower) / (1.0 - operations.evaluation),
        interval=operations.checkpointing.interval or best_interval(saved, mttf),
        blocking=saved.blocking,
        written=saved.written,
        restart=_restart(operations),
        reload=saved.reload,
        mttf=mttf,
        planned_mttf=_mean_time(devices, told.planned_per_device_day),
        planned=operations.planned,
        spares=operations.spares,
        repair=operations.repair,
        fatal=operations.fatal,
        replica_share=1.0 / max(1, devices // cluster.devices_per_node) if operations.elastic else None,
        evaluation=operations.evaluation,
        stragglers=slower,
    )
    return case, saved


def _restart(operations: Operations) -> float:
    given = (operations.restart, operations.failures.restart)
    return next((each for each in given if each is not None), published("restart_s")[0])


def best_interval(saved: Saving, mttf: float) -> float:
    """Return the seconds between checkpoints that lose the least, but no fewer than one takes to write."""
    if not np.isfinite(mttf):
        return max(saved.written, SECONDS_PER_HOUR)
    return max(float(daly_interval(blocking=saved.blocking, mttf=mttf)), saved.written, saved.blocking)


def _mean_time(devices: int, rate: float) -> float:
    return float(mean_time_to_failure(num_devices=devices, per_device_day=rate)) if rate else np.inf
