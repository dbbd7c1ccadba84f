"""Seconds of one layer and micro-batch: roofline per operation, messages exposed unless they hide in panels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forescale.formula import formula
from forescale.numeric import Numeric
from forescale.presets.subramanian2024.machine import Machine
from forescale.presets.subramanian2024.matmul import summa_exposed_time
from forescale.presets.subramanian2024.operation import Layer, Message, Operation, Split, Work
from forescale.presets.subramanian2024.quirks import Quirks
from forescale.presets.subramanian2024.sources import PAPER


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTime:
    """What one layer and micro-batch take."""

    forward_s: Numeric
    """All of forward, its messages included."""
    backward_s: Numeric
    compute_s: Numeric
    """Both directions, at the FLOP rate."""
    memory_s: Numeric
    """Both directions, what memory traffic takes beyond compute."""
    tensor_s: Numeric
    """Both directions, exposed messages."""
    flops: Numeric


@formula(unit="s", source=f"{PAPER}, appendix A, hardware configurations: latency of FLOPs")
def operation_compute_time(*, flops: Numeric, latency: float, rate: float, efficiency: float) -> Numeric:
    """t_sf + F / (η·rate)."""
    return latency + flops / (efficiency * rate)


@formula(unit="s", source=f"{PAPER}, section III-A (S2), computation time")
def operation_traffic_time(*, num_bytes: Numeric, bandwidth: float) -> Numeric:
    """Bytes / peak memory bandwidth."""
    return num_bytes / bandwidth


def price_layer(layer: Layer, split: Split, *, machine: Machine, quirks: Quirks) -> LayerTime:
    """Return the times of `layer` on `machine`."""
    pricer = _Pricer(machine=machine, split=split, quirks=quirks, known={})
    forward = [pricer.times(operation, operation.forward) for operation in layer]
    backward = [pricer.times(operation, operation.backward) for operation in layer]
    compute, memory, tensor = (sum(parts) for parts in zip(*forward, *backward, strict=True))
    return LayerTime(
        forward_s=sum(sum(parts) for parts in forward),
        backward_s=sum(sum(parts) for parts in backward),
        compute_s=compute,
        memory_s=memory,
        tensor_s=tensor,
        flops=sum(operation.forward.flops + operation.backward.flops for operation in layer),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pricer:
    machine: Machine
    split: Split
    quirks: Quirks
    known: dict[Message, Numeric]

    def times(self, operation: Operation, work: Work) -> tuple[Numeric, Numeric, Numeric]:
        """Return seconds of compute, of memory beyond compute, and of exposed messages."""
        machine = self.machine
        compute = operation_compute_time(
            flops=work.flops,
            latency=machine.operation_latency,
            rate=machine.matrix_rate if operation.on_matrix_units else machine.vector_rate,
            efficiency=machine.compute_efficiency,
        )
        traffic = operation_traffic_time(num_bytes=work.num_bytes, bandwidth=machine.hbm_bandwidth)
        memory = np.maximum(traffic - compute, 0.0)
        return compute, memory, self._exposed(operation, work, compute + memory)

    def _exposed(self, operation: Operation, work: Work, work_time: Numeric) -> Numeric:
        if operation.panels is None:
            return sum((self._seconds(message, 1.0) for message in work.messages), 0.0)
        panel_time = sum((self._seconds(message, operation.panels) for message in work.messages), 0.0)
        return summa_exposed_time(panel_time=panel_time, panels=operation.panels, work_time=work_time)

    def _seconds(self, message: Message, panels: Numeric) -> Numeric:
        """Return the seconds of a message, or of one of its panels."""
        if message not in self.known:
            ranks, near = (
                (self.split.tp1, self.split.near_tp1)
                if message.axis == "tp1"
                else (self.split.tp2, self.split.near_tp2)
            )
            self.known[message] = self.machine.collective(
                kind=message.kind,
                num_bytes=message.num_bytes / panels,
                num_ranks=ranks,
                near=near,
                quirks=self.quirks,
            )
        return self.known[message]
