"""A running job against its projection, fed line by line: step times, drifts, slow steps, restarts, what is left."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Literal, TypeAlias

from forescale.errors import not_one_of
from forescale.logs import LogReader, StepRecord, seconds_of
from forescale.projection.result import Projection
from forescale.struct import Struct

RECENT = 20
"""Steps that the present speed is the median of."""
DRIFT = 1.1
"""Present step time over that of the first steps from which on it has drifted."""
STRAGGLING = 2.0
"""Time of one step over the present typical one from which on it is named."""
SECONDS_PER_DAY = 86_400.0
Kind: TypeAlias = Literal["step", "drift", "recovered", "slow_step", "restart", "below", "out_of_memory"]


class Event(Struct, frozen=True, kw_only=True):
    """Something that the log says."""

    kind: Kind
    text: str
    step: int | None = None
    seconds: float | None = None


class Watcher:
    """Takes the lines of a log, in constant memory.

    Parameters
    ----------
    projection
        What the layout should take.
    price_per_device_hour
        For the cost so far; None leaves it out.
    fail_below
        Share of the expected speed below which the run fails, once a window of steps is slower; None never fails.
    """

    def __init__(
        self,
        projection: Projection,
        *,
        price_per_device_hour: float | None = None,
        fail_below: float | None = None,
    ) -> None:
        if fail_below is not None and not 0.0 < fail_below <= 1.0:
            raise not_one_of("--fail-below", fail_below, ("a share above 0 and up to 1",))
        self.projection, self.price, self.fail_below = projection, price_per_device_hour, fail_below
        self.reader = LogReader()
        self.recent: deque[float] = deque(maxlen=RECENT)
        self.first: list[float] = []
        """The first steps after warm-up, which drifts are measured against."""
        self.num_steps = 0
        self.total_s = 0.0
        """Seconds of all steps that the log has."""
        self.repeated_s = 0.0
        """Of these, of steps that were done again after a restart."""
        self.furthest = 0
        self.drifted = self.failed = False
        self._elapsed: tuple[int, float] | None = None

    @property
    def typical_s(self) -> float | None:
        """Median of the recent steps."""
        return median(self.recent) if self.recent else None

    @property
    def speed(self) -> float | None:
        """Expected step time over the present one."""
        return None if self.typical_s is None else self.projection.step_time_s / self.typical_s

    @property
    def goodput(self) -> float | None:
        """Share of the time in steps whose result was kept."""
        return None if not self.total_s else 1.0 - self.repeated_s / self.total_s

    @property
    def days_left(self) -> float | None:
        """Days of the steps that are left, at the present speed and goodput; None without tokens."""
        work = self.projection.workload
        if work.tokens is None or self.typical_s is None:
            return None
        left = max(0.0, work.tokens / work.tokens_per_step - self.furthest)
        return left * self.typical_s / SECONDS_PER_DAY / (self.goodput or 1.0)

    @property
    def cost(self) -> float | None:
        """What the devices cost so far; None without a price."""
        if self.price is None:
            return None
        return self.price * self.projection.cluster.num_devices * self.total_s / 3600.0

    def __repr__(self) -> str:
        """Return the figures so far."""
        known = ", ".join(f"{name}={value:.6g}" for name, value in self.figures().items())
        return f"Watcher({known})"

    def feed(self, line: str | StepRecord) -> Iterator[Event]:
        """Yield what a line or record means; nothing if it is not about a step."""
        restarts, ended = self.reader.restarts, self.reader.out_of_memory
        record = self.reader.feed(line)
        if self.reader.out_of_memory and not ended:
            yield Event(kind="out_of_memory", text="the log says that memory ran out")
        if self.reader.restarts > restarts and record is not None:
            yield Event(kind="restart", text=f"back at step {record.step}", step=record.step)
            self.recent.clear()
        seconds = None if record is None else self._seconds(record)
        if record is not None and seconds is not None:
            yield from self._step(record.step, seconds)

    def _seconds(self, record: StepRecord) -> float | None:
        """Return the seconds of a step: as printed, from a rate, or between two states of a progress bar."""
        if record.seconds is not None:
            return record.seconds
        work = self.projection.workload
        seconds = seconds_of(
            record.values(),
            tokens=work.tokens_per_step,
            devices=self.projection.cluster.num_devices,
            sequences=work.global_batch_size,
        )
        if seconds is not None:
            return seconds
        if record.step is None or record.elapsed_s is None:
            return None
        before, self._elapsed = self._elapsed, (record.step, record.elapsed_s)
        if before is None or record.step <= before[0] or record.elapsed_s <= before[1]:
            return None
        return (record.elapsed_s - before[1]) / (record.step - before[0])

    def _step(self, step: int | None, seconds: float) -> Iterator[Event]:
        self.num_steps += 1
        self.total_s += seconds
        number = self.furthest + 1 if step is None else step
        if number <= self.furthest:
            self.repeated_s += seconds
        self.furthest = max(self.furthest, number)
        usual = self.typical_s
        self.recent.append(seconds)
        if len(self.first) < RECENT:
            self.first.append(seconds)
        yield Event(kind="step", text="", step=number, seconds=seconds)
        if usual is not None and len(self.recent) == RECENT and seconds > STRAGGLING * usual:
            text = f"step {number} took {seconds:.4g} s, {seconds / usual:.1f} × the usual {usual:.4g} s"
            yield Event(kind="slow_step", text=text, step=number, seconds=seconds)
        yield from self._drift(number)

    def _drift(self, step: int) -> Iterator[Event]:
        """Yield that the speed has changed since the first steps, and that it is below what is demanded."""
        now = self.typical_s
        if now is None or len(self.recent) < RECENT or len(self.first) < RECENT:
            return
        then = median(self.first)
        drifted = now > DRIFT * then
        if drifted != self.drifted:
            self.drifted = drifted
            kind: Kind = "drift" if drifted else "recovered"
            yield Event(
                kind=kind, text=f"steps take {now:.4g} s, the first took {then:.4g} s", step=step, seconds=now
            )
        speed = self.speed
        if self.fail_below is not None and speed is not None and speed < self.fail_below and not self.failed:
            self.failed = True
            text = f"{speed:.0%} of the expected speed, at least {self.fail_below:.0%} was required"
            yield Event(kind="below", text=text, step=step, seconds=now)

    def figures(self) -> Mapping[str, float]:
        """Return the figures of the run so far that are known, by name."""
        step = self.projection.step_time
        values = {
            "step": self.furthest or None,
            "step_time_s": self.typical_s,
            "expected_step_time_s": step.expected,
            "expected_step_time_low_s": step.low,
            "expected_step_time_high_s": step.high,
            "speed_ratio": self.speed,
            "goodput_ratio": self.goodput,
            "restarts": float(self.reader.restarts),
            "days_left": self.days_left,
            "cost": self.cost,
        }
        return {name: float(value) for name, value in values.items() if value is not None}
