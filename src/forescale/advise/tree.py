"""The playbook's decision tree: which layouts to try, in which order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from forescale.advise.case import Case
from forescale.numeric import divisors
from forescale.spec.space import default_recompute
from forescale.spec.strategy import Recompute, Strategy

STAGES = ("all states everywhere", "optimizer sharded", "and gradients sharded", "and weights sharded")
LONGEST_RUNG = 4096
"""Largest degree that a rung reaches by doubling."""


def tree(case: Case, *, activations_lead: bool) -> Iterator[tuple[str, Strategy]]:
    """Yield (what, layout): data parallel, then within the node, then context or stages; then with recompute.

    Ultra-Scale Playbook, How to Find the Best Training Configuration: data parallelism first, with ZeRO; tensor
    parallelism up to the fast domain; beyond it stages, or context parallelism where activations outweigh the
    states. Less memory for more compute, recompute, comes last.
    """
    for recompute in default_recompute(case.question.model):
        for what, layout in _without(case, recompute, activations_lead=activations_lead):
            filled = case.filled(layout)
            if filled is not None:
                yield what, filled


def _without(case: Case, recompute: Recompute, *, activations_lead: bool) -> Iterator[tuple[str, Strategy]]:
    """Yield every rung with few, then many expert ranks."""
    tail = "" if recompute.granularity == "none" else f", {_words(recompute)} recompute"
    for what, layout in _rungs(case, activations_lead=activations_lead):
        for ep in _expert_degrees(case):
            head = f"expert parallel {ep}, " if ep > 1 else ""
            yield f"{head}{what}{tail}", replace(layout, ep=ep, recompute=recompute)


def _rungs(case: Case, *, activations_lead: bool) -> Iterator[tuple[str, Strategy]]:
    for zero, stage in enumerate(STAGES):
        yield f"data parallel, zero {zero}: {stage}", Strategy(zero=zero)
    for tp in doubling(2, case.domain):
        yield f"tensor parallel {tp}", Strategy(tp=tp, zero=1)
    inside = doubling(1, case.domain)[-1]
    most = case.question.cluster.num_devices // inside
    beyond = [(cp, pp) for cp in doubling(1, most) for pp in doubling(1, most // cp) if cp * pp > 1]
    for cp, pp in sorted(beyond, key=lambda pair: _rank(pair, activations_lead=activations_lead)):
        parts = [f"context parallel {cp}"] * (cp > 1) + [f"{pp} stages"] * (pp > 1)
        yield f"tensor parallel {inside}, {', '.join(parts)}", Strategy(tp=inside, cp=cp, pp=pp, zero=1)


def _rank(pair: tuple[int, int], *, activations_lead: bool) -> tuple[int, int, int]:
    """Order (cp, pp): fewest devices first, then the axis that the tree prefers; mixtures before far ends."""
    cp, pp = pair
    preferred, other = (cp, pp) if activations_lead else (pp, cp)
    return cp * pp, other, preferred


def doubling(start: int, most: int) -> list[int]:
    """Return start, 2·start, ... up to `most`."""
    found = []
    while start <= min(most, LONGEST_RUNG):
        found.append(start)
        start *= 2
    return found


def _expert_degrees(case: Case) -> list[int]:
    """Return 1; of a mixture of experts also the most that stay in the fast domain, and the most there are."""
    if case.question.model.moe is None:
        return [1]
    possible = [
        ep
        for ep in divisors(case.question.model.moe.num_experts)
        if case.question.cluster.num_devices % ep == 0
    ]
    return sorted({1, max(ep for ep in possible if ep <= case.domain), max(possible)})


def _words(recompute: Recompute) -> str:
    return " ".join(recompute.modules) if recompute.modules else recompute.granularity
