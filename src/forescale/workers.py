"""Processes on this machine that answer side by side; what is answered does not depend on how many there are."""

from __future__ import annotations

import os
import signal as signals
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.connection import wait as wait_for
from threading import Thread
from typing import TypeVar

from forescale.errors import ForescaleError

T = TypeVar("T")
R = TypeVar("R")
PATIENCE_S = 1.0
"""Seconds that this process works by itself before it starts others, which take half a second to start."""


def available_cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def pool(jobs: int) -> Iterator[Executor]:
    """Return processes that end with this one, or as soon as it is interrupted or fails.

    Raises
    ------
    ForescaleError
        If one of them ends on its own.
    """
    context, before = get_context("spawn"), set(active_children())
    executor = ProcessPoolExecutor(max_workers=jobs, mp_context=context, initializer=_start_worker)
    try:
        yield executor
    except BrokenProcessPool as error:
        raise ForescaleError(
            "a worker process ended on its own, perhaps for want of memory; try fewer with --jobs"
        ) from error
    except BaseException:  # an interrupt or an error: nobody wants what they are working on
        for worker in set(active_children()) - before:
            worker.terminate()
        executor.shutdown(cancel_futures=True)  # its thread sees them end; left behind, it would fail at exit
        raise
    finally:
        executor.shutdown(wait=False, cancel_futures=True)


def _start_worker() -> None:
    """Leave interrupts to the process that started this one, and end with it: a kill would go unnoticed."""
    signals.signal(signals.SIGINT, signals.SIG_IGN)
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        wait_for([parent.sentinel])
        os._exit(1)

    Thread(target=watch, daemon=True).start()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Hold interrupts back, also from processes that start meanwhile and do not yet leave them to this one."""
    if not hasattr(signals, "pthread_sigmask"):
        yield
        return
    before = signals.pthread_sigmask(signals.SIG_BLOCK, {signals.SIGINT})
    try:
        yield
    finally:
        signals.pthread_sigmask(signals.SIG_SETMASK, before)


def in_order(
    function: Callable[[T], R],
    items: Iterable[T],
    *,
    jobs: int | None = 1,
    wanted: Callable[[T], bool] = lambda _: True,
) -> Iterator[tuple[T, R]]:
    """Yield every item with its result, in their order.

    Parameters
    ----------
    function, items
        What is computed of each; both go to other processes if it takes longer than `PATIENCE_S`.
    jobs
        Processes; None is one per core, and 1 this one alone.
    wanted
        Says, by what was yielded before, whether an item is still of interest. With several processes an item may be
        yielded that no longer is.
    """
    left, started = deque(items), time.monotonic()
    count = min(jobs or available_cores(), len(left))
    while left and (count <= 1 or len(left) == 1 or time.monotonic() - started < PATIENCE_S):
        if wanted(item := left.popleft()):
            yield item, function(item)
    if left:
        with pool(min(count, len(left))) as executor:
            yield from _dealt(function, left, executor, count + 1, wanted)


def _dealt(
    function: Callable[[T], R], left: deque[T], executor: Executor, most: int, wanted: Callable[[T], bool]
) -> Iterator[tuple[T, R]]:
    """Yield results of processes, of which at most `most` are asked for at any time."""
    busy: deque[tuple[T, Future[tuple[R] | None]]] = deque()
    while left or busy:
        with undisturbed():
            while left and len(busy) < most:
                if wanted(item := left.popleft()):
                    busy.append((item, executor.submit(_attempted, function, item)))
        if busy:
            item, future = busy.popleft()
            result = future.result()
            yield item, function(item) if result is None else result[0]


def _attempted(function: Callable[[T], R], item: T) -> tuple[R] | None:
    """Return the result, or None of what fails: the process that asked sees the error itself."""
    try:
        return (function(item),)
    except ForescaleError:
        return None
