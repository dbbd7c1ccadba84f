"""A schedule: who does what in which order. Times, memory and messages follow from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from forescale.brief import Brief
from forescale.numeric import Numeric
from forescale.schedule.actions import MICROBATCH_SHIFT, Cell, decode, encode, parse
from forescale.schedule.errors import ScheduleError
from forescale.schedule.placement import Placement

if TYPE_CHECKING:
    from forescale.schedule.simulation import Simulation


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Schedule(Brief):
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
        return {
            "name": self.name,
            "num_ranks": self.num_ranks,
            "num_stages": self.num_stages,
            "num_microbatches": self.num_microbatches,
        }

    def __post_init__(self) -> None:
        """Check the counts against the placement."""
        if self.num_microbatches < 1 or self.num_splits < 1:
            got = f"{self.num_microbatches} and {self.num_splits}"
            msg = f"{self.name}: it needs at least one micro-batch and one split; got {got}"
            raise ScheduleError(msg)
        if len(self.orders) != self.placement.num_ranks:
            ranks = self.placement.num_ranks
            msg = f"{self.name}: {len(self.orders)} ranks have actions, its placement has {ranks}"
            raise ScheduleError(msg)

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

    def simulate(
        self,
        *,
        forward: Numeric = 1.0,
        input_grad: Numeric = 1.0,
        weight_grad: Numeric = 1.0,
        comm: Numeric = 0.0,
        memory_limit: float | None = None,
    ) -> Simulation:
        """Return one simulated step.

        Durations are those of one micro-batch through a device's full share, in any one unit; a chunk takes
        1/vpp of them. `comm` delays each message. `memory_limit` is in micro-batches of a full share. For
        durations per stage, links that queue, or costs around the pipeline, use the function `simulate`.
        """
        from forescale.schedule.simulation import simulate
        from forescale.schedule.times import LinkTimes, from_share

        times = from_share(
            forward=forward, input_grad=input_grad, weight_grad=weight_grad, vpp=self.placement.vpp
        )
        return simulate(self, times, LinkTimes(latency=comm), memory_limit=memory_limit)

    def _repr_html_(self) -> str:
        """Show the schedule at unit times in a notebook."""
        from forescale.schedule.draw.svg import to_svg

        return to_svg(self.simulate())

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
            msg = f"{name}: micro-batch {num_microbatches - 1} is named, and there are only {actions} actions"
            raise ScheduleError(msg)
    return Schedule(
        name=name,
        placement=placement or _placement_of(cells),
        num_microbatches=num_microbatches,
        orders=orders,
    )


def _placement_of(cells: Sequence[Sequence[Cell]]) -> Placement:
    ranks: dict[int, int] = {}
    for rank, row in enumerate(cells):
        for code in (code for cell in row for code in encode(cell)):
            ranks.setdefault(code >> 5 & 0x7FFF, rank)
    if sorted(ranks) != list(range(len(ranks))):
        shown = ", ".join(map(str, sorted(ranks)[:8])) + (" ..." if len(ranks) > 8 else "")
        msg = f"stages must be 0 to n - 1 without a gap; found {shown or 'none'}"
        raise ScheduleError(msg)
    return Placement(rank_of_stage=tuple(ranks[stage] for stage in range(len(ranks))))
