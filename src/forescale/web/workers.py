"""Processes that answer the page's questions: so many at once, each in a time limit, with no file but our own in reach.

What takes longer than its limit is ended with its process, and so is what nobody waits for any more. Where many wait,
the newest question goes first, and now and then the oldest: most answers come at once, instead of all late.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import tempfile
import traceback
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

from forescale.confinement import confine
from forescale.errors import ForescaleError, timed_out

Work: TypeAlias = str
"""Name of a function in `pages`, which only the workers load."""
_CONTEXT = multiprocessing.get_context("forkserver")
COLLECTED_AFTER = 100_000
"""New objects after which a process looks for cycles: an answer makes many, and hardly a cycle."""
NICE = 10
"""How far processes stand back whose questions take long."""
MOST_ANSWERS = 1000
"""After so many answers a process makes way for a new one, so that what it keeps does not add up."""


def begin() -> None:
    """Let what workers need be loaded, beside whatever else happens; more than once does no more."""
    _CONTEXT.set_forkserver_preload(["forescale.web.warm"])
    forkserver.ensure_running()


class BusyError(Exception):
    """More is asked than is worked on at once."""


class Line:
    """Who waits for one of some places.

    Parameters
    ----------
    places
        How many are at work at once.
    oldest_every
        Of so many that are called one waited longest, the others came last. With 1 all go in the order in which they
        came.
    """

    def __init__(self, places: int, oldest_every: int) -> None:
        self._free, self._oldest_every = places, oldest_every
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._called = 0

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Wait for a place, and leave it at the end."""
        if self._free > 0:
            self._free -= 1
        else:
            await self._call()
        try:
            yield
        finally:
            self._leave()

    async def _call(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it was called before it left
                self._leave()
            raise

    def _leave(self) -> None:
        while self._waiting:
            self._called += 1
            oldest = self._called % self._oldest_every == 0
            turn = self._waiting.popleft() if oldest else self._waiting.pop()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


class Workers:
    """Some processes, and who waits for them.

    Parameters
    ----------
    processes
        Questions that are worked on at once.
    most
        Questions that are worked on or wait.
    time_limit_s
        Seconds that one may take.
    patient
        Whether these processes let all others go first.
    oldest_every
        Of so many questions that waited one is the oldest, the others are the newest (`Line`).
    """

    def __init__(
        self,
        *,
        processes: int,
        most: int,
        time_limit_s: float,
        patient: bool = False,
        oldest_every: int = 1,
    ) -> None:
        self._most, self._limit, self._patient = most, time_limit_s, patient
        self._asked = 0
        self._line = Line(processes, oldest_every)
        self._idle: list[_Worker] = []
        self._processes = processes
        begin()

    def start(self) -> None:
        """Start all processes, before there is a question."""
        while len(self._idle) < self._processes:
            self._idle.append(self._new())

    def _new(self) -> _Worker:
        return _Worker(NICE if self._patient else 0)

    async def ask(self, work: Work, *question: object) -> Any:  # noqa: ANN401 (what the work answers)
        """Return what `work` answers to a question; it raises as `news` does."""
        news = [item async for _, item in self.news(work, *question)]
        return news[-1]

    async def news(self, work: Work, *question: object) -> AsyncIterator[tuple[str, Any]]:
        """Yield ("news", …) as the work tells it, then ("found", answer). Leaving the loop ends the work.

        Raises
        ------
        BusyError
            If as many are asked as may.
        ForescaleError
            If the question cannot be answered, or not within the limit.
        """
        if self._asked >= self._most:
            raise BusyError
        self._asked += 1
        try:
            async with self._line.place():
                worker = self._idle.pop() if self._idle else self._new()
                try:
                    async for kind, result in worker.answers(work, question, self._limit):
                        yield kind, result
                finally:
                    if worker.idle and worker.answers_given < MOST_ANSWERS:
                        self._idle.append(worker)
                    else:
                        worker.end()
        finally:
            self._asked -= 1

    def close(self) -> None:
        """End all processes."""
        for worker in self._idle:
            worker.end()


class _Worker:
    """One process, which answers one question after the other."""

    def __init__(self, nice: int) -> None:
        self.idle, self.answers_given = True, 0
        self._pipe, there = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_serve, args=(there, nice), daemon=True)
        self._process.start()
        there.close()

    async def answers(
        self, work: Work, question: tuple[object, ...], limit: float
    ) -> AsyncIterator[tuple[str, Any]]:
        self.idle = False
        self.answers_given += 1
        try:
            self._pipe.send((work, question))
            async with asyncio.timeout(limit):
                while not self.idle:
                    await self._readable()
                    kind, result = self._pipe.recv()
                    self.idle = kind != "news"
                    if kind == "refused":
                        raise result
                    yield kind, result
        except TimeoutError:
            raise timed_out("this", f"{limit:g} s, the limit of the page") from None
        except (EOFError, OSError):
            raise ForescaleError(
                "the process that worked on this ended without an answer; it may have needed more memory than there is"
            ) from None

    async def _readable(self) -> None:
        """Wait until there is something to receive."""
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(self._pipe.fileno(), ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self._pipe.fileno())

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()


def _serve(there: Connection, nice: int) -> None:
    """Answer questions until nobody asks any more."""
    from forescale.web import pages
    from forescale.web.asked import form_error

    os.nice(nice)
    gc.freeze()
    gc.set_threshold(COLLECTED_AFTER)
    with tempfile.TemporaryDirectory(prefix="forescale-") as folder:
        tempfile.tempdir = folder
        confine(Path(folder))
        while True:
            try:
                work, question = there.recv()
            except (EOFError, ConnectionResetError):
                return
            try:
                explicit = (lambda news: there.send(("news", news)),) if work in pages.TELLING else ()
                there.send(("found", getattr(pages, work)(*explicit, *question)))
            except ForescaleError as error:
                there.send(("refused", form_error(error)))
            except MemoryError:
                there.send(("refused", ForescaleError("this needs more memory than there is")))
            except Exception as error:  # a mistake of ours must not end in silence
                there.send(("refused", ForescaleError(_mistake(error))))


def _mistake(error: Exception) -> str:
    """Return what is to be reported of an error that no question should meet."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(place.filename).name}, line {place.lineno}"
    return f"this is a mistake of the program, not of the question: {type(error).__name__} in {where}; please report it"
