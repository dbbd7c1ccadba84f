"""Layouts one change away: what the throughput step tries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from forescale.advise.advice import Case
from forescale.advise.changes import recompute_text
from forescale.numeric import divisors
from forescale.search.layouts import virtual_stages
from forescale.spec.strategy import Recompute, Strategy
from forescale.units import counted

EXCHANGED = (("tp", "pp"), ("tp", "cp"), ("cp", "pp"))
"""Degrees of which one is doubled and the other halved, data parallel left as it is."""


def moves(case: Case, layout: Strategy) -> Iterator[tuple[str, Strategy]]:
    """Yield (what, layout) of every neighbour, each with the rest of the devices as data-parallel shards."""
    for what, changed in _changed(case, layout):
        filled = case.filled(changed)
        if filled is not None and filled != layout:
            yield what, filled


def reliefs(case: Case, layout: Strategy, *, before: Strategy) -> Iterator[tuple[str, Strategy]]:
    """Yield what makes room for a faster layout that does not fit: gradients sharded, cheap recompute, both.

    Recompute that the move `before` -> `layout` has just dropped does not come back.
    """
    cheap = case.policies[1]
    sharded = replace(layout, zero=2)
    if layout.zero < 2:
        yield "zero 2", sharded
    if layout.recompute.granularity == "none" == before.recompute.granularity:
        yield recompute_text(cheap), replace(layout, recompute=cheap)
        if layout.zero < 2:
            yield f"zero 2, {recompute_text(cheap)}", replace(sharded, recompute=cheap)


def _changed(case: Case, layout: Strategy) -> Iterator[tuple[str, Strategy]]:
    yield from _degrees(case, layout)
    for zero in range(4):
        if zero != layout.zero:
            yield f"zero {zero}", replace(layout, zero=zero)
    for recompute in case.policies:
        if recompute != layout.recompute:
            yield recompute_text(recompute), replace(layout, recompute=recompute)
    most = case.question.workload.global_batch_size // layout.dp
    for size in _beside(layout.micro_batch_size, divisors(most)):
        yield f"micro-batch of {size}", replace(layout, micro_batch_size=size)
    for vpp in _beside(layout.vpp, virtual_stages(case.question.model.num_layers, layout.pp)):
        yield f"{counted(vpp, 'model chunk')} per device", replace(layout, vpp=vpp)


def _degrees(case: Case, layout: Strategy) -> Iterator[tuple[str, Strategy]]:
    """Yield degrees doubled and halved, alone and one against another; chunks start again at one."""
    names = {"tp": "tensor parallel", "cp": "context parallel", "pp": "pipeline stages"}
    if case.question.model.is_moe:
        names |= {"ep": "expert parallel", "etp": "tensor parallel of experts"}
    for name, words in names.items():
        for degree in _scaled(getattr(layout, name)):
            vpp = 1 if name == "pp" else layout.vpp
            changed: dict[str, Any] = {name: degree, "vpp": vpp}
            yield f"{words} {degree}", replace(layout, **changed)
    for one, other in EXCHANGED:
        for up, down in ((one, other), (other, one)):
            if getattr(layout, down) % 2 == 0:
                changed = {up: getattr(layout, up) * 2, down: getattr(layout, down) // 2, "vpp": 1}
                what = ", ".join(
                    f"{names[name]} {degree}" for name, degree in changed.items() if name != "vpp"
                )
                yield what, replace(layout, **changed)


def _scaled(degree: int) -> list[int]:
    return [2 * degree] + ([degree // 2] if degree % 2 == 0 else [])


def _beside(value: int, possible: tuple[int, ...]) -> list[int]:
    """Return the next smaller and larger possible value."""
    return [*[v for v in possible if v < value][-1:], *[v for v in possible if v > value][:1]]


STAGES = ("all states everywhere", "optimizer sharded", "and gradients sharded", "and weights sharded")
LONGEST_RUNG = 4096
"""Largest degree that a rung reaches by doubling."""


def tree(case: Case, *, activations_lead: bool) -> Iterator[tuple[str, Strategy]]:
    """Yield (what, layout): data parallel, then within the node, then context or stages; then with recompute.

    Ultra-Scale Playbook, How to Find the Best Training Configuration: data parallelism first, with ZeRO; tensor
    parallelism up to the fast domain; beyond it stages, or context parallelism where activations outweigh the
    states. Less memory for more compute, recompute, comes last.
    """
    for recompute in case.policies:
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
    start = case.start
    for zero, stage in enumerate(STAGES):
        yield f"data parallel, zero {zero}: {stage}", replace(start, zero=zero)
    for tp in doubling(2, case.question.cluster.domain):
        yield f"tensor parallel {tp}", replace(start, tp=tp, zero=1)
    inside = doubling(1, case.question.cluster.domain)[-1]
    most = case.question.cluster.num_devices // inside
    beyond = [(cp, pp) for cp in doubling(1, most) for pp in doubling(1, most // cp) if cp * pp > 1]
    for cp, pp in sorted(beyond, key=lambda pair: _rank(pair, activations_lead=activations_lead)):
        parts = [f"context parallel {cp}"] * (cp > 1) + [f"{pp} stages"] * (pp > 1)
        yield f"tensor parallel {inside}, {', '.join(parts)}", replace(start, tp=inside, cp=cp, pp=pp, zero=1)


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
    return sorted({1, max(ep for ep in possible if ep <= case.question.cluster.domain), max(possible)})


def _words(recompute: Recompute) -> str:
    return " ".join(recompute.modules) if recompute.modules else recompute.granularity
