"""Micro-batches from two sides: Chimera, and DualPipe and DualPipeV, which overlap forwards and backwards in blocks.

Chimera sends half of the micro-batches each way through two pipelines on the same ranks. DualPipe has two opposite
pipelines and parameters twice. DualPipeV is DualPipe folded on a V placement, so that they exist once (DeepSeek-AI's
repository, after Sea AI Lab's cut-in-half; torch has it as ScheduleDualPipeV). The order of each rank follows the eight
steps of the published code.
"""

from __future__ import annotations

from forescale.schedule.actions import Kind, pack
from forescale.schedule.family import MOST_IN_FULL, Orders, Request, described, one_per_rank
from forescale.schedule.library.emit import opposite_ways
from forescale.units import counted


def _crossing(request: Request) -> Orders:
    """Return Chimera: in slots of one pass, micro-batch i of a direction runs stage s forward at s + 2i.

    It runs it backward at 2p - 1 - s + 2i; units of p micro-batches follow each other every 2p slots. Nothing collides
    for even p. p even, m even; parameters twice. Idle (p - 2)/2 (tf + tb + tw) where tf = tb + tw. Li and Hoefler
    2021, arXiv:2107.06925.
    """
    pp, half = request.pp, request.num_microbatches // 2
    slots: list[list[tuple[int, int]]] = [[] for _ in range(pp)]
    for direction in range(2):
        for index in range(half):
            base, within = divmod(index, pp // 2)
            start = base * 2 * pp + 2 * within
            for stage in range(pp):
                rank = stage if direction == 0 else pp - 1 - stage
                where = (direction * pp + stage, direction * half + index)
                slots[rank].append((start + stage, pack(Kind.F, *where)))
                slots[rank].append((start + 2 * pp - 1 - stage, pack(Kind.B, *where)))
    return [[code for _, code in sorted(row)] for row in slots]


def _odd(request: Request) -> str:
    """Return why p or m does not do."""
    if request.pp % 2 or request.num_microbatches % 2:
        return f"pp and micro-batches must be even; got {request.pp} and {request.num_microbatches}"
    return ""


CHIMERA = described("chimera", orders=_crossing, most_actions=MOST_IN_FULL, request_violation=_odd)


def _bidirectional(request: Request) -> Orders:
    return [_rank(rank, request) for rank in range(request.pp)]


def _rank(rank: int, request: Request) -> tuple[int, ...]:
    pp, item = request.pp, request.num_microbatches // 2
    sides = [(rank, 0), (2 * pp - 1 - rank, item)]
    if rank >= pp // 2:
        sides.reverse()
    near = min(rank, pp - 1 - rank)
    return opposite_ways(*sides, near=near, reach=pp // 2, num_microbatches=item)


def _odd_or_few(request: Request) -> str:
    if request.pp % 2 or request.num_microbatches % 2 or request.num_microbatches < 2 * request.pp:
        got = f"got pp {request.pp} and {counted(request.num_microbatches, 'micro-batch')}"
        return f"pp must be even and micro-batches even and at least 2 pp; {got}"
    return ""


def _folded(request: Request) -> Orders:
    pp, count = request.pp, request.num_microbatches
    return [
        opposite_ways((rank, 0), (2 * pp - 1 - rank, 0), near=rank, reach=pp, num_microbatches=count)
        for rank in range(pp)
    ]


def _few(request: Request) -> str:
    if request.num_microbatches < 2 * request.pp:
        return f"micro-batches must be at least 2 pp = {2 * request.pp}; got {request.num_microbatches}"
    return ""


DUALPIPE = described(
    "dualpipe",
    orders=_bidirectional,
    most_actions=MOST_IN_FULL,
    held=one_per_rank,
    request_violation=_odd_or_few,
)
DUALPIPE_V = described(
    "dualpipev", orders=_folded, most_actions=MOST_IN_FULL, held=one_per_rank, request_violation=_few
)
