"""Memory columns of the analysis: bytes on one device.

The analysis prints figures and a legend, not its formulas. What follows reproduces the figures: states in fp32,
a buffer of two gathered layers, the results that MaxText's policies keep plus logits, and a reserve.
"""

from __future__ import annotations

from dataclasses import replace

from forescale.formula import formula
from forescale.graph.counts import count_parameters
from forescale.graph.layer import embedding_block, layer_block
from forescale.graph.layout import Choices, Degrees, Layout, split_strategy
from forescale.graph.operator import Parameter
from forescale.graph.recompute import keep
from forescale.numeric import Numeric
from forescale.presets.almodel.terms import ANALYSIS, Terms
from forescale.presets.preset import StageBytes
from forescale.spec.model import FullAttention, LatentAttention, Layer, Model
from forescale.spec.strategy import Strategy
from forescale.spec.workload import Workload

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
