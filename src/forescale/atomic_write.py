"""Atomic writes: a file is written next to its destination and then renamed. A failure returns a one-line error."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from forescale.errors import cannot_write


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield where to write what shall stand at `path`: it appears there whole, or not at all.

    A device or a pipe such as /dev/stdout is written to as it is.

    Raises
    ------
    ForescaleError
        If the file cannot be written.
    """
    with writing(path):
        if path.exists() and not path.is_file():
            yield path
            return
        place = path.resolve()
        draft = place.with_name(f".{place.name[-60:]}.{os.getpid()}.part")
        try:
            _check(place)
            yield draft
            with draft.open("r+b") as file:
                os.fsync(file.fileno())
            if place.exists():
                shutil.copymode(place, draft)
            draft.replace(place)
        finally:
            with suppress(OSError):
                draft.unlink(missing_ok=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say in a sentence that `path` cannot be written; - is no name: whoever gives it means standard output."""
    if str(path) == "-":
        raise cannot_write("-", "it stands for no file, nor for standard output", "give a file's name")
    try:
        yield
    except (OSError, RuntimeError) as error:  # Python 3.11 raises the latter for links in a circle
        if isinstance(error, RuntimeError) and not path.is_symlink():
            raise
        raise cannot_write(path, getattr(error, "strerror", None) or error) from error


def write_text(path: Path, text: str) -> None:
    """Write a file; half a character, as names of files may hold, is spelt out."""
    with replacing(path) as place:
        place.write_text(text, encoding="utf-8", errors="backslashreplace", newline="")


def writable(path: Path | None) -> Path | None:
    """Return `path` if a file can be written there: asked before the work, not after it.

    Raises
    ------
    ForescaleError
        If there is no such folder, it is a folder itself, or one may not write there.
    """
    if path is not None:
        with writing(path):
            if path.is_dir():
                raise _refused(errno.EISDIR)
            if not path.exists() or path.is_file():
                _check(path.resolve())
    return path


def _check(place: Path) -> None:
    """Raise unless the folder is there and both it and a file that is there already may be written."""
    if not place.parent.exists():
        raise _refused(errno.ENOENT)
    if not place.parent.is_dir():
        raise _refused(errno.ENOTDIR)
    for item in (place.parent, place):
        if item.exists() and not os.access(item, os.W_OK):
            raise _refused(errno.EACCES)


def _refused(number: int) -> OSError:
    return OSError(number, os.strerror(number))
