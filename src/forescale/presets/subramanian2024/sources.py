"""Where the formulas come from."""

from __future__ import annotations

PAPER = "Subramanian et al. 2024, arXiv:2410.00273"
CODE = f"{PAPER}, and the code published with it"
FP16_BYTES = 2.0
"""Bytes of a weight, a gradient, an activation."""
MASK_BYTES = 1.0
"""Bytes of an element of a dropout mask."""
OPTIMIZER_BYTES = 12.0
"""Bytes of master copy and two moments in fp32, per parameter."""
