"""Communicators of placed ranks, against the ranks counted one by one."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import gcd

import numpy as np
import pytest
from tests.small import asked, cluster, dense, moe, workload

from forescale.cost.mesh import Group, Inside, groups, innermost, inside, order_of, ranks_per_tier
from forescale.explain import explain
from forescale.graph.sharding import Degrees, split_layout
from forescale.project import project
from forescale.spec import Layout, Share, Tier

AXES = ("tp", "cp", "dp", "pp")
NODE = Tier(name="node", size=8, bandwidth=450e9, latency=1e-6)
RACK = Tier(name="rack", size=32, bandwidth=100e9, latency=3e-6)
FABRIC = Tier(name="fabric", size=0, bandwidth=50e9, latency=5e-6)


def place(num_devices):
    return replace(cluster(num_devices), tiers=(NODE, RACK, FABRIC))


PLACED = [
    Layout(tp=4, cp=2, pp=4, dp_replicate=2, dp_shard=2, ep=4, etp=2, placement=(Share(tp=4, dp=2), Share(pp=4))),
    Layout(tp=4, cp=2, pp=4, dp_shard=4, ep=16, placement=(Share(tp=2, pp=4), Share(tp=2, dp=2))),
    Layout(tp=2, cp=4, pp=2, dp_replicate=4, dp_shard=2, ep=8, etp=2, placement=(Share(dp=8), Share(cp=4))),
    Layout(tp=8, pp=4, dp_replicate=2, dp_shard=2, ep=4, etp=4, placement=(Share(tp=2, dp=2, pp=2),)),
    Layout(tp=8, pp=4, dp_replicate=2, dp_shard=2, ep=8, placement=(Share(dp=4, pp=2), Share(tp=2, pp=2))),
]  # fmt: skip


def ranks(layout, shares):
    """Yield the coordinates of every rank in order, counted tier by tier, tp fastest within each."""
    inner = [[getattr(share, axis) for axis in AXES] for share in shares]
    degrees = [getattr(layout, axis) for axis in AXES]
    inner.append([degree // int(np.prod(parts)) for degree, *parts in zip(degrees, *inner, strict=True)])
    digits = [(axis, size) for part in inner for axis, size in zip(AXES, part, strict=True)]
    for counted in product(*(range(size) for _, size in reversed(digits))):
        where, weight = dict.fromkeys(AXES, 0), dict.fromkeys(AXES, 1)
        for (axis, size), digit in zip(digits, reversed(counted), strict=True):
            where[axis] += digit * weight[axis]
            weight[axis] *= size
        yield where


def counted(layout, shares, sizes):
    """Return how many ranks of one group share each tier, by communicator."""
    stage: dict[int, int] = {}
    members: dict[tuple[str, object], list[int]] = {}
    shard = layout.dp_shard
    for rank, at in enumerate(ranks(layout, shares)):
        tp, cp, dp, pp = (at[axis] for axis in AXES)
        nth = stage[pp] = stage.get(pp, -1) + 1
        outer = nth // (layout.etp * layout.ep)
        keys = {
            "tp": (cp, dp, pp), "cp": (tp, dp, pp), "dp": (tp, cp, pp), "pp": (tp, cp, dp),
            "dp_cp": (tp, pp, dp // shard), "dp_replicate": (tp, cp, pp, dp % shard),
            "etp": (pp, nth // layout.etp), "ep": (pp, nth % layout.etp, outer),
            "expert_dp": (pp, nth % (layout.etp * layout.ep)),
        }  # fmt: skip
        for axis, key in keys.items():
            members.setdefault((axis, key), []).append(rank)
    values: dict[str, set[tuple[int, ...]]] = {}
    for (axis, _), group in members.items():
        most = (max(np.bincount([rank // size for rank in group])) for size in sizes)
        values.setdefault(axis, set()).add((*map(int, most), len(group)))
    return values


@pytest.mark.parametrize("strategy", PLACED)
def test_groups_share_tiers_as_ranks_counted_one_by_one(strategy):
    devices = place(strategy.num_devices)
    result = groups(split_layout(strategy)[0], order_of(strategy))
    expected = counted(strategy, strategy.placement, (8, 32))
    for axis, item in expected.items():
        assert item == {ranks_per_tier(result[axis], devices)}, axis


@pytest.mark.parametrize("strategy", PLACED)
def test_placements_in_arrays_are_placements_alone(strategy):
    degrees, order = split_layout(strategy)[0], order_of(strategy)
    arrays = Degrees(**{name: np.full(3, getattr(degrees, name)) for name in Degrees.__dataclass_fields__})
    shares = tuple(Inside(**{axis: np.full(3, getattr(item, axis)) for axis in AXES}) for item in order)
    devices = place(strategy.num_devices)
    many = groups(arrays, shares)
    for axis, group in groups(degrees, order).items():
        for alone, rank in zip(
            ranks_per_tier(group, devices), ranks_per_tier(many[axis], devices), strict=True
        ):
            assert (np.broadcast_to(rank, 3) == alone).all()


def greedy(layout, order, fill):
    """Return the shares of tiers that ranks in `order` take."""
    left, shares = {axis: getattr(layout, axis) for axis in AXES}, []
    for size in fill:
        room = size
        taken: dict[str, int] = {}
        for axis in order:
            taken[axis] = gcd(room, left[axis])
            room, left[axis] = room // taken[axis], left[axis] // taken[axis]
        shares.append(Share(**taken))
    return tuple(shares)


@pytest.mark.parametrize("order", [("tp", "cp", "dp", "pp"), ("tp", "cp", "pp", "dp")])
@pytest.mark.parametrize(
    "degrees", [{"tp": 4, "pp": 4, "dp_shard": 4}, {"tp": 2, "cp": 2, "pp": 8, "dp_shard": 2}]
)
@pytest.mark.parametrize(
    ("model", "experts"), [(dense(), {}), (moe(), {"ep": 8}), (moe(), {"ep": 4, "etp": 2})]
)
def test_a_placement_in_the_order_of_axes_changes_no_number(model, experts, degrees, order):
    layout, devices = Layout(**degrees, **experts), place(64)
    ordered = project(model, devices, replace(layout, axis_order=order), workload())
    shares = greedy(layout, order, devices.tier_fill)
    placed = project(model, devices, replace(layout, placement=shares), workload())
    assert placed.step_time_s == ordered.step_time_s
    assert placed.time_s == ordered.time_s
    assert placed.memory == ordered.memory


def test_what_lies_inside_a_node_is_quick():
    # Launches captured: a model this small waits for its host wherever its ranks lie.
    layout, devices = Layout(tp=8, dp_shard=8, graphs="full"), cluster(64)
    near, far = (
        project(dense(), devices, replace(layout, placement=(share,)), workload())
        for share in (Share(tp=8), Share(dp=8))
    )
    assert near.time_s["tensor_comm"] < far.time_s["tensor_comm"]


def test_explanations_know_the_shares():
    layout = Layout(tp=8, dp_shard=8, placement=(Share(tp=4, dp=2),))
    tree = explain(asked(dense(), cluster(64), layout, workload()), "step_time")
    walk = {node.name: node.value for node in tree.walk() if "in tier" in node.name}
    assert walk["tp in tier 0"] == 4.0
    assert walk["dp in tier 0"] == 2.0
    assert tree.value == project(dense(), cluster(64), layout, workload()).step_time_s


def test_a_share_as_numbers():
    assert inside(Share(tp=4, pp=2)) == Inside(tp=4.0, pp=2.0)


def test_the_ends_of_a_pipeline_lie_as_far_apart_as_all_of_it():
    """8 stages of 4 ranks: two ranks half of 32 apart; one stage has one end."""
    degrees, _ = split_layout(Layout(tp=4, pp=8))
    ends = groups(degrees, ("tp", "cp", "dp", "pp"))["ends"]
    assert (ends.num_ranks, ends.axes[0]) == (2, (2, 16))
    alone, _ = split_layout(Layout(tp=4))
    assert groups(alone, ("tp", "cp", "dp", "pp"))["ends"].num_ranks == 1


def test_the_closest_ranks_of_a_group_fill_its_axes_from_within():
    """8 of 2 x 2 x 8 ranks: all of the two inner axes and 2 of the outermost."""
    whole = Group(size=2.0, stride=1.0, outer=((2.0, 2.0), (8.0, 4.0)))
    assert innermost(whole, 8.0).axes == ((2.0, 1.0), (2.0, 2.0), (2.0, 4.0))
    assert innermost(whole, 64.0) == whole


def test_copies_of_shards_lie_behind_the_shards():
    """Of 8 data-parallel ranks 2 lie side by side and 4 a node apart; 4 shards take 2 of each, so copies are 2 nodes apart."""
    layout = Layout(tp=4, dp_shard=4, dp_replicate=2, placement=(Share(tp=4, dp=2),))
    result = groups(split_layout(layout)[0], order_of(layout))
    members = {
        axis: [item for item in result[axis].axes if item[0] > 1.0]
        for axis in ("dp", "dp_cp", "dp_replicate")
    }
    assert members == {"dp": [(2, 4), (4, 8)], "dp_cp": [(2, 4), (2, 8)], "dp_replicate": [(2, 16)]}


def test_experts_are_laid_over_a_stages_ranks_wherever_its_axes_end():
    """3 expert ranks over 2 tensor and 3 data-parallel ones: three neighbours."""
    degrees, _ = split_layout(Layout(tp=2, dp_shard=3, ep=3))
    result = groups(degrees, ("tp", "cp", "dp", "pp"))
    assert (result["ep"].axes, result["expert_dp"].axes) == (((3, 1),), ((2, 3),))
