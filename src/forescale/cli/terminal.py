"""Rich's console, on which no name is markup and none steers the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from forescale.escaping import printable


class Terminal(Console):
    """Shows what it is given as it is; only styles that we set ourselves count."""

    def __init__(self, **options: object) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)  # type: ignore[arg-type]

    def on_broken_pipe(self) -> None:
        """Leave it to the command line that nobody reads on."""
        raise BrokenPipeError

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Yield pieces of the screen without characters that steer it."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)
