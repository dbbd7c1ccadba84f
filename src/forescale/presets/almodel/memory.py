"""Memory columns of the analysis: bytes on one device.

The analysis prints figures and a legend, not its formulas. What follows reproduces the figures: states in fp32,
a buffer of two gathered layers, the results that MaxText's policies keep plus logits, and a reserve.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib import resources
from typing import Any, cast

import numpy as np

from forescale.formula import formula, value_of
from forescale.graph.counts import count_parameters
from forescale.graph.layer import embedding_block, layer_block
from forescale.graph.layout import Choices, Degrees, Layout, split_strategy
from forescale.graph.operator import Parameter
from forescale.graph.ops import CollectiveKind
from forescale.graph.recompute import keep
from forescale.numeric import Numeric, indicator
from forescale.presets.preset import StageBytes
from forescale.spec.model import FullAttention, LatentAttention, Layer, Model
from forescale.spec.strategy import Strategy
from forescale.spec.workload import Workload
from forescale.units import parse

ANALYSIS = "ALModel parallelism strategy analysis"


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyQuestion:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Quirks:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
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
    raw = _assumptions()
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
    usual, raw = measured_terms(), _assumptions()["first_table"]
    rates = {**usual.rates, **_rates(raw["bandwidth"])}
    return replace(usual, name="first-table", rates=rates, reserve=raw["reserve"])


def _assumptions() -> Any:  # noqa: ANN401
    path = resources.files("forescale.presets.almodel") / "assumptions.json"
    return json.loads(path.read_text(encoding="utf-8"))


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
    degrees, choices = split_strategy(Strategy())
    precision = Workload(seq_len=1, global_batch_size=1).precision
    layout = Layout(degrees=degrees, choices=choices, precision=precision, seq_len=1.0)
    blocks = [layer_block(model, kind, layout).parameters for kind in model.layer_kinds]
    experts = max(_elements(block, "expert") for block in blocks)
    others = [*blocks, embedding_block(model, layout).parameters]
    return experts / (ep * tp) + max(_elements(block, "dense") for block in others) / tp


def _elements(parameters: tuple[Parameter, ...], group: str) -> float:
    return sum(parameter.elements for parameter in parameters if parameter.group == group)


def kept_by_kind(
    model: Model, degrees: Degrees, choices: Choices, workload: Workload, terms: Terms
) -> tuple[Numeric, ...]:
    """Return what a layer of each kind keeps for one micro-batch, in bytes."""
    layout = Layout.of(workload, degrees, choices)
    kinds = model.layer_kinds
    if choices.recompute.granularity == "none":
        return tuple(_everything(model, kind, layout, terms) for kind in kinds)
    return tuple(keep(layer_block(model, kind, layout), choices.recompute).num_bytes for kind in kinds)


def _everything(model: Model, kind: Layer, layout: Layout, terms: Terms) -> Numeric:
    """Return what a layer keeps under save_all."""
    degrees = layout.degrees
    kept = almodel_layer_kept(
        tokens=layout.tokens(),
        hidden_size=float(model.hidden_size),
        layer_bytes=terms.layer_bytes,
        tp=degrees.tp,
    )
    if not isinstance(kind.attention, FullAttention | LatentAttention):
        return kept
    queries = layout.seq_len / degrees.cp
    return kept + almodel_scores_kept(
        sequences=degrees.micro_batch_size,
        queries=queries,
        keys=queries if terms.quirks.scores_shrink_twice else layout.seq_len,
        num_heads=float(kind.attention.num_heads),
        score_bytes=terms.score_bytes,
        tp=degrees.tp,
    )


def logits_kept(model: Model, degrees: Degrees, workload: Workload) -> Numeric:
    """Return the bytes of logits for one micro-batch on the last stage."""
    tokens = degrees.micro_batch_size * workload.seq_len / degrees.cp
    return almodel_logits(tokens=tokens, vocab_size=float(model.vocab_size), tp=degrees.tp)
