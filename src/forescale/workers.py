"""Processes on this machine that answer side by side; what is answered does not depend on how many there are."""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal as signals
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from threading import Thread
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar, cast

from forescale.errors import ForescaleError

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future
    from multiprocessing.connection import Connection

T = TypeVar("T")
R = TypeVar("R")
S = TypeVar("S")
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
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import active_children, get_context

    context, before = get_context("spawn"), set(active_children())
    executor = ProcessPoolExecutor(max_workers=jobs, mp_context=context, initializer=end_with_parent)
    try:
        yield executor
    except BrokenProcessPool as error:
        raise _ended() from error
    except BaseException:  # an interrupt or an error: nobody wants what they are working on
        for worker in set(active_children()) - before:
            worker.terminate()
        executor.shutdown(cancel_futures=True)  # its thread sees them end; left behind, it would fail at exit
        raise
    finally:
        executor.shutdown(wait=False, cancel_futures=True)


def end_with_parent() -> None:
    """Leave interrupts to the process that started this one, and end with it: a kill would go unnoticed."""
    signals.signal(signals.SIGINT, signals.SIG_IGN)
    from multiprocessing import parent_process
    from multiprocessing.connection import wait as wait_for

    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        wait_for([parent.sentinel])
        os._exit(1)

    Thread(target=watch, daemon=True).start()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Hold interrupts back, also from processes that start meanwhile and do not yet leave them to this one.

    What it blocks they inherit, while they load modules too; an interrupt of this process comes right after.
    """
    if not hasattr(signals, "pthread_sigmask"):
        yield
        return
    before = signals.pthread_sigmask(signals.SIG_BLOCK, {signals.SIGINT})
    try:
        yield
    finally:
        signals.pthread_sigmask(signals.SIG_SETMASK, before)


def in_rounds(
    function: Callable[[S], R],
    items: Iterable[T],
    ready: Callable[[T], S],
    *,
    size: int | None = None,
    jobs: int | None = 1,
    wanted: Callable[[T], bool] = lambda _: True,
) -> Iterator[tuple[T, R]]:
    """Yield every item with its result, in their order.

    Parameters
    ----------
    function, items
        What is computed of each; both go to other processes if it takes longer than `PATIENCE_S`.
    ready
        Makes of an item what `function` takes, when its round begins: from what earlier rounds yielded, however many
        processes there are.
    size
        Items in a round; all by default.
    jobs
        Processes; None is one per core, and 1 this one alone.
    wanted
        Says, by what was yielded before, whether an item is still of interest. With several processes an item may be
        yielded that no longer is.
    """
    every, started = [*items], time.monotonic()
    count, size = min(jobs or available_cores(), len(every)), size or len(every) or 1
    executor = None
    with ExitStack() as stack:
        for start in range(0, len(every), size):
            left = deque((item, ready(item)) for item in every[start : start + size])
            later = len(every) - start - len(left)
            while left and executor is None:
                behind = later + len(left)
                if count > 1 and behind > 1 and time.monotonic() - started >= PATIENCE_S:
                    executor = stack.enter_context(pool(min(count, behind)))
                    break
                item, given = left.popleft()
                if wanted(item):
                    yield item, function(given)
            if executor is not None:
                yield from _dealt(function, left, executor, count + 1, wanted)


def _dealt(
    function: Callable[[S], R],
    left: deque[tuple[T, S]],
    executor: Executor,
    most: int,
    wanted: Callable[[T], bool],
) -> Iterator[tuple[T, R]]:
    """Yield results of processes, of which at most `most` are asked for at any time."""
    busy: deque[tuple[T, S, Future[tuple[R] | None]]] = deque()
    while left or busy:
        with undisturbed():
            while left and len(busy) < most:
                item, given = left.popleft()
                if wanted(item):
                    busy.append((item, given, executor.submit(_attempted, function, given)))
        if busy:
            item, given, future = busy.popleft()
            result = future.result()
            yield item, function(given) if result is None else result[0]


def _attempted(function: Callable[[T], R], item: T) -> tuple[R] | None:
    """Return the result, or None of what fails: the process that asked sees the error itself."""
    try:
        return (function(item),)
    except ForescaleError:
        return None


def may_fork() -> bool:
    """Return whether this process can fork safely, and was not itself started for a part."""
    from multiprocessing import parent_process

    return sys.platform == "linux" and parent_process() is None


class Workers:
    """Processes that go through one computation together: each makes the same steps, and computes some of their parts.

    They are forked when parts are first shared and end with the `with` block, which no other than the first process
    leaves. Each then knows all that this process knew, and keeps what it computes. Results do not depend on how many
    there are, as long as nothing but `decide` depends on time. There is one process on systems that cannot fork safely
    (Windows, macOS), and inside another process that was started for a part.
    """

    def __init__(self, jobs: int = 1) -> None:
        self.jobs = jobs if jobs > 1 and may_fork() else 1
        self._others: list[_Worker] = []
        self._leader: Connection | None = None
        self._numbers, self._fill = -1, -1
        self._busy = False

    def __enter__(self) -> Self:
        """Start no process yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the other processes."""
        self.end()

    def end(self) -> None:
        """End all processes but the first, whatever they do."""
        if self._leader is not None:
            os._exit(0)
        for other in self._others:
            other.connection.close()
            with suppress(ProcessLookupError):
                os.kill(other.pid, signals.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(other.pid, 0)
        if self._others:
            os.close(self._numbers)
            os.close(self._fill)
        self._others, self.jobs = [], 1

    def share(self, parts: Sequence[Callable[[], R]]) -> list[R]:
        """Return the result of each part, in their order, on every process; the next one takes the next part.

        Raises
        ------
        ForescaleError
            If a process ends on its own.
        """
        if self.jobs == 1 or self._busy or len(parts) < 2:
            return [part() for part in parts]
        if not self.started:
            self._start()
        self._deal(len(parts))
        results: dict[int, R] = {}
        self._busy = True
        for number in self._claimed():
            with suppress(Exception):  # every process computes it again, so the first raises the error
                results[number] = parts[number]()
        self._busy = False
        results |= self._exchanged(results)
        return [results[number] if number in results else part() for number, part in enumerate(parts)]

    def decide(self, function: Callable[..., R], *arguments: object) -> R:
        """Return what a function of time, or of files, returns on the first process."""
        if self._leader is not None:
            return cast("R", pickle.loads(self._leader.recv_bytes()))  # noqa: S301 (our own process)
        result = function(*arguments)
        self._send([pickle.dumps(result)] if self._others else [], self._others)
        return result

    @property
    def started(self) -> bool:
        """Whether there are other processes."""
        return bool(self._others) or self._leader is not None

    @property
    def leads(self) -> bool:
        """Whether this is the first process, which writes files."""
        return self._leader is None

    def _start(self) -> None:
        """Fork; every process goes on from here."""
        from multiprocessing import Pipe

        self._numbers, self._fill = os.pipe()
        pipes = [Pipe() for _ in range(self.jobs - 1)]
        with undisturbed():
            for local, remote in pipes:
                if (pid := os.fork()) == 0:
                    self._follow(remote, [end for pipe in pipes for end in pipe if end is not remote])
                    return
                self._others.append(_Worker(pid, local))
        for _, remote in pipes:
            remote.close()

    def _follow(self, leader: Connection, others: Sequence[Connection]) -> None:
        """Leave interrupts to the first process, and end with it, which a thread sees while this one computes."""
        signals.signal(signals.SIGINT, signals.SIG_IGN)
        for connection in others:
            connection.close()
        os.close(self._fill)
        self._leader, self._others = leader, []
        gc.freeze()  # memory that is looked through for garbage is copied

        def watch() -> None:
            poll = select.poll()
            poll.register(leader.fileno(), 0)  # hung up
            poll.poll()
            os._exit(1)

        Thread(target=watch, daemon=True).start()

    def _deal(self, count: int) -> None:
        """Give out the numbers of parts, and one end for each process."""
        if self._leader is None:
            numbers = [*range(1, count + 1), *[END] * self.jobs]
            os.write(self._fill, b"".join(number.to_bytes(NUMBER, "big") for number in numbers))

    def _claimed(self) -> Iterator[int]:
        while number := int.from_bytes(os.read(self._numbers, NUMBER), "big"):
            yield number - 1

    def _exchanged(self, results: dict[int, R]) -> dict[int, R]:
        """Return what the other processes have computed."""
        local = pickle.dumps(results, protocol=pickle.HIGHEST_PROTOCOL)
        if self._leader is not None:
            self._leader.send_bytes(local)
            received = [self._leader.recv_bytes() for _ in range(self.jobs - 1)]
        else:
            received = self._received()
            for nth, other in enumerate(self._others):
                self._send([local, *received[:nth], *received[nth + 1 :]], [other])
        every: dict[int, R] = {}
        for each in received:
            every |= pickle.loads(each)  # noqa: S301 (our own processes)
        return every

    def _received(self) -> list[bytes]:
        try:
            return [other.connection.recv_bytes() for other in self._others]
        except (EOFError, ConnectionError) as error:
            raise _ended() from error

    def _send(self, messages: Sequence[bytes], others: Sequence[_Worker]) -> None:
        try:
            for other in others:
                for message in messages:
                    other.connection.send_bytes(message)
        except ConnectionError as error:
            raise _ended() from error


class _Worker(NamedTuple):
    """Another process, and what it answers on."""

    pid: int
    connection: Connection


ALONE = Workers()
"""This process alone."""
NUMBER, END = 2, 0
"""Bytes of the number of a part; the number after the last."""


def _ended() -> ForescaleError:
    return ForescaleError(
        "a worker process ended on its own, perhaps for want of memory; try fewer with --jobs"
    )
