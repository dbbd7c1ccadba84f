"""How many parameters a model has, from the same tables that shard them."""

from __future__ import annotations

from dataclasses import dataclass

from forescale.graph.layer import embedding_block, head_block, layer_block, mtp_block
from forescale.graph.layout import Layout, split_strategy
from forescale.graph.operator import Parameter
from forescale.spec.model import Model
from forescale.spec.strategy import Strategy
from forescale.spec.workload import Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCount:
    """Whole-model parameter counts (elements), as model cards state them: without multi-token prediction."""

    total: int
    active: int
    """Used by one token: routed experts count top_k / num_experts of their elements."""
    expert: int
    embedding: int
    """Token, position and patch embeddings, and the head where it is not tied."""
    mtp: int
    """Multi-token-prediction layers, beside `total`."""


def count_parameters(model: Model) -> ParameterCount:
    """Count the parameters of `model`: tied weights once, no padding."""
    degrees, choices = split_strategy(Strategy())
    layout = Layout(degrees=degrees, choices=choices, precision=Precision(), seq_len=1.0)
    ends = [*embedding_block(model, layout).parameters, *head_parameters(model, layout)]
    everything: list[tuple[Parameter, int]] = [(parameter, 1) for parameter in ends]
    for kind in model.layer_kinds:
        count = model.layers.count(kind)
        everything += [(parameter, count) for parameter in layer_block(model, kind, layout).parameters]
    mtp = mtp_block(model, layout).parameters if model.num_mtp_layers else ()
    return ParameterCount(
        total=round(sum(parameter.elements * times for parameter, times in everything)),
        active=round(
            sum(parameter.elements * parameter.active_fraction * times for parameter, times in everything)
        ),
        expert=round(
            sum(parameter.elements * times for parameter, times in everything if parameter.group == "expert")
        ),
        embedding=round(sum(parameter.elements for parameter in ends if parameter.matrix)),
        mtp=round(sum(parameter.elements for parameter in mtp)) * model.num_mtp_layers,
    )


def head_parameters(model: Model, layout: Layout) -> tuple[Parameter, ...]:
    """Return the head's parameters that are its own: without the vocabulary matrix when it is tied."""
    parameters = head_block(model, layout).parameters
    if not model.tied_embeddings:
        return parameters
    return tuple(parameter for parameter in parameters if parameter.name != "head.logits.weight")
