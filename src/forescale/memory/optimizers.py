"""How many moments an optimizer keeps per parameter, matrices and the rest apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from forescale.graph.layer import embedding_block, head_block, layer_block, mtp_block
from forescale.graph.layout import Layout, split_strategy
from forescale.graph.operator import Parameter, ParameterGroup
from forescale.spec.model import Model
from forescale.spec.strategy import Strategy
from forescale.spec.workload import OptimizerName, Precision

ENDS = ("embedding.", "head.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Elements of moments per parameter, averaged over each group of a model."""

    dense: float
    expert: float


def _muon(parameter: Parameter) -> float:
    """One momentum for hidden matrices; embedding, head and vectors are left to AdamW."""
    hidden = parameter.matrix and not parameter.name.startswith(ENDS)
    return parameter.elements * (1.0 if hidden else 2.0)


def _adafactor(parameter: Parameter) -> float:
    """Row and column sums of matrices (of every expert its own), whole second moments of vectors; no first."""
    if not parameter.matrix:
        return parameter.elements
    rows, columns = parameter.shape[-2:]
    return parameter.elements * (1.0 / rows + 1.0 / columns)


ELEMENTS: Mapping[OptimizerName, Callable[[Parameter], float]] = MappingProxyType(
    {
        "adamw": lambda parameter: 2.0 * parameter.elements,
        "lion": lambda parameter: parameter.elements,
        "sgd": lambda parameter: parameter.elements,
        "muon": _muon,
        "adafactor": _adafactor,
    }
)
"""Elements of moments of one parameter. AdamW: arXiv:1711.05101; Lion: arXiv:2302.06675, Algorithm 2; SGD with
momentum; Muon: Jordan et al. 2024, with AdamW for the rest (arXiv:2502.16982, section 2.2); Adafactor without
momentum: arXiv:1804.04235, section 3."""


@cache
def moments_per_parameter(model: Model, optimizer: OptimizerName) -> Moments:
    """Return the moments that `optimizer` keeps per parameter of `model`."""
    parameters = list(_parameters(model))
    return Moments(
        dense=_average(parameters, "dense", optimizer), expert=_average(parameters, "expert", optimizer)
    )


def _average(
    parameters: list[tuple[Parameter, int]], group: ParameterGroup, optimizer: OptimizerName
) -> float:
    ours = [(parameter, times) for parameter, times in parameters if parameter.group == group]
    elements = sum(parameter.elements * times for parameter, times in ours)
    return (
        sum(ELEMENTS[optimizer](parameter) * times for parameter, times in ours) / elements if ours else 0.0
    )


def _parameters(model: Model) -> Iterable[tuple[Parameter, int]]:
    degrees, choices = split_strategy(Strategy())
    layout = Layout(degrees=degrees, choices=choices, precision=Precision(), seq_len=1.0)
    blocks = [(layer_block(model, kind, layout), model.layers.count(kind)) for kind in model.layer_kinds]
    blocks += [(embedding_block(model, layout), 1), (head_block(model, layout), 1)]
    if model.num_mtp_layers:
        blocks.append((mtp_block(model, layout), model.num_mtp_layers))
    for block, times in blocks:
        for parameter in block.parameters:
            if not (model.tied_embeddings and parameter.name == "head.logits.weight"):
                yield parameter, times
