"""Fused attention, not causal; its vector work is counted in FLOPs of the matrix units."""

from __future__ import annotations

from forescale.formula import formula
from forescale.numeric import Numeric
from forescale.presets.subramanian2024.sources import FP16_BYTES, PAPER

_FUSED = f"{PAPER}, section III-A (S1) on FlashAttention, tables I and II, and its code"


@formula(unit="FLOP", source=_FUSED)
def softmax_flops(*, rows: Numeric, length: Numeric) -> Numeric:
    """2·R·l + R·(l − 1): exponential, scale and sum of R rows of l scores."""
    return 2.0 * rows * length + rows * (length - 1.0)


@formula(unit="FLOP", source=_FUSED)
def fused_forward_flops(
    *, rows: Numeric, length: Numeric, head_dim: Numeric, vector_weight: Numeric
) -> Numeric:
    """Scores S·(2q − 1), softmax and dropout at X each, and R·q·(2l − 1) to attend; S = R·l."""
    scores = rows * length
    vector = softmax_flops(rows=rows, length=length) + scores
    return scores * (2.0 * head_dim - 1.0) + vector_weight * vector + rows * head_dim * (2.0 * length - 1.0)


@formula(unit="FLOP", source=_FUSED)
def fused_backward_flops(
    *,
    rows: Numeric,
    length: Numeric,
    local_length: Numeric,
    keys: Numeric,
    head_dim: Numeric,
    vector_weight: Numeric,
) -> Numeric:
    """R·q·(2l − 1) + 2·K·(2l' − 1) + S·(2q − 1) + X·(4S + R(l − 1)), and the scores once more.

    R rows of queries meet K elements of keys; l' is the local part of l.
    """
    scores = rows * length
    products = rows * head_dim * (2.0 * length - 1.0) + 2.0 * keys * (2.0 * local_length - 1.0)
    gradient = 4.0 * scores + rows * (length - 1.0)
    again = softmax_flops(rows=rows, length=length) + scores
    return products + 2.0 * scores * (2.0 * head_dim - 1.0) + vector_weight * (gradient + again)


@formula(unit="byte", source=_FUSED)
def fused_forward_bytes(*, rows: Numeric, keys: Numeric, head_dim: Numeric) -> Numeric:
    """2·(2·R·q + 2·K + R): queries and output, keys and values, the statistics."""
    return FP16_BYTES * (2.0 * rows * head_dim + 2.0 * keys + rows)


@formula(unit="byte", source=_FUSED)
def fused_saved_bytes(*, rows: Numeric, head_dim: Numeric) -> Numeric:
    """2·(4·R·q + 2·R): queries, keys, values, output, random state and statistics."""
    return FP16_BYTES * (4.0 * rows * head_dim + 2.0 * rows)


@formula(unit="byte", source=_FUSED)
def fused_backward_bytes(*, rows: Numeric, keys: Numeric, head_dim: Numeric) -> Numeric:
    """2·(2·K + 2·R·q) of gradients, and what was saved."""
    gradients = FP16_BYTES * (2.0 * keys + 2.0 * rows * head_dim)
    return gradients + fused_saved_bytes(rows=rows, head_dim=head_dim)
