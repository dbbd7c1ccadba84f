"""The file that keeps what a search has settled."""

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

from forescale.atomic_write import replacing
from forescale.errors import SpecError, file_exists
from forescale.files import exists, is_file
from forescale.question import Question
from forescale.search.incumbent import Goal
from forescale.search.solve import Solver
from forescale.version import __version__
from forescale.workers import ALONE, Workers

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
    workers: Workers = ALONE
    """Of these the first reads and writes the file."""
    _saved: float = field(default_factory=time.perf_counter)

    @classmethod
    def from_question(
        cls, path: Path, question: Question, goal: Goal, workers: Workers = ALONE
    ) -> Checkpoint:
        """Return the checkpoint of a question in `path`."""
        request = [getattr(question, item.name) for item in fields(question)]
        key = hashlib.sha256(repr((__version__, request, goal)).encode()).hexdigest()
        return cls(path=path, key=key, workers=workers)

    def restore(self, solver: Solver) -> None:
        """Bring a search to where the file left it, if there is one.

        Raises
        ------
        SpecError
            If the file is of another question, damaged, or no checkpoint at all.
        """
        if (state := self.workers.decide(self._known)) is not None:
            solver.restore(state)

    def _known(self) -> dict[str, np.ndarray] | None:
        """Return what the file holds, None where there is none."""
        if not exists(self.path):
            return None
        if not is_file(self.path):  # a device such as /dev/full has no end
            raise self._damaged("it is not a file")
        state = self._read()
        if str(state.pop("key")) != self.key:
            raise file_exists(
                f"{self.path}, the checkpoint of another question,", "name another file or remove it"
            )
        return state

    def _read(self) -> dict[str, np.ndarray]:
        """Return the arrays of the file, as they were written."""
        try:
            with np.load(io.BytesIO(self.path.read_bytes()), allow_pickle=False) as saved:
                state = {name: saved[name] for name in saved.files}
        except UNREADABLE as error:
            reason = "it is of another kind" if isinstance(error, ValueError) else str(error)
            raise self._damaged(reason or "it is empty") from error
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
        if not self.workers.leads:
            return
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
