"""Searches in processes of their own: they tell how far they are, end at a time limit, and can be cancelled."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import AsyncIterator
from multiprocessing.connection import Connection
from typing import Any

from forescale.errors import ForescaleError
from forescale.search import search
from forescale.search.solve import Progress
from forescale.web.answers import BusyError
from forescale.web.asked import Query, search_question

TIME_LIMIT_S = 60.0
"""Seconds that a search of the page may take; it then says how near it is to the proof."""
AT_ONCE = 2
TOP = 10
PAUSE_S = 0.02
"""Seconds between two looks for news."""
GRACE_S = 20.0
"""Seconds beyond the limit after which a process that says nothing is ended."""


class Searches:
    """The searches that run."""

    def __init__(self, *, at_once: int = AT_ONCE, time_limit_s: float = TIME_LIMIT_S) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["forescale.web.jobs"])
        self._free, self._limit = at_once, time_limit_s

    async def run(self, query: Query) -> AsyncIterator[dict[str, Any]]:
        """Yield `{"progress": …}` again and again, then `{"found": result}` or `{"error": sentence}`.

        Leaving the loop ends the search.

        Raises
        ------
        BusyError
            If as many run as may.
        """
        if self._free <= 0:
            raise BusyError
        self._free -= 1
        here, there = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_work, args=(query, self._limit, there), daemon=True)
        try:
            process.start()
            there.close()
            async for news in self._news(here):
                yield news
        finally:
            if process.pid is not None:
                process.kill()
                process.join()
            here.close()
            self._free += 1

    async def _news(self, here: Connection) -> AsyncIterator[dict[str, Any]]:
        waited = 0.0
        while waited < self._limit + GRACE_S:
            if not here.poll():
                await asyncio.sleep(PAUSE_S)
                waited += PAUSE_S
                continue
            try:
                news = here.recv()
            except EOFError:
                yield {"error": "the search ended without an answer; it needed more memory than there is"}
                return
            yield news
            if "progress" not in news:
                return
        yield {"error": f"the search took longer than {self._limit:g} s"}


def _work(query: Query, limit: float, there: Connection) -> None:
    """Search, and say how far it is."""

    def watch(progress: Progress) -> bool:
        there.send(
            {
                "progress": {
                    "num_legal": progress.num_legal,
                    "num_evaluated": progress.num_evaluated,
                    "num_pruned": progress.num_pruned,
                    "gap": progress.gap,
                    "elapsed_s": progress.elapsed_s,
                }
            }
        )
        return True

    try:
        found = search(search_question(query), top=TOP, time_limit=limit, watch=watch)
        there.send({"found": found})
    except ForescaleError as error:
        there.send({"error": str(error)})
