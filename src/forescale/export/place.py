"""An export put where it is asked for: written aside, then renamed."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from forescale.errors import SpecError
from forescale.export.export import Export
from forescale.written import writable, write_text, writing


def place(export: Export, path: Path, *, force: bool = False) -> None:
    """Write an export to `path`, a file if it is one, else a folder: it appears whole or not at all.

    A folder that is there already is filled file by file, and keeps what else it holds.

    Raises
    ------
    SpecError
        If something is there already and `force` is not given.
    ForescaleError
        If it cannot be written.
    """
    check_place(path, force=force)
    if len(export.texts) == 1:
        write_text(path, export.texts[export.main])
        return
    with writing(path):
        if path.is_dir():
            _fill(path, export)
            return
        draft = path.with_name(f".{path.name[-60:]}.{os.getpid()}.part")
        try:
            draft.mkdir()
            _fill(draft, export)
            draft.rename(path)
        finally:
            with suppress(OSError):
                shutil.rmtree(draft)


def check_place(path: Path, *, force: bool) -> None:
    """Refuse a place that takes no export: asked before the work, not after it.

    Raises
    ------
    SpecError
        If something is there already and `force` is not given.
    ForescaleError
        If it cannot be written.
    """
    if os.path.lexists(path) and not force:
        msg = f"{path} exists; give another --output, or --force to replace it"
        raise SpecError(msg)
    if not path.is_dir():
        writable(path)


def _fill(folder: Path, export: Export) -> None:
    """Write every file of an export into a folder; what else is there stays."""
    for name, text in export.texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_text(folder / name, text)
