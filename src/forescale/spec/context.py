"""Kinds of context parallelism: what travels over which ranks, and which neighbours exchange heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from forescale.formula import formula
from forescale.numeric import Numeric, smaller
from forescale.spec.strategy import ContextKind, Strategy

Values: TypeAlias = Any
"""Degrees of one layout or of many."""
ContextAxis: TypeAlias = Literal["cp", "cp_inner", "cp_outer"]
"""All context-parallel ranks, a group of neighbours among them, or one rank of each such group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextParallel:
    """How the ranks of one kind see all keys and values; operators, memory and legality follow from it."""

    name: ContextKind
    exchanges: ContextAxis | None = None
    """Ranks that exchange heads for parts of the sequence; None exchanges none."""
    around: ContextAxis | None = None
    """Ranks that meet each other's keys and values; None is nobody."""
    ring: bool = False
    """Whether these are passed on step by step, behind the core's own work, rather than gathered before it."""

    @property
    def halves(self) -> bool:
        """Whether cp is a number of groups of `cp_inner` neighbours."""
        return self.exchanges == "cp_inner"

    @property
    def sends(self) -> tuple[tuple[ContextAxis, float | None], ...]:
        """Groups that send and receive, and with how many neighbours a rank does; None is with everybody."""
        everybody = ((self.exchanges, None),) if self.exchanges else ()
        return (*everybody, (self.around, 2.0)) if self.around and self.ring else everybody


_KINDS = (
    ContextParallel(name="all_gather", around="cp"),
    ContextParallel(name="ring", around="cp", ring=True),
    ContextParallel(name="ulysses", exchanges="cp"),
    ContextParallel(name="hierarchical", exchanges="cp_inner", around="cp_outer", ring=True),
)
CONTEXT_KINDS: Mapping[ContextKind, ContextParallel] = {kind.name: kind for kind in _KINDS}


@formula(unit="1", source="Megatron-LM, hierarchical context parallelism: heads are exchanged inside a node")
def near_context(*, cp: Numeric, tp: Numeric, domain: float) -> Numeric:
    """Return the most ranks that divide cp and lie, each with its tp neighbours, in one domain of devices."""
    most = np.maximum(np.floor(domain / np.asarray(tp)), 1.0)
    found = np.ones(np.broadcast(np.asarray(cp), most).shape)
    for ranks in range(2, int(np.max(np.minimum(cp, most), initial=1.0)) + 1):
        found = np.where((np.remainder(cp, ranks) == 0) & (ranks <= most), float(ranks), found)
    return found if found.ndim else float(found)


@formula(unit="1", source="Megatron-LM, hierarchical context parallelism: the innermost ranks of the group")
def inner_context(*, cp: Numeric, wanted: float) -> Numeric:
    """min(cp, wanted)."""
    return smaller(cp, wanted)


def inner_ranks(*, cp: Values, tp: Values, wanted: int | None, domain: int) -> Values:
    """Return the neighbouring context-parallel ranks that exchange heads: those `wanted`, or those near each other."""
    if wanted is None:
        return near_context(cp=cp, tp=tp, domain=float(domain))
    return inner_context(cp=cp, wanted=float(wanted))


def halves_evenly(cp: Values, inner: Values) -> Values:
    """Return where hierarchical context parallelism has whole groups: `inner` divides cp, or is no less."""
    return (np.asarray(cp) <= inner) | (np.remainder(cp, inner) == 0)


def settled(strategy: Strategy, domain: int) -> Strategy:
    """Return the layout with what it leaves to the cluster: how many neighbours exchange heads."""
    if strategy.cp_inner is not None or not CONTEXT_KINDS[strategy.cp_kind].halves:
        return strategy
    ranks = inner_ranks(cp=strategy.cp, tp=strategy.tp, wanted=None, domain=domain)
    return replace(strategy, cp_inner=int(ranks))
