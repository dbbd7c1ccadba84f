"""The folder of a sweep: made where it is missing, and worked in by one process at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from forescale.errors import ForescaleError
from forescale.written import writing

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None  # type: ignore[assignment]


def made(folder: Path) -> None:
    """Make a folder unless it is there.

    Raises
    ------
    ForescaleError
        If that cannot be.
    """
    with writing(folder):
        if folder.exists() and not folder.is_dir():
            msg = f"cannot write to {folder}: it is a file, not a folder"
            raise ForescaleError(msg)
        folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def alone(folder: Path | None) -> Iterator[None]:
    """Keep other sweeps of this machine out of a folder meanwhile, however this process ends.

    Raises
    ------
    ForescaleError
        If another process works in it.
    """
    if folder is None or fcntl is None:
        yield
        return
    made(folder)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                msg = f"another process works in {folder}; wait for it, or take another folder"
                raise ForescaleError(msg) from error
        yield
    finally:
        os.close(descriptor)
