"""Memory and step time of candidates: what few dimensions decide is priced once and gathered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import numpy as np

from forescale.formula import Term, named, total, value_of
from forescale.memory.in_flight import in_flight, saved_bytes
from forescale.memory.states import gradient_bytes, optimizer_bytes, weight_bytes
from forescale.numeric import Array, Numeric
from forescale.presets.subramanian2024.formulas import (
    FP16_BYTES,
    OPTIMIZER_BYTES,
    exposed_weight_exchange_time,
    memory_bound_time,
    operation_time,
    stage_bubble_time,
    stage_exchange_time,
    stage_work_time,
    summa_exposed_time,
)
from forescale.presets.subramanian2024.layers import (
    Layer,
    Message,
    Operation,
    Quirks,
    Shape,
    Split,
    Work,
    layer_1d,
    layer_2d,
    layer_summa,
)
from forescale.presets.subramanian2024.machine import Columns, Integers, Machine
from forescale.question import TensorParallel
from forescale.struct import Struct


class LayerTime(Struct, frozen=True, kw_only=True):
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


_KINDS = ("compute", "memory beyond compute", "exposed messages")


def price_layer(layer: Layer, split: Split, *, machine: Machine, quirks: Quirks) -> LayerTime:
    """Return the times of `layer` on `machine`."""
    pricer = _Pricer(machine=machine, split=split, quirks=quirks, known={})
    forward = [pricer.times(operation, operation.forward) for operation in layer]
    backward = [pricer.times(operation, operation.backward) for operation in layer]
    labels = [f"{item.name}, {way}" for way in ("forward", "backward") for item in layer]
    compute, memory, tensor = (
        total(dict(zip(labels, parts, strict=True)), name=name, unit="s")
        for name, parts in zip(_KINDS, zip(*forward, *backward, strict=True), strict=True)
    )
    return LayerTime(
        forward_s=sum(sum(parts) for parts in forward),
        backward_s=sum(sum(parts) for parts in backward),
        compute_s=compute,
        memory_s=memory,
        tensor_s=tensor,
        flops=sum(operation.forward.flops + operation.backward.flops for operation in layer),
    )


class _Pricer(Struct, frozen=True, kw_only=True):
    machine: Machine
    split: Split
    quirks: Quirks
    known: dict[Message, Numeric]

    def times(self, operation: Operation, work: Work) -> tuple[Numeric, Numeric, Numeric]:
        """Return seconds of compute, of memory beyond compute, and of exposed messages."""
        machine = self.machine
        rate = machine.matrix_rate if operation.on_matrix_units else machine.vector_rate
        compute = operation_time(
            flops=work.flops,
            rate=rate,
            efficiency=machine.compute_efficiency,
            latency=machine.operation_latency,
        )
        memory = memory_bound_time(
            num_bytes=work.num_bytes, bandwidth=machine.hbm_bandwidth, compute_time=compute
        )
        return compute, memory, self._exposed(operation, work, compute + memory)

    def _exposed(self, operation: Operation, work: Work, work_time: Numeric) -> Numeric:
        if operation.panels is None:
            return sum((self._seconds(message, 1.0) for message in work.messages), 0.0)
        panel_time = sum((self._seconds(message, operation.panels) for message in work.messages), 0.0)
        return summa_exposed_time(panel_time=panel_time, panels=operation.panels, work_time=work_time)

    def _seconds(self, message: Message, panels: Numeric) -> Numeric:
        """Return the seconds of a message, or of one of its panels."""
        if message not in self.known:
            self.known[message] = self.machine.collective(
                kind=message.kind,
                num_bytes=message.num_bytes / panels,
                num_ranks=getattr(self.split, message.axis),
                near=getattr(self.split, f"near_{message.axis}"),
                quirks=self.quirks,
            )
        return self.known[message]


class Memory(Struct, frozen=True, kw_only=True):
    """Bytes on one device: nothing for buffers, fragments or the runtime."""

    weights: Numeric
    gradients: Numeric
    optimizer: Numeric
    activations: Numeric

    @property
    def total(self) -> Numeric:
        """All parts together."""
        return self.weights + self.gradients + self.optimizer + self.activations


class Factor(Struct, frozen=True, kw_only=True):
    """Which candidates share a value: `code` of each candidate, `first` candidate of each code."""

    code: Integers
    first: Integers


MOST_CODES = 2**16
"""Codes of combinations that are distinguished before those that do not occur are left out."""


def factor(columns: Columns, names: Sequence[str]) -> Factor:
    """Return the distinct combinations of the named columns of non-negative integers."""
    wholes = [_whole(columns[name]) for name in names]
    size, code = 1, np.zeros_like(wholes[0])
    for column in wholes:
        more = int(column.max()) + 1
        if size * more > MOST_CODES:
            size, code = _ranks(code)
        size, code = size * more, code * more + column
    size, code = _ranks(code)
    first = np.empty(size, dtype=np.int64)
    first[code[::-1]] = np.arange(len(code))[::-1]
    return Factor(code=code, first=first)


def _ranks(values: Integers) -> tuple[int, Integers]:
    """Return how many distinct values there are, and the rank of each among them."""
    present = np.zeros(int(values.max()) + 1, dtype=bool)
    present[values] = True
    ranks = np.cumsum(present) - 1
    return int(ranks[-1]) + 1, ranks[values]


LAYERS: Mapping[TensorParallel, Callable[..., Layer]] = {"1d": layer_1d, "2d": layer_2d, "summa": layer_summa}
"""Operation list of each strategy."""
HELD_KEY = ("tp1", "tp2", "micro_batch_size")
"""What weights and saved activations of a layer depend on."""
LAYER_KEY = (*HELD_KEY, "panels", "near_tp1", "near_tp2")
"""What the time of a layer depends on."""
HOP_KEY = (*HELD_KEY, "pp", "near_pp")
"""What a message between stages depends on."""
EXCHANGE_KEY = ("tp1", "tp2", "dp", "near_tp2", "near_dp")
"""What the exchange of gradients and weights depends on."""


class StepTime(Struct, frozen=True, kw_only=True):
    """Seconds of one step."""

    work: Numeric
    """All layers and micro-batches, their exposed messages included."""
    pipeline: Numeric
    data: Numeric
    bubble: Numeric
    layer: LayerTime
    """Of one layer and micro-batch: distinct times, of which `layer_code` selects each candidate's."""
    layer_code: Integers

    def take(self, rows: Integers) -> StepTime:
        """Return the seconds of some candidates."""
        parts = {name: _take(getattr(self, name), rows) for name in ("work", "pipeline", "data", "bubble")}
        return StepTime(layer=self.layer, layer_code=self.layer_code[rows], **parts)

    def layer_time(self) -> LayerTime:
        """Return what one layer and micro-batch of every candidate take, in parts."""
        times = {name: getattr(self.layer, name) for name in LayerTime.__dataclass_fields__}
        size = np.shape(value_of(times["forward_s"]))
        return LayerTime(
            **{name: np.broadcast_to(value, size)[self.layer_code] for name, value in times.items()}
        )

    @property
    def total(self) -> Numeric:
        """All parts together."""
        return self.work + self.pipeline + self.data + self.bubble


