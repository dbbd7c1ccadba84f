"""Everything a step is put together from: the priced blocks of one model under one set of choices.

A piece depends only on the degrees that change a block (tp, cp, ep, etp, micro-batch, the groups' places), so
a search prices each distinct combination once and gathers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Generic, TypeVar

from forescale.cost.placement import Group
from forescale.cost.select import CostModels
from forescale.formula import named
from forescale.graph.layer import embedding_block, head_block, layer_block, mtp_block
from forescale.graph.layout import Layout
from forescale.graph.operator import Block, Parameter
from forescale.graph.ops import MeshAxis
from forescale.graph.recompute import keep
from forescale.memory.buffers import product_elements
from forescale.numeric import Numeric, larger
from forescale.schedule import cuts_sequences, splits_backward
from forescale.spec.model import Model
from forescale.spec.strategy import LaunchGraphs, OffloadName, Overlap, Recompute
from forescale.time.blocks import (
    COMMUNICATION_PART,
    NO_OVERLAP,
    BlockCost,
    PricedBlock,
    PricedOperator,
    Select,
    block_cost,
    price_operators,
)
from forescale.time.price import Pricing

NO_RECOMPUTE = Recompute()
VOCABULARY_WEIGHT = "head.logits.weight"
SCORE_BIAS = "moe.score_bias"
T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts(Generic[T]):
    """One thing per block of a model: decoder layers by kind, both ends, multi-token prediction."""

    layers: tuple[T, ...]
    embedding: T
    head: T
    mtp: T | None

    def map(self, of: Callable[[T], U]) -> Parts[U]:
        """Return `of` applied to every block."""
        return Parts(
            layers=tuple(of(item) for item in self.layers),
            embedding=of(self.embedding),
            head=of(self.head),
            mtp=None if self.mtp is None else of(self.mtp),
        )

    def zipped(self, other: Parts[U], of: Callable[[T, U], V]) -> Parts[V]:
        """Return `of` applied to every block of both."""
        return Parts(
            layers=tuple(map(of, self.layers, other.layers)),
            embedding=of(self.embedding, other.embedding),
            head=of(self.head, other.head),
            mtp=None if self.mtp is None or other.mtp is None else of(self.mtp, other.mtp),
        )

    def all(self) -> tuple[T, ...]:
        """Return the things of all blocks, layers first."""
        return (*self.layers, self.embedding, self.head, *(() if self.mtp is None else (self.mtp,)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One block under one recompute policy."""

    cost: BlockCost
    plain: BlockCost
    """The same without recompute, for layers that a layer count leaves out."""

    def take(self, select: Select) -> Piece:
        """Return the piece with every number passed through `select`."""
        cost = self.cost.take(select)
        return Piece(cost=cost, plain=cost if self.plain is self.cost else self.plain.take(select))


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

    def take(self, select: Select) -> Holding:
        """Return the holding with every number passed through `select`."""
        return Holding(
            dense=select(self.dense),
            expert=select(self.expert),
            vocabulary=select(self.vocabulary),
            products={name: select(elements) for name, elements in self.products.items()},
            vectors=select(self.vectors),
            narrow=select(self.narrow),
            dense_weight=select(self.dense_weight),
            expert_weight=select(self.expert_weight),
            score_biases=self.score_biases,
            tensors=self.tensors,
            expert_tensors=self.expert_tensors,
            num_experts=self.num_experts,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PricedModel:
    """A model's blocks under one layout: their parameters, their operators' prices, their costs."""

    held: Parts[Holding]
    priced: Parts[PricedBlock]
    pieces: Parts[Piece]


def price_model(model: Model, layout: Layout, pricing: Pricing) -> PricedModel:
    """Build and price the blocks of a model.

    Of a single layout they are kept: other pipelines, data-parallel degrees and batches are made of the same ones.
    """
    shape = layout.of_blocks
    if shape is None or pricing.elsewhere:
        return _price_model(model, layout, pricing)
    groups = tuple((axis, group) for axis, group in pricing.groups.items() if axis in COMMUNICATION_PART)
    return _price_known(model, shape, pricing.models, groups, pricing.graphs, pricing.blocking)


@lru_cache(maxsize=64)
def _price_known(
    model: Model,
    layout: Layout,
    models: CostModels,
    groups: tuple[tuple[MeshAxis, Group], ...],
    graphs: LaunchGraphs,
    blocking: bool,
) -> PricedModel:
    pricing = Pricing(models=models, groups=dict(groups), graphs=graphs, blocking=blocking)
    return _price_model(model, layout, pricing)


def _price_model(model: Model, layout: Layout, pricing: Pricing) -> PricedModel:
    blocks, choices = build_blocks(model, layout), layout.choices
    priced = price_blocks(blocks, pricing)
    pieces = build_pieces(
        priced,
        choices.recompute,
        overlap=choices.overlap,
        schedule=choices.schedule,
        offloaded=choices.offload.modules,
        captured=choices.graphs == "partial",
    )
    return PricedModel(held=holdings(blocks), priced=priced, pieces=pieces)


def build_blocks(model: Model, layout: Layout) -> Parts[Block]:
    """Return the operator lists of every block of `model`."""
    built = {kind: layer_block(model, kind, layout) for kind in model.layer_kinds}
    head = head_block(model, layout)
    last = built[model.layers[-1]] if model.num_mtp_layers else None
    return Parts(
        layers=tuple(built.values()),
        embedding=embedding_block(model, layout),
        head=head,
        mtp=None if last is None else mtp_block(model, layout, layer=last, head=head),
    )


def price_blocks(blocks: Parts[Block], pricing: Pricing) -> Parts[PricedBlock]:
    """Price every operator of every block, once where blocks share it."""
    pricing.prepare(op for block in blocks.all() for each in block.operators for op in each.primitives)
    known: dict[int, PricedOperator] = {}
    return blocks.map(lambda block: price_operators(block, pricing, known))


def build_pieces(
    priced: Parts[PricedBlock],
    recompute: Recompute,
    *,
    overlap: Overlap = NO_OVERLAP,
    schedule: str | None = None,
    offloaded: tuple[OffloadName, ...] = (),
    captured: bool = False,
    known: dict[tuple[int, Recompute], BlockCost] | None = None,
) -> Parts[Piece]:
    """Apply a recompute policy to priced blocks; the ends are never recomputed, and not `offloaded`.

    Of schedules that cut sequences, attention that grows with a token's place is told apart; of those that split
    backward, weight gradients are passes of their own. `known` keeps what
    several policies of the same blocks share.
    """
    by_place, split = cuts_sequences(schedule), splits_backward(schedule)
    costs = {} if known is None else known

    def priced_by(block: PricedBlock, policy: Recompute, *, end: bool) -> BlockCost:
        key = (id(block), policy)
        if key not in costs:
            costs[key] = block_cost(
                block,
                keep(block.block, policy),
                overlap=overlap,
                by_place=by_place,
                split=split,
                offloaded=() if end else offloaded,
                captured=captured and not end,
            )
        return costs[key]

    def piece(block: PricedBlock, policy: Recompute, *, end: bool = False) -> Piece:
        cost = priced_by(block, policy, end=end)
        if policy.takes_all:
            return Piece(cost=cost, plain=cost)
        return Piece(cost=cost, plain=priced_by(block, NO_RECOMPUTE, end=end))

    return Parts(
        layers=tuple(piece(block, recompute) for block in priced.layers),
        embedding=piece(priced.embedding, NO_RECOMPUTE, end=True),
        head=piece(priced.head, NO_RECOMPUTE, end=True),
        mtp=None if priced.mtp is None else piece(priced.mtp, recompute),
    )


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
    result: Numeric = 0.0
    for parameter in parameters:
        if parameter.narrow:
            result = result + parameter.local_elements
    return named(result, "weights of narrow products", unit="parameter")


def _elements(parameters: Sequence[Parameter], group: str) -> Numeric:
    result: Numeric = 0.0
    for parameter in parameters:
        if parameter.group == group:
            result = result + named(parameter.local_elements, parameter.name, unit="parameter")
    return result
