"""Files that commands write: what goes wrong is one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forescale.errors import ForescaleError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say in a sentence that `path` cannot be written."""
    try:
        yield
    except OSError as error:
        msg = f"cannot write {path}: {error.strerror or error}"
        raise ForescaleError(msg) from error


def write_text(path: Path, text: str) -> None:
    """Write a file."""
    with writing(path):
        path.write_text(text, encoding="utf-8")
