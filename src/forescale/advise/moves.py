"""Layouts one change away: what the throughput step tries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from forescale.advise.case import Case
from forescale.advise.changes import recompute_text
from forescale.numeric import divisors
from forescale.search.layouts import virtual_stages
from forescale.spec.space import default_recompute
from forescale.spec.strategy import Strategy
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
    cheap = default_recompute(case.question.model)[1]
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
    for recompute in default_recompute(case.question.model):
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
