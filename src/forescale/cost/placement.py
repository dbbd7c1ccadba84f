"""Where a communicator lies: how many of its ranks share each tier of the network."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import mul

import numpy as np

from forescale.formula import formula
from forescale.numeric import Numeric, larger, smaller
from forescale.spec.cluster import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A communicator: `size` ranks whose device numbers differ by `stride`; arrays over candidates.

    A group that runs over several axes (data and context parallel, say) has further (size, stride) pairs in
    `outer`, from the inside out.
    """

    size: Numeric
    stride: Numeric = 1.0
    outer: tuple[tuple[Numeric, Numeric], ...] = ()

    @property
    def axes(self) -> tuple[tuple[Numeric, Numeric], ...]:
        """All (size, stride) pairs, innermost first."""
        return ((self.size, self.stride), *self.outer)

    @property
    def num_ranks(self) -> Numeric:
        """Ranks of the communicator."""
        return reduce(mul, (size for size, _ in self.axes))

    @property
    def is_number(self) -> bool:
        """Whether it is one communicator, not one per candidate, and not recorded."""
        return all(isinstance(each, float) for axis in self.axes for each in axis)


@formula(
    unit="1", source="PyTorch FSDP2: reshard_after_forward as a number of ranks, which divides the group"
)
def neighbours(*, size: Numeric, wanted: Numeric, taken: Numeric) -> Numeric:
    """Members of an axis among the `wanted` closest ranks of a group, inner axes having `taken` of them."""
    return smaller(size, larger(wanted / taken, 1.0))


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
def ranks_within(*, size: Numeric, stride: Numeric, tier_size: float, num_devices: float) -> Numeric:
    """Size / blocks; blocks = ceil(size·stride / tier), one if the group fits whole into a tier.

    Groups that fit into a tier are packed whole as long as the tiers then still hold all devices (the
    practice on 72-device domains: 64 are used); otherwise one group straddles two, and it sets the pace.
    """
    tier = min(tier_size, num_devices)
    num_tiers = np.ceil(num_devices / tier)
    span = size * stride
    whole = np.floor(tier / smaller(span, tier)) * span * num_tiers
    straddles = (span <= tier) * (whole < num_devices)
    blocks = smaller(np.ceil(span / tier) + straddles, size)
    return size / blocks


def ranks_per_tier(group: Group, cluster: Cluster) -> tuple[Numeric, ...]:
    """Return how many ranks of one group share each tier, inner tiers included; the last is all of them.

    Eight ranks with stride 1 on nodes of 8 give (8, 8), with stride 4 (2, 8). Uneven groups give the mean.
    """
    num_devices = float(cluster.num_devices)
    shared: list[Numeric] = []
    for tier in cluster.tiers[:-1]:
        per_axis = (
            ranks_within(
                size=size, stride=stride, tier_size=float(tier.size) or num_devices, num_devices=num_devices
            )
            for size, stride in group.axes
        )
        shared.append(reduce(mul, per_axis))
    return (*shared, group.num_ranks)
