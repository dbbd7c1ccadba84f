"""What switches of a layout make of the seconds of single kernels: sums in one order, streams of their own."""

from __future__ import annotations

from forescale.files import packaged
from forescale.formula import formula
from forescale.graph.ops import AttentionCore, Elementwise, Primitive
from forescale.numeric import Numeric

DETERMINISTIC: float = packaged("calibrations/time/overlap")["deterministic"]
"""Time of the host with deterministic algorithms, over that without."""
DETERMINISTIC_ATTENTION: float = packaged("calibrations/time/overlap")["deterministic_attention"]
"""The same of the backward pass of fused attention on the device."""


@formula(unit="s", source="FlashAttention: gradients of queries are added in one order, not as they come")
def deterministic_attention(*, seconds: Numeric, factor: float) -> Numeric:
    """Seconds of the kernel that adds in any order × factor."""
    return seconds * factor


@formula(unit="s", source="run calibration: what hidden work takes of the compute that hides it")
def beside_compute(*, seconds: Numeric, contention: Numeric) -> Numeric:
    """Seconds of the copy alone × contention: it runs on another stream and ends before it is waited for."""
    return seconds * contention


def switched(seconds: Numeric, item: Primitive, *, deterministic: bool, contention: Numeric) -> Numeric:
    """Return the seconds of a primitive under the switches of a layout."""
    if isinstance(item, Elementwise) and item.own_stream:
        return beside_compute(seconds=seconds, contention=contention)
    if deterministic and isinstance(item, AttentionCore) and item.backward and item.flash:
        return deterministic_attention(seconds=seconds, factor=DETERMINISTIC_ATTENTION)
    return seconds
