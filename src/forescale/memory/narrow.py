"""Weights in 8 or 4 bits: kept beside the parameters, or instead of them; along rows and along columns."""

from __future__ import annotations

import numpy as np

from forescale.formula import formula
from forescale.numeric import Numeric
from forescale.spec.cluster import Device
from forescale.spec.strategy import Kernels
from forescale.spec.workload import STORAGE_BYTES, Precision, narrow_bytes

ENGINE = (
    "Transformer Engine, pytorch/module/base.py quantize_weight and pytorch/csrc/quantizer.cpp create_tensor"
)


def narrow_weight_bytes(device: Device, precision: Precision, kernels: Kernels) -> float:
    """Return the bytes that narrow products add to each element of their weights.

    Scales of blocks differ between rows and columns, so blockwise, MXFP8 and NVFP4 weights are kept along both;
    with one scale per tensor a transposed copy is kept where the device's products need it.
    """
    instead = precision.is_narrow and precision.parameters == "fp8"
    if not precision.is_narrow or not (instead or kernels.caches_narrow_weights):
        return 0.0
    per_tensor = precision.compute == "fp8" and precision.recipe != "blockwise"
    copies = 1.0 if per_tensor and not device.needs_transposes else 2.0
    stored = STORAGE_BYTES["fp8"] if instead else 0.0
    return copies * narrow_bytes(precision) - stored


def wide_weight_bytes(precision: Precision) -> float:
    """Return the bytes that parameters of other operators have beyond 8 bits, where weights are kept in these.

    Embeddings, head, router and norms stay in the activations' type (Megatron-LM --fp8-param-gather).
    """
    if not precision.is_narrow or precision.parameters != "fp8":
        return 0.0
    return STORAGE_BYTES[precision.activations] - STORAGE_BYTES["fp8"]


@formula(unit="byte", source=ENGINE)
def added_weight_bytes(*, parameters: Numeric, element_bytes: float, zero: Numeric) -> Numeric:
    """Parameters × bytes, below stage 3: gathered weights are narrowed again each time."""
    return np.where(np.asarray(zero) < 3, parameters * element_bytes, 0.0)
