"""Everything a step is put together from: the priced blocks of one model under one set of choices.

A piece depends only on the degrees that change a block (tp, cp, ep, etp, micro-batch, the groups' places), so a
search prices each distinct combination once and gathers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from forescale.formula import formula
from forescale.graph.layer import embedding_block, head_block, layer_block, mtp_block
from forescale.graph.layout import Choices, Degrees, Layout
from forescale.graph.operator import Block, Parameter
from forescale.graph.ops import Collective
from forescale.graph.recompute import keep
from forescale.numeric import Numeric
from forescale.projection.blocks import BlockCost, Pricing, price_block
from forescale.spec.model import Model
from forescale.spec.strategy import Recompute
from forescale.spec.workload import STORAGE_BYTES, Workload

NO_RECOMPUTE = Recompute()


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One priced block with its parameters (elements on one device)."""

    name: str
    cost: BlockCost
    plain: BlockCost
    """The same without recompute, for layers that a layer count leaves out."""
    dense_parameters: Numeric
    expert_parameters: Numeric
    gather: Numeric = 0.0
    """Seconds to gather its parameters over the shards (stage 3)."""
    reduce: Numeric = 0.0
    """Seconds to reduce-scatter its gradients over the shards."""

    def take(self, select: Callable[[Numeric], Numeric]) -> Piece:
        """Return the piece with every number passed through `select`."""
        return Piece(
            name=self.name,
            cost=_take_cost(self.cost, select),
            plain=_take_cost(self.plain, select) if self.plain is not self.cost else _take_cost(self.cost, select),
            **{field.name: select(getattr(self, field.name)) for field in fields(Piece)[3:]},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """All blocks of a model: decoder layers by kind, both ends, multi-token prediction."""

    layers: tuple[Piece, ...]
    embedding: Piece
    head: Piece
    mtp: Piece | None
    head_weight: Numeric
    """Local elements of the vocabulary matrix at the head (a second copy when tied and pp > 1)."""
    hop: Numeric
    """Seconds of one stage-to-stage message."""

    def take(self, select: Callable[[Numeric], Numeric]) -> Pieces:
        """Return all pieces with every number passed through `select`."""
        return Pieces(
            layers=tuple(piece.take(select) for piece in self.layers),
            embedding=self.embedding.take(select),
            head=self.head.take(select),
            mtp=self.mtp.take(select) if self.mtp else None,
            head_weight=select(self.head_weight),
            hop=select(self.hop),
        )


def _take_cost(cost: BlockCost, select: Callable[[Numeric], Numeric]) -> BlockCost:
    return BlockCost(
        forward={part: select(value) for part, value in cost.forward.items()},
        backward={part: select(value) for part, value in cost.backward.items()},
        flops=select(cost.flops),
        kept_bytes=select(cost.kept_bytes),
        working_bytes=select(cost.working_bytes),
    )


def build_pieces(model: Model, workload: Workload, degrees: Degrees, choices: Choices, pricing: Pricing) -> Pieces:
    """Price every block of `model` for all candidates of `degrees`."""
    layout = Layout(degrees=degrees, choices=choices, precision=workload.precision, seq_len=float(workload.seq_len))
    blocks = [layer_block(model, kind, layout) for kind in model.layer_kinds]
    head = head_block(model, layout)
    vocabulary = [parameter for parameter in head.parameters if parameter.name == "head.logits.weight"]
    message = layout.tokens("residual") * model.hidden_size * layout.element_bytes
    return Pieces(
        layers=tuple(_piece(block, workload, choices, pricing, recompute=choices.recompute) for block in blocks),
        embedding=_piece(embedding_block(model, layout), workload, choices, pricing),
        head=_piece(head, workload, choices, pricing, without=vocabulary),
        mtp=_piece(mtp_block(model, layout), workload, choices, pricing, recompute=choices.recompute)
        if model.num_mtp_layers
        else None,
        head_weight=_elements(vocabulary, "dense"),
        hop=pricing.seconds(Collective(kind="p2p", axis="pp", num_bytes=message)),
    )


def _piece(
    block: Block,
    workload: Workload,
    choices: Choices,
    pricing: Pricing,
    *,
    recompute: Recompute = NO_RECOMPUTE,
    without: Sequence[Parameter] = (),
) -> Piece:
    tensor = choices.overlap.tensor
    cost = price_block(block, keep(block, recompute), pricing, asynchronous_tensor=tensor)
    plain = cost
    if recompute.num_layers is not None:
        plain = price_block(block, keep(block, NO_RECOMPUTE), pricing, asynchronous_tensor=tensor)
    dense, expert = _elements(block.parameters, "dense"), _elements(block.parameters, "expert")
    owned = _elements([parameter for parameter in block.parameters if parameter not in without], "dense")
    gradient = STORAGE_BYTES[workload.precision.gradients]
    return Piece(
        name=block.name,
        cost=cost,
        plain=plain,
        dense_parameters=owned,
        expert_parameters=expert,
        gather=_over_shards(pricing, "all_gather", dense, expert, 2.0),
        reduce=_over_shards(pricing, "reduce_scatter", dense, expert, gradient),
    )


def _elements(parameters: Sequence[Parameter], group: str) -> Numeric:
    result: Numeric = 0.0
    for parameter in parameters:
        if parameter.group == group:
            result = result + parameter.local_elements
    return result


def _over_shards(pricing: Pricing, kind: str, dense: Numeric, expert: Numeric, element_bytes: float) -> Numeric:
    """Return the seconds to gather or reduce-scatter parameters of both groups over their shards."""
    seconds = pricing.seconds(Collective(kind=kind, axis="dp_cp", num_bytes=dense * element_bytes))  # type: ignore[arg-type]
    if isinstance(expert, float) and expert == 0.0:
        return seconds
    return seconds + pricing.seconds(Collective(kind=kind, axis="expert_dp", num_bytes=expert * element_bytes))  # type: ignore[arg-type]


@formula(unit="1", source="Megatron-LM --recompute-num-layers (block): the first N layers of a stage")
def recomputed_share(*, num_layers: Numeric, layers_on_stage: Numeric) -> Numeric:
    """min(1, N / layers on the stage)."""
    import numpy as np

    return np.minimum(1.0, num_layers / np.maximum(layers_on_stage, 1.0))
