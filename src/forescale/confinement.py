"""What a process of the server may open: its own package, a folder named at the start, and a folder of its own."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

READS = ("open", "os.listdir", "os.scandir")
WRITES = (
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.link",
    "os.symlink",
    "os.truncate",
    "os.chmod",
    "os.chown",
)
STARTS = (
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "socket.connect",
    "socket.bind",
    "socket.getaddrinfo",
)
"""What the server never does: start programs, reach the network."""
PACKAGES = (
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    str(Path(__file__).parent),
)
"""Folders of Python's libraries and of this package, which every process may read."""
Hook: TypeAlias = Callable[[str, tuple[object, ...]], None]


def confine(folder: Path, readable: Sequence[str | Path] = ()) -> None:
    """Refuse, from now on and in the whole process, all files but those of Python, `readable` and `folder`.

    Only `folder` may be written. A refused file is a PermissionError, which commands report as any other file that
    cannot be read. It cannot be undone, so that no argument of a tool can undo it.
    """
    sys.addaudithook(guard_of(folder, readable))


def guard_of(folder: Path, readable: Sequence[str | Path] = ()) -> Hook:
    """Return the audit hook of `confine`."""
    local = os.path.realpath(folder)
    places = (*map(os.path.realpath, (*PACKAGES, *readable)), local)

    def hook(event: str, args: tuple[object, ...]) -> None:
        if event in STARTS:
            raise PermissionError(1, f"not allowed in this server: {event}")
        if event in WRITES:
            for item in args[:2]:
                _check(item, (local,))
        elif event in READS:
            writes = event == "open" and _writes(args)
            _check(args[0] if args else None, (local, "/dev/null") if writes else places)

    return hook


def _writes(args: tuple[object, ...]) -> bool:
    mode, flags = (*args, None, None, None)[1:3]
    if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND):
        return True
    return isinstance(mode, str) and any(letter in mode for letter in "wax+")


def _check(item: object, places: tuple[str, ...]) -> None:
    if isinstance(item, bytes):
        item = os.fsdecode(item)
    if not isinstance(item, str | os.PathLike):
        return  # a descriptor that is open already
    path = os.path.realpath(item)
    if not any(path == place or path.startswith(place.rstrip("/") + "/") for place in places):
        raise PermissionError(13, "outside the folders that may be read", str(item))
