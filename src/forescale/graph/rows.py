"""Rows that tokens become on their way to experts: capacity, imbalance, and what an exchange waits for."""

from __future__ import annotations

import numpy as np

from forescale.formula import formula
from forescale.numeric import Numeric, larger, smaller


@formula(
    unit="token",
    source="Megatron-LM, moe_utils.py get_capacity: ⌈tokens · top_k / experts · capacity factor⌉",
)
def capacity_rows(*, rows: Numeric, num_experts: float, capacity_factor: float) -> Numeric:
    """Experts × ⌈rows / experts · capacity factor⌉: what all experts together take from one rank."""
    return num_experts * np.ceil(rows / num_experts * capacity_factor)


@formula(
    unit="1",
    source="definition: a token goes to top_k different experts, of which a rank holds experts / ep",
)
def possible_imbalance(*, imbalance: float, ep: Numeric, num_experts: float, top_k: float) -> Numeric:
    """min(imbalance, ep, experts / top_k): the most where every token chooses all it can on one rank."""
    return smaller(smaller(ep, num_experts / top_k), imbalance)


@formula(unit="token", source="definition: the fullest rank over the mean; a single rank receives the mean")
def imbalanced_rows(*, rows: Numeric, imbalance: Numeric, several: Numeric) -> Numeric:
    """Rows × (1 + (imbalance − 1) · 1 where there are several ranks)."""
    return rows * (1.0 + (imbalance - 1.0) * several)


@formula(unit="token", source="definition")
def fewer(*, rows: Numeric, most: Numeric) -> Numeric:
    """min(rows, most)."""
    return smaller(rows, most)


@formula(unit="token", source="definition: an exchange lasts until its fullest rank is done")
def more(*, sent: Numeric, received: Numeric) -> Numeric:
    """max(sent, received)."""
    return larger(sent, received)