class Analysis(Struct, frozen=True, kw_only=True):
    """What is the same for all candidates."""

    shape: Shape
    machine: Machine
    kind: TensorParallel
    quirks: Quirks

    def memory(self, rows: Columns, *, stage: Numeric = 0.0) -> Memory:
        """Return the memory of every row of degrees on one stage; placement and panels do not matter.

        The first stage, whose memory the paper states, is the fullest.
        """
        shared = factor(rows, HELD_KEY)
        one = {"panels": 1.0, "near_tp1": 1.0, "near_tp2": 1.0}
        layer = self.layer(Split(**_at(rows, shared.first, HELD_KEY), **one))
        layers, pp = self.layers(rows), floats(rows["pp"])
        states: dict[str, Numeric] = {
            "parameters": _take(_summed(layer, "parameters", "parameter"), shared.code) * layers,
            "shards": self._replicas(rows),
            "zero": 1.0,
        }
        microbatches = floats(rows["num_microbatches"])
        return Memory(
            weights=weight_bytes(element_bytes=FP16_BYTES, **states),
            gradients=gradient_bytes(element_bytes=FP16_BYTES, **states),
            optimizer=optimizer_bytes(element_bytes=OPTIMIZER_BYTES, **states),
            activations=saved_bytes(
                per_microbatch=_take(_summed(layer, "saved_bytes", "byte"), shared.code) * layers,
                microbatches=in_flight(stage=stage, pp=pp, vpp=1.0, num_microbatches=microbatches),
            ),
        )

    def step_time(self, candidates: Columns) -> StepTime:
        """Return the seconds of one step of every candidate."""
        shared = factor(candidates, LAYER_KEY)
        split = Split(**_at(candidates, shared.first, LAYER_KEY))
        layer = self.layer(split)
        time = price_layer(layer, split, machine=self.machine, quirks=self.quirks)
        forward, backward = _take(time.forward_s, shared.code), _take(time.backward_s, shared.code)
        layers, microbatches = self.layers(candidates), floats(candidates["num_microbatches"])
        work = stage_work_time(layer_time=forward + backward, num_microbatches=microbatches, layers=layers)
        hop = self._hop(candidates, layer[-1].saved_bytes, shared.code)
        pipeline = stage_exchange_time(hop_time=hop, num_microbatches=microbatches)
        exchange = self._exchange(candidates, _summed(layer, "parameters", "parameter"), shared.code)
        gather = exposed_weight_exchange_time(exchange_time=exchange, layer_time=forward, layers=layers)
        scatter = exposed_weight_exchange_time(exchange_time=exchange, layer_time=backward, layers=layers)
        bubble = stage_bubble_time(
            pp=floats(candidates["pp"]), busy_time=work + pipeline, num_microbatches=microbatches
        )
        return StepTime(
            work=work,
            pipeline=pipeline,
            data=gather + scatter,
            bubble=bubble,
            layer=time,
            layer_code=shared.code,
        )

    def layer_time(self, candidates: Columns) -> LayerTime:
        """Return what one layer and micro-batch of every candidate take, in parts."""
        split = Split(**{name: floats(candidates[name]) for name in LAYER_KEY})
        return price_layer(self.layer(split), split, machine=self.machine, quirks=self.quirks)

    def layer(self, split: Split) -> Layer:
        """Return the operations of one layer."""
        weight = self.machine.matrix_rate / self.machine.vector_rate
        return LAYERS[self.kind](self.shape, split, vector_weight=weight, quirks=self.quirks)

    def layers(self, columns: Columns) -> Array:
        """Return the layers of a stage."""
        return cast(
            "Array", named(floats(self.shape.num_layers // columns["pp"]), "layers of a stage", unit="1")
        )

    def _replicas(self, columns: Columns) -> Array:
        """Return the devices that hold the same weights: in 2D those of the second axis too."""
        return floats(columns["dp"] * columns["tp2"] if self.kind == "2d" else columns["dp"])

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
            near=floats(near),
            quirks=self.quirks,
        )
        return _take(exchange, shared.code)


def _summed(layer: Layer, what: str, unit: str) -> Numeric:
    """Return the sum of a field over the operations of a layer."""
    parts = {operation.name: getattr(operation, what) for operation in layer}
    present = {name: part for name, part in parts.items() if isinstance(part, Term) or np.any(part)}
    return total(present, name=f"{what} of a layer", unit=unit)


def _at(columns: Columns, rows: Integers, names: tuple[str, ...]) -> dict[str, Array]:
    return {name: floats(columns[name][rows]) for name in names}


def _take(values: Numeric, where: Integers) -> Array:
    return values[where] if isinstance(values, Term) else np.asarray(values)[where]


def _whole(column: Integers) -> Integers:
    """Return a column's plain integers, recorded or not."""
    return np.asarray(value_of(column)).astype(np.int64, copy=False)


def floats(column: Integers) -> Array:
    """Return a column as floating-point numbers; terms are already."""
    return column if isinstance(column, Term) else column.astype(float)
