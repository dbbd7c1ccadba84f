"""Searches that go on where they stopped: everything that a search by bounds has settled, in one file."""

from __future__ import annotations

import hashlib
import io
import struct
import time
import zipfile
import zlib
from dataclasses import dataclass, field, fields
from pathlib import Path

import numpy as np

from forescale.errors import SpecError
from forescale.question import Question
from forescale.search.incumbent import Goal
from forescale.search.solve import Solver
from forescale.version import __version__
from forescale.written import replacing

SAVED_EVERY_S = 1.0
UNREADABLE = (
    OSError,
    EOFError,
    ValueError,
    KeyError,
    RuntimeError,
    MemoryError,
    struct.error,
    zlib.error,
    zipfile.BadZipFile,
)
"""What reading a damaged file of arrays may raise."""


@dataclass(slots=True, kw_only=True)
class Checkpoint:
    """The file of one search."""

    path: Path
    key: str
    """What is searched: a file of another question is refused."""
    _saved: float = field(default_factory=time.perf_counter)

    @classmethod
    def of(cls, path: Path, question: Question, goal: Goal) -> Checkpoint:
        """Return the checkpoint of a question in `path`."""
        asked = [getattr(question, each.name) for each in fields(question)]
        return cls(path=path, key=hashlib.sha256(repr((__version__, asked, goal)).encode()).hexdigest())

    def restore(self, solver: Solver) -> None:
        """Bring a search to where the file left it, if there is one.

        Raises
        ------
        SpecError
            If the file is of another question, damaged, or no checkpoint at all.
        """
        if not self.path.exists():
            return
        state = self._read()
        if str(state.pop("key")) != self.key:
            msg = f"{self.path} is the checkpoint of another question; name another file or remove it"
            raise SpecError(msg)
        solver.restore(state)

    def _read(self) -> dict[str, np.ndarray]:
        """Return the arrays of the file, as they were written."""
        try:
            with np.load(io.BytesIO(self.path.read_bytes()), allow_pickle=False) as saved:
                state = {name: saved[name] for name in saved.files}
        except UNREADABLE as error:
            raise self._damaged(str(error) or "it is empty") from error
        if str(state.pop("checksum", "none")) != _checksum(state):
            raise self._damaged("its checksum is another")
        return state

    def _damaged(self, reason: str) -> SpecError:
        first = reason.strip().splitlines()[0].rstrip(".")
        msg = f"{self.path} is no whole checkpoint of a search ({first}); name another file or remove it"
        return SpecError(msg)

    def due(self) -> bool:
        """Say whether it is time to save."""
        return time.perf_counter() - self._saved >= SAVED_EVERY_S

    def save(self, solver: Solver) -> None:
        """Write the file; one that is interrupted leaves the one before."""
        state = {"key": np.array(self.key), **solver.state()}
        with replacing(self.path) as place, place.open("wb") as file:
            np.savez(file, checksum=np.array(_checksum(state)), **state)  # type: ignore[arg-type]
        self._saved = time.perf_counter()


def _checksum(state: dict[str, np.ndarray]) -> str:
    """Return a digest of all arrays, their names, types and shapes."""
    digest = hashlib.sha256()
    for name, array in sorted(state.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
