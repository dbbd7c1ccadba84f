"""Where communicators lie on the network: that of every mesh axis, and how many of its ranks share each tier."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce
from operator import mul
from typing import TypeAlias, cast

from forescale.arrays import np
from forescale.formula import Term, formula
from forescale.graph.ops import MeshAxis
from forescale.graph.sharding import Degrees, several
from forescale.numeric import Numeric, maximum, minimum
from forescale.spec.cluster import Cluster
from forescale.spec.layout import Axis, Layout, Placement, Share, TensorKind
from forescale.struct import Struct


class Group(Struct, frozen=True, kw_only=True):
    """A communicator: `size` ranks whose device numbers differ by `stride`; arrays over candidates.

    A group that runs over several axes (data and context parallel, say) has further (size, stride) pairs in
    `outer`, from the inside out.
    """

    size: Numeric
    stride: Numeric = 1.0
    outer: tuple[tuple[Numeric, Numeric], ...] = ()

    @property
    def axes(self) -> tuple[tuple[Numeric, Numeric], ...]:
        """Return all (number of ranks, stride in devices) pairs, innermost first."""
        return ((self.size, self.stride), *self.outer)

    @property
    def num_ranks(self) -> Numeric:
        """Return the number of ranks of the communicator."""
        return reduce(mul, (size for size, _ in self.axes))


KEPT_BYTES = 32_768
"""Of a group whose sizes are arrays, the bytes up to which what is made of it is kept: searches ask for it again."""


class GroupKey:
    """A group by its numbers, whether they are arrays or not."""

    __slots__ = ("_content", "_hash", "group", "is_number")

    def __init__(self, group: Group) -> None:
        """Take the numbers."""
        self.group = group
        self._content = tuple(
            item if isinstance(item, float) else (np.shape(item), np.asarray(item).tobytes())
            for axis in group.axes
            for item in axis
        )
        self.is_number = all(isinstance(item, float) for item in self._content)
        self._hash = hash(self._content)

    @classmethod
    def kept(cls, group: Group) -> GroupKey | None:
        """Return the key of a group that is worth keeping; None of a recorded one, and of one of many candidates."""
        parts = [item for axis in group.axes for item in axis if not isinstance(item, float)]
        recorded = any(isinstance(item, Term) for item in parts)
        if recorded or 8 * sum(np.size(item) for item in parts) > KEPT_BYTES:
            return None
        return cls(group)

    def __hash__(self) -> int:
        """Hash the numbers."""
        return self._hash

    def __eq__(self, other: object) -> bool:
        """Compare the numbers."""
        return isinstance(other, GroupKey) and self._content == other._content


class LazyGroups(Mapping[MeshAxis, Group]):
    """Communicators of axes, each made when it is asked for."""

    def __init__(self, axes: Iterable[MeshAxis], make: Callable[[MeshAxis], Group]) -> None:
        self._axes, self._make = tuple(axes), make
        self._known: dict[MeshAxis, Group] = {}

    def __getitem__(self, axis: MeshAxis) -> Group:
        """Return the communicator of an axis."""
        if axis not in self._known:
            if axis not in self._axes:
                raise KeyError(axis)
            self._known[axis] = self._make(axis)
        return self._known[axis]

    def __iter__(self) -> Iterator[MeshAxis]:
        """Return the axes."""
        return iter(self._axes)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._axes)


@formula(
    unit="1", source="PyTorch FSDP2: reshard_after_forward as a number of ranks, which divides the group"
)
def neighbours(*, size: Numeric, wanted: Numeric, taken: Numeric) -> Numeric:
    """Members of an axis among the `wanted` closest ranks of a group, inner axes having `taken` of them."""
    return minimum(size, maximum(wanted / taken, 1.0))


def innermost(group: Group, count: float) -> Group:
    """Return the `count` closest ranks of a group; all of it if it has no more."""
    taken: Numeric = 1.0
    axes = []
    for size, stride in group.axes:
        part = neighbours(size=size, wanted=count, taken=taken)
        axes.append((part, stride))
        taken = taken * part
    return Group(size=axes[0][0], stride=axes[0][1], outer=tuple(axes[1:]))


@formula(
    unit="1", source="Subramanian et al. 2024, arXiv:2410.00273, section 3 (devices of a group in one domain)"
)
def ranks_within(
    *, size: Numeric, stride: Numeric, tier_size: float, num_devices: float, capacity: float | None = None
) -> Numeric:
    """Size / blocks; blocks = ceil(size·stride / tier), one if the group fits whole into a tier.

    Groups that fit into a tier are packed whole as long as the tiers, `capacity` devices or else as few as hold all,
    then still hold all groups; otherwise one group straddles two, and it sets the pace.
    """
    tier = min(tier_size, num_devices)
    num_tiers = -(-(capacity or num_devices) // tier)
    span = size * stride
    whole = tier // minimum(span, tier) * span * num_tiers
    blocks = cast("Numeric", -(-span // tier) + (whole < num_devices))
    return size / minimum(blocks, size)


def ranks_per_tier(group: Group, cluster: Cluster) -> tuple[Numeric, ...]:
    """Return how many ranks of one group share each tier, inner tiers included; the last is all of them.

    Eight ranks with stride 1 on nodes of 8 give (8, 8), with stride 4 (2, 8). Uneven groups give the mean.
    """
    inner = (_sharing(group, cluster, tier.size or cluster.num_devices) for tier in cluster.tiers[:-1])
    return (*inner, group.num_ranks)


def ranks_per_node(group: Group, cluster: Cluster) -> Numeric:
    """Return how many ranks of one group share a node."""
    return _sharing(group, cluster, cluster.devices_per_node)


def _sharing(group: Group, cluster: Cluster, devices: int) -> Numeric:
    """Return how many ranks of one group lie within so many devices."""
    most = float(cluster.num_devices)
    capacity = float(cluster.capacity_of(devices))
    per_axis = (
        ranks_within(size=size, stride=stride, tier_size=float(devices), num_devices=most, capacity=capacity)
        for size, stride in group.axes
    )
    return reduce(mul, per_axis)


AXES: tuple[Axis, ...] = ("tp", "cp", "dp", "pp")


class Inside(Struct, frozen=True, kw_only=True):
    """Ranks of each axis inside one tier, per part of the tier inside it: numbers, or arrays over candidates."""

    tp: Numeric = 1.0
    cp: Numeric = 1.0
    dp: Numeric = 1.0
    pp: Numeric = 1.0


Order: TypeAlias = tuple[Axis, ...] | tuple[Inside, ...]
"""The order of the ranks: axes from the closest outwards, or what lies inside each tier; the rest follows."""
Part: TypeAlias = tuple[Numeric, Numeric]
"""(size, stride) of a part of an axis."""


@formula(unit="1", source="Megatron-LM parallel_state: expert ranks are laid over the stage's ranks in order")
def inner_share(*, offset: Numeric, size: Numeric, block: Numeric) -> Numeric:
    """Members of an axis of `size` and stride `offset` before a contiguous block of ranks ends."""
    return minimum(maximum(block / offset, 1.0), size)


@formula(
    unit="1", source="Megatron-LM parallel_state: with pp before dp, a stage's ranks are blocks pp apart"
)
def folded_stride(*, offset: Numeric, before: Numeric, stride: Numeric) -> Numeric:
    """Device stride from the `offset`-th rank of a stage on, in a block with `before` ranks of it before it."""
    return stride * maximum(offset / before, 1.0)


@formula(unit="1", source="definition: a mixed-radix number of the rank, the closest ranks first")
def left_over(*, degree: Numeric, inside: Numeric) -> Numeric:
    """Ranks of an axis that its share inside the tiers leaves."""
    return degree / inside


def order_of(layout: Layout) -> Order:
    """Return the order of a layout's ranks."""
    return placed(layout.axis_order, layout.placement)


