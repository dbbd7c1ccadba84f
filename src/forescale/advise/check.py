"""`check`: whether a run is legal for its framework, fits, and keeps limits of time and money, before it starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from msgspec.structs import replace

from forescale.cost.run_calibration import FRAMEWORK
from forescale.errors import (
    ForescaleError,
    SpecError,
    illegal_layout,
    missing,
)
from forescale.memory.peak import fit as verdict_of
from forescale.projection.result import MemorySummary, Projection, Verdict
from forescale.question import TO_FIT, Question
from forescale.results import Result
from forescale.struct import Struct, attributes, jsonable
from forescale.units import GIB, format_seconds

SCHEMA = "forescale.check/1"
Status: TypeAlias = Literal["passes", "fails", "illegal", "unreadable"]
Level: TypeAlias = Literal["error", "warning"]
GRAVEST: tuple[Status, ...] = ("unreadable", "illegal", "fails", "passes")
"""The status of several questions is the first of these that one of them has."""
ILLEGAL = ("illegal_layout", "not_divisible", "not_a_factor")
"""Codes of errors in a layout that is read and cannot be run."""
MOST_DEVICES = 4096
"""Multiples of the present data parallelism up to which devices are added."""
FITTING = "forescale fit lists changes that make it fit"
"""What to ask where a layout does not fit."""
LESS = 0.99
"""Share of a peak that twice the devices have to stay below for more to be tried."""


class Limits(Struct, frozen=True, kw_only=True):
    """What a run may take; None is no limit."""

    max_step_time_s: float | None = None
    min_mfu: float | None = None
    """Of 1, with causal attention."""
    max_cost: float | None = None
    """Of the whole run, in the currency of the price."""
    deadline_days: float | None = None
    price_per_device_hour: float | None = None
    """The device's own by default."""


LIMIT_DIMENSIONS: Mapping[str, str] = MappingProxyType(
    {"max_step_time_s": "second", "max_cost": "money", "price_per_device_hour": "money/h"}
)
"""Fields of `Limits` that may be written with a unit, and what they measure."""


class Finding(Struct, frozen=True, kw_only=True):
    """One thing that a question fails, or may fail."""

    code: str
    """memory, step_time, mfu, cost, deadline, devices (that nothing states); or the code of an error."""
    level: Level
    text: str
    value: float | None = None
    """In SI units: bytes, seconds, days for the deadline."""
    limit: float | None = None
    fix: str = ""
    key: str = ""
    file: str = ""
    line: int = 0


class Check(Result, Struct, frozen=True, kw_only=True):
    """Whether one question passes."""

    subject: str
    """The file or the model that was given."""
    status: Status
    findings: tuple[Finding, ...] = ()
    projection: Projection | None = None
    """None where there is no figure: the question cannot be read, or its layout is illegal."""

    @property
    def headline(self) -> str:
        """The status with the projection, or with what was found, on one line."""
        found = "; ".join(finding.text for finding in self.findings)
        projected = self.projection.headline if self.projection is not None else ""
        return f"{self.subject} {self.status}: {found if self.status != 'passes' else projected}"

    def rows(self) -> list[dict[str, Any]]:
        """Return one row: subject, status, and the figures that limits are compared with."""
        one = self.projection
        figures = {"step_time_s": None, "mfu": None, "peak_bytes": None, "verdict": None}
        if one is not None:
            figures = {
                **attributes(one, "step_time_s", "mfu"),
                **attributes(one.memory, "peak_bytes", "verdict"),
            }
        return [{"subject": self.subject, "status": self.status, **figures}]

    def to_json(self) -> dict[str, Any]:
        """Return subject, status, findings and the figures."""
        return {**self.rows()[0], "findings": jsonable(self.findings)}


