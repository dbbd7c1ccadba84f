"""Weights, gradients and optimizer states of one device."""

from __future__ import annotations

import numpy as np

from forescale.formula import formula
from forescale.numeric import Numeric
from forescale.spec.workload import STORAGE_BYTES, Precision

ZERO = "Rajbhandari et al. 2020, ZeRO, arXiv:1910.02054, section 5"


@formula(unit="byte", source=ZERO)
def weight_bytes(*, parameters: Numeric, element_bytes: float, shards: Numeric, zero: Numeric) -> Numeric:
    """Parameters × bytes, over the shards at stage 3."""
    return parameters * element_bytes / np.where(np.asarray(zero) >= 3, shards, 1.0)


@formula(unit="byte", source=ZERO)
def gradient_bytes(*, parameters: Numeric, element_bytes: float, shards: Numeric, zero: Numeric) -> Numeric:
    """Parameters × bytes, over the shards from stage 2."""
    return parameters * element_bytes / np.where(np.asarray(zero) >= 2, shards, 1.0)


@formula(unit="byte", source=ZERO)
def optimizer_bytes(*, parameters: Numeric, element_bytes: float, shards: Numeric, zero: Numeric) -> Numeric:
    """Parameters × (master + moments), over the shards from stage 1."""
    return parameters * element_bytes / np.where(np.asarray(zero) >= 1, shards, 1.0)


@formula(
    unit="byte", source="DeepSpeed, Megatron-LM: an fp32 copy of this rank's share of gradients kept in less"
)
def update_bytes(*, parameters: Numeric, element_bytes: float, shards: Numeric, zero: Numeric) -> Numeric:
    """Parameters × bytes of the copy that the update makes, over the shards from stage 1."""
    return parameters * element_bytes / np.where(np.asarray(zero) >= 1, shards, 1.0)


def update_element_bytes(precision: Precision) -> float:
    """Return bytes per parameter of the fp32 gradients that the update needs beside the accumulated ones."""
    stored = STORAGE_BYTES[precision.gradients]
    return STORAGE_BYTES["fp32"] if precision.master == "fp32" and stored < STORAGE_BYTES["fp32"] else 0.0


def optimizer_element_bytes(precision: Precision, moments: float = 2.0) -> float:
    """Return bytes per parameter of master copy and moments; AdamW has two moments per parameter."""
    master = 0.0 if precision.master == "none" else STORAGE_BYTES[precision.master]
    return master + moments * STORAGE_BYTES[precision.moments]
