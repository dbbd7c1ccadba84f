"""Everything a step is put together from: the priced blocks of one model under one set of choices.

A piece depends only on the degrees that change a block (tp, cp, ep, etp, micro-batch, the groups' places), so
a search prices each distinct combination once and gathers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from forescale.cost.placement import Group
from forescale.cost.select import CostModels
from forescale.graph.layout import Layout
from forescale.graph.operator import Block
from forescale.graph.ops import MeshAxis
from forescale.graph.parts import Parts, build_blocks
from forescale.graph.recompute import keep
from forescale.memory.parameters import Holding, holdings
from forescale.schedule import cuts_sequences, splits_backward
from forescale.spec.model import Model
from forescale.spec.strategy import LaunchGraphs, OffloadName, Overlap, Recompute
from forescale.time.blocks import (
    COMMUNICATION_PART,
    NO_OVERLAP,
    BlockCost,
    PricedBlock,
    PricedOperator,
    block_cost,
    price_operators,
)
from forescale.time.price import Pricing

NO_RECOMPUTE = Recompute()


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One block under one recompute policy."""

    cost: BlockCost
    plain: BlockCost
    """The same without recompute, for layers that a layer count leaves out."""


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
