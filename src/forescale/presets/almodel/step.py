"""Memory columns, FLOP, volumes and times of a step as the analysis counts them.

The analysis prints figures and a legend, not its formulas. What follows reproduces the figures: on one device states in
fp32, a buffer of two gathered layers, the results that MaxText's policies keep plus logits, and a reserve; products
without a causal discount, what recompute adds, and whole bytes over one rate per kind of message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import cast

import numpy as np
from msgspec import field
from msgspec.structs import replace

from forescale.cost.collectives.algorithms import bus_bytes, passes
from forescale.cost.roofline import peak_rate
from forescale.errors import unsupported_by
from forescale.files import shipped
from forescale.formula import formula, value_of
from forescale.graph.counts import BACKWARD_PER_FORWARD, count_parameters, model_flops, primitive_flops
from forescale.graph.layer import embedding_block, head_block, layer_block
from forescale.graph.operator import Block, Operator, Parameter, Part
from forescale.graph.ops import CollectiveKind
from forescale.graph.recompute import POLICIES, keep, needed
from forescale.graph.sharding import Degrees, ShardingRules, StructuralOptions, split_layout
from forescale.numeric import Numeric, indicator
from forescale.presets.preset import StageBytes
from forescale.spec.attention import FullAttention, LatentAttention
from forescale.spec.cluster import Cluster
from forescale.spec.layout import Layout, Recompute
from forescale.spec.model import Layer, Model, MoeFfn
from forescale.spec.workload import Precision, Workload, num_microbatches
from forescale.struct import Struct
from forescale.units import GB, GIB, parse

ANALYSIS = "ALModel parallelism strategy analysis"
ASSUMPTIONS = "presets/almodel/assumptions"


class StudyQuestion(Struct, frozen=True, kw_only=True):
    """Names of the catalogue, and the batch."""

    model: str
    cluster: str
    devices: int
    seq_len: int
    global_batch_size: int


QUESTION = StudyQuestion(
    model="almodel", cluster="almodel-pod", devices=128, seq_len=4096, global_batch_size=5120
)
"""17.43 B parameters on 128 devices, 5,120 sequences of 4,096 tokens."""


class Quirks(Struct, frozen=True, kw_only=True):
    """True is what reproduces the printed figures, False what was evidently meant."""

    gib_as_gb: bool = True
    """Volumes are counted in units of 2^30 bytes and divided by rates in units of 1e9: 7.4 % too fast."""
    replays_everything: bool = True
    """Recompute runs every product again whose result is not kept: the head, which lies outside the
    rematerialised layers, and the last products of a layer, whose results backward does not need."""
    reduces_over_dp_only: bool = True
    """Gradients are summed over DP and FSDP only; the ranks of CP, and for all but experts those of EP, hold
    other tokens too."""
    scores_shrink_twice: bool = True
    """Scores that save_all keeps are (sequence / CP)² per sequence, though keys and values are gathered whole."""
    gathers_fp32: bool = True
    """Weights are gathered in fp32 although the products take bf16."""

    @classmethod
    def none(cls) -> Quirks:
        """Return the analysis as it was meant."""
        return cls(**{item.name: False for item in fields(cls)})


@formula(unit="s", source=f"{ANALYSIS}, communication tables: volume over measured bandwidth")
def almodel_message_time(*, volume: Numeric, num_ranks: Numeric, bandwidth: Numeric) -> Numeric:
    """Volume over bandwidth, nothing for one rank."""
    return indicator(num_ranks > 1.0) * volume / bandwidth


def listed(rates: Mapping[int, float], num_ranks: Numeric) -> Numeric:
    """Return the bandwidth of the largest listed group that is not larger than `num_ranks`."""
    sizes = np.array(sorted(rates), dtype=np.float64)
    index = np.maximum(np.searchsorted(sizes, value_of(num_ranks), side="right") - 1, 0)
    return cast("Numeric", np.array([rates[int(size)] for size in sizes])[index])


class Terms(Struct, frozen=True, kw_only=True):
    """What the formulas take beside model, layout and batch."""

    name: str
    rates: Mapping[CollectiveKind, Mapping[int, float]]
    """byte/s by collective and group size; no latency."""
    reserve: float
    """Share of everything modelled that is set aside for buffers and temporaries of XLA."""
    overlap: float
    """Share of compute behind which FSDP's messages hide."""
    optimizer_bytes_per_parameter: float
    layer_bytes: float
    """Kept without any recompute: bytes per token, hidden element and layer."""
    score_bytes: float
    """Kept without any recompute: bytes per attention score."""
    quirks: Quirks = field(default_factory=Quirks)