class Checks(Result, Struct, frozen=True, kw_only=True):
    """Whether several questions pass."""

    checks: tuple[Check, ...]
    skipped: tuple[str, ...] = ()
    """Files of a folder that configure no training."""

    @property
    def status(self) -> Status:
        """The gravest status of all."""
        return next(status for status in GRAVEST if status == "passes" or self._any(status))

    def _any(self, status: Status) -> bool:
        return any(check.status == status for check in self.checks)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per question."""
        return [row for check in self.checks for row in check.rows()]

    def to_json(self) -> dict[str, Any]:
        """Return the `forescale.check/1` document."""
        checks = [check.to_json() for check in self.checks]
        return {"schema": SCHEMA, "status": self.status, "checks": checks, "skipped": self.skipped}


def check(
    question: Question,
    limits: Limits,
    projected: Callable[[Question], Projection],
    *,
    subject: str = "",
    strict: bool = False,
    refusal: Callable[[Question], str] = lambda _: "",
    named: bool = True,
) -> Check:
    """Return whether a question with a layout passes.

    Parameters
    ----------
    question
        Its `max_memory` limits the memory, if it is below that of the device.
    limits
        Limits of time and money.
    projected
        Returns the projection of a question.
    subject
        What was given, as it is reported.
    strict
        Whether a warning fails: the upper end of the 80 % interval passes a limit.
    refusal
        Returns why the configuration of the question's framework cannot state this layout; empty if it can.
    named
        Whether somebody named that framework: one that is only assumed forbids nothing.

    Raises
    ------
    SpecError
        If a limit needs what the question does not say, such as a deadline without tokens.
    """
    subject = subject or question.model.name
    try:
        named = named and FRAMEWORK not in question.assumed
        if named and (violation := question.violation(question.strategy)):
            raise illegal_layout(["layout"], [violation])
        if named and (violation := refusal(question)):
            raise illegal_layout(["layout"], [violation])
        result = projected(question)
    except SpecError as error:
        return refused(subject, error)
    findings = (*_memory(question, result), *_limits(result, limits))
    failed = any(strict or finding.level == "error" for finding in findings)
    return Check(
        subject=subject, status="fails" if failed else "passes", findings=findings, projection=result
    )


def refused(subject: str, error: ForescaleError) -> Check:
    """Return the check of a question that cannot be projected: its layout is illegal, or it cannot be read."""
    status: Status = "illegal" if error.code in ILLEGAL else "unreadable"
    place = error.location
    finding = Finding(
        code=error.code or "unreadable",
        level="error",
        text=str(error),
        fix=error.fix,
        key=error.key if isinstance(error.key, str) else ", ".join(error.key),
        file="" if place is None else place.file,
        line=0 if place is None else place.line,
    )
    return Check(subject=subject, status=status, findings=(finding,))


def on_more(
    question: Question,
    failed: Check,
    resized: Callable[[int], Question],
    checked: Callable[[Question], Check],
) -> Check:
    """Return the check on the first of twice, four times, … the devices of a question that passes, with a warning.

    Parameters
    ----------
    question
        One whose number of devices is not stated.
    failed
        Its check on the fewest.
    resized
        Returns the question on so many devices.
    checked
        Returns the check of a question.

    Returns
    -------
    Check
        `failed`, if none passes: more devices share no more of what a device keeps.
    """
    fewest, least = question.cluster.num_devices, failed
    for doublings in range(1, MOST_DEVICES.bit_length()):
        try:
            tried = checked(resized(fewest << doublings))
        except ForescaleError:  # a batch or a cluster that so many devices do not suit
            continue
        if tried.status == "passes":
            text = f"the number of devices is not stated: {fewest:,} run out of memory, {fewest << doublings:,} do not"
            finding = Finding(
                code="devices", level="warning", text=text, value=float(fewest), fix="state it with --devices"
            )
            return replace(tried, findings=(*tried.findings, finding))
        if tried.projection is None or least.projection is None:
            continue
        if tried.projection.memory.peak_bytes > LESS * least.projection.memory.peak_bytes:
            break
        least = tried
    return failed


def _memory(question: Question, result: Projection) -> Iterator[Finding]:
    limit, memory = question.memory_limit, result.memory
    if memory.exceeds_host:
        yield _above_host(memory)
    verdict = _on_device(memory, limit)
    if verdict == "FITS":
        return
    safe = question.safe or verdict == "OOM"
    bytes_ = memory.peak_bytes if verdict == "OOM" else memory.peak_high_bytes
    what = "needs" if verdict == "OOM" else "may need up to"
    yield Finding(
        code="memory",
        level="error" if safe else "warning",
        text=f"{what} {bytes_ / GIB:.2f} of {limit / GIB:.2f} GiB on the fullest device",
        value=bytes_,
        limit=limit,
        fix="; ".join([*(note.text for note in question.notes if note.topic == TO_FIT), FITTING]),
    )


def _above_host(memory: MemorySummary) -> Finding:
    return Finding(
        code="host_memory",
        level="error",
        text=f"offloads {memory.host_bytes / GIB:.2f} of {memory.host_capacity_bytes / GIB:.2f} GiB to a node's host",
        value=memory.host_bytes,
        limit=memory.host_capacity_bytes,
        fix="offload less, or take more nodes",
    )


def _limits(result: Projection, limits: Limits) -> Iterator[Finding]:
    """Yield a finding for every limit that the expected value passes, or that the end of its interval does."""
    time = result.step_time
    slow = time.high / time.expected if time.expected else 1.0
    if (limit := limits.max_step_time_s) is not None:
        yield from _above("step_time", time.expected, time.high, limit, format_seconds)
    if (limit := limits.min_mfu) is not None and result.mfu / slow < limit:
        low = result.mfu < limit
        value = result.mfu if low else result.mfu / slow
        text = f"mfu {'is' if low else 'may be as low as'} {value:.1%}, at least {limit:.1%} was required"
        yield Finding(code="mfu", level="error" if low else "warning", text=text, value=value, limit=limit)
    if limits.deadline_days is None and limits.max_cost is None:
        return
    if result.calendar is None:
        raise missing(
            "tokens", result.endless or "give --tokens, such as 15T: a deadline or a cost is of a whole run"
        )
    days = result.calendar.days
    if (limit := limits.deadline_days) is not None:
        yield from _above("deadline", days.expected, days.high, limit, lambda value: f"{value:.1f} days")
    if (limit := limits.max_cost) is not None:
        price = limits.price_per_device_hour or result.cluster.device.price_per_hour
        if not price:
            raise missing("a price", "give --price-per-device-hour: the device has none")
        hourly = 24.0 * price * result.cluster.num_devices
        costs = days.expected * hourly, days.high * hourly
        yield from _above("cost", *costs, limit, lambda value: f"{value:,.0f}")


def _above(
    code: str, expected: float, high: float, limit: float, words: Callable[[float], str]
) -> Iterator[Finding]:
    if high > limit:
        above = expected > limit
        value = expected if above else high
        text = f"{TAKES[code]} {'' if above else 'up to '}{words(value)}, at most {words(limit)} is allowed"
        yield Finding(code=code, level="error" if above else "warning", text=text, value=value, limit=limit)


TAKES = {"step_time": "a step takes", "deadline": "the run takes", "cost": "the run costs"}
"""What a limit is of, by the code of its finding."""


def verdict_within(projection: Projection, limit: float) -> Verdict:
    """Return the verdict of a layout against a limit in bytes, which may be below the capacity of the device."""
    return "OOM" if projection.memory.exceeds_host else _on_device(projection.memory, limit)


def _on_device(memory: MemorySummary, limit: float) -> Verdict:
    return verdict_of(
        point_bytes=memory.peak_low_bytes, upper_bytes=memory.peak_high_bytes, capacity_bytes=limit
    )
