"""Memory of this machine that a search takes; to stay below a limit it evaluates less at once, in fewer processes."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from forescale.errors import out_of_range
from forescale.struct import Struct
from forescale.units import MIB, format_bytes

START_BYTES = 58 * MIB
"""Interpreter, libraries and catalogue."""
COPY_BYTES = 24 * MIB
"""What a forked process does not share of that."""
ROW_BYTES, NODE_BYTES = 600, 300
"""Kept of a row of degrees, and of a cell under an operator list."""
PAIR_BYTES, SHARDING_BYTES = 1300, 1800
"""Taken by a layout, or a way to shard states, while it is evaluated with others."""
FEWEST = 1024
"""Fewest evaluated at once: fewer take hardly less memory, and much longer."""


class AtOnce(Struct, frozen=True, kw_only=True):
    """How much a search evaluates at once; results do not depend on it."""

    pairs: int = 65536
    """Layouts, or bounds of sub-spaces."""
    shardings: int = 16384
    """Ways to shard states."""


def _sizes() -> Iterator[AtOnce]:
    """Yield how much may be evaluated at once, largest first."""
    pairs, shardings = AtOnce().pairs, AtOnce().shardings
    while pairs >= FEWEST:
        yield AtOnce(pairs=pairs, shardings=shardings)
        pairs, shardings = pairs // 2, max(shardings // 2, FEWEST)


class HostMemory(Struct, frozen=True, kw_only=True):
    """An estimate of the memory that a search takes, from the size of its space."""

    num_rows: int
    num_nodes: int
    """Cells, each counted once for every operator list."""

    def needed(self, at_once: AtOnce, jobs: int = 1) -> float:
        """Return what processes take together [byte]."""
        kept = ROW_BYTES * self.num_rows + NODE_BYTES * self.num_nodes
        evaluated = PAIR_BYTES * at_once.pairs + SHARDING_BYTES * at_once.shardings
        return float(START_BYTES + (jobs - 1) * COPY_BYTES + jobs * (kept + evaluated))

    def within(self, limit: float, jobs: int) -> tuple[AtOnce, int]:
        """Return how much is evaluated at once, by how many processes, to stay below a limit [byte]."""
        for count in sorted({jobs, 1}, reverse=True):
            for at_once in _sizes():
                if self.needed(at_once, count) <= limit:
                    return at_once, count
        return at_once, 1

    def check(self, limit: float) -> None:
        """Raise an error if the least that a search can evaluate at once takes more than a limit [byte]."""
        at_once, _ = self.within(0.0, 1)
        if (least := self.needed(at_once)) > limit:
            allowed = f"at least {ceil(least / MIB)} MiB for this search"
            raise out_of_range("max_host_memory", format_bytes(limit), allowed)
