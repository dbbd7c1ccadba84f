"""Memory and step time of candidates: what few dimensions decide is priced once and gathered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from forescale.numeric import Array, Numeric
from forescale.presets.subramanian2024.factor import factor
from forescale.presets.subramanian2024.machine import Machine
from forescale.presets.subramanian2024.megatron import layer_1d, layer_2d
from forescale.presets.subramanian2024.memory import Memory, device_memory
from forescale.presets.subramanian2024.operation import Layer, Split
from forescale.presets.subramanian2024.price import LayerTime, price_layer
from forescale.presets.subramanian2024.quirks import Quirks
from forescale.presets.subramanian2024.shape import Shape
from forescale.presets.subramanian2024.sources import FP16_BYTES
from forescale.presets.subramanian2024.space import Columns, Integers, TensorParallel
from forescale.presets.subramanian2024.step import (
    exposed_weight_exchange_time,
    stage_bubble_time,
    stage_exchange_time,
    stage_work_time,
)
from forescale.presets.subramanian2024.summa import layer_summa

LAYERS: Mapping[TensorParallel, Callable[..., Layer]] = MappingProxyType(
    {"1d": layer_1d, "2d": layer_2d, "summa": layer_summa}
)
"""Operation list of each strategy."""
HELD_KEY = ("tp1", "tp2", "micro_batch_size")
"""What weights and saved activations of a layer depend on."""
LAYER_KEY = (*HELD_KEY, "panels", "near_tp1", "near_tp2")
"""What the time of a layer depends on."""
HOP_KEY = (*HELD_KEY, "pp", "near_pp")
"""What a message between stages depends on."""
EXCHANGE_KEY = ("tp1", "tp2", "dp", "near_tp2", "near_dp")
"""What the exchange of gradients and weights depends on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of one step."""

    work: Numeric
    """All layers and micro-batches, their exposed messages included."""
    pipeline: Numeric
    data: Numeric
    bubble: Numeric

    @property
    def total(self) -> Numeric:
        """All parts together."""
        return self.work + self.pipeline + self.data + self.bubble


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """What is the same for all candidates."""

    shape: Shape
    machine: Machine
    kind: TensorParallel
    quirks: Quirks

    def memory(self, rows: Columns, *, stage: int = 0) -> Memory:
        """Return the memory of every row of degrees on one stage; placement and panels do not matter."""
        shared = factor(rows, HELD_KEY)
        one = {"panels": 1.0, "near_tp1": 1.0, "near_tp2": 1.0}
        layer = self.layer(Split(**_at(rows, shared.first, HELD_KEY), **one))
        layers = self._layers(rows)
        return device_memory(
            parameters=_take(sum(operation.parameters for operation in layer), shared.code) * layers,
            kept_bytes=_take(sum(operation.saved_bytes for operation in layer), shared.code) * layers,
            replicas=self._replicas(rows),
            pp=rows["pp"].astype(float),
            num_microbatches=rows["num_microbatches"].astype(float),
            stage=float(stage),
        )

    def step_time(self, candidates: Columns) -> StepTime:
        """Return the seconds of one step of every candidate."""
        shared = factor(candidates, LAYER_KEY)
        split = Split(**_at(candidates, shared.first, LAYER_KEY))
        layer = self.layer(split)
        time = price_layer(layer, split, machine=self.machine, quirks=self.quirks)
        forward, backward = _take(time.forward_s, shared.code), _take(time.backward_s, shared.code)
        layers, microbatches = self._layers(candidates), candidates["num_microbatches"].astype(float)
        work = stage_work_time(layer_time=forward + backward, num_microbatches=microbatches, layers=layers)
        hop = self._hop(candidates, layer[-1].saved_bytes, shared.code)
        pipeline = stage_exchange_time(hop_time=hop, num_microbatches=microbatches)
        exchange = self._exchange(candidates, sum(operation.parameters for operation in layer), shared.code)
        gather = exposed_weight_exchange_time(exchange_time=exchange, layer_time=forward, layers=layers)
        scatter = exposed_weight_exchange_time(exchange_time=exchange, layer_time=backward, layers=layers)
        bubble = stage_bubble_time(
            pp=candidates["pp"].astype(float), busy_time=work + pipeline, num_microbatches=microbatches
        )
        return StepTime(work=work, pipeline=pipeline, data=gather + scatter, bubble=bubble)

    def layer_time(self, candidates: Columns) -> LayerTime:
        """Return what one layer and micro-batch of every candidate take, in parts."""
        split = Split(**{name: candidates[name].astype(float) for name in LAYER_KEY})
        return price_layer(self.layer(split), split, machine=self.machine, quirks=self.quirks)

    def layer(self, split: Split) -> Layer:
        """Return the operations of one layer."""
        weight = self.machine.matrix_rate / self.machine.vector_rate
        return LAYERS[self.kind](self.shape, split, vector_weight=weight, quirks=self.quirks)

    def _layers(self, columns: Columns) -> Array:
        """Return the layers of a stage."""
        return (self.shape.num_layers // columns["pp"]).astype(float)

    def _replicas(self, columns: Columns) -> Array:
        """Return the devices that hold the same weights: in 2D those of the second axis too."""
        return (columns["dp"] * columns["tp2"] if self.kind == "2d" else columns["dp"]).astype(float)

    def _hop(self, candidates: Columns, boundary: Numeric, layer_code: Integers) -> Array:
        """Return the seconds of one message to the next stage."""
        shared = factor(candidates, HOP_KEY)
        pairs = _at(candidates, shared.first, ("pp", "near_pp"))
        hop = self.machine.message(
            num_bytes=_take(boundary, layer_code[shared.first]),
            pp=pairs["pp"],
            near=pairs["near_pp"],
            quirks=self.quirks,
        )
        return _take(hop, shared.code)

    def _exchange(self, candidates: Columns, parameters: Numeric, layer_code: Integers) -> Array:
        """Return the seconds to gather one layer's weights, or to scatter its gradients."""
        shared = factor(candidates, EXCHANGE_KEY)
        group = {name: candidates[name][shared.first] for name in EXCHANGE_KEY}
        near = group["near_dp"] * group["near_tp2"] if self.kind == "2d" else group["near_dp"]
        exchange = self.machine.collective(
            kind="all_gather",
            num_bytes=FP16_BYTES * _take(parameters, layer_code[shared.first]),
            num_ranks=self._replicas(group),
            near=near.astype(float),
            quirks=self.quirks,
        )
        return _take(exchange, shared.code)


def _at(columns: Columns, rows: Integers, names: tuple[str, ...]) -> dict[str, Array]:
    return {name: columns[name][rows].astype(float) for name in names}


def _take(values: Numeric, where: Integers) -> Array:
    return np.asarray(values)[where]
