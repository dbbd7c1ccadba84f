"""Run a sweep: every point answered once by this process, its children on all cores or a Ray cluster, in one table."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from forescale.errors import ForescaleError, needing, not_found
from forescale.struct import Struct
from forescale.sweep.columns import Row
from forescale.sweep.definition import AskedPoint, Sweep, fingerprint
from forescale.sweep.result import SweepResult, answer, columns, table_row
from forescale.sweep.store import Format, alone, open_store
from forescale.version import __version__
from forescale.workers import available_cores, pool, undisturbed

AHEAD = 2
"""Questions handed out per worker beyond the one it works on: enough to keep it busy, few enough to stop soon."""


class Executor(Protocol):
    """Answers questions in any order."""

    def answers(self, questions: Sequence[AskedPoint], names: tuple[str, ...]) -> Iterator[Row]:
        """Return the row of every question as soon as it is known; `names` are those of what is varied."""


class Local(Struct, frozen=True, kw_only=True):
    """Processes on this machine, one per core unless `jobs` says how many; one is this process itself."""

    jobs: int | None = None

    def answers(self, questions: Sequence[AskedPoint], names: tuple[str, ...]) -> Iterator[Row]:
        """Return rows as they are found."""
        jobs = min(self.jobs or available_cores(), len(questions))
        if jobs <= 1:
            yield from (answer(question, names) for question in questions)
            return
        with pool(jobs) as executor:
            yield from _in_flight(
                iter(questions), jobs * (1 + AHEAD), lambda question: executor.submit(answer, question, names)
            )


class Ray(Struct, frozen=True, kw_only=True):
    """Workers of a Ray cluster; they need nothing but this package."""

    address: str = "auto"
    jobs: int | None = None
    """Points worked on at once; by default as many as the cluster has cores."""

    def answers(self, questions: Sequence[AskedPoint], names: tuple[str, ...]) -> Iterator[Row]:
        """Return rows as they are found."""
        ray = _connected(self.address, self.jobs)
        try:
            task = ray.remote(num_cpus=1)(answer_at)
            workers = self.jobs or max(1, int(ray.cluster_resources().get("CPU", 1)))
            waiting = iter(questions)
            busy: list[Any] = []
            ahead = 1 if self.jobs else 1 + AHEAD
            while True:
                next_ones = islice(waiting, workers * ahead - len(busy))
                busy.extend(task.remote(__version__, question, names) for question in next_ones)
                if not busy:
                    return
                result, busy = ray.wait(busy, num_returns=1)
                yield _got(ray, result[0])
        finally:
            ray.shutdown()


def answer_at(version: str, asked_point: AskedPoint, names: tuple[str, ...]) -> Row:
    """Return the row of one point, on a node that may have another version installed."""
    if version != __version__:
        raise ForescaleError(f"this node has forescale {__version__}")
    return answer(asked_point, names)


def _in_flight(
    questions: Iterator[AskedPoint], most: int, submit: Callable[[AskedPoint], Future[Row]]
) -> Iterator[Row]:
    """Return results as they come, with at most `most` questions handed out at any time."""
    with undisturbed():
        busy = {submit(question) for question in islice(questions, most)}
    while busy:
        result, busy = wait(busy, return_when=FIRST_COMPLETED)
        for future in result:
            yield future.result()
        busy |= {submit(question) for question in islice(questions, most - len(busy))}


def _connected(address: str, jobs: int | None) -> Any:  # noqa: ANN401 (a module that is not always there)
    """Return ray, connected to the cluster at `address`; "local" is one of its own, as large as `jobs`."""
    with needing("sweep", "--executor ray", "Ray"):
        import ray
    try:
        local = jobs if address == "local" else None
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, num_cpus=local)
    except (ConnectionError, ValueError, RuntimeError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        fix = "start one with: ray start --head"
        raise not_found(f"Ray cluster at {address!r} ({first})", fix) from error
    return ray


def _got(ray: Any, reference: Any) -> Row:  # noqa: ANN401
    try:
        row: Row = ray.get(reference)
    except ray.exceptions.RayError as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise ForescaleError(
            f"a Ray worker failed ({lines[-1].strip()}); forescale {__version__} must be installed on every node"
        ) from error
    return row


def run(
    sweep: Sweep,
    *,
    executor: Executor | None = None,
    output: str | Path | None = None,
    table_format: Format = "parquet",
    restart: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> SweepResult:
    """Answer every point of a sweep and return its table.

    Parameters
    ----------
    executor
        `Local()`, all cores of this machine, by default; or `Ray()`.
    output
        Folder in which finished points are kept and the table is written. If it holds points of the same sweep,
        they are not answered again.
    table_format
        "parquet", or "csv" where pyarrow is missing.
    restart
        Discard what the folder holds.
    progress
        Called with the number of points known and of all points, at the start and after every point.

    Raises
    ------
    ForescaleError
        If the folder belongs to another sweep, another process works in it, or an executor cannot be had.
    """
    known = columns(sweep.axes)
    folder = None if output is None else Path(output)
    with alone(folder):
        store = open_store(
            sweep, fingerprint(sweep.asked), known, folder=folder, kind=table_format, restart=restart
        )
        rows = store.done()
        resumed = len(rows)
        tell = progress or _silent
        tell(len(rows), len(sweep.asked))
        left = [question for question in sweep.asked if question.index not in rows]
        if left:
            for result in (executor or Local()).answers(left, sweep.axes.names):
                row = table_row(result, known)
                store.keep(row)
                rows[row["index"]] = row
                tell(len(rows), len(sweep.asked))
        ordered = tuple(rows[index] for index in sorted(rows))
        table = store.write(ordered)
    return SweepResult(sweep=sweep, columns=known, points=ordered, num_resumed=resumed, table=table)


def _silent(_known: int, _all: int) -> None:
    pass
