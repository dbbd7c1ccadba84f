"""What a model is, whatever its layout: its parameters, and the FLOP of one of its sequences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Literal, TypeAlias, get_args

from msgspec.structs import replace

from forescale.formula import formula
from forescale.graph.layer import VOCABULARY_WEIGHT
from forescale.graph.operator import Block, Operator, Parameter
from forescale.graph.ops import AttentionCore, Collective, EagerKernel, Elementwise, GroupedGemm, Primitive
from forescale.graph.per_block import build_blocks
from forescale.graph.sharding import ShardingRules, split_layout
from forescale.numeric import Numeric, summed
from forescale.spec.layout import Layout
from forescale.spec.model import Images, Model
from forescale.spec.workload import Precision, Trainable
from forescale.struct import Struct

EVERYTHING = Trainable()
ONE_IMAGE = Images()
CountKind: TypeAlias = Literal["total", "active", "trained"]
"""What parameters are counted as."""
TOWER = ("vision", "projector")
"""How the names of a tower's blocks begin."""


class ParameterCount(Struct, frozen=True, kw_only=True):
    """Whole-model parameter counts (elements), as model cards state them: without multi-token prediction."""

    total: int
    active: int
    """Used by one token of text: routed experts count top_k / num_experts of their elements, a tower none."""
    expert: int
    embedding: int
    """Token, position and patch embeddings of the language model, and the head where it is not tied."""
    mtp: int
    """Multi-token-prediction layers, beside `total`."""
    vision: int
    """Of `total`, a vision tower and its projector."""


def whole_blocks(
    model: Model,
    seq_len: float = 1.0,
    document_len: float | None = None,
    trainable: Trainable = EVERYTHING,
    images: Images = ONE_IMAGE,
) -> list[tuple[Block, int]]:
    """Return the blocks of a model that nothing splits, and how often it has each: layers by kind, ends, the rest."""
    precision = Precision()
    if model.traces:
        from forescale.graph.traced import traced_precision

        precision = traced_precision(model)
    degrees, choices = split_layout(Layout())
    sharding = ShardingRules(
        degrees=degrees,
        choices=choices,
        precision=precision,
        seq_len=seq_len,
        document_len=document_len,
        trainable=trainable,
        images=images,
    )
    parts = build_blocks(model, sharding)
    layers = (model.layers.count(kind) for kind in model.layer_kinds)
    mtp = () if parts.mtp is None else (model.num_mtp_layers,)
    return list(zip(parts.all(), (*layers, 1, 1, *mtp, *(times for times, _ in parts.vision)), strict=True))


def own_parameters(model: Model, trainable: Trainable = EVERYTHING) -> list[tuple[Block, Parameter, int]]:
    """Return the parameters of a model by block, each with how often it has them; tied weights are the embedding's."""
    return [
        (block, parameter, times)
        for block, times in whole_blocks(model, trainable=trainable)
        for parameter in block.parameters
        if not (model.tied_embeddings and parameter.name == VOCABULARY_WEIGHT)
    ]


def share_of(count: CountKind, block: Block, parameter: Parameter) -> float:
    """Return the share of a parameter that counts as total, active or trained: none of multi-token prediction does."""
    if block.name == "mtp" or (count == "trained" and parameter.frozen):
        return 0.0
    if count == "active":
        return 0.0 if block.name.startswith(TOWER) else parameter.active_fraction
    return 1.0


@lru_cache(maxsize=256)
def count_parameters(model: Model) -> ParameterCount:
    """Count the parameters of `model`: tied weights once, no padding."""
    local = own_parameters(model)
    main = [(parameter, times) for block, parameter, times in local if block.name != "mtp"]
    ends = [parameter for block, parameter, _ in local if block.name in ("embedding", "head")]
    mtp = [parameter for block, parameter, _ in local if block.name == "mtp"]
    towers = [(item, times) for block, item, times in local if block.name.startswith(TOWER)]
    return ParameterCount(
        total=_counted("total", local),
        active=_counted("active", local),
        expert=round(sum(item.elements * times for item, times in main if item.group == "expert")),
        embedding=round(sum(parameter.elements for parameter in ends if parameter.matrix)),
        mtp=round(sum(parameter.elements for parameter in mtp)) * model.num_mtp_layers,
        vision=round(sum(item.elements * times for item, times in towers)),
    )


