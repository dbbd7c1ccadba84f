"""How a run is operated: what fails how often, how states are saved, how long a restart takes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Annotated, Literal, TypeAlias

from msgspec import field

from forescale.limits import Devices, Interval, Measure
from forescale.spec.option import Option
from forescale.struct import SpecStruct, Struct

Seconds: TypeAlias = Annotated[float, Interval(ge=0, le=1e7)]
_operated = partial(Option, group="Whole run", is_checked=True)
USUAL = "llama-3"
"""Rates of failure where nobody says: the only published ones of a run on more than 10,000 devices."""
SPANS: Mapping[str, str] = MappingProxyType(dict.fromkeys(("restart", "planned", "repair"), "second"))
"""Fields of `Operations` that may be written with a unit, and what they measure."""
SAVING_DIMENSIONS: Mapping[str, str] = {
    "interval": "second",
    "stall": "second",
    "storage_bandwidth": "byte/s",
}
"""The same of `Checkpointing`."""


class Failures(Struct, frozen=True, kw_only=True):
    """Interruptions by cause, per device and day."""

    name: str = "given"
    source: str = "given"
    per_device_day: Mapping[str, Measure] = field(default_factory=dict)
    """Unexpected ones: the work since the last checkpoint is lost."""
    planned_per_device_day: Measure = 0.0
    """Planned ones: a checkpoint is written before them."""
    restart: Seconds | None = None
    """Seconds from an interruption until all processes run again, published with the rates."""
    observed: Measure = 0.0
    """Unexpected ones that the rates were counted from: what their uncertainty follows from."""

    def __hash__(self) -> int:
        return hash((self.name, self.total, self.planned_per_device_day, self.restart, self.observed))

    @property
    def total(self) -> float:
        """Unexpected interruptions per device and day."""
        return sum(self.per_device_day.values())


class FailureCounts(Struct, frozen=True, kw_only=True):
    """Interruptions of a run that somebody counted: what a file of failures has."""

    devices: Devices
    days: Annotated[float, Interval(gt=0, le=1e6)]
    causes: Mapping[str, Measure]
    """Unexpected ones over all devices and days."""
    planned: Measure = 0.0
    restart_s: Seconds | None = None
    """Seconds from an interruption until all processes run again."""
    observed: Measure | None = None
    """Unexpected ones that were seen, where `causes` are a rate of other devices and days."""
    name: str = "given"
    source: str = "given"
    date: str = ""

    @property
    def rates(self) -> Failures:
        """Return them per device and day."""
        exposure = self.devices * self.days
        return Failures(
            name=self.name,
            source=self.source,
            per_device_day={cause: count / exposure for cause, count in self.causes.items()},
            planned_per_device_day=self.planned / exposure,
            restart=self.restart_s,
            observed=sum(self.causes.values()) if self.observed is None else self.observed,
        )


class Checkpointing(SpecStruct, frozen=True, kw_only=True):
    """How states are saved."""

    mode: Annotated[Literal["sync", "async", "peer"], _operated("How states are saved; async by default.",
        flag="checkpoint-mode")] = "async"  # fmt: skip
    """sync stops training until storage has them; async until host memory has them, and writes beside training; peer
    keeps a copy in other nodes' memory, from where it is read again."""
    interval: Annotated[Annotated[float, Interval(gt=0, le=1e7)] | None,
        _operated("Between checkpoints, such as 30min; the best by default.", "TIME", flag="interval",
        unit="second")] = None  # fmt: skip
    """Seconds of training between checkpoints; None is the best."""
    stall: Annotated[Seconds | None, _operated("Fixed pause per checkpoint, in addition to the copy time.", "TIME",
        flag="checkpoint-stall", unit="second")] = None  # fmt: skip
    """Seconds that training stops for every save, beside the bytes that it waits for: ranks meet, plan and stage what
    they hold; None is what the largest published run does."""
    storage_bandwidth: Annotated[Annotated[float, Interval(gt=0, le=1e18)] | None,
        _operated("Of all devices together, such as 2TB/s.", "RATE", flag="storage-bandwidth",
        unit="byte/s")] = None  # fmt: skip
    """byte/s of all devices together; None is what a published cluster relied on for each device."""


class Operations(SpecStruct, frozen=True, kw_only=True):
    """Everything about operating a run that is not its step."""

    failures: Annotated[Failures | str | Annotated[float, Interval(ge=0, le=1e6)],
        _operated("Rates of failure: published (llama-3, the default, meta-rsc-1, meta-rsc-2), counted in a file, "
        "or per node and day.", "NAME|FILE|RATE")] = USUAL  # fmt: skip
    """Rates of one's own by cause, the name of published ones, or failures per node of the cluster and day."""
    failure_factor: Annotated[float, Interval(ge=0, le=1e6),
        _operated("Failures over what those rates say, such as 2.", "FACTOR")] = 1.0  # fmt: skip
    """Times as often as those rates say."""
    checkpointing: Annotated[Checkpointing, Option()] = field(default_factory=Checkpointing)
    restart: Annotated[Seconds | None,
        _operated("From a failure until all processes run again, such as 10min.", "TIME",
        unit="second")] = None  # fmt: skip
    """From a failure until every process runs again: detection, scheduling, start, initialisation of communication;
    None is what was published with the rates, or else of another run."""
    planned: Seconds = 1800.0
    """How long a planned interruption lasts."""
    spares: Annotated[Annotated[int, Interval(ge=0, le=2**20)] | None,
        _operated("Nodes that wait to replace failed ones; `run` has enough, a plan tries how many.",
        "N")] = None  # fmt: skip
    """Nodes that wait to take the place of failed ones; None is always enough."""
    repair: Annotated[Seconds, _operated("Until a failed node is back, such as 1d.", "TIME",
        unit="second")] = 86400.0  # fmt: skip
    """Until a failed node is back."""
    elastic: Annotated[bool, _operated("Go on with fewer replicas where no spare is left.")] = False
    """Where no spare is left, training goes on with fewer data-parallel replicas instead of waiting for a repair."""
    fatal: Annotated[float, Interval(ge=0, le=1),
        _operated("Fraction of failures that disable a node.", "SHARE")] = 0.5  # fmt: skip
    """Share of the failures that take a node out of service; the rest are over with a restart."""
    evaluation: Annotated[float, Interval(ge=0, le=0.99),
        _operated("Of the time, for evaluation, warm-up and compilation.", "SHARE")] = 0.0  # fmt: skip
    """Share of the time that goes into evaluation, warm-up and compilation."""
    stragglers: Annotated[float, Interval(ge=0, le=1),
        _operated("Spread of the devices' speeds over their mean.", "SHARE")] = 0.0  # fmt: skip
    """Spread (standard deviation over mean) of the devices' speeds; a step waits for the slowest."""
