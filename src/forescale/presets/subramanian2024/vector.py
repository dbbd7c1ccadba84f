"""Elementwise operations on the vector units: bias, GELU, dropout, layer norm."""

from __future__ import annotations

from forescale.formula import formula
from forescale.numeric import Numeric
from forescale.presets.subramanian2024.sources import CODE, FP16_BYTES, MASK_BYTES


@formula(unit="FLOP", source=CODE)
def bias_flops(*, elements: Numeric) -> Numeric:
    """One addition per element; backward, one per element again to sum the gradient."""
    return elements


@formula(unit="byte", source=CODE)
def bias_bytes(*, elements: Numeric, width: Numeric) -> Numeric:
    """2·(N + w): the elements and the bias itself."""
    return FP16_BYTES * (elements + width)


@formula(unit="FLOP", source=CODE)
def gelu_forward_flops(*, elements: Numeric) -> Numeric:
    """8·N."""
    return 8.0 * elements


@formula(unit="FLOP", source=CODE)
def gelu_backward_flops(*, elements: Numeric) -> Numeric:
    """13·N."""
    return 13.0 * elements


@formula(unit="byte", source=CODE)
def gelu_bytes(*, elements: Numeric, tensors: float) -> Numeric:
    """2 bytes for each element of the tensors read and written: 2 forward, 3 backward."""
    return tensors * FP16_BYTES * elements


@formula(unit="FLOP", source=CODE)
def dropout_flops(*, elements: Numeric) -> Numeric:
    """One multiplication per element."""
    return elements


@formula(unit="byte", source=CODE)
def dropout_bytes(*, elements: Numeric) -> Numeric:
    """5·N: read, write, and a mask of one byte."""
    return (2.0 * FP16_BYTES + MASK_BYTES) * elements


@formula(unit="byte", source=CODE)
def mask_bytes(*, elements: Numeric) -> Numeric:
    """One byte per element is kept of a dropout."""
    return MASK_BYTES * elements


@formula(unit="FLOP", source=CODE)
def norm_forward_flops(*, rows: Numeric, width: Numeric) -> Numeric:
    """9·r·w for r rows of w elements."""
    return 9.0 * rows * width


@formula(unit="FLOP", source=CODE)
def norm_backward_flops(*, rows: Numeric, width: Numeric) -> Numeric:
    """8·r·w + 4·r·(w − 1)."""
    return 8.0 * rows * width + 4.0 * rows * (width - 1.0)


@formula(unit="byte", source=CODE)
def norm_forward_bytes(*, rows: Numeric, width: Numeric) -> Numeric:
    """2·(2·r·w + 2·r + 2·w): rows, their mean and deviation, scale and shift."""
    return 2.0 * FP16_BYTES * (rows * width + rows + width)


@formula(unit="byte", source=CODE)
def norm_backward_bytes(*, rows: Numeric, width: Numeric) -> Numeric:
    """2·(5·r·w + 2·w)."""
    return FP16_BYTES * (5.0 * rows * width + 2.0 * width)
