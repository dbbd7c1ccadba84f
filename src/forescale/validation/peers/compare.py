"""The errors of other tools beside ours, on the rows that both answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from forescale.validation.cases import Case
from forescale.validation.errors import InexpressibleError
from forescale.validation.metrics import ErrorSummary, relative_error, summarise
from forescale.validation.peers.published import cited
from forescale.validation.scoreboard import Outcome, Scoreboard


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerGroup:
    """One tool on the rows it answers, and our errors on the same rows."""

    peer: str
    time: ErrorSummary
    our_time: ErrorSummary
    memory: ErrorSummary
    our_memory: ErrorSummary


def compare_peers(
    board: Scoreboard, asked: Mapping[str, Callable[[Case], float]] | None = None
) -> tuple[PeerGroup, ...]:
    """Return the errors of every tool whose predictions the corpus cites, and of those that are asked here.

    `asked` are tools by name that give the seconds of a step; of these only the core rows are asked.
    """
    found: dict[str, list[_Pair]] = defaultdict(list)
    for outcome in board.outcomes:
        if outcome.error is None and outcome.memory_error is None:
            continue
        for name, pair in _answers(outcome, asked or {}):
            found[name].append(pair)
    return tuple(_group(name, pairs) for name, pairs in found.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    time: tuple[float, float] | None = None
    """Error of the step, theirs and ours."""
    memory: tuple[float, float] | None = None


def _answers(outcome: Outcome, asked: Mapping[str, Callable[[Case], float]]) -> Iterator[tuple[str, _Pair]]:
    measured = outcome.case.measured
    for said in cited(outcome.case.remarks):
        error = said.error
        if error is None and said.step_time_s is not None and measured.step_time_s:
            error = relative_error(said.step_time_s, measured.step_time_s)
        memory = None
        if said.peak_bytes is not None and measured.peak_bytes and outcome.memory_error is not None:
            memory = (relative_error(said.peak_bytes, measured.peak_bytes), outcome.memory_error)
        time = None if error is None or outcome.error is None else (error, outcome.error)
        yield said.peer, _Pair(time=time, memory=memory)
    for name, ask in asked.items():
        if outcome.case.core and outcome.error is not None and measured.step_time_s:
            try:
                seconds = ask(outcome.case)
            except (InexpressibleError, AssertionError):  # its own assertions say what it cannot express
                continue
            theirs = relative_error(seconds, measured.step_time_s)
            yield name, _Pair(time=(theirs, outcome.error))


def _group(name: str, pairs: list[_Pair]) -> PeerGroup:
    times = [pair.time for pair in pairs if pair.time is not None]
    memories = [pair.memory for pair in pairs if pair.memory is not None]
    return PeerGroup(
        peer=name,
        time=summarise([theirs for theirs, _ in times]),
        our_time=summarise([ours for _, ours in times]),
        memory=summarise([theirs for theirs, _ in memories]),
        our_memory=summarise([ours for _, ours in memories]),
    )
