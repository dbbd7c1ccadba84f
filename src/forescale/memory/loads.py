"""What one micro-batch puts on every (virtual) stage, tensor by tensor: kept, and at work in each pass.

The same operator lists, policies and moments as the projected sums, of one layout, by name instead of summed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from forescale.formula import value_of
from forescale.graph.layer import block_name
from forescale.graph.layout import Layout, split_strategy
from forescale.graph.operator import Block
from forescale.graph.parts import Parts, build_blocks, message_bytes
from forescale.graph.recompute import NO_RECOMPUTE, keep
from forescale.graph.stages import replayed_mtp, virtual_stages
from forescale.memory.liveness import BlockMoments, Moment, block_moments
from forescale.schedule.model import Placement
from forescale.spec.model import Model
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
    blocks = build_blocks(model, Layout.of(workload, degrees, choices))
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
    plain = block_loads(model, replace(strategy, recompute=NO_RECOMPUTE), workload)
    blocks = _in_units(block_loads(model, strategy, workload), plain, strategy.recompute.unit)
    rank_of_stage = placement.rank_of_stage
    of_stage, given = rank_of_stage[: placement.num_stages], strategy.stage_layers
    plan = virtual_stages(model, of_stage, stage_layers=given, recompute=strategy.recompute)
    taken, heads, others = (
        np.tile(rows, (placement.num_replicas, 1)).tolist()
        for rows in (plan.replayed, plan.heads, plan.counts - plan.replayed)
    )
    of_mtp = _kept_of_mtp(model, strategy.recompute, blocks, plain)
    sent = message_bytes(model, Layout.of(workload, *split_strategy(strategy)))
    message = Sized(owner="pipeline", name="stage output", num_bytes=float(sent))
    loads = []
    for stage, rank in enumerate(rank_of_stage):
        present = (
            *zip(blocks.layers, heads[stage], taken[stage], strict=True),
            *zip(plain.layers, others[stage], others[stage], strict=True),
        )
        kept = _merged(tensor for block, inputs, _ in present for tensor in _times(block.kept, inputs))
        works = [block for block, _, count in present if count]
        if stage % placement.num_stages == 0:
            kept += blocks.embedding.kept
        last = (stage + 1) % placement.num_stages == 0
        kept += of_mtp if last else []
        if not last and strategy.kernels.keeps_stage_outputs:
            kept.append(message)
        loads.append(
            StageLoad(
                stage=stage,
                rank=rank,
                kept=tuple(kept),
                forward=_fullest([_beyond(each.forward, each) for each in works], blocks.head.forward, last),
                backward=_fullest(
                    [_beyond(each.backward, each) for each in works], blocks.head.backward, last
                ),
                between=blocks.head.kept if last else (),
            )
        )
    return tuple(loads)


def _block_load(name: str, block: Block, policy: Recompute) -> BlockLoad:
    kept = keep(block, policy)
    moments: BlockMoments = block_moments(block, kept)
    return BlockLoad(
        name=name,
        kept=_sized(name, [(tensor.name, tensor.num_bytes) for tensor in kept.tensors]),
        forward=_fullest_moment(name, moments.forward),
        backward=_fullest_moment(name, moments.backward),
    )


def _sized(owner: str, tensors: Iterable[tuple[str, object]]) -> tuple[Sized, ...]:
    return tuple(
        Sized(owner=owner, name=name, num_bytes=float(np.asarray(value_of(size)).reshape(-1)[0]))
        for name, size in dict(tensors).items()
    )


def _fullest_moment(owner: str, moments: Sequence[Moment]) -> tuple[Sized, ...]:
    return max((_sized(owner, moment.tensors.items()) for moment in moments), key=total_bytes, default=())


def _kept_of_mtp(
    model: Model, policy: Recompute, blocks: Parts[BlockLoad], plain: Parts[BlockLoad]
) -> list[Sized]:
    """Return what the multi-token-prediction layers keep, those under the policy and the others."""
    if blocks.mtp is None or plain.mtp is None:
        return []
    count = replayed_mtp(model, policy)
    left = float(model.num_mtp_layers - count)
    return [*_times(blocks.mtp.kept, float(count)), *_times(plain.mtp.kept, left)]


def _times(tensors: Iterable[Sized], count: float) -> list[Sized]:
    """Return the tensors of `count` equal layers together."""
    return [replace(tensor, num_bytes=count * tensor.num_bytes) for tensor in tensors if count]


def _merged(tensors: Iterable[Sized]) -> list[Sized]:
    """Return tensors of one owner and name as one."""
    sizes: dict[tuple[str, str], float] = {}
    for tensor in tensors:
        key = tensor.owner, tensor.name
        sizes[key] = sizes.get(key, 0.0) + tensor.num_bytes
    return [Sized(owner=owner, name=name, num_bytes=size) for (owner, name), size in sizes.items()]


def _in_units(blocks: Parts[BlockLoad], plain: Parts[BlockLoad], unit: int) -> Parts[BlockLoad]:
    """Add to the backward of each layer what the other layers of its unit keep, which are replayed with it."""
    if unit == 1:
        return blocks
    layers = []
    for block, other in zip(blocks.layers, plain.layers, strict=True):
        beside = [replace(tensor, name=f"{tensor.name} of the unit") for tensor in other.kept]
        layers.append(replace(block, backward=(*block.backward, *_times(beside, float(unit - 1)))))
    return replace(blocks, layers=tuple(layers))


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
