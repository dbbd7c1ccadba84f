"""A forward of one micro-batch beside the backward of another: exchanges of experts behind the other one's compute.

Megatron-LM (models/common/model_chunk_schedule_plan.py, TransformerLayerSchedulePlan.run) fills two queues per layer:

    compute:   attention forward | experts backward   experts forward   | attention backward
    exchanges: combine backward  | dispatch forward   dispatch backward | combine forward

An entry waits for the one before it in the other queue, so that each runs beside the one above or below it alone.
DualPipe (DeepSeek-AI 2024, arXiv:2412.19437, figure 4) pairs the same parts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from forescale.formula import formula
from forescale.graph.operator import Operator
from forescale.numeric import Numeric, minimum, summed
from forescale.struct import Struct
from forescale.time.overlap import exposed_time
from forescale.time.price import PricedBlock, Seconds

DISPATCH, COMBINE = EXCHANGES = ("moe.dispatch", "moe.combine")
"""What has a queue of its own; gathers over etp and counts of tokens are in that of compute."""
AROUND: Final = "around"
EXPERTS: Final = "experts"
Pass: TypeAlias = dict[str, Numeric]
"""Seconds of one pass of a block: of compute before tokens leave for their experts and after they are back (`AROUND`),
of compute in between (`EXPERTS`), and of both exchanges."""


class Crossing(Struct, frozen=True, kw_only=True):
    """Seconds of the exchanges of a forward and of a backward that cross."""

    forward: Numeric
    """What shows of the forward's."""
    backward: Numeric
    hidden: tuple[Numeric, Numeric]
    """What forward and backward show more of where each runs alone."""


def crosses(priced: PricedBlock) -> bool:
    """Return whether a block sends tokens to experts."""
    return DISPATCH in priced.operators


def passes_of(priced: PricedBlock, replayed: Iterable[Operator]) -> tuple[Pass, Pass]:
    """Return forward and backward of a block, the latter with what it replays."""
    forward: Pass = dict.fromkeys((AROUND, EXPERTS, *EXCHANGES), 0.0)
    backward = dict(forward)
    names = list(priced.operators)
    inside = {*names[names.index(DISPATCH) : names.index(COMBINE)]}

    def add(into: Pass, name: str, seconds: tuple[Numeric, Seconds]) -> None:
        compute, messages = seconds
        where = EXPERTS if name in inside else AROUND
        into[where] = into[where] + compute
        if name in EXCHANGES:
            into[name] = into[name] + summed(messages.values())

    for name, local in priced.operators.items():
        add(forward, name, local.forward)
        add(backward, name, local.backward_input)
        add(backward, name, local.backward_weight)
    for operator in replayed:
        add(backward, operator.name, priced.operators[operator.name].forward)
    return forward, backward


def crossing_of(forward: Pass, backward: Pass, contention: Numeric) -> Crossing:
    """Return what shows of the exchanges of two passes that cross."""

    def shown(local: Pass, other: Pass) -> Numeric:
        """Dispatch beside the other's experts, combine beside what is around them."""
        return summed(
            exposed_time(communication=local[exchange], cover=other[compute], contention=contention)
            for exchange, compute in ((DISPATCH, EXPERTS), (COMBINE, AROUND))
        )

    first, second = shown(forward, backward), shown(backward, forward)
    return Crossing(
        forward=first,
        backward=second,
        hidden=(
            forward[DISPATCH] + forward[COMBINE] - first,
            backward[DISPATCH] + backward[COMBINE] - second,
        ),
    )


def halves_of(forward: Pass, backward: Pass, contention: Numeric) -> Crossing:
    """Return the same where both halves of each pass cross: they have half of everything, and no pass is alone."""
    return Crossing(
        forward=crossing_of(forward, forward, contention).forward,
        backward=crossing_of(backward, backward, contention).backward,
        hidden=(0.0, 0.0),
    )


@formula(
    unit="s",
    source="Megatron-LM, pipeline_parallel/schedules.py, get_pp_rank_microbatches: one pass more than without runs "
    "ahead, so that of pp · vpp chunks, fill and drain included, forward and backward run alone",
)
def uncrossed_time(*, hidden: Numeric, pp: Numeric, microbatches: Numeric) -> Numeric:
    """Hidden · min(pp, m): (2(p−1) + (v−1)·p + 1 − (p−1)) chunks of hidden / v each, at most all of them."""
    return hidden * minimum(pp, microbatches)


@formula(
    unit="s",
    source="Megatron-LM, pipeline_parallel/schedules.py, get_pp_rank_microbatches: chunks take micro-batches in groups",
)
def uncrossed_in_groups(
    *, hidden: Numeric, pp: Numeric, microbatches: Numeric, vpp: Numeric, group: Numeric
) -> Numeric:
    """Hidden · min((p + (v−1)·N) / v, m): (2(p−1) + (v−1)·N + 1 − (p−1)) chunks of hidden / v each, at most all."""
    return hidden * minimum((pp + (vpp - 1.0) * group) / vpp, microbatches)
