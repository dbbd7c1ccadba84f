"""Bytes of blocks that no recompute policy keeps less than."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from msgspec.structs import replace

from forescale.graph.operator import Block
from forescale.graph.per_block import PerBlock, RecomputeSplit
from forescale.graph.recompute import NO_RECOMPUTE
from forescale.graph.sharding import StructuralOptions
from forescale.memory.liveness import BlockBytes
from forescale.numeric import minimum
from forescale.schedule import splits_backward
from forescale.search.blocks import PricedOnce
from forescale.spec.layout import Recompute
from forescale.time.blocks import KeptBytes


def least_bytes(
    priced: PricedOnce, policies: Sequence[Recompute], choices: StructuralOptions
) -> PerBlock[RecomputeSplit[BlockBytes]]:
    """Return blocks that keep, and need at work, the least that any policy has, whichever layers it takes."""
    if not all(policy.takes_all for policy in policies):
        policies = tuple(dict.fromkeys((*policies, NO_RECOMPUTE)))
    blocks, kept = priced.built, priced.kept_bytes
    layers = [
        [_on_layer(kept, blocks.layers, at, policy, choices) for policy in policies]
        for at in range(len(blocks.layers))
    ]
    return PerBlock(
        layers=tuple(_of_all(_least(layer)) for layer in layers),
        embedding=_of_any(kept, blocks.embedding, ()),
        head=_of_any(
            kept,
            blocks.head,
            (),
            split=splits_backward(choices.schedule) or choices.deferred_head_gradients > 0,
        ),
        mtp=None
        if blocks.mtp is None
        else _of_all(_least([_on_layer(kept, (blocks.mtp,), 0, policy, choices) for policy in policies])),
        vision=blocks.map_vision(
            lambda block: _of_any(kept, block, policies), lambda block: _of_any(kept, block, ())
        ),
    )


def _on_layer(
    kept_bytes: KeptBytes, layers: Sequence[Block], at: int, policy: Recompute, choices: StructuralOptions
) -> BlockBytes:
    """Return the bytes of a layer under a policy, without what is offloaded.

    Layers that are replayed together keep one input, of whichever kind the first of them is.
    """
    offload = choices.offload
    local, *others = (
        kept_bytes.bytes(
            layer,
            policy,
            offloaded=offload.modules,
            captured=choices.graphs == "partial",
            split=splits_backward(choices.schedule),
        )
        for layer in (layers[at], *(layers if policy.unit > 1 else ()))
    )
    kept, working = local.kept, local.backward - local.kept
    ahead = local.forward - local.kept
    if policy.unit > 1:
        kept = reduce(minimum, [other.kept for other in others]) / float(policy.unit)
        working = working + float(policy.unit - 1) * kept_bytes.keep(layers[at], NO_RECOMPUTE).num_bytes
    kept = kept - offload.module_share * local.offloaded
    return replace(local, kept=kept, forward=kept + ahead, backward=kept + working, offloaded=0.0)


def _least(block_byteses: Sequence[BlockBytes]) -> BlockBytes:
    """Return what is kept, and needed beyond that at work, at the least of each."""
    kept = reduce(minimum, [item.kept for item in block_byteses])
    ahead = reduce(minimum, [item.forward - item.kept for item in block_byteses])
    working = reduce(minimum, [item.backward - item.kept for item in block_byteses])
    pools = [item.captured for item in block_byteses if item.captured is not None]
    captured = [reduce(minimum, item) for item in zip(*pools, strict=True)]
    return replace(
        block_byteses[0],
        kept=kept,
        forward=kept + ahead,
        backward=kept + working,
        captured=(captured[0], captured[1]) if captured else None,
    )


def _of_any(
    kept: KeptBytes, block: Block, policies: Sequence[Recompute], *, split: bool = False
) -> RecomputeSplit[BlockBytes]:
    """Return the least of a block that nothing offloads, and under none of `policies` what it keeps as it is."""
    plain = dict.fromkeys(policy.of_towers for policy in policies) or (NO_RECOMPUTE,)
    return _of_all(_least([kept.bytes(block, item, split=split) for item in plain]))


def _of_all(cost: BlockBytes) -> RecomputeSplit[BlockBytes]:
    return RecomputeSplit(replayed=cost, kept=cost)
