"""What one micro-batch puts on every (virtual) stage, tensor by tensor: kept, and at work in each pass.

The same operator lists, policies and moments as the projected sums, of one layout, by name instead of summed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from forescale.formula import value_of
from forescale.graph.layer import block_name
from forescale.graph.layout import Layout, split_strategy
from forescale.graph.operator import Block
from forescale.graph.recompute import keep
from forescale.graph.stage import layers_per_chunk
from forescale.memory.liveness import BlockMoments, block_moments
from forescale.memory.moments import Moment
from forescale.projection.pieces import NO_RECOMPUTE, Parts, build_blocks
from forescale.schedule.placement import Placement
from forescale.spec.model import Layer, Model
from forescale.spec.strategy import Recompute, Strategy
from forescale.spec.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """Named bytes: one tensor, or equal ones of several layers together."""

    owner: str
    """Block that it belongs to: a kind of layer, embedding, head."""
    name: str
    num_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockLoad:
    """What one micro-batch keeps of one block, and its fullest moments."""

    name: str
    kept: tuple[Sized, ...]
    """From its forward until its backward."""
    plain: tuple[Sized, ...]
    """The same without recompute, for layers that a layer count leaves out."""
    forward: tuple[Sized, ...]
    """Everything of the block at the fullest moment of its forward, kept tensors included."""
    backward: tuple[Sized, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLoad:
    """What one micro-batch puts on one stage (a chunk of a rank's layers)."""

    stage: int
    rank: int
    kept: tuple[Sized, ...]
    """From its forward until its backward."""
    forward: tuple[Sized, ...]
    """Beyond everything kept, at the fullest moment of its forward."""
    backward: tuple[Sized, ...]
    """Beyond everything kept, at the fullest moment of its backward."""
    between: tuple[Sized, ...] = ()
    """Kept beside from the end of forward until backward begins: the head's, on the last stage."""


def total_bytes(tensors: Iterable[Sized]) -> float:
    """Return the sum of the sizes."""
    return sum(tensor.num_bytes for tensor in tensors)


def block_loads(model: Model, strategy: Strategy, workload: Workload) -> Parts[BlockLoad]:
    """Return the load of every kind of layer, of both ends and of multi-token prediction."""
    degrees, choices = split_strategy(strategy)
    layout = Layout(
        degrees=degrees, choices=choices, precision=workload.precision, seq_len=float(workload.seq_len)
    )
    blocks = build_blocks(model, layout)
    return Parts(
        layers=tuple(
            _block_load(block_name(kind), block, strategy.recompute)
            for kind, block in zip(model.layer_kinds, blocks.layers, strict=True)
        ),
        embedding=_block_load("embedding", blocks.embedding, NO_RECOMPUTE),
        head=_block_load("head", blocks.head, NO_RECOMPUTE),
        mtp=None if blocks.mtp is None else _block_load("mtp", blocks.mtp, strategy.recompute),
    )


def stage_loads(
    model: Model, strategy: Strategy, workload: Workload, placement: Placement
) -> tuple[StageLoad, ...]:
    """Return the loads of all stages in the order of the model, replica after replica."""
    blocks = block_loads(model, strategy, workload)
    rank_of_stage = placement.rank_of_stage
    counts = np.tile(_counts(model, strategy, placement.num_stages), (placement.num_replicas, 1))
    on_rank = np.zeros(strategy.pp)
    np.add.at(on_rank, list(rank_of_stage), counts.sum(axis=1))
    message = _message(model, strategy, workload)
    loads = []
    for stage, (rank, row) in enumerate(zip(rank_of_stage, counts.tolist(), strict=True)):
        share = _replayed_share(strategy.recompute, float(on_rank[rank]))
        present = [(block, count) for block, count in zip(blocks.layers, row, strict=True) if count]
        kept = [tensor for block, count in present for tensor in _mixed(block, count, share)]
        works = [block for block, _ in present]
        if stage % placement.num_stages == 0:
            kept += blocks.embedding.kept
        last = (stage + 1) % placement.num_stages == 0
        if last and blocks.mtp is not None:
            kept += _mixed(blocks.mtp, float(model.num_mtp_layers), share)
        if not last and strategy.kernels.keeps_stage_outputs:
            kept.append(message)
        loads.append(
            StageLoad(
                stage=stage,
                rank=rank,
                kept=tuple(kept),
                forward=_fullest(
                    [_beyond(block.forward, block) for block in works], blocks.head.forward, last
                ),
                backward=_fullest(
                    [_beyond(block.backward, block) for block in works], blocks.head.backward, last
                ),
                between=blocks.head.kept if last else (),
            )
        )
    return tuple(loads)


def _block_load(name: str, block: Block, policy: Recompute) -> BlockLoad:
    kept, plain = keep(block, policy), keep(block, NO_RECOMPUTE)
    moments: BlockMoments = block_moments(block, kept)
    return BlockLoad(
        name=name,
        kept=_sized(name, [(tensor.name, tensor.num_bytes) for tensor in kept.tensors]),
        plain=_sized(name, [(tensor.name, tensor.num_bytes) for tensor in plain.tensors]),
        forward=_fullest_moment(name, moments.forward),
        backward=_fullest_moment(name, moments.backward),
    )


def _sized(owner: str, tensors: Iterable[tuple[str, object]]) -> tuple[Sized, ...]:
    return tuple(
        Sized(owner=owner, name=name, num_bytes=float(np.asarray(value_of(size)).reshape(-1)[0]))
        for name, size in dict(tensors).items()
    )


def _fullest_moment(owner: str, moments: Sequence[Moment]) -> tuple[Sized, ...]:
    return max((_sized(owner, moment.tensors) for moment in moments), key=total_bytes, default=())


def _mixed(block: BlockLoad, count: float, share: float) -> list[Sized]:
    """Return what `count` layers keep, of which a share is replayed and the rest is not."""
    sizes: dict[str, float] = {}
    for tensors, part in ((block.kept, share), (block.plain, 1.0 - share)):
        for tensor in tensors if part else ():
            sizes[tensor.name] = sizes.get(tensor.name, 0.0) + part * count * tensor.num_bytes
    return [Sized(owner=block.name, name=name, num_bytes=size) for name, size in sizes.items()]


def _replayed_share(policy: Recompute, layers_on_rank: float) -> float:
    if policy.num_layers is None:
        return 1.0
    return min(1.0, policy.num_layers / max(layers_on_rank, 1.0))


def _beyond(moment: tuple[Sized, ...], block: BlockLoad) -> tuple[Sized, ...]:
    """Return a moment without what the block keeps anyway; kept tensors that are gone by then count below zero."""
    kept = {tensor.name: tensor.num_bytes for tensor in block.kept}
    rest = [replace(tensor, num_bytes=tensor.num_bytes - kept.pop(tensor.name, 0.0)) for tensor in moment]
    gone = sum(kept.values())
    freed = [Sized(owner=block.name, name="kept tensors freed by then", num_bytes=-gone)] if gone else []
    return tuple(tensor for tensor in (*rest, *freed) if tensor.num_bytes)


def _fullest(works: list[tuple[Sized, ...]], head: tuple[Sized, ...], last: bool) -> tuple[Sized, ...]:
    """Return the largest working set: one block is replayed, or one head runs, at a time."""
    return max([*works, *([head] if last else []), ()], key=total_bytes)


def _counts(model: Model, strategy: Strategy, num_stages: int) -> np.ndarray:
    """Return (stages, kinds) layers."""
    kinds: Mapping[Layer, int] = {kind: index for index, kind in enumerate(model.layer_kinds)}
    counts = np.zeros((num_stages, len(kinds)))
    if strategy.stage_layers is None:
        chunks = layers_per_chunk(model.num_layers, num_stages, spare_ends=num_stages > strategy.pp)
    else:
        chunks = _given_chunks(strategy.stage_layers, num_stages // strategy.pp)
    for stage, chunk in enumerate(chunks):
        for layer in chunk:
            counts[stage, kinds[model.layers[layer]]] += 1.0
    return counts


def _given_chunks(stage_layers: Sequence[int], vpp: int) -> tuple[tuple[int, ...], ...]:
    """Return, per stage, the layers of ranks whose counts were given: each rank's own, cut into even chunks."""
    ends = np.cumsum(stage_layers)
    cut = [
        np.array_split(np.arange(end - size, end), vpp) for end, size in zip(ends, stage_layers, strict=True)
    ]
    return tuple(tuple(rank[chunk].tolist()) for chunk in range(vpp) for rank in cut)


def _message(model: Model, strategy: Strategy, workload: Workload) -> Sized:
    degrees, choices = split_strategy(strategy)
    layout = Layout(
        degrees=degrees, choices=choices, precision=workload.precision, seq_len=float(workload.seq_len)
    )
    size = layout.tokens("residual") * model.hidden_size * layout.element_bytes
    return Sized(owner="pipeline", name="stage output", num_bytes=float(size))
