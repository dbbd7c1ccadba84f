"""FLOP, volumes and times of a step as the analysis counts them.

Products without a causal discount, what recompute adds, and whole bytes over one rate per kind of message.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forescale.cost.collectives.algorithms import bus_bytes, passes
from forescale.cost.roofline import peak_rate
from forescale.formula import formula
from forescale.graph.counts import BACKWARD_PER_FORWARD, count_parameters, model_flops, primitive_flops
from forescale.graph.layer import head_block, layer_block
from forescale.graph.layout import Degrees, Layout, split_strategy
from forescale.graph.operator import Block, Operator, Part
from forescale.graph.ops import CollectiveKind
from forescale.graph.recompute import POLICIES, needed
from forescale.numeric import Numeric
from forescale.presets.almodel.memory import (
    ANALYSIS,
    Quirks,
    Terms,
    almodel_message_time,
    almodel_state_bytes,
    fsdp_of,
    listed,
)
from forescale.presets.preset import StageBytes
from forescale.spec.cluster import Cluster
from forescale.spec.model import FullAttention, LatentAttention, Layer, Model, MoeFfn
from forescale.spec.strategy import Recompute, Strategy
from forescale.spec.workload import Precision, Workload, num_microbatches
from forescale.units import GB, GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceFlops:
    """FLOP of one sequence; `forward` and `backward` are useful, `replayed` is what recompute adds."""

    forward: float
    backward: float
    replayed: float

    @property
    def useful(self) -> float:
        """Forward and backward, nothing recomputed."""
        return self.forward + self.backward

    @property
    def overhead(self) -> float:
        """Share of the useful FLOP that recompute adds."""
        return self.replayed / self.useful


def sequence_flops(model: Model, *, seq_len: int, recompute: Recompute, quirks: Quirks) -> SequenceFlops:
    """Return the FLOP of one sequence under a recompute policy."""
    useful = model_flops(model, seq_len).full
    forward = useful / (1.0 + BACKWARD_PER_FORWARD)
    if recompute.granularity == "none":
        replayed = 0.0
    elif quirks.replays_everything:
        replayed = forward - sum(
            _spared(block, recompute) * times for block, times in _layers(model, seq_len)
        )
    else:
        replayed = sum(_replayed(block, recompute) * times for block, times in _layers(model, seq_len))
    return SequenceFlops(forward=forward, backward=useful - forward, replayed=replayed)


def parts_of_compute(model: Model, seq_len: int) -> dict[Part, float]:
    """Return the share of useful FLOP in each part of the model."""
    found: dict[Part, float] = {}
    for block, times in [*_layers(model, seq_len), (_head(model, seq_len), 1)]:
        for operator in block.operators:
            found[operator.part] = found.get(operator.part, 0.0) + _flops(operator) * times
    whole = sum(found.values())
    return {part: flops / whole for part, flops in found.items()}


def _layout(seq_len: int) -> Layout:
    """Return the layout of one whole sequence on one device."""
    degrees, choices = split_strategy(Strategy())
    return Layout(degrees=degrees, choices=choices, precision=Precision(), seq_len=float(seq_len))


def _head(model: Model, seq_len: int) -> Block:
    return head_block(model, _layout(seq_len))


def _layers(model: Model, seq_len: int) -> list[tuple[Block, int]]:
    """Return the undivided block of each kind of layer, and how many there are."""
    layout = _layout(seq_len)
    return [(layer_block(model, kind, layout), model.layers.count(kind)) for kind in model.layer_kinds]


def _held(block: Block, recompute: Recompute) -> frozenset[str]:
    """Return the tensors that a policy keeps whole: the block's input and what the policy lists."""
    shares = {} if recompute.policy is None else POLICIES[recompute.policy]
    listed = {name for name, share in shares.items() if share == 1.0 and name in block.tensors}
    return frozenset({block.input_name, *listed})


def _replayed(block: Block, recompute: Recompute) -> float:
    """Return the FLOP of the products that must run again."""
    again = needed(block, _held(block, recompute))
    return sum(_flops(operator) for operator in block.operators if operator.name in again)


def _spared(block: Block, recompute: Recompute) -> float:
    """Return the FLOP of the products whose result is kept."""
    held = _held(block, recompute)
    again, at_worst = needed(block, held), needed(block, frozenset({block.input_name}))
    return sum(
        _flops(operator)
        for operator in block.operators
        if operator.name not in again and (operator.name in at_worst or held.intersection(operator.writes))
    )


def _flops(operator: Operator) -> float:
    return sum(float(primitive_flops(primitive, "full")) for primitive in operator.forward)


