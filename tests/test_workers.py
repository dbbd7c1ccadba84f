"""Processes that answer side by side."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from signal import SIGINT, SIGKILL

import pytest
from tests.errors import raises

import forescale.workers
from forescale.errors import ForescaleError, out_of_range
from forescale.workers import Workers, in_rounds


def squared(number: int) -> tuple[int, int]:
    if number < 0:
        raise out_of_range("number", number, "0 or more")
    return number * number, os.getpid()


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(forescale.workers, "PATIENCE_S", 0.0)


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_come_in_order_however_many_processes_there_are(jobs):
    pairs = [*in_rounds(squared, [3, 1, 2], abs, jobs=jobs)]
    assert [(item, result[0]) for item, result in pairs] == [(3, 9), (1, 1), (2, 4)]
    assert all((result[1] == os.getpid()) == (jobs == 1) for _, result in pairs)


def test_what_is_no_longer_wanted_is_not_asked_for():
    seen: list[int] = []
    for item, _ in in_rounds(squared, range(6), abs, wanted=lambda item: item % 2 == 0 or not seen):
        seen.append(item)
    assert seen == [0, 2, 4]


def test_an_error_is_the_one_that_the_function_raises():
    with raises(ForescaleError, "out_of_range number | -1"):
        list(in_rounds(squared, [1, -1, 2], int, jobs=2))


def numbered(number: int) -> tuple[int, int]:
    return number, os.getpid()


def waiting(number: int, meeting) -> tuple[int, int]:
    """Return only when every process has a part: none may take two."""
    meeting.wait()
    return numbered(number)


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_round_knows_what_earlier_rounds_yielded_and_nothing_else(jobs):
    seen = []
    given = {}

    def ready(item):
        given[item] = tuple(seen)
        return item

    for item, result in in_rounds(squared, range(1, 6), ready, size=2, jobs=jobs):
        assert result[0] == item * item
        seen.append(item)
    assert given == {1: (), 2: (), 3: (1, 2), 4: (1, 2), 5: (1, 2, 3, 4)}


@pytest.mark.parametrize("jobs", [1, 2, 4])
def test_parts_are_computed_by_all_processes_and_returned_in_order(jobs):
    meeting = get_context("fork").Barrier(jobs)
    with Workers(jobs) as workers:
        several = [workers.share([partial(waiting, nth, meeting) for nth in range(4)]) for _ in range(2)]
        assert workers.started == (jobs > 1)
    first, second = several
    assert [number for number, _ in first] == [number for number, _ in second] == [0, 1, 2, 3]
    processes = {process for _, process in first}
    assert len(processes) == jobs
    assert processes == {process for _, process in second}  # the same ones, which keep what they know
    assert not any(running(process) for process in processes - {os.getpid()})


def test_every_process_goes_on_with_all_results_and_keeps_what_it_computes():
    known: dict[int, int] = {}

    def part(number: int) -> tuple[int, int]:
        known[number] = known.get(number, 0) + 1
        return sum(known.values()), os.getpid()

    with Workers(2) as workers:
        total = sum(workers.share([partial(numbered, number) for number in range(8)])[7])
        totals = workers.share([partial(lambda nth: (nth, total), nth) for nth in range(8)])
        assert {value for _, value in totals} == {total}
        counts = [count for _ in range(4) for count in workers.share([partial(part, 0), partial(part, 1)])]
    of_process = {process: [count for count, name in counts if name == process] for _, process in counts}
    assert sum(map(max, of_process.values())) == 8
    assert all(values == sorted(values) for values in of_process.values())


def test_the_first_process_decides_what_depends_on_time():
    with Workers(3) as workers:
        workers.share([partial(numbered, number) for number in range(3)])
        decided = workers.decide(os.getpid)
        assert set(workers.share([partial(lambda _: decided, number) for number in range(9)])) == {
            os.getpid()
        }
        assert workers.leads


def test_a_part_that_fails_raises_its_own_error():
    with raises(ForescaleError, "out_of_range number | -1"), Workers(2) as workers:
        workers.share([partial(squared, number) for number in (1, -1, -1)])
    assert not workers.started


def test_a_process_that_is_killed_is_one_error():
    here = os.getpid()

    def part() -> None:
        if os.getpid() != here:
            os.kill(os.getpid(), SIGKILL)
        time.sleep(0.05)

    with pytest.raises(ForescaleError, match="a worker process ended on its own"), Workers(2) as workers:
        workers.share([part] * 100)


def test_a_process_that_is_killed_between_steps_is_one_error():
    here = os.getpid()
    with pytest.raises(ForescaleError, match="a worker process ended on its own"), Workers(2) as workers:
        workers.share([partial(numbered, number) for number in range(2)])
        if os.getpid() != here:
            os.kill(os.getpid(), SIGKILL)
        workers.share([partial(numbered, number) for number in range(2)])


def test_parts_of_a_part_are_computed_by_one_process():
    with Workers(4) as workers:
        nested = partial(workers.share, [partial(numbered, number) for number in range(4)])
        for result in workers.share([nested] * 4):
            assert [number for number, _ in result] == [0, 1, 2, 3]
            assert len({process for _, process in result}) == 1


@pytest.mark.parametrize("by", [SIGINT, SIGKILL])
def test_an_interrupt_or_a_kill_leaves_no_process(by):
    script = (
        "import os, time\nfrom forescale.workers import Workers\n"
        'def part():\n    os.write(1, f"{os.getpid()}\\n".encode())\n    time.sleep(60)\n'
        "with Workers(2) as workers:\n    workers.share([part] * 2)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as ran:
        assert ran.stdout is not None
        processes = [int(ran.stdout.readline()) for _ in range(2)]
        ran.send_signal(by)
        assert ran.wait(30) != 0
    (copy,) = {*processes} - {ran.pid}
    for _ in range(300):
        if not running(copy):
            return
        time.sleep(0.1)
    raise AssertionError(copy)


def running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
