"""Quantisation of a product's operands under 8- and 4-bit recipes."""

from __future__ import annotations

from forescale.graph.layout import Layout
from forescale.graph.ops import Elementwise
from forescale.numeric import Numeric

CAST_BYTES = {
    ("fp8", "none"): 3.0,
    ("fp8", "delayed"): 3.0,
    ("fp8", "current"): 5.0,
    ("fp8", "blockwise"): 4.06,
    ("mxfp8", "none"): 4.06,
    ("mxfp8", "mxfp8"): 4.06,
    ("nvfp4", "none"): 5.12,
}
"""Bytes moved to quantise one 16-bit element: read (twice where the scale is that of the whole tensor, as for
current scaling and NVFP4) and written; where scales of blocks differ between rows and columns, along both for the two
products that use it, with the scales (Transformer Engine, recipes)."""
PER_TENSOR = ("none", "delayed", "current")
TRANSPOSED_BYTES = 1.0
"""Bytes of the transposed copy that one scale per tensor needs on some devices (Transformer Engine,
pytorch/csrc/quantizer.cpp)."""


def casts(
    layout: Layout, elements: Numeric, dtype: str, *, kernels: Numeric = 1.0
) -> tuple[Elementwise, ...]:
    """Return the quantisation of a product's operand: none where it stays in 16 bits.

    Weights are quantised once a step and not counted.
    """
    per_element = CAST_BYTES.get((dtype, layout.precision.recipe)) or CAST_BYTES.get((dtype, "none"))
    if per_element is None:
        return ()
    per_tensor = dtype == "fp8" and layout.precision.recipe in PER_TENSOR
    return (
        Elementwise(
            bytes_moved=elements * per_element,
            family="cast",
            kernels=kernels,
            transposed_bytes=elements * TRANSPOSED_BYTES if per_tensor else 0.0,
        ),
    )
