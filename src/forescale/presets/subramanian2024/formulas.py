"""Formulas of the paper: products, vector operations, fused attention, and from one layer to one step."""

from __future__ import annotations

import numpy as np

from forescale.formula import formula
from forescale.numeric import Numeric

PAPER = "Subramanian et al. 2024, arXiv:2410.00273"
CODE = f"{PAPER}, and the code published with it"
FP16_BYTES = 2.0
"""Bytes of a weight, a gradient, an activation."""
OPTIMIZER_BYTES = 12.0
"""Bytes of master copy and two moments in fp32, per parameter."""


_LINEAR = f"{PAPER}, section III-A (S1) and table I"
_SUMMA = f"{PAPER}, appendix A and table A2"


@formula(unit="FLOP", source=_LINEAR)
def linear_forward_flops(*, tokens: Numeric, inputs: Numeric, outputs: Numeric) -> Numeric:
    """T·o·(2·i − 1) with the local widths i and o."""
    return tokens * outputs * (2.0 * inputs - 1.0)


@formula(unit="FLOP", source=_LINEAR)
def linear_backward_flops(*, tokens: Numeric, inputs: Numeric, outputs: Numeric) -> Numeric:
    """T·i·(2·o − 1) + i·o·(2·T − 1): gradients of the input and of the weight."""
    return tokens * inputs * (2.0 * outputs - 1.0) + inputs * outputs * (2.0 * tokens - 1.0)


@formula(unit="byte", source=_LINEAR)
def linear_forward_bytes(*, tokens: Numeric, inputs: Numeric, outputs: Numeric) -> Numeric:
    """2·(T·i + T·o + i·o): input, output and weight pass through memory once."""
    return FP16_BYTES * (tokens * inputs + tokens * outputs + inputs * outputs)


@formula(unit="byte", source=_LINEAR)
def linear_backward_bytes(*, tokens: Numeric, inputs: Numeric, outputs: Numeric) -> Numeric:
    """2·(2·i·o + 2·T·i + 2·T·o): both gradients read the output's gradient and write their own."""
    return 2.0 * FP16_BYTES * (inputs * outputs + tokens * inputs + tokens * outputs)


@formula(unit="parameter", source=f"{PAPER}, section III-A and tables I, II and A2")
def weight_elements(*, inputs: Numeric, outputs: Numeric) -> Numeric:
    """i·o with the local widths i and o."""
    return inputs * outputs


@formula(unit="byte", source=f"{PAPER}, section III-A (S2), memory used on HBM, and its code")
def kept_bytes(*, elements: Numeric, element_bytes: Numeric) -> Numeric:
    """N·E: a tensor of N elements that an operation keeps for backward."""
    return elements * element_bytes


@formula(unit="FLOP", source=_SUMMA)
def summa_forward_flops(*, tokens: Numeric, inputs: Numeric, outputs: Numeric) -> Numeric:
    """2·T·o·i: panels are added up, so the first product of a sum is not free."""
    return 2.0 * tokens * outputs * inputs


@formula(unit="byte", source=CODE)
def summa_forward_bytes(*, tokens: Numeric, inputs: Numeric, outputs: Numeric, panels: Numeric) -> Numeric:
    """2·(T·i + i·o + T·o·nb): the output passes through memory once per panel."""
    return FP16_BYTES * (tokens * inputs + inputs * outputs + tokens * outputs * panels)


@formula(unit="byte", source=CODE)
def summa_backward_bytes(*, tokens: Numeric, inputs: Numeric, outputs: Numeric, panels: Numeric) -> Numeric:
    """Twice the bytes of forward: two products of the same kind."""
    return 2.0 * FP16_BYTES * (inputs * outputs + tokens * outputs * panels + tokens * inputs)


@formula(unit="s", source=f"{_SUMMA}: prologue and what compute does not hide")
def summa_exposed_time(*, panel_time: Numeric, panels: Numeric, work_time: Numeric) -> Numeric:
    """Prologue: s + max(nb·s − τ, 0), the first panel's broadcasts, then the part of all that exceeds the work."""
    return panel_time + np.maximum(panels * panel_time - work_time, 0.0)


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


@formula(unit="s", source=f"{PAPER}, section III-A (S1) and its code: compute time")
def operation_time(*, flops: Numeric, rate: Numeric, efficiency: Numeric, latency: Numeric) -> Numeric:
    """Latency + FLOP/(efficiency·rate)."""
    return latency + flops / (efficiency * rate)


@formula(unit="s", source=f"{PAPER}, section III-A (S1) and its code: memory time")
def memory_bound_time(*, num_bytes: Numeric, bandwidth: Numeric, compute_time: Numeric) -> Numeric:
    """max(V/b − t, 0): what memory traffic takes beyond compute."""
    return np.maximum(num_bytes / bandwidth - compute_time, 0.0)


@formula(unit="s", source=f"{PAPER}, section III-A (S2)")
def stage_work_time(*, layer_time: Numeric, num_microbatches: Numeric, layers: Numeric) -> Numeric:
    """t·m·d/np: every micro-batch through every layer of the stage."""
    return layer_time * num_microbatches * layers


@formula(unit="s", source=f"{PAPER}, section III-A (S1), pipeline parallel: not overlapped")
def stage_exchange_time(*, hop_time: Numeric, num_microbatches: Numeric) -> Numeric:
    """2·x·m: one message forward and one backward for every micro-batch."""
    return 2.0 * hop_time * num_microbatches


@formula(unit="s", source=f"{PAPER}, section III-A (S2), pipeline bubble time")
def stage_bubble_time(*, pp: Numeric, busy_time: Numeric, num_microbatches: Numeric) -> Numeric:
    """(np − 1)·(tf + tb), with the messages of a micro-batch in tf and tb."""
    return (pp - 1.0) * busy_time / num_microbatches


@formula(unit="s", source=f"{CODE}; section III-A (S1), data parallel and optimizer")
def exposed_weight_exchange_time(*, exchange_time: Numeric, layer_time: Numeric, layers: Numeric) -> Numeric:
    """Exposed: x + max(x − t, 0)·(d/np − 1); one layer is bare, compute covers the others."""
    return exchange_time + np.maximum(exchange_time - layer_time, 0.0) * (layers - 1.0)
