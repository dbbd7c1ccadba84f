from __future__ import annotations

import numpy as np
import pytest
from tests.cost.collectives.clusters import cluster, fast, slow, two_level

from forescale.cost.mesh import Group, innermost, ranks_per_tier, ranks_within


@pytest.mark.parametrize(
    ("size", "stride", "expected"),
    [
        (8, 1, (8, 8)),  # one node
        (8, 4, (2, 8)),  # two per node
        (8, 8, (1, 8)),  # one per node
        (64, 1, (8, 64)),
        (4, 2, (4, 4)),
        (1, 1, (1, 1)),
        (2, 16, (1, 2)),
    ],
)
def test_ranks_share_tiers(size, stride, expected):
    shared = ranks_per_tier(Group(size=size, stride=stride), two_level())
    assert tuple(float(s) for s in shared) == expected


def test_subramanian_places_a_group_of_32_with_8_per_domain_in_4_domains():
    shared = ranks_per_tier(Group(size=32.0), two_level(512))
    assert shared[1] / shared[0] == 4.0


def test_several_axes_multiply():
    group = Group(size=2.0, stride=1.0, outer=((4.0, 8.0),))
    assert group.num_ranks == 8.0
    assert tuple(map(float, ranks_per_tier(group, two_level()))) == (2.0, 8.0)


def test_three_tiers():
    pods = cluster(fast(8), slow(name="pod", size=32), slow(), num_devices=256)
    assert tuple(map(float, ranks_per_tier(Group(size=16.0, stride=8.0), pods))) == (1.0, 4.0, 16.0)


def test_domains_of_72_hold_whole_groups_of_64():
    rack = cluster(fast(72), slow(), num_devices=256, per_node=4)
    assert float(ranks_per_tier(Group(size=16.0), rack)[0]) == 16.0
    assert float(ranks_per_tier(Group(size=256.0), rack)[0]) == 64.0
    assert float(ranks_per_tier(Group(size=32.0, stride=8.0), rack)[0]) == 8.0


@pytest.mark.parametrize("num_devices", [512, 576, 640, 1024, 1152, 2048, 2304])
@pytest.mark.parametrize("ranks", [8, 16, 32, 64])
def test_groups_lie_within_domains_of_72_on_any_number_of_devices(num_devices, ranks):
    rack = cluster(fast(72), slow(), num_devices=num_devices, per_node=4)
    assert float(ranks_per_tier(Group(size=float(ranks)), rack)[0]) == ranks


def test_groups_straddle_domains_where_the_network_joins_no_more_of_them():
    rack = cluster(fast(72), slow(size=576), num_devices=576, per_node=4)
    assert float(ranks_per_tier(Group(size=64.0), rack)[0]) == 32.0
    assert float(ranks_per_tier(Group(size=8.0), rack)[0]) == 8.0


def test_nodes_are_used_in_full():
    assert float(ranks_per_tier(Group(size=3.0), two_level(24))[0]) == 1.5


def test_a_group_that_cannot_be_packed_whole_straddles():
    assert float(ranks_within(size=3.0, stride=1.0, tier_size=8.0, num_devices=24.0)) == 1.5
    # With spare devices the groups of three stay whole: two per node.
    assert float(ranks_within(size=3.0, stride=1.0, tier_size=8.0, num_devices=6.0)) == 3.0


def test_uneven_groups_give_the_mean():
    assert float(ranks_per_tier(Group(size=12.0), two_level(24))[0]) == 6.0


def test_arrays_equal_scalars():
    size = np.array([1.0, 2.0, 3.0, 8.0, 12.0, 64.0])
    stride = np.array([1.0, 8.0, 1.0, 4.0, 2.0, 1.0])
    together = ranks_per_tier(Group(size=size, stride=stride), two_level())
    for i in range(size.size):
        alone = ranks_per_tier(Group(size=float(size[i]), stride=float(stride[i])), two_level())
        assert [t[i] for t in together] == [float(a) for a in alone]


def test_the_closest_ranks_of_a_group_of_several_axes():
    """Of 2 ranks side by side, 4 times 8 apart, the closest 4 are both of the first two pairs."""
    group = Group(size=2.0, stride=1.0, outer=((4.0, 8.0),))
    assert innermost(group, 4.0) == Group(size=2.0, stride=1.0, outer=((2.0, 8.0),))
    assert innermost(group, 1.0) == Group(size=1.0, stride=1.0, outer=((1.0, 8.0),))
    assert innermost(group, 99.0) == group


def test_a_tier_that_is_larger_than_the_cluster_holds_all_of_it():
    """72 could be joined, 16 are there: groups of 6 and more ranks need not be packed apart from devices that are not."""
    assert float(ranks_within(size=6.0, stride=1.0, tier_size=72.0, num_devices=16.0)) == 3.0
    assert float(ranks_within(size=6.0, stride=1.0, tier_size=16.0, num_devices=16.0)) == 3.0
