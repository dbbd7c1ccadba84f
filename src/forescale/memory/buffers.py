"""Memory that is neither state nor saved activation: gathered parameters, communication buffers, context."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np

from forescale.formula import formula
from forescale.numeric import Numeric


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """Bytes that no operator owns: low, expected, high; from the calibration file of memory."""

    context_bytes: tuple[float, float, float]
    """Driver context, libraries and communicators, outside the allocator."""
    fragmentation: tuple[float, float, float]
    """Reserved over allocated."""
    source: str


@cache
def load_overhead() -> Overhead:
    """Return the packaged overhead figures."""
    text = (resources.files("forescale.catalogue") / "calibrations" / "memory" / "overhead.json").read_text(
        "utf-8"
    )
    data = json.loads(text)
    return Overhead(
        context_bytes=tuple(data["context_bytes"]),
        fragmentation=tuple(data["fragmentation"]),
        source=data["source"],
    )


@formula(
    unit="byte",
    source="Zhao et al. 2023, PyTorch FSDP, arXiv:2304.11277, section 4.2: the layer in use and the one prefetched",
)
def gathered_parameter_bytes(
    *,
    parameters: Numeric,
    element_bytes: float,
    gradient_element_bytes: float,
    shards: Numeric,
    zero: Numeric,
) -> Numeric:
    """At stage 3, two layers of gathered parameters and one of unreduced gradients, where there is more than one shard."""
    needed = (np.asarray(zero) >= 3) & (np.asarray(shards) > 1)
    return np.where(needed, parameters * (2.0 * element_bytes + gradient_element_bytes), 0.0)
