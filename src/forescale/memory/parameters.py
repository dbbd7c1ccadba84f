"""Parameters of one device: of every block, and of every pipeline stage, before sharding over data-parallel ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from forescale.formula import formula, named
from forescale.graph.layer import VOCABULARY_WEIGHT
from forescale.graph.layout import Degrees
from forescale.graph.operator import Block, Parameter
from forescale.graph.ops import Gemm, GroupedGemm
from forescale.graph.parts import Parts
from forescale.graph.stages import Stages, over_stages
from forescale.numeric import Numeric, larger, summed
from forescale.spec.model import Model

SCORE_BIAS = "moe.score_bias"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """Parameters of one block on one device (elements)."""

    dense: Numeric
    expert: Numeric
    vocabulary: Numeric = 0.0
    """The head's matrix, not in `dense`: one copy with the embedding's where both stand on one stage."""
    products: dict[str, Numeric] = field(default_factory=dict)
    """Elements of the weight of every product: fused weights together, of experts one."""
    vectors: Numeric = 0.0
    """Of `dense`, biases and weights of norms."""
    narrow: Numeric = 0.0
    """Of `dense` and `expert`, weights whose products run in the compute type however narrow."""
    dense_weight: Numeric = 0.0
    """The largest weight of `dense`."""
    expert_weight: Numeric = 0.0
    """The largest of `expert`: that of all of a device's experts."""
    score_biases: float = 0.0
    """Selection biases of its router's experts."""
    tensors: float = 0.0
    """Parameters that the framework holds apart."""
    expert_tensors: float = 0.0
    """Of `tensors`, those that every expert has."""
    num_experts: float = 0.0
    """Experts, each of which has its own of those."""


def holdings(blocks: Parts[Block]) -> Parts[Holding]:
    """Return what one device holds of every block's parameters."""
    return blocks.map(_holding)


def _holding(block: Block) -> Holding:
    vocabulary = [parameter for parameter in block.parameters if parameter.name == VOCABULARY_WEIGHT]
    others = [parameter for parameter in block.parameters if parameter.name != VOCABULARY_WEIGHT]
    experts = [parameter for parameter in others if parameter.group == "expert"]
    return Holding(
        dense=_elements(others, "dense"),
        expert=_elements(others, "expert"),
        vocabulary=_elements(vocabulary, "dense"),
        products=product_elements(block),
        vectors=_elements([each for each in others if not each.matrix], "dense"),
        narrow=_narrow_elements(others),
        dense_weight=_largest(others, "dense"),
        expert_weight=_largest(others, "expert"),
        score_biases=sum(each.elements for each in others if each.name == SCORE_BIAS),
        tensors=float(len(block.parameters)),
        expert_tensors=float(len(experts)),
        num_experts=max((each.shape[0] for each in experts), default=0.0),
    )


def _largest(parameters: Sequence[Parameter], group: str) -> Numeric:
    result: Numeric = 0.0
    for parameter in parameters:
        if parameter.group == group:
            elements = named(parameter.local_elements, parameter.name, unit="parameter")
            result = larger(result, elements / float(parameter.matrices))
    return result


def _narrow_elements(parameters: Sequence[Parameter]) -> Numeric:
    narrow = summed(parameter.local_elements for parameter in parameters if parameter.narrow)
    return named(narrow, "weights of narrow products", unit="parameter")


def _elements(parameters: Sequence[Parameter], group: str) -> Numeric:
    ours = (parameter for parameter in parameters if parameter.group == group)
    return summed(named(each.local_elements, each.name, unit="parameter") for each in ours)


def product_elements(block: Block) -> dict[str, Numeric]:
    """Return the elements of the weight of every product of a block, by operator; of experts those of one."""
    products: dict[str, Numeric] = {}
    for operator in block.operators:
        if operator.panels is not None:  # their gradients are summed over ranks before they are accumulated
            continue
        for primitive in operator.backward_weight:
            if isinstance(primitive, Gemm):
                products[operator.name] = primitive.m * primitive.n
            elif isinstance(primitive, GroupedGemm):
                products[operator.name] = primitive.n * primitive.k
    return products


@formula(
    unit="1", source="Megatron-LM: tied embedding and head share one matrix on one stage, two copies on two"
)
def head_copies(*, pp: Numeric, tied: bool) -> Numeric:
    """1; 0 where tied and both ends stand on one stage."""
    return np.where((np.asarray(pp) == 1) & tied, 0.0, 1.0)


@formula(
    unit="1",
    source="Megatron-LM, GPTModel: the stage of multi-token prediction embeds the tokens after the next",
)
def second_embedding(*, first: Numeric, last: Numeric) -> Numeric:
    """1 on the last stage where the embedding stands elsewhere, else 0."""
    return last * (1.0 - np.minimum(first, 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharded:
    """Parameters of every candidate, and the degrees by which they are sharded."""

    degrees: Degrees
    stages: Stages
    held: Parts[Holding]
    """Parameters of every block on one device."""
    dense: Numeric
    """(stages, candidates) elements of a stage's non-expert parameters on one device."""
    expert: Numeric

    @classmethod
    def of(cls, model: Model, held: Parts[Holding], stages: Stages, degrees: Degrees) -> Sharded:
        """Return the parameters of every stage that holds what of a model."""
        tied, num_mtp = model.tied_embeddings, model.num_mtp_layers
        head = stages.last * held.head.vocabulary * head_copies(pp=degrees.pp, tied=tied)
        dense = over_stages(stages, held, lambda block: block.dense, num_mtp=num_mtp) + head
        if num_mtp:
            apart = second_embedding(first=stages.first, last=stages.last)
            dense = dense + apart * named(held.embedding.dense, "embedding for mtp", unit="parameter")
        expert = over_stages(stages, held, lambda block: block.expert, num_mtp=num_mtp)
        return cls(degrees=degrees, stages=stages, held=held, dense=dense, expert=expert)
