"""The errors of other tools beside ours, on the rows that both answer."""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from forescale.struct import Struct
from forescale.units import GIB
from forescale.validation.case import Case, InexpressibleError
from forescale.validation.metrics import ErrorSummary, relative_error, summarise
from forescale.validation.scoreboard import RowOutcome, Scoreboard


class PeerGroup(Struct, frozen=True, kw_only=True):
    """One tool on the rows it answers, and our errors on the same rows."""

    peer: str
    time: ErrorSummary
    our_time: ErrorSummary
    memory: ErrorSummary
    our_memory: ErrorSummary


def compare_peers(
    board: Scoreboard, values: Mapping[str, Callable[[Case], float]] | None = None
) -> tuple[PeerGroup, ...]:
    """Return the errors of every tool whose predictions the corpus cites, and of those that are asked here.

    `values` are tools by name that give the seconds of a step; of these only the core rows are asked.
    """
    errors: dict[str, tuple[list[Errors], list[Errors]]] = defaultdict(lambda: ([], []))
    for outcome in board.outcomes:
        if outcome.error is None and outcome.memory_error is None:
            continue
        measured = outcome.case.measured
        for item in (*cited(outcome.case.remarks), *_answers(outcome, values or {})):
            times, memories = errors[item.peer]
            error = item.error
            if item.step_time_s is not None and measured.step_time_s:
                error = relative_error(item.step_time_s, measured.step_time_s)
            if error is not None and outcome.error is not None:
                times.append((error, outcome.error))
            if item.peak_bytes is not None and measured.peak_bytes and outcome.memory_error is not None:
                memories.append((relative_error(item.peak_bytes, measured.peak_bytes), outcome.memory_error))
    return tuple(_group(name, times, memories) for name, (times, memories) in errors.items())


Errors: TypeAlias = tuple[float, float]
"""Theirs and ours."""


def _answers(outcome: RowOutcome, values: Mapping[str, Callable[[Case], float]]) -> Iterator[Cited]:
    if not outcome.case.core or outcome.error is None:
        return
    for name, ask in values.items():
        # Its own assertions say what it cannot express.
        with contextlib.suppress(InexpressibleError, AssertionError):
            yield Cited(peer=name, step_time_s=ask(outcome.case))


def _group(name: str, times: Sequence[Errors], memories: Sequence[Errors]) -> PeerGroup:
    (time, our_time), (memory, our_memory) = (
        [summarise([pair[side] for pair in pairs]) for side in (0, 1)] for pairs in (times, memories)
    )
    return PeerGroup(peer=name, time=time, our_time=our_time, memory=memory, our_memory=our_memory)


_SIMUMAX = re.compile(r"SimuMax prediction: ([\d.]+) ms \([^)]*\), mem ([\d.]+) GiB")
_CALCULON = re.compile(r"Calculon prediction error on this cell: ([+-][\d.]+) ?%")


class Cited(Struct, frozen=True, kw_only=True):
    """What a tool predicted of one run, by its authors."""

    peer: str
    step_time_s: float | None = None
    error: float | None = None
    """Relative error of the step, where that is what was published."""
    peak_bytes: float | None = None


def cited(remarks: str) -> Iterator[Cited]:
    """Yield the predictions that a row's notes cite."""
    if match := _SIMUMAX.search(remarks):
        step, peak = float(match[1]) / 1e3, float(match[2]) * GIB
        yield Cited(peer="SimuMax 1.2, as published", step_time_s=step, peak_bytes=peak)
    if match := _CALCULON.search(remarks):
        yield Cited(peer="Calculon, as published", error=float(match[1]) / 100.0)