ACTIVATION_BYTES = 2.0
ALL_REDUCES_PER_LAYER = 4.0
"""Tensor parallel: after attention and after the feed-forward, forward and backward."""
TRIPS_OF_A_TOKEN = 4.0
"""Expert parallel: there and back, forward and backward."""
GATHERS = 2.0
"""FSDP: whole weights once for forward and once for backward of every accumulation step."""


@formula(unit="s", source=f"{ANALYSIS}, Column Legend: Comp")
def almodel_compute_time(*, flops: Numeric, num_devices: Numeric, peak_rate: Numeric) -> Numeric:
    """FLOP executed per step / (devices·peak): every product at the peak."""
    return flops / (num_devices * peak_rate)


@formula(unit="s", source=f"{ANALYSIS}, Communication: FSDP gather+RS, total and exposed; overlap=85%")
def almodel_exposed(*, total_s: Numeric, compute_s: Numeric, overlap: Numeric) -> Numeric:
    """max(total − overlap·compute, 0)."""
    return np.maximum(total_s - overlap * compute_s, 0.0)


@formula(unit="s", source=f"{ANALYSIS}, Column Legend: Bub")
def almodel_bubble(*, compute_s: Numeric, pp: Numeric, repeats: Numeric, accumulation: Numeric) -> Numeric:
    """compute·(PP − 1)/(repeats·GA): (PP − 1)/(repeats·GA + PP − 1) of compute and bubble together."""
    return compute_s * (pp - 1.0) / (repeats * accumulation)


@formula(unit="byte", source=f"{ANALYSIS}, Column Legend: Opt (28B/param)")
def almodel_optimizer_bytes(*, parameters: Numeric, bytes_per_parameter: Numeric) -> Numeric:
    """parameters·28."""
    return parameters * bytes_per_parameter


@formula(unit="byte", source=f"{ANALYSIS}, Communication: CP all-gather (KV)")
def almodel_keys_and_values(*, sequences: Numeric, seq_len: Numeric, width: Numeric, tp: Numeric) -> Numeric:
    """sequences·s·(key and value width)·2 / TP: those of all CP ranks, of one softmax layer."""
    return sequences * seq_len * width * ACTIVATION_BYTES / tp