def placed(axis_order: tuple[Axis, ...], placement: Placement | None) -> Order:
    """Return the order of ranks under an order of axes, or under what replaces it."""
    return axis_order if placement is None else tuple(inside(share) for share in placement)


def inside(share: Share) -> Inside:
    """Return a share as numbers."""
    return Inside(tp=float(share.tp), cp=float(share.cp), dp=float(share.dp), pp=float(share.pp))


def groups(
    degrees: Degrees, order: Order, tp_kind: TensorKind = "1d", *, cp_inner: Numeric | None = None
) -> dict[MeshAxis, Group]:
    """Return the communicator of every mesh axis, with `cp_inner` those of hierarchical context parallelism.

    Context ranks share the copies of weights, `dp_cp`, but on the grid of SUMMA, where they hold none.
    """
    parts = _parts(degrees, order)
    placed: dict[Axis, list[Part]] = {axis: [part for item, part in parts if item == axis] for axis in AXES}
    shards, replicas = _shards(degrees, placed["dp"])
    result: dict[MeshAxis, Group] = {
        "tp": _group(placed["tp"]),
        "cp": _group(placed["cp"]),
        "pp": _group(placed["pp"]),
        "ends": _ends(degrees.pp, placed["pp"]),
        "dp": _group(placed["dp"]),
        "dp_cp": _group(shards if tp_kind == "summa" else [*placed["cp"], *shards]),
        "dp_replicate": _group(replicas),
        "data": _group(placed["dp"] if tp_kind == "summa" else [*placed["cp"], *placed["dp"]]),
        "tp_cp": _group([*placed["tp"], *placed["cp"]]),
        "stage": _group([*placed["tp"], *placed["cp"], *placed["dp"]]),
    }
    if cp_inner is not None:
        near, far = _halves(placed["cp"], cp_inner)
        result["cp_inner"], result["cp_outer"] = _group(near), _group(far)
    result.update(_expert_groups(degrees, parts))
    return result