@lru_cache(maxsize=256)
def count_trained(model: Model, trainable: Trainable) -> int:
    """Return the number of trained parameters, adapters included; without multi-token prediction, as in the total."""
    return _counted("trained", own_parameters(model, trainable))


def count_saved(model: Model, trainable: Trainable) -> int:
    """Return the parameters that a checkpoint holds with their states: adapters alone, or else the whole model."""
    return count_parameters(model).total if not trainable.lora_rank else count_trained(model, trainable)


def _counted(count: CountKind, blocks: Sequence[tuple[Block, Parameter, int]]) -> int:
    return round(sum(item.elements * share_of(count, block, item) * times for block, item, times in blocks))


Convention: TypeAlias = Literal["masked", "full"]
"""masked: attention counts the query-key pairs that its mask leaves; full: every pair, as many reports do."""
CONVENTIONS: tuple[Convention, Convention] = get_args(Convention)
BACKWARD_PER_FORWARD = 2.0
"""Every product of forward has two in backward: for its input and for its weight (or other operand)."""


class BlockFlops(Struct, frozen=True, kw_only=True):
    """FLOP of one block and micro-batch on one device by a convention, without recompute."""

    forward: Numeric
    backward: Numeric
    """With flash attention it includes the scores' second product (5 products for 2)."""


class ModelFlops(Struct, frozen=True, kw_only=True):
    """FLOP of one sequence, forward and backward, nothing recomputed."""

    masked: float
    full: float


def block_flops(block: Block, convention: Convention = "masked") -> BlockFlops:
    """Return the forward and backward FLOP of `block`."""
    forward = (item for operator in block.operators for item in operator.forward)
    backward = (
        item for operator in block.operators for item in (*operator.backward_input, *operator.backward_weight)
    )
    return BlockFlops(
        forward=summed(primitive_flops(primitive, convention) for primitive in forward),
        backward=summed(primitive_flops(primitive, convention) for primitive in backward),
    )


def primitive_flops(primitive: Primitive, convention: Convention) -> Numeric:
    """Return the FLOP of one primitive; only products count."""
    if isinstance(primitive, Collective | EagerKernel | Elementwise):
        return 0.0
    if convention == "full" and isinstance(primitive, AttentionCore):
        return replace(primitive, pairs=primitive.q_len * primitive.kv_len).flops
    return primitive.flops


def executed_flops(primitive: Primitive) -> Numeric:
    """Return the FLOP that the kernel of one primitive executes, on the mean rank."""
    if isinstance(primitive, AttentionCore):
        return primitive.executed_flops
    return primitive_flops(primitive, "masked")


@formula(unit="FLOP", source="Kaplan et al. 2020, arXiv:2001.08361, section 2.1: C = 6 N D approximately")
def flops_of_parameters(*, parameters: Numeric, tokens: Numeric) -> Numeric:
    """Return the FLOP of training on tokens as counted from the parameters alone, without attention scores."""
    return 6.0 * parameters * tokens


@lru_cache(maxsize=256)
def model_flops(
    model: Model,
    seq_len: int,
    *,
    routed_share: float = 1.0,
    document_len: float | None = None,
    trainable: Trainable = EVERYTHING,
    images: Images = ONE_IMAGE,
) -> ModelFlops:
    """Return the FLOP of one training sequence: 3 times those of the forward products (PaLM, appendix B).

    A product by a frozen weight has no second one in backward, and one by pixels none for them. `routed_share` of the
    tokens that choose an expert are not dropped; of the documents of `document_len` of a sequence attention sees one.
    """
    blocks = whole_blocks(replace(model, vocab_multiple=1), float(seq_len), document_len, trainable, images)
    masked, full = (_of_blocks(blocks, convention, routed_share) for convention in CONVENTIONS)
    return ModelFlops(masked=masked, full=full)