@formula(unit="byte", source=f"{ANALYSIS}, Column Legend: EP")
def almodel_routed_bytes(*, tokens: Numeric, top_k: Numeric, width: Numeric) -> Numeric:
    """tokens·top_k·width·2: one trip of all routed copies of a layer."""
    return tokens * top_k * width * ACTIVATION_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """All messages of one kind in a step: bytes that a device sends, and seconds."""

    volume: Numeric = 0.0
    seconds: Numeric = 0.0

    def __add__(self, other: Message) -> Message:
        """Return both together."""
        return Message(volume=self.volume + other.volume, seconds=self.seconds + other.seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Times of one step in seconds, and the messages behind them."""

    compute: Numeric
    tp: Message
    ep: Message
    fsdp: Message
    """All of it; `fsdp_exposed` is what compute does not hide."""
    fsdp_exposed: Numeric
    dp: Message
    cp: Message
    pp: Message
    """Hidden entirely."""
    bubble: Numeric
    optimizer: Message
    """HBM traffic of the update."""

    @property
    def communication(self) -> Numeric:
        """Exposed communication."""
        return self.tp.seconds + self.ep.seconds + self.fsdp_exposed + self.dp.seconds + self.cp.seconds

    @property
    def total(self) -> Numeric:
        """Seconds of the step."""
        return self.compute + self.communication + self.bubble + self.optimizer.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Times of layouts: one, or one per candidate."""

    model: Model
    cluster: Cluster
    workload: Workload
    terms: Terms

    def step(self, degrees: Degrees, memory: StageBytes, flops: SequenceFlops) -> Step:
        """Return the step of layouts with these columns of memory and FLOP per sequence."""
        batch = float(self.workload.global_batch_size)
        accumulation = num_microbatches(
            global_batch_size=batch, dp=degrees.dp, micro_batch_size=degrees.micro_batch_size
        )
        compute = almodel_compute_time(
            flops=(flops.useful + flops.replayed) * batch,
            num_devices=float(self.cluster.num_devices),
            peak_rate=peak_rate(self.cluster.device, self.workload.precision.compute),
        )
        fsdp = self._fsdp(degrees, memory, accumulation)
        update = almodel_optimizer_bytes(
            parameters=memory.parameters, bytes_per_parameter=self.terms.optimizer_bytes_per_parameter
        )
        return Step(
            compute=compute,
            tp=self._tp(degrees, accumulation),
            ep=self._ep(degrees, accumulation),
            fsdp=fsdp,
            fsdp_exposed=almodel_exposed(total_s=fsdp.seconds, compute_s=compute, overlap=self.terms.overlap),
            dp=self._dp(degrees, memory),
            cp=self._cp(degrees, accumulation),
            pp=self._pp(degrees, accumulation),
            bubble=almodel_bubble(
                compute_s=compute, pp=degrees.pp, repeats=degrees.vpp, accumulation=accumulation
            ),
            optimizer=Message(volume=update, seconds=update * self._unit / self.cluster.device.hbm_bandwidth),
        )

    @property
    def _unit(self) -> float:
        """What a byte of volume weighs against a rate: GiB are divided by GB/s, unless that is put right."""
        return GB / GIB if self.terms.quirks.gib_as_gb else 1.0

    def _sent(self, kind: CollectiveKind, num_bytes: Numeric, ranks: Numeric) -> Message:
        """Return a collective of `num_bytes` in all over a group."""
        volume = bus_bytes(num_bytes=num_bytes, num_ranks=ranks, passes=passes(kind))
        bandwidth = listed(self.terms.rates[kind], ranks)
        seconds = almodel_message_time(volume=volume * self._unit, num_ranks=ranks, bandwidth=bandwidth)
        return Message(volume=volume, seconds=seconds)

    def _fsdp(self, degrees: Degrees, memory: StageBytes, accumulation: Numeric) -> Message:
        """Return two gathers of weights and one scatter of gradients for every accumulation step."""
        fsdp = fsdp_of(degrees)
        whole = memory.weights * fsdp * accumulation
        narrow = 1.0 if self.terms.quirks.gathers_fp32 else ACTIVATION_BYTES / 4.0
        gathers = self._sent("all_gather", GATHERS * narrow * whole, fsdp)
        return gathers + self._sent("reduce_scatter", whole, fsdp)

    def _dp(self, degrees: Degrees, memory: StageBytes) -> Message:
        """Return one all-reduce of the gradients that a device holds."""
        if self.terms.quirks.reduces_over_dp_only:
            return self._sent("all_reduce", memory.gradients, degrees.dp_replicate)
        expert = float(count_parameters(self.model).expert)
        shards = fsdp_of(degrees) * degrees.tp * degrees.pp
        own = almodel_state_bytes(parameters=expert / degrees.ep / shards, copies=1.0)
        ranks = degrees.dp_replicate * degrees.cp
        shared = self._sent("all_reduce", memory.gradients - own, ranks * degrees.ep)
        return shared + self._sent("all_reduce", own, ranks)

    def _cp(self, degrees: Degrees, accumulation: Numeric) -> Message:
        """Return a gather of keys and values and a scatter of their gradients for every softmax layer."""
        whole = almodel_keys_and_values(
            sequences=degrees.micro_batch_size * accumulation,
            seq_len=float(self.workload.seq_len),
            width=float(sum(_key_value_width(kind) for kind in self.model.layers)),
            tp=degrees.tp * degrees.pp,
        )
        return self._sent("all_gather", whole, degrees.cp) + self._sent("reduce_scatter", whole, degrees.cp)

    def _ep(self, degrees: Degrees, accumulation: Numeric) -> Message:
        """Return every routed copy sent four times."""
        copies = sum(kind.ffn.top_k for kind in self.model.layers if isinstance(kind.ffn, MoeFfn))
        width = float(self.model.hidden_size)
        tokens = self._tokens(degrees) * accumulation / degrees.pp
        routed = almodel_routed_bytes(tokens=tokens, top_k=float(copies), width=width)
        return self._sent("all_to_all", TRIPS_OF_A_TOKEN * routed, degrees.ep)

    def _tp(self, degrees: Degrees, accumulation: Numeric) -> Message:
        """Return four all-reduces per layer of a micro-batch's activations."""
        layers = self.model.num_layers / degrees.pp
        tokens = self._tokens(degrees) * accumulation
        moved = ALL_REDUCES_PER_LAYER * layers * tokens * self.model.hidden_size * ACTIVATION_BYTES
        return self._sent("all_reduce", moved, degrees.tp)

    def _pp(self, degrees: Degrees, accumulation: Numeric) -> Message:
        """Return what a stage sends on, forward and backward; all of it hidden."""
        moved = 2.0 * self._tokens(degrees) * accumulation * self.model.hidden_size * ACTIVATION_BYTES
        return Message(volume=moved * np.minimum(degrees.pp - 1.0, 1.0))

    def _tokens(self, degrees: Degrees) -> Numeric:
        return degrees.micro_batch_size * self.workload.seq_len / degrees.cp


def _key_value_width(kind: Layer) -> int:
    """Return the width of keys and values of a softmax layer; rope's shared part of latent ones is not counted."""
    match kind.attention:
        case LatentAttention(num_heads=heads, qk_nope_head_dim=key, v_head_dim=value):
            return heads * (key + value)
        case FullAttention(num_kv_heads=heads, head_dim=width):
            return 2 * heads * width
        case _:
            return 0
