"""A schedule as data: which rank holds which stage, and who does what in which order.

Times, memory and messages follow from it and are found by the modules beside this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from forescale import wording
from forescale.errors import ScheduleError
from forescale.escaping import xml
from forescale.repr import ReprMixin
from forescale.schedule.actions import MICROBATCH_SHIFT, STAGE_BITS, STAGE_SHIFT, Cell, decode, encode, parse
from forescale.struct import Struct, attributes

SHOWN = 64
"""Actions of a rank that a notebook shows."""


class Placement(Struct, frozen=True, kw_only=True):
    """Ranks of all stages.

    With several replicas (bidirectional pipelines) the parameters exist more than once: stage ids run over
    replica 0's stages, then replica 1's; equal shares of consecutive micro-batches go through each replica.
    """

    rank_of_stage: tuple[int, ...]
    """Rank of each stage id."""
    num_replicas: int = 1
    """Copies of the model inside the pipeline; 2 for DualPipe and Chimera."""

    def __post_init__(self) -> None:
        """Check that ranks are 0..p-1 without a gap and replicas are of one length."""
        ranks = set(self.rank_of_stage)
        if not ranks or ranks != set(range(len(ranks))):
            allowed = "0 to p - 1, each at least once"
            raise ScheduleError(wording.wrong_type("the ranks of a placement", sorted(ranks)[:16], allowed))
        if self.num_replicas < 1 or len(self.rank_of_stage) % self.num_replicas:
            terms = "the number of replicas"
            key = "the number of stages"
            raise ScheduleError(wording.not_divisible(key, len(self.rank_of_stage), self.num_replicas, terms))

    @property
    def num_ranks(self) -> int:
        """Pipeline ranks, p."""
        return max(self.rank_of_stage) + 1

    @property
    def num_stages(self) -> int:
        """Stages the model is cut into (of one replica)."""
        return len(self.rank_of_stage) // self.num_replicas

    @property
    def vpp(self) -> float:
        """Chunks of the model per rank; the inverse of a stage's share of a device's full share."""
        return self.num_stages / self.num_ranks

    @property
    def style(self) -> str:
        """Name of the placement: loop, wave (V for two chunks), bidirectional or custom."""
        p, chunks = self.num_ranks, len(self.rank_of_stage) // self.num_ranks
        if self == loop(p, chunks):
            return "loop"
        if self == wave(p, chunks):
            return "V" if chunks == 2 else "wave"
        return "bidirectional" if self.num_replicas > 1 else "custom"

    def replica(self, microbatch: int, num_microbatches: int) -> int:
        """Return the replica a micro-batch goes through."""
        return microbatch * self.num_replicas // num_microbatches


def loop(num_ranks: int, vpp: int = 1) -> Placement:
    """Return stage s on rank s mod p (Megatron's virtual pipeline)."""
    return Placement(rank_of_stage=tuple(range(num_ranks)) * vpp)


def wave(num_ranks: int, vpp: int = 2) -> Placement:
    """Return stages going down the ranks and up again; V for two chunks, Hanayo's waves beyond."""
    down = tuple(range(num_ranks))
    return Placement(rank_of_stage=tuple(r for c in range(vpp) for r in (down if c % 2 == 0 else down[::-1])))


def bidirectional(num_ranks: int) -> Placement:
    """Return two replicas, one down the ranks and one up (Chimera, DualPipe)."""
    down = tuple(range(num_ranks))
    return Placement(rank_of_stage=down + down[::-1], num_replicas=2)


class Schedule(ReprMixin, Struct, frozen=True, kw_only=True):
    """One step of a pipeline as data: each rank's compute actions in order.

    Sends and receives are not part of it; `forescale.schedule.lower` derives them.
    """

    name: str
    placement: Placement
    num_microbatches: int
    orders: tuple[Sequence[int], ...]
    """Per rank, packed actions in order (see `forescale.schedule.actions`); `actions` shows them."""
    num_splits: int = 1
    """Pieces each sequence is cut into (Seq1F1B); the micro-batch field then counts pieces."""

    def essentials(self) -> dict[str, Any]:
        """Return its size."""
        return attributes(self, "name", "num_ranks", "num_stages", "num_microbatches")

    def __post_init__(self) -> None:
        """Check the counts against the placement."""
        if self.num_microbatches < 1 or self.num_splits < 1:
            got = f"{self.num_microbatches} and {self.num_splits}"
            raise ScheduleError(
                wording.required_with("at least one micro-batch and one split", "it", fix=f"got {got}")
            ).at(self.name)
        if len(self.orders) != self.placement.num_ranks:
            ranks = self.placement.num_ranks
            value = f"actions on {len(self.orders)} ranks"
            other = "its placement"
            raise ScheduleError(wording.wrong_count("it", value, other, f"{ranks} ranks")).at(self.name)

    @property
    def num_ranks(self) -> int:
        """Pipeline ranks, p."""
        return self.placement.num_ranks

    @property
    def num_stages(self) -> int:
        """Stages the model is cut into."""
        return self.placement.num_stages

    @property
    def num_actions(self) -> int:
        """Actions of all ranks."""
        return sum(map(len, self.orders))

    @property
    def num_units(self) -> int:
        """Micro-batches, or pieces of them under sequence splits."""
        return self.num_microbatches * self.num_splits

    @property
    def share(self) -> float:
        """Part of a device's full share of a micro-batch that one action handles."""
        return 1.0 / (self.placement.vpp * self.num_splits)

    @property
    def actions(self) -> tuple[tuple[Cell, ...], ...]:
        """Each rank's actions in order, readable."""
        return tuple(decode(codes) for codes in self.orders)

    def _repr_html_(self) -> str:
        """Show the first actions of each rank in a notebook; `simulate` shows when they run."""
        rows = (
            f"<tr><th>rank {rank}</th>{''.join(f'<td>{cell}</td>' for cell in decode(order[:SHOWN]))}</tr>"
            for rank, order in enumerate(self.orders)
        )
        return f"<table><caption>{xml(repr(self))}</caption>{''.join(rows)}</table>"

    def renamed(self, name: str) -> Schedule:
        """Return the same schedule under another name."""
        return replace(self, name=name)


def from_actions(
    ranks: Iterable[Iterable[Cell | str]],
    *,
    placement: Placement | None = None,
    num_microbatches: int | None = None,
    name: str = "custom",
) -> Schedule:
    """Return a schedule from readable actions.

    The placement defaults to where the stages' actions stand, the micro-batch count to the largest id + 1.
    """
    cells = [[parse(c) if isinstance(c, str) else c for c in rank] for rank in ranks]
    orders = tuple(tuple(code for cell in rank for code in encode(cell)) for rank in cells)
    if num_microbatches is None:
        num_microbatches = max((code >> MICROBATCH_SHIFT for rank in orders for code in rank), default=-1) + 1
        if num_microbatches > (actions := sum(map(len, orders))):
            allowed = f"one of as many as there are actions, {actions}"
            raise ScheduleError(wording.out_of_range("a micro-batch", num_microbatches - 1, allowed)).at(name)
    return Schedule(
        name=name,
        placement=placement or _placement_of(cells),
        num_microbatches=num_microbatches,
        orders=orders,
    )


def _placement_of(cells: Sequence[Sequence[Cell]]) -> Placement:
    ranks: dict[int, int] = {}
    for rank, row in enumerate(cells):
        if not row:
            other = f"rank {rank}"
            raise ScheduleError(wording.incomplete("actions", other, "give each rank, from 0, its row"))
        for code in (code for cell in row for code in encode(cell)):
            stage = code >> STAGE_SHIFT & STAGE_BITS
            if ranks.setdefault(stage, rank) != rank:
                value = f"rank {ranks[stage]}"
                fix = "put it on one rank"
                raise ScheduleError(wording.given_twice(f"stage {stage}", value, f"rank {rank}", fix))
    if sorted(ranks) != list(range(len(ranks))):
        shown = ", ".join(map(str, sorted(ranks)[:8])) + (" ..." if len(ranks) > 8 else "")
        raise ScheduleError(wording.wrong_type("the stages", shown or "none", "0 to n - 1 without a gap"))
    return Placement(rank_of_stage=tuple(ranks[stage] for stage in range(len(ranks))))
