"""Memory of this machine that a search takes, and how to stay below a limit: fewer layouts at once, fewer processes."""

from __future__ import annotations

from collections.abc import Iterator

from forescale.errors import out_of_range
from forescale.struct import Struct
from forescale.units import MIB, format_bytes

START_BYTES = 64 * MIB
"""Interpreter, libraries, catalogue and the question, of which forked processes share most."""
ROW_BYTES = 640
"""What a search keeps of a row of degrees, without experts and shardings."""
NODE_BYTES = 200
"""What it keeps of a cell under one operator list."""
PAIR_BYTES, SHARDING_BYTES = 2560, 3584
"""What it takes to evaluate a layout, and to bound one way to shard, among others."""
FEWEST = 1024


class AtOnce(Struct, frozen=True, kw_only=True):
    """How much a search evaluates at once; results do not depend on it."""

    pairs: int = 65536
    """Layouts, or sub-spaces of which the bounds are evaluated."""
    shardings: int = 16384
    """Ways to shard states."""

    @property
    def num_bytes(self) -> float:
        """Memory that evaluating so many takes [byte]."""
        return float(PAIR_BYTES * self.pairs + SHARDING_BYTES * self.shardings)


def sizes() -> Iterator[AtOnce]:
    """Yield how much may be evaluated at once, largest first."""
    pairs, shardings = AtOnce().pairs, AtOnce().shardings
    while pairs >= FEWEST:
        yield AtOnce(pairs=pairs, shardings=shardings)
        pairs, shardings = pairs // 2, max(shardings // 2, FEWEST)


class HostMemory(Struct, frozen=True, kw_only=True):
    """An estimate of the memory that each process of a search takes."""

    num_rows: int
    num_nodes: int = 0
    """Cells, each counted once for every operator list."""

    def kept(self) -> float:
        """Return what a process keeps during the search [byte]."""
        return float(ROW_BYTES * self.num_rows + NODE_BYTES * self.num_nodes)

    def needed(self, at_once: AtOnce, jobs: int = 1) -> float:
        """Return what `jobs` processes take together [byte]."""
        evaluated = min(at_once.num_bytes, self.most())
        return START_BYTES + jobs * (self.kept() + evaluated)

    def most(self) -> float:
        """Return what it takes to evaluate all layouts of as many nodes at once [byte]."""
        return AtOnce().num_bytes

    def within(self, limit: float, jobs: int) -> tuple[AtOnce, int]:
        """Return how much may be evaluated at once, and by how many processes, to stay below a limit [byte].

        Raises
        ------
        SpecError
            If one process that evaluates as little as it can takes more.
        """
        for count in sorted({jobs, 1}, reverse=True):
            for at_once in sizes():
                if self.needed(at_once, count) <= limit:
                    return at_once, count
        *_, least = sizes()
        raise too_little(limit, self.needed(least))
