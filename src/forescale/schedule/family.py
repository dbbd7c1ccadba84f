"""A schedule family: what it is called, what it accepts, and how to build one of its schedules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from forescale.errors import ScheduleError
from forescale.files import packaged
from forescale.numeric import Numeric, minimum
from forescale.struct import Struct

if TYPE_CHECKING:
    from forescale.schedule.model import Placement, Schedule

MOST_ACTIONS = 1 << 24
"""Actions of the largest schedule that is built."""
MOST_IN_FULL = 1 << 21
"""Actions of the largest schedule whose actions are timed and shown one by one."""
LONGEST = 1e100
"""Longest duration: sums over a step stay finite."""


class Request(Struct, frozen=True, kw_only=True):
    """What a family needs to know to build a schedule.

    Durations and memory are hints for families that search or place by time (ZB-1P, V-Half ...); they are
    those of one micro-batch through a device's full share, in any one unit.
    """

    pp: int
    num_microbatches: int
    vpp: int = 1
    forward: float = 1.0
    input_grad: float = 1.0
    weight_grad: float = 1.0
    comm: float = 0.0
    memory_limit: float | None = None
    """Most micro-batches of a device's full share that a rank may hold; None is the family's own limit."""
    weight_part: float = 1.0
    """Part of the saved activations that the weight gradient needs: M_W / M_B."""
    group_size: int | None = None
    """Consecutive micro-batches per chunk of interleaved schedules; None is pp."""
    num_splits: int = 2
    """Sequence pieces of Seq1F1B."""


class RankShape(Struct, frozen=True, kw_only=True):
    """Ranks of pipelines of some shapes; numbers, or arrays of them."""

    rank: Numeric
    pp: Numeric
    num_microbatches: Numeric


Held: TypeAlias = Callable[[RankShape], Numeric]
"""Micro-batches (of a device's full share) that a rank surely holds at some moment: a bound for a search."""


def one_microbatch(_: RankShape) -> Numeric:
    """One: a micro-batch goes forward through all chunks before it comes back to any of them."""
    return 1.0


def nothing_sure(_: RankShape) -> Numeric:
    """None: activations may lie on the host."""
    return 0.0


def every_microbatch(of: RankShape) -> Numeric:
    """All: everything goes forward first."""
    return of.num_microbatches


def filled(of: RankShape) -> Numeric:
    """As many as there are ranks from this one on: until the first gradient is back, forward goes on."""
    return minimum(of.num_microbatches, of.pp - of.rank)


def twice_filled(of: RankShape) -> Numeric:
    """As many as `filled`, and again as many as there are ranks after this one."""
    return minimum(of.num_microbatches, 2.0 * (of.pp - of.rank) - 1.0)


def one_per_rank(of: RankShape) -> Numeric:
    """As many as there are ranks: both directions together."""
    return minimum(of.num_microbatches, of.pp)


Orders: TypeAlias = Sequence[Sequence[int]]
"""Packed actions of each rank; see `Schedule.orders`."""


class Family(Struct, frozen=True, kw_only=True):
    """One schedule family of the library."""

    name: str
    title: str
    idle: str
    """Makespan minus work, in words; tf, tb, tw of a device's full share."""
    peak: str
    """Most micro-batches held by a rank, in words."""
    source: str
    aliases: tuple[str, ...] = ()
    placement: Literal["loop", "V", "wave", "bidirectional"] = "loop"
    vpp: tuple[int, int | None] = (1, 1)
    """Smallest and largest chunks per rank; None has no bound."""
    constraint: str = "any"
    """What pp and the micro-batches must satisfy, in words."""
    orders: Callable[[Request], Orders]
    """What each rank does, for a request that can be met."""
    request_violation: Callable[[Request], str] = lambda _: ""
    """Why a request with the right vpp cannot be met; empty if it can."""
    splits_backward: bool = False
    splits_sequences: bool = False
    """Whether actions are of pieces of sequences, `Request.num_splits` each."""
    groups_microbatches: bool = False
    """Whether chunks take turns after `Request.group_size` micro-batches."""
    parameter_copies: int = 1
    most_actions: int = MOST_ACTIONS
    """Actions beyond which a request is refused: what it builds in seconds."""
    held: Held = one_microbatch
    """What a rank holds at least, in every schedule of the family without a memory limit of its own."""
    waits: Held = nothing_sure
    """What waits beside for weight gradients when a rank holds that much."""

    @property
    def fixed_vpp(self) -> int | None:
        """The only vpp the family accepts, if there is one."""
        return self.vpp[0] if self.vpp[0] == self.vpp[1] else None

    @property
    def least_vpp(self) -> int:
        """The vpp of a family where none is given: what it fixes, or the least that interleaves."""
        return self.fixed_vpp or max(2, self.vpp[0])

    def place(self, pp: int, vpp: int) -> Placement:
        """Return which rank holds which stage."""
        from forescale.schedule.model import bidirectional, loop, wave

        if self.placement == "bidirectional":
            return bidirectional(pp)
        return loop(pp, vpp) if self.placement == "loop" else wave(pp, vpp)

    def violation(self, request: Request) -> str:
        """Return why a request cannot be met; empty if it can."""
        low, high = self.vpp
        if request.pp < 1 or request.num_microbatches < 1:
            return f"pp and micro-batches must be at least 1; got {request.pp} and {request.num_microbatches}"
        for name in ("forward", "input_grad", "weight_grad", "comm"):
            if not 0.0 <= (value := getattr(request, name)) <= LONGEST:
                return f"{name} must be a duration from 0 to {LONGEST:g}; got {value:g}"
        if not 0.0 <= request.weight_part <= 1.0:
            return f"the weight part must be 0 to 1; got {request.weight_part:g}"
        if request.vpp < low or (high is not None and request.vpp > high):
            allowed = f"{low}" if low == high else f"{low} or more" if high is None else f"{low} to {high}"
            return f"vpp must be {allowed}; got {request.vpp}"
        return self._too_large(request) or self.request_violation(request)

    def _too_large(self, request: Request) -> str:
        from forescale.schedule.actions import STAGE_BITS

        stages = request.pp * request.vpp * self.parameter_copies
        if stages > STAGE_BITS:
            return f"a schedule has at most {STAGE_BITS} stages; got {stages}"
        pieces = request.num_splits if self.splits_sequences else 1
        passes = request.pp * request.vpp * request.num_microbatches * pieces
        actions = passes * (3 if self.splits_backward else 2)
        if actions > self.most_actions:
            return f"{actions:,} actions are too many to build; it takes up to {self.most_actions:,}"
        return ""

    def build(self, request: Request) -> Schedule:
        """Return the schedule for a request.

        Raises
        ------
        ScheduleError
            If the request cannot be met; the message says why.
        """
        from forescale.schedule.actions import Order
        from forescale.schedule.model import Schedule

        if reason := self.violation(request):
            raise ScheduleError(f"{self.name}: {reason}")
        return Schedule(
            name=self.name,
            placement=self.place(request.pp, request.vpp),
            num_microbatches=request.num_microbatches,
            orders=tuple(
                order if isinstance(order, Order) else tuple(order) for order in self.orders(request)
            ),
            num_splits=request.num_splits if self.splits_sequences else 1,
        )


def described(name: str, **built: Any) -> Family:  # noqa: ANN401  (fields of a family)
    """Return a family of the catalogue (`schedules.json`) with what builds and bounds it."""
    values: dict[str, Any] = {
        key: tuple(item) if isinstance(item, list) else item for key, item in _catalogue()[name].items()
    }
    return Family(name=name, **values, **built)


@cache
def _catalogue() -> dict[str, dict[str, Any]]:
    return packaged("schedules")  # type: ignore[no-any-return]


def keep_first(orders: Orders, num_microbatches: int) -> Orders:
    """Return orders without the micro-batches beyond the first; valid if the originals are.

    Dropping whole micro-batches leaves every remaining wait and order as it was.
    """
    from forescale.schedule.actions import MICROBATCH_SHIFT, Order, as_codes

    end = num_microbatches << MICROBATCH_SHIFT
    codes = (as_codes(order) for order in orders)
    return [Order(code[code < end]) for code in codes]