@cache
def measured_terms() -> Terms:
    """Return the terms of the detailed configurations and of the ten slowest: the rates of the hardware table."""
    raw = shipped(ASSUMPTIONS)
    return Terms(
        name="measured",
        rates=_rates(raw["measured"]["bandwidth"] | raw["all_to_all"]["bandwidth"]),
        reserve=raw["reserve"],
        overlap=raw["overlap"],
        optimizer_bytes_per_parameter=float(raw["optimizer_bytes_per_parameter"]),
        layer_bytes=raw["save_all"]["layer_bytes"],
        score_bytes=float(raw["save_all"]["score_bytes"]),
    )


@cache
def first_table_terms() -> Terms:
    """Return the terms of the first table: other rates, and 25 % in reserve."""
    usual, raw = measured_terms(), shipped(ASSUMPTIONS)["first_table"]
    rates = {**usual.rates, **_rates(raw["bandwidth"])}
    return replace(usual, name="first-table", rates=rates, reserve=raw["reserve"])


def _rates(table: Mapping[CollectiveKind, Mapping[str, str]]) -> dict[CollectiveKind, dict[int, float]]:
    return {
        kind: {int(size): parse(rate, "byte/s") for size, rate in row.items()} for kind, row in table.items()
    }


WEIGHT_BYTES = 4.0
PREFETCHED_LAYERS = 2.0
LOGIT_BYTES = 8.0


@formula(unit="1", source=f"{ANALYSIS}, Memory per device: weights, expert and non-expert")
def almodel_device_parameters(
    *, expert: Numeric, other: Numeric, ep: Numeric, fsdp: Numeric, model_ranks: Numeric
) -> Numeric:
    """(expert / EP + other) / (FSDP·TP·PP)."""
    return (expert / ep + other) / (fsdp * model_ranks)


@formula(unit="byte", source=f"{ANALYSIS}, Column Legend: W, O (Adam mu + nu), G")
def almodel_state_bytes(*, parameters: Numeric, copies: Numeric) -> Numeric:
    """Parameters·4·copies: weights and gradients one copy in fp32, the optimizer two."""
    return parameters * WEIGHT_BYTES * copies


@formula(unit="byte", source=f"{ANALYSIS}, Column Legend: FBuf")
def almodel_fsdp_buffer(*, layer_parameters: Numeric, fsdp: Numeric) -> Numeric:
    """2 layers·full layer weight·(FSDP − 1)/FSDP."""
    return PREFETCHED_LAYERS * layer_parameters * WEIGHT_BYTES * (fsdp - 1.0) / fsdp


@formula(unit="byte", source=f"{ANALYSIS}, activations of remat=full less the layers' inputs")
def almodel_logits(*, tokens: Numeric, vocab_size: Numeric, tp: Numeric) -> Numeric:
    """tokens·V·8 / TP: logits in fp32 and as much again."""
    return tokens * vocab_size * LOGIT_BYTES / tp


@formula(unit="byte", source=f"{ANALYSIS}, activations of the ten slowest configurations (save_all)")
def almodel_layer_kept(
    *, tokens: Numeric, hidden_size: Numeric, layer_bytes: Numeric, tp: Numeric
) -> Numeric:
    """tokens·h·bytes / TP: all that a layer keeps beside scores."""
    return tokens * hidden_size * layer_bytes / tp


@formula(unit="byte", source=f"{ANALYSIS}, activations of the ten slowest configurations (save_all)")
def almodel_scores_kept(
    *,
    sequences: Numeric,
    queries: Numeric,
    keys: Numeric,
    num_heads: Numeric,
    score_bytes: Numeric,
    tp: Numeric,
) -> Numeric:
    """sequences·heads·queries·keys·bytes / TP."""
    return sequences * num_heads * queries * keys * score_bytes / tp


@formula(unit="byte", source=f"{ANALYSIS}, Column Legend: Rsv")
def almodel_reserve(*, modelled: Numeric, share: Numeric) -> Numeric:
    """30 % (share)·all that is modelled, for buffers and temporaries of XLA."""
    return share * modelled


def fsdp_of(degrees: Degrees) -> Numeric:
    """Return the FSDP degree of the analysis, which counts the ranks of EP apart from it."""
    return degrees.dp_shard / degrees.ep


def device_memory(model: Model, degrees: Degrees, activations: Numeric, terms: Terms) -> StageBytes:
    """Return the columns W, O, G, FBuf, Act and Rsv of one device that keeps `activations`."""
    counts, fsdp = count_parameters(model), fsdp_of(degrees)
    parameters = almodel_device_parameters(
        expert=float(counts.expert),
        other=float(counts.total - counts.expert),
        ep=degrees.ep,
        fsdp=fsdp,
        model_ranks=degrees.tp * degrees.pp,
    )
    copy = almodel_state_bytes(parameters=parameters, copies=1.0)
    layer = full_layer(model, ep=degrees.ep, tp=degrees.tp)
    modelled = StageBytes(
        num_layers=model.num_layers,
        parameters=parameters,
        weights=copy,
        gradients=copy,
        optimizer=almodel_state_bytes(parameters=parameters, copies=2.0),
        buffers=almodel_fsdp_buffer(layer_parameters=layer, fsdp=fsdp),
        activations=activations,
    )
    return replace(modelled, overhead=almodel_reserve(modelled=modelled.total, share=terms.reserve))


