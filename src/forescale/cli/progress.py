"""A bar on the terminal for searches that take a while."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from forescale.cli.console import console

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from forescale.search.solve import Progress

PATIENCE_S = 1.0
"""Seconds without a bar."""


class SearchBar:
    """Told how far a search is, shows it on standard error: only on a terminal, and only once it takes a while."""

    def __init__(self) -> None:
        self._console = console(error=True, least=0)
        self._bar: Bar | None = None

    def __enter__(self) -> SearchBar:
        """Start without a bar."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, progress: Progress) -> bool:
        """Show how far the search is; it always goes on."""
        if not self._console.is_terminal or progress.elapsed_s < PATIENCE_S:
            return True
        if self._bar is None:
            from rich.progress import BarColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                "{task.percentage:3.0f} %",
                BarColumn(),
                "{task.fields[state]}",
                console=self._console,
                transient=True,
            )
            self._bar.add_task("search", total=progress.num_legal, state="")
            self._bar.start()
        settled = progress.num_evaluated + progress.num_pruned
        self._bar.update(self._bar.task_ids[0], completed=settled, state=state_of(progress))
        return True


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
