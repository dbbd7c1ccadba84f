"""Matrix products: split over one axis, and SUMMA's blocked products over a grid."""

from __future__ import annotations

import numpy as np

from forescale.formula import formula
from forescale.numeric import Numeric
from forescale.presets.subramanian2024.sources import CODE, FP16_BYTES, PAPER

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
