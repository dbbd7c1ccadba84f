"""What moves to host memory: bytes that leave a device, and seconds of the copies and of the update there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from forescale.formula import formula
from forescale.memory.overhead import read_table
from forescale.numeric import Numeric

TE = "Transformer Engine, pytorch/cpu_offload.py: layers are copied out one behind the next, and back ahead of it"
HYBRID = "Megatron-LM, core/optimizer/cpu_offloading/hybrid_optimizer.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRates:
    """How fast hosts work for one device, from the calibration file of memory."""

    update_bandwidth: float
    """byte/s that the optimizer reads and writes on the host, per device."""
    link_share: float
    """Sustained share of the link's rate."""


@cache
def load_host_rates() -> HostRates:
    """Return the packaged rates."""
    table = read_table("offload")
    return HostRates(update_bandwidth=table["update_bandwidth"], link_share=table["link_share"])


@formula(unit="1", source="Megatron-LM --cpu-offloading-num-layers: the first N layers")
def offloaded_share(*, num_layers: float, layers_on_stage: Numeric) -> Numeric:
    """min(1, N / layers on the stage)."""
    return np.minimum(1.0, num_layers / np.maximum(layers_on_stage, 1.0))


@formula(unit="byte", source=TE)
def in_transit_bytes(*, offloaded: Numeric, num_layers: float, layers_on_stage: Numeric) -> Numeric:
    """Two of the offloaded layers: one on its way, one at work."""
    layers = np.minimum(num_layers, np.maximum(layers_on_stage, 1.0))
    return offloaded * np.minimum(1.0, 2.0 / np.maximum(layers, 1.0))


@formula(unit="byte", source=TE)
def resident_bytes(*, kept: Numeric, in_transit: Numeric) -> Numeric:
    """Bytes at work and kept on the device by micro-batches in flight, and layers in transit."""
    return kept + in_transit


@formula(unit="s", source="copies out and back run at once; what the pass does not hide shows")
def exposed_copies(
    *, out: Numeric, back: Numeric, bandwidth: float, cover: Numeric, overlapped: bool
) -> Numeric:
    """Longer of both directions less the pass that hides it; both, one after the other, where nothing overlaps."""
    if not overlapped:
        return (out + back) / bandwidth
    return np.maximum(np.maximum(out, back) / bandwidth - cover, 0.0)


@formula(unit="s", source=HYBRID)
def host_update_seconds(*, parameters: Numeric, element_bytes: float, bandwidth: float) -> Numeric:
    """Parameters × bytes read and written for each / rate of the host."""
    return parameters * element_bytes / bandwidth


@formula(unit="s", source=HYBRID)
def exposed_update_copies(*, copies: Numeric, update: Numeric, overlapped: bool) -> Numeric:
    """All of the copies; overlapped, what of one direction exceeds the update."""
    return np.maximum(copies / 2.0 - update, 0.0) if overlapped else copies
