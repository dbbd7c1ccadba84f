"""A bar on the terminal for what takes a while."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

from forescale.cli.console import console, is_plain, say

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from forescale.bench.measure import Progress as Measured
    from forescale.search.solve import Progress

PATIENCE_S = 1.0
"""Seconds without a bar."""


class _OnTerminal:
    """A bar on standard error: only on a terminal; taken away in the end."""

    def __init__(self) -> None:
        self._console = console(error=True, least=0) if not is_plain(error=True) else None
        self._bar: Bar | None = None

    def __enter__(self) -> Self:
        """Start without a bar."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()

    def _show(self, completed: float, total: float, state: str) -> None:
        if self._console is None or not self._console.is_terminal:
            return
        if self._bar is None:
            from rich.progress import BarColumn
            from rich.progress import Progress as Bar

            columns = ("{task.percentage:3.0f} %", BarColumn(), "{task.fields[state]}")
            self._bar = Bar(*columns, console=self._console, transient=True)
            self._bar.add_task("work", total=total, state="")
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=completed, state=state)


class SearchBar(_OnTerminal):
    """Told how far a search is, shows it once it takes a while."""

    def __call__(self, progress: Progress) -> bool:
        """Show how far the search is; it always goes on."""
        if progress.elapsed_s >= PATIENCE_S:
            settled = progress.num_evaluated + progress.num_pruned
            self._show(settled, progress.num_legal, state_of(progress))
        return True


class ReadingBar(_OnTerminal):
    """Shows how many bytes of files were read, once that takes longer than a second."""

    def __init__(self, total: int) -> None:
        super().__init__()
        self._total, self._begun = total, time.monotonic()

    def __call__(self, num_bytes: int) -> None:
        """Show how much of the files is read; of a compressed one what it unpacks to."""
        if time.monotonic() - self._begun >= PATIENCE_S:
            self._show(min(num_bytes, self._total), self._total, f"{num_bytes / 1e6:,.0f} MB read")


class BenchBar(_OnTerminal):
    """Told what is being measured: announces start-up and how long it took, then shows how long the rest takes."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.seconds, self._clock = seconds, clock
        self._begun = clock()
        self._started = False

    def start(self) -> None:
        """Announce start-up, which ends when something is measured."""
        self._begun = self._clock()
        announce(self.seconds)

    def __call__(self, progress: Measured) -> None:
        """Show what is measured now."""
        if progress.started and not self._started:
            self._started = True
            say(f"started in {self._clock() - self._begun:.0f} s", error=True)
        if progress.started:
            self._show(
                self.seconds - progress.left_s,
                self.seconds,
                f"{progress.what} · {progress.left_s:.0f} s left",
            )


def announce(seconds: float) -> None:
    """Say on standard error what comes before measuring, and how long that may take."""
    say(f"starting up, then measuring for {seconds:g} s at most", error=True)


@contextmanager
def interruptible(lost: str) -> Iterator[None]:
    """Let an interrupt end the command with one line, which says what is `lost`."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"interrupted; {lost}", error=True)
        raise


def state_of(progress: Progress) -> str:
    """Return rate and gap in words."""
    settled = progress.num_evaluated + progress.num_pruned
    rate = settled / progress.elapsed_s / 1e6 if progress.elapsed_s else 0.0
    if progress.best == float("inf"):
        gap = "nothing found yet"
    elif progress.gap == 1.0:
        gap = "nothing proven of the best yet"
    else:
        gap = f"best within {100.0 * progress.gap:.1f} % of the optimum"
    return f"{settled:,} of {progress.num_legal:,} layouts · {rate:.1f} M/s · {gap}"
