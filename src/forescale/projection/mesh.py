"""Where each mesh axis lies on the network: the communicator of every axis under an axis order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forescale.cost.placement import Group
from forescale.formula import formula
from forescale.graph.layout import Degrees
from forescale.graph.ops import MeshAxis
from forescale.numeric import Numeric
from forescale.spec.strategy import Axis


@formula(unit="1", source="Megatron-LM parallel_state: expert ranks are laid over the stage's ranks in order")
def inner_share(*, offset: Numeric, size: Numeric, block: Numeric) -> Numeric:
    """Members of an axis of `size` and stride `offset` before a contiguous block of ranks ends."""
    return np.minimum(np.maximum(block / offset, 1.0), size)


@formula(
    unit="1", source="Megatron-LM parallel_state: with pp before dp, a stage's ranks are blocks pp apart"
)
def folded_stride(*, offset: Numeric, block: Numeric, gap: Numeric) -> Numeric:
    """Device stride of an axis with rank stride `offset`: as it is inside a block, times the gap beyond it."""
    return np.where(np.asarray(offset) < block, offset, offset * gap)


def groups(degrees: Degrees, order: Sequence[Axis]) -> dict[MeshAxis, Group]:
    """Return the communicator of every mesh axis; `order` lists axes from the closest ranks outwards."""
    sizes: dict[str, Numeric] = {"tp": degrees.tp, "cp": degrees.cp, "dp": degrees.dp, "pp": degrees.pp}
    strides: dict[str, Numeric] = {}
    stride: Numeric = 1.0
    for axis in order:
        strides[axis] = stride
        stride = stride * sizes[axis]
    result: dict[MeshAxis, Group] = {
        "tp": Group(size=degrees.tp, stride=strides["tp"]),
        "cp": Group(size=degrees.cp, stride=strides["cp"]),
        "pp": Group(size=degrees.pp, stride=strides["pp"]),
        "ends": _ends(degrees.pp, strides["pp"]),
        "dp": Group(size=degrees.dp, stride=strides["dp"]),
        "dp_cp": Group(size=degrees.cp, stride=strides["cp"], outer=((degrees.dp_shard, strides["dp"]),)),
        "dp_replicate": Group(size=degrees.dp_replicate, stride=strides["dp"] * degrees.dp_shard),
    }
    result.update(_expert_groups(degrees, order))
    return result


def _ends(pp: Numeric, stride: Numeric) -> Group:
    """Return the first and the last stage of a pipeline."""
    others = np.maximum(pp - 1.0, 1.0)
    return Group(size=np.minimum(pp, 2.0), stride=stride * others)


def _expert_groups(degrees: Degrees, order: Sequence[Axis]) -> dict[MeshAxis, Group]:
    """Lay etp, ep and expert_dp, innermost first, over the tp x cp x dp ranks of one stage."""
    sizes: dict[str, Numeric] = {"tp": degrees.tp, "cp": degrees.cp, "dp": degrees.dp}
    block: Numeric = 1.0
    gap: Numeric = 1.0
    for index, axis in enumerate(order):
        if axis == "pp":
            gap = degrees.pp if index < len(order) - 1 else 1.0
            break
        block = block * sizes[axis]
    result: dict[MeshAxis, Group] = {}
    offset: Numeric = 1.0
    expert_axes: tuple[tuple[MeshAxis, Numeric], ...] = (
        ("etp", degrees.etp),
        ("ep", degrees.ep),
        ("expert_dp", degrees.expert_dp),
    )
    for name, size in expert_axes:
        inner = inner_share(offset=offset, size=size, block=block)
        first = folded_stride(offset=offset, block=block, gap=gap)
        second = offset * inner * gap
        result[name] = Group(size=inner, stride=first, outer=((size / inner, second),))
        offset = offset * size
    return result
