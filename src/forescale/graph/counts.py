"""What a model is, whatever its layout: its parameters, and the FLOP of one of its sequences."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, TypeAlias, get_args

from forescale.graph.layer import embedding_block, head_block, layer_block, mtp_block
from forescale.graph.layout import Layout, split_strategy
from forescale.graph.operator import Block, Parameter
from forescale.graph.ops import AttentionCore, Collective, Elementwise, GroupedGemm, Primitive
from forescale.numeric import Numeric
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


@lru_cache(maxsize=256)
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


Convention: TypeAlias = Literal["masked", "full"]
"""masked: attention counts the query-key pairs that its mask leaves; full: every pair, as many reports do."""
CONVENTIONS: tuple[Convention, Convention] = get_args(Convention)
BACKWARD_PER_FORWARD = 2.0
"""Every product of forward has two in backward: for its input and for its weight (or other operand)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFlops:
    """FLOP that one device executes for one block and micro-batch, without recompute."""

    forward: Numeric
    backward: Numeric
    """With flash attention it includes the scores' second product (5 products for 2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFlops:
    """FLOP of one sequence, forward and backward, nothing recomputed."""

    masked: float
    full: float


def block_flops(block: Block, convention: Convention = "masked") -> BlockFlops:
    """Return the forward and backward FLOP of `block`."""
    forward: Numeric = 0.0
    backward: Numeric = 0.0
    for operator in block.operators:
        for primitive in operator.forward:
            forward = forward + primitive_flops(primitive, convention)
        for primitive in (*operator.backward_input, *operator.backward_weight):
            backward = backward + primitive_flops(primitive, convention)
    return BlockFlops(forward=forward, backward=backward)


def primitive_flops(primitive: Primitive, convention: Convention) -> Numeric:
    """Return the FLOP of one primitive; only products count."""
    if isinstance(primitive, Collective | Elementwise):
        return 0.0
    if convention == "full" and isinstance(primitive, AttentionCore):
        return replace(primitive, pairs=primitive.q_len * primitive.kv_len).flops
    return primitive.flops


@lru_cache(maxsize=256)
def model_flops(model: Model, seq_len: int, *, routed_share: float = 1.0) -> ModelFlops:
    """Return the FLOP of one training sequence: 3 times those of the forward products (PaLM, appendix B).

    `routed_share` of the tokens that choose an expert are not dropped.
    """
    degrees, choices = split_strategy(Strategy())
    plain = replace(model, vocab_multiple=1)
    layout = Layout(degrees=degrees, choices=choices, precision=Precision(), seq_len=float(seq_len))
    blocks = [(layer_block(plain, kind, layout), model.layers.count(kind)) for kind in model.layer_kinds]
    blocks += [(embedding_block(plain, layout), 1), (head_block(plain, layout), 1)]
    if model.num_mtp_layers:
        blocks.append((mtp_block(plain, layout), model.num_mtp_layers))
    scale = 1.0 + BACKWARD_PER_FORWARD
    masked, full = (
        sum(times * _forward(block, convention, routed_share) for block, times in blocks)
        for convention in CONVENTIONS
    )
    return ModelFlops(masked=float(masked) * scale, full=float(full) * scale)


def _forward(block: Block, convention: Convention, routed_share: float) -> Numeric:
    dropped: Numeric = 0.0
    for operator in block.operators:
        for primitive in operator.forward:
            if isinstance(primitive, GroupedGemm):
                dropped = dropped + (1.0 - routed_share) * primitive.flops
    return block_flops(block, convention).forward - dropped