def full_layer(model: Model, *, ep: Numeric = 1.0, tp: Numeric = 1.0) -> Numeric:
    """Return the elements that one gather brings: the largest layer's experts and the largest other block."""
    degrees, choices = split_layout(Layout())
    precision = Workload(seq_len=1, global_batch_size=1).precision
    sharding = ShardingRules(degrees=degrees, choices=choices, precision=precision, seq_len=1.0)
    blocks = [layer_block(model, kind, sharding).parameters for kind in model.layer_kinds]
    experts = max(_elements(block, "expert") for block in blocks)
    others = [*blocks, embedding_block(model, sharding).parameters]
    return experts / (ep * tp) + max(_elements(block, "dense") for block in others) / tp


def _elements(parameters: tuple[Parameter, ...], group: str) -> float:
    return sum(parameter.elements for parameter in parameters if parameter.group == group)


def kept_by_kind(
    model: Model, degrees: Degrees, choices: StructuralOptions, workload: Workload, terms: Terms
) -> tuple[Numeric, ...]:
    """Return what a layer of each kind keeps for one micro-batch, in bytes."""
    sharding = ShardingRules.from_workload(workload, degrees, choices)
    kinds = model.layer_kinds
    if choices.recompute.granularity == "none":
        return tuple(_everything(model, kind, sharding, terms) for kind in kinds)
    return tuple(keep(layer_block(model, kind, sharding), choices.recompute).num_bytes for kind in kinds)


def _everything(model: Model, kind: Layer, sharding: ShardingRules, terms: Terms) -> Numeric:
    """Return what a layer keeps under save_all."""
    degrees = sharding.degrees
    kept = almodel_layer_kept(
        tokens=sharding.tokens(),
        hidden_size=float(model.hidden_size),
        layer_bytes=terms.layer_bytes,
        tp=degrees.tp,
    )
    if kind.attention is None or not kind.attention.score_heads:
        return kept
    queries = sharding.seq_len / degrees.cp
    return kept + almodel_scores_kept(
        sequences=degrees.micro_batch_size,
        queries=queries,
        keys=queries if terms.quirks.scores_shrink_twice else sharding.seq_len,
        num_heads=float(kind.attention.score_heads),
        score_bytes=terms.score_bytes,
        tp=degrees.tp,
    )


def logits_kept(model: Model, degrees: Degrees, workload: Workload) -> Numeric:
    """Return the bytes of logits for one micro-batch on the last stage."""
    tokens = degrees.micro_batch_size * workload.seq_len / degrees.cp
    return almodel_logits(tokens=tokens, vocab_size=float(model.vocab_size), tp=degrees.tp)


class SequenceFlops(Struct, frozen=True, kw_only=True):
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
    values: dict[Part, float] = {}
    for block, times in [*_layers(model, seq_len), (head_block(model, _layout(seq_len)), 1)]:
        for operator in block.operators:
            values[operator.part] = values.get(operator.part, 0.0) + _flops(operator) * times
    whole = sum(values.values())
    return {part: flops / whole for part, flops in values.items()}


def _layout(seq_len: int) -> ShardingRules:
    """Return the layout of one whole sequence on one device."""
    degrees, choices = split_layout(Layout())
    return ShardingRules(degrees=degrees, choices=choices, precision=Precision(), seq_len=float(seq_len))


def _layers(model: Model, seq_len: int) -> list[tuple[Block, int]]:
    """Return the undivided block of each kind of layer, and how many there are."""
    sharding = _layout(seq_len)
    return [(layer_block(model, kind, sharding), model.layers.count(kind)) for kind in model.layer_kinds]


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
    kept = _held(block, recompute)
    again, at_worst = needed(block, kept), needed(block, frozenset({block.input_name}))
    return sum(
        _flops(operator)
        for operator in block.operators
        if operator.name not in again and (operator.name in at_worst or kept.intersection(operator.writes))
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


class Message(Struct, frozen=True, kw_only=True):
    """All messages of one kind in a step: bytes that a device sends, and seconds."""

    volume: Numeric = 0.0
    seconds: Numeric = 0.0

    def __add__(self, other: Message) -> Message:
        """Return both together."""
        return Message(volume=self.volume + other.volume, seconds=self.seconds + other.seconds)


class Step(Struct, frozen=True, kw_only=True):
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


class Clock(Struct, frozen=True, kw_only=True):
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
        local = almodel_state_bytes(parameters=expert / degrees.ep / shards, copies=1.0)
        ranks = degrees.dp_replicate * degrees.cp
        shared = self._sent("all_reduce", memory.gradients - local, ranks * degrees.ep)
        return shared + self._sent("all_reduce", local, ranks)

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
        case None:
            return 0
        case other if other.recurrent:
            return 0
        case other:
            raise unsupported_by("preset almodel", other.description)
