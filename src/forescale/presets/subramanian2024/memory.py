"""Memory of the fullest device: the first stage under 1F1B, optimizer states sharded over replicas."""

from __future__ import annotations

from dataclasses import dataclass

from forescale.memory.in_flight import in_flight, saved_bytes
from forescale.memory.states import gradient_bytes, optimizer_bytes, weight_bytes
from forescale.numeric import Numeric
from forescale.presets.subramanian2024.sources import FP16_BYTES, OPTIMIZER_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes on one device: nothing for buffers, fragments or the runtime."""

    weights: Numeric
    gradients: Numeric
    optimizer: Numeric
    activations: Numeric

    @property
    def total(self) -> Numeric:
        """All parts together."""
        return self.weights + self.gradients + self.optimizer + self.activations


def device_memory(
    *,
    parameters: Numeric,
    kept_bytes: Numeric,
    replicas: Numeric,
    pp: Numeric,
    num_microbatches: Numeric,
    stage: Numeric = 0.0,
) -> Memory:
    """Return the memory of a stage with so many parameters that keeps so much of each micro-batch.

    `replicas` devices share the optimizer's states. The first stage, whose memory the paper states, is the fullest.
    """
    states = {"parameters": parameters, "shards": replicas, "zero": 1.0}
    held = in_flight(stage=stage, pp=pp, vpp=1.0, num_microbatches=num_microbatches)
    return Memory(
        weights=weight_bytes(element_bytes=FP16_BYTES, **states),
        gradients=gradient_bytes(element_bytes=FP16_BYTES, **states),
        optimizer=optimizer_bytes(element_bytes=OPTIMIZER_BYTES, **states),
        activations=saved_bytes(per_microbatch=kept_bytes, microbatches=held),
    )