def _parts(degrees: Degrees, order: Order) -> list[tuple[Axis, Part]]:
    """Return every part of every axis, from the closest ranks outwards."""
    left: dict[Axis, Numeric] = {axis: getattr(degrees, axis) for axis in AXES}
    sizes: list[tuple[Axis, Numeric]] = []
    outwards: list[Axis] = []
    for item in order:
        if isinstance(item, Inside):
            for axis in AXES:
                size = getattr(item, axis)
                sizes.append((axis, size))
                left[axis] = left_over(degree=left[axis], inside=size)
        else:
            outwards.append(item)
    sizes.extend((axis, left[axis]) for axis in outwards or AXES)
    parts: list[tuple[Axis, Part]] = []
    stride: Numeric = 1.0
    for axis, size in sizes:
        parts.append((axis, (size, stride)))
        stride = stride * size
    return parts


def _group(parts: list[Part]) -> Group:
    (size, stride), *outer = parts
    return Group(size=size, stride=stride, outer=tuple(outer))


def _ends(pp: Numeric, parts: list[Part]) -> Group:
    """Return the first and the last stage of a pipeline, which share a tier where all of it does."""
    span = reduce(maximum, (size * stride * several(degree=size) for size, stride in parts))
    size = minimum(pp, 2.0)
    return Group(size=size, stride=maximum(span / size, parts[0][1]))


def _shards(degrees: Degrees, parts: list[Part]) -> tuple[list[Part], list[Part]]:
    """Return the inner part of the data-parallel ranks, which states are sharded over, and the outer one."""
    if len(parts) == 1:
        stride = parts[0][1]
        return [(degrees.dp_shard, stride)], [(degrees.dp_replicate, stride * degrees.dp_shard)]
    return _halves(parts, degrees.dp_shard)


def _halves(parts: list[Part], value: Numeric) -> tuple[list[Part], list[Part]]:
    """Return the `value` closest ranks of an axis, and how such groups of them lie."""
    near: list[Part] = []
    far: list[Part] = []
    taken: Numeric = 1.0
    for size, stride in parts:
        share = neighbours(size=size, wanted=value, taken=taken)
        near.append((share, stride))
        far.append((size / share, stride * share))
        taken = taken * share
    return near, far


def _blocks(parts: list[tuple[Axis, Part]]) -> list[Part]:
    """Return the ranks of one stage as blocks (size, stride of its first rank) that nothing interrupts."""
    blocks: list[Part] = []
    contiguous = False
    for axis, (size, stride) in parts:
        if axis == "pp":
            contiguous = False
        elif contiguous:
            blocks[-1] = (blocks[-1][0] * size, blocks[-1][1])
        else:
            blocks.append((size, stride))
            contiguous = True
    return blocks


def _expert_groups(degrees: Degrees, parts: list[tuple[Axis, Part]]) -> dict[MeshAxis, Group]:
    """Lay etp, ep and expert_dp, innermost first, over the tp x cp x dp ranks of one stage."""
    blocks = _blocks(parts)
    result: dict[MeshAxis, Group] = {}
    offset: Numeric = 1.0
    expert_axes: tuple[tuple[MeshAxis, Numeric], ...] = (
        ("etp", degrees.etp),
        ("ep", degrees.ep),
        ("expert_dp", degrees.expert_dp),
    )
    for name, size in expert_axes:
        result[name] = _group(_folded(offset, size, blocks))
        offset = offset * size
    return result


def _folded(offset: Numeric, size: Numeric, blocks: list[Part]) -> list[Part]:
    """Return the parts of an expert axis, whose neighbours are `offset` ranks of the stage apart."""
    parts: list[Part] = []
    before: Numeric = 1.0
    for index, (ranks, stride) in enumerate(blocks):
        apart = folded_stride(offset=offset, before=before, stride=stride)
        before = before * ranks
        last = index == len(blocks) - 1
        share = size if last else inner_share(offset=offset, size=size, block=before)
        parts.append((share, apart))
        size, offset = size / share, offset * share
    return parts
