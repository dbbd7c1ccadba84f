"""A log as records of steps, read line by line in constant memory, whatever stands between them."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Literal, TypeAlias

from forescale.errors import ReaderError, no_records
from forescale.logs.formats import FORMATS, LogFormat, StepRecord
from forescale.struct import Struct

LONGEST_LINE = 65_536
"""Characters of a line that are looked at: anything longer is no line of a log."""
WARM_UP = 3
"""First records that a typical step leaves out: compilation, allocation, autotuning."""
MOST = 100_000
"""Records that are kept of a log; of longer ones the last."""
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
Event: TypeAlias = Literal["restart", "out_of_memory"]
_RANK = re.compile(r"^\W*(?:rank|default|\d+,)?(\d+)\]?(?:<std\w+>)?:[\s\[]")
"""What launchers write before a line of a process: `[rank0]: `, `[default0]:[`, `0: `, `[1,0]<stdout>:`."""
_OUT_OF_MEMORY = re.compile(r"OutOfMemoryError|CUDA out of memory|RESOURCE_EXHAUSTED: Out of memory")


class LogReader:
    """Reads lines as they come; the first line that a format recognises decides which format it is.

    A trainer may print the lines of its engine and its own: a format with step times replaces one with rates alone.
    """

    def __init__(self, log_format: LogFormat | None = None) -> None:
        self.format = log_format
        self.last_step: int | None = None
        self.rank: str | None = None
        """The process whose steps are read: that which prints a step first."""
        self.bar: StepRecord | None = None
        """The last state of the progress bar of training."""
        self.restarts = 0
        """How often the step number fell back."""
        self.out_of_memory = False
        self.has_seconds = False
        """Whether a line said how long a step takes."""

    def feed(self, line: str | StepRecord) -> StepRecord | None:
        """Return what a line, or a record of metrics, says of a step; None if nothing."""
        if isinstance(line, StepRecord):
            record: StepRecord | None = line
        else:
            text = _ESCAPES.sub("", line[:LONGEST_LINE])
            self.out_of_memory = self.out_of_memory or _OUT_OF_MEMORY.search(text) is not None
            record = self._of_training(self._parsed(text), _RANK.match(text))
        if record is not None and record.step is not None:
            if self.last_step is not None and record.step < self.last_step:
                self.restarts += 1
            self.last_step = record.step
        return record

    def _of_training(self, record: StepRecord | None, rank: re.Match[str] | None) -> StepRecord | None:
        """Return a record of one process and of the longest progress bar; of others the memory alone."""
        if record is None or record.step is None:
            return record
        if rank is not None and rank[1] != self.rank:
            if self.last_step is not None and record.step <= self.last_step:
                return None if record.peak_bytes is None else StepRecord(peak_bytes=record.peak_bytes)
            self.rank = rank[1]
        if record.total is not None and record.elapsed_s is not None:
            bar = self.bar
            if bar is not None and bar.total != record.total and record.elapsed_s <= (bar.elapsed_s or 0.0):
                return None  # of an evaluation, which begins anew each time
            self.bar = record
        return record

    def _parsed(self, text: str) -> StepRecord | None:
        record = None if self.format is None else self.format.parse(text)
        if record is None and not self.has_seconds:
            for one in FORMATS:
                record = one.parse(text)
                if record is not None and (self.format is None or record.seconds is not None):
                    self.format = one
                    break
            else:
                record = None
        self.has_seconds = self.has_seconds or (record is not None and record.seconds is not None)
        return record


class RunLog(Struct, frozen=True, kw_only=True):
    """The steps of a log."""

    path: str
    format: str
    records: tuple[StepRecord, ...]
    restarts: int = 0
    out_of_memory: bool = False

    def typical(self, name: str) -> float | None:
        """Return the median of a value over the records that have it, without warm-up; None if none has."""
        values = [value for record in self.records if (value := getattr(record, name)) is not None]
        return median(values[WARM_UP:] if len(values) > 2 * WARM_UP else values[-1:]) if values else None

    @property
    def peak_bytes(self) -> float | None:
        """The largest peak of memory that is printed."""
        return max((item.peak_bytes for item in self.records if item.peak_bytes is not None), default=None)

    def step_seconds(self, step_of: Callable[[Mapping[str, float]], float | None]) -> float | None:
        """Return the seconds of a typical step: as printed, or from the rates; None if the log has neither.

        Parameters
        ----------
        step_of
            Returns the seconds of a step from rates by name: `seconds_of` with the size of a step.
        """
        if (seconds := self.typical("seconds")) is not None:
            return seconds
        if (seconds := _per_step(self.records)) is not None:
            return seconds
        return step_of({name: rate for name in RATES if (rate := self.typical(name))})


RATES = ("steps_per_s", "tokens_per_s_per_device", "tokens_per_s", "samples_per_s")
"""Fields of a record that a step time follows from."""


def seconds_of(rates: Mapping[str, float], *, tokens: float, devices: int, sequences: float) -> float | None:
    """Return the seconds of a step from the first of `RATES` that is known; None if none is.

    Parameters
    ----------
    rates
        Rates per second, by name.
    tokens, sequences
        Of one step, over all devices.
    devices
        Number of devices.
    """
    amounts = dict(zip(RATES, (1.0, tokens / devices, tokens, sequences), strict=True))
    return next((amounts[name] / rate for name in RATES if (rate := rates.get(name))), None)


def _per_step(records: Iterable[StepRecord]) -> float | None:
    """Return the seconds per step of a progress bar: from a tenth of its states on, or up to the only one.

    Of a run that began anew, and of several bars, the states of the longest count.
    """
    several = list(records)
    bars: list[list[tuple[int, float]]] = [[]]
    total: int | None = None
    for item in several:
        if item.step is not None and item.elapsed_s is not None:
            if bars[-1] and (item.elapsed_s < bars[-1][-1][1] or item.total != total):
                bars.append([])
            bars[-1].append((item.step, item.elapsed_s))
            total = item.total
    points = max(bars, key=lambda bar: (bar[-1][1] - bar[0][1], len(bar)) if bar else (0.0, 0))
    if len(points) == 1 and points[0][0]:
        whole = [item.elapsed_s for item in several if item.step is None and item.elapsed_s is not None]
        return (whole or [points[0][1]])[-1] / points[0][0]
    if len(points) < 2:
        return None
    first, last = points[len(points) // 10], points[-1]
    steps = last[0] - first[0]
    return (last[1] - first[1]) / steps if steps > 0 and last[1] > first[1] else None


def lines_of(path: Path) -> Iterator[str]:
    """Yield the lines of a log, of a progress bar each state; gzip by its ending, bytes that are no text replaced."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8", errors="replace", newline=None) as file:
        while line := file.readline(LONGEST_LINE):
            yield line


def format_of(lines: Iterable[str]) -> LogFormat | None:
    """Return the format of the first line that says something of a step; None if no line does."""
    reader = LogReader()
    return next((reader.format for line in lines if reader.feed(line) is not None), None)


def read_log(path: Path) -> RunLog:
    """Return the steps of a log.

    Raises
    ------
    ReaderError
        If no line says how long a step takes in a known format.
    """
    reader = LogReader()
    records: list[StepRecord] = []
    try:
        for line in lines_of(path):
            if (record := reader.feed(line)) is not None:
                records.append(record)
                if len(records) > 2 * MOST:
                    del records[:MOST]
    except (OSError, EOFError) as error:
        if not records:
            raise ReaderError(path, str(error)) from error
    if reader.format is None:
        raise ReaderError(path, no_records("; ".join(one.title for one in FORMATS)))
    return RunLog(
        path=str(path),
        format=reader.format.name,
        records=tuple(records[-MOST:]),
        restarts=reader.restarts,
        out_of_memory=reader.out_of_memory,
    )