def flops_by_part(
    model: Model,
    seq_len: int,
    convention: Convention = "masked",
    *,
    routed_share: float = 1.0,
    document_len: float | None = None,
    trainable: Trainable = EVERYTHING,
    images: Images = ONE_IMAGE,
) -> dict[str, float]:
    """Return the FLOP of `model_flops` by part of the model, scores of attention apart from its projections."""
    blocks = whole_blocks(replace(model, vocab_multiple=1), float(seq_len), document_len, trainable, images)
    names = dict.fromkeys(_part_of(operator) for block, _ in blocks for operator in block.operators)
    result = {name: _of_blocks(_some(blocks, name), convention, routed_share) for name in names}
    return {name: flops for name, flops in result.items() if flops}


SCORES = "attention scores"
"""Products of queries with keys, and of their weights with values."""


def _part_of(operator: Operator) -> str:
    if any(isinstance(primitive, AttentionCore) for primitive in operator.forward):
        return SCORES
    return "attention projections" if operator.part == "attention" else operator.part


def _some(blocks: Iterable[tuple[Block, int]], part: str) -> list[tuple[Block, int]]:
    """Return blocks with the operators of one part alone."""
    return [
        (replace(block, operators=tuple(item for item in block.operators if _part_of(item) == part)), times)
        for block, times in blocks
    ]


def _of_blocks(blocks: Iterable[tuple[Block, int]], convention: Convention, routed_share: float) -> float:
    """Return the FLOP of one sequence through blocks that occur so often, forward and backward."""
    every = [*blocks]
    forward = float(sum(times * _forward(block, convention, routed_share) for block, times in every))
    spared = sum(times * _spared(block, convention, routed_share) for block, times in every)
    return forward * (1.0 + BACKWARD_PER_FORWARD) - spared


def _forward(block: Block, convention: Convention, routed_share: float) -> Numeric:
    routed = (
        (1.0 - routed_share) * primitive.flops
        for operator in block.operators
        for primitive in operator.forward
        if isinstance(primitive, GroupedGemm)
    )
    return block_flops(block, convention).forward - summed(routed)


def _spared_of_recorded(block: Block, convention: Convention) -> float:
    """Return the FLOP by which the recorded products of backward are fewer than two for each one of forward."""
    forward = [item for operator in block.operators for item in operator.forward]
    backward = [
        item for operator in block.operators for item in (*operator.backward_input, *operator.backward_weight)
    ]
    attention = [item for item in forward if isinstance(item, AttentionCore)]
    trained = any(isinstance(item, AttentionCore) for item in backward)
    products = [item for item in backward if not isinstance(item, AttentionCore)]
    expected = BACKWARD_PER_FORWARD * float(summed(primitive_flops(item, convention) for item in forward))
    present = float(summed(primitive_flops(product, convention) for product in products))
    if trained:
        present += BACKWARD_PER_FORWARD * float(
            summed(primitive_flops(item, convention) for item in attention)
        )
    return expected - present


def _spared(block: Block, convention: Convention, routed_share: float) -> float:
    """Return the FLOP that backward does not have: of frozen weights, of pixels, of what lies below all gradients."""
    if block.recorded:
        return _spared_of_recorded(block, convention)
    one = [operator for operator in block.operators if operator.frozen or not operator.backward_input]
    two = [item for item in one if not (item.backward_input or item.backward_weight)]
    return sum(
        float(_forward(replace(block, operators=tuple(item)), convention, routed_share))
        for item in (one, two)
    )
