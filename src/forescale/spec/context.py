"""The two halves of hierarchical context parallelism: neighbours that exchange heads, and the ring between them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from forescale.formula import formula
from forescale.numeric import Numeric, smaller
from forescale.spec.strategy import Strategy

Values: TypeAlias = Any
"""Degrees of one layout or of many."""
EXCHANGING = ("ulysses", "hierarchical")
"""Kinds of context parallelism that exchange heads for parts of the sequence."""


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
    if strategy.cp_inner is not None or strategy.cp_kind != "hierarchical":
        return strategy
    ranks = inner_ranks(cp=strategy.cp, tp=strategy.tp, wanted=None, domain=domain)
    return replace(strategy, cp_inner=int(ranks))
