"""Where a search may put the ranks of each axis: all factorisations over the network's tiers, each counted once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from forescale.errors import SpecError
from forescale.numeric import divisors
from forescale.spec.cluster import Cluster
from forescale.spec.space import PlacementChoice
from forescale.spec.strategy import DEFAULT_AXIS_ORDER, Axis, Placement, Share
from forescale.units import counted

Placing: TypeAlias = tuple[tuple[Axis, ...], Placement | None]
"""An order of axes, or where a placement replaces it."""
Codes: TypeAlias = NDArray[np.int64]
ODD = -1
"""Code of ranks that do not fill tiers in whole parts."""


def placings(
    cluster: Cluster, orders: Sequence[tuple[Axis, ...]], choices: Sequence[PlacementChoice]
) -> list[Placing]:
    """Return what a search tries, each once: axis orders before placements."""
    found: list[Placing] = [(order, None) for order in orders] if "orders" in choices else []
    for choice in choices:
        if choice == "all":
            found += [(DEFAULT_AXIS_ORDER, each) for each in placements(cluster)]
        elif choice != "orders":
            found.append((DEFAULT_AXIS_ORDER, choice))
    fitting = [each for each in dict.fromkeys(found) if fills(each[1] or (), cluster)]
    if not fitting:
        where = " × ".join(map(str, cluster.tier_fill))
        devices = f"{counted(cluster.num_devices, 'device')} of {cluster.name}"
        msg = f"no placement fills the tiers of {devices}, which take {where}"
        raise SpecError(msg)
    return fitting


def fills(placement: Placement, cluster: Cluster) -> bool:
    """Return whether every tier that a placement names is there, and filled."""
    fill = cluster.tier_fill
    return len(placement) <= len(fill) and all(
        share.num_ranks == ranks for share, ranks in zip(placement, fill, strict=False)
    )


def placements(cluster: Cluster) -> Iterator[Placement]:
    """Yield every way to fill all tiers but the outermost with ranks of tp, cp, dp and pp."""
    return product(*(tuple(_shares(ranks)) for ranks in cluster.tier_fill))


def _shares(ranks: int) -> Iterator[Share]:
    """Yield the ordered factorisations of the ranks that fill a tier; tensor parallel closest first."""
    for tp in reversed(divisors(ranks)):
        for cp in reversed(divisors(ranks // tp)):
            for dp in reversed(divisors(ranks // (tp * cp))):
                yield Share(tp=tp, cp=cp, dp=dp, pp=ranks // (tp * cp * dp))


def allowed(placing: Placing, degrees: dict[Axis, Codes]) -> NDArray[np.bool_]:
    """Return for which rows of degrees a placement can be."""
    result = np.ones(len(degrees["tp"]), dtype=bool)
    for axis, degree in degrees.items():
        result &= degree % int(np.prod([getattr(share, axis) for share in placing[1] or ()])) == 0
    return result


def codes(placing: Placing, fill: Sequence[int], degrees: dict[Axis, Codes]) -> Codes:
    """Return a number per row that says how many ranks of each axis share each tier; `ODD` for uneven ones.

    Equal numbers mean the same ranks per tier for every communicator, and so the same time and memory.
    """
    order, placement = placing
    if placement is not None and len(placement) < len(fill):
        order = DEFAULT_AXIS_ORDER
    left = dict(degrees)
    code = np.zeros(len(degrees["tp"]), dtype=np.int64)
    even = np.ones(len(code), dtype=bool)
    for tier, ranks in enumerate(fill):
        room = np.full(len(code), ranks)
        taken: dict[Axis, Codes] = {}
        for axis in order:
            if placement is not None and tier < len(placement):
                taken[axis] = np.full(len(code), getattr(placement[tier], axis))
            else:
                taken[axis] = np.gcd(left[axis], room)
                even &= taken[axis] == np.minimum(left[axis], room)
            room = room // taken[axis]
            left[axis] = left[axis] // np.maximum(taken[axis], 1)
        for axis in DEFAULT_AXIS_ORDER:
            code = code * (ranks + 1) + taken[axis]
    return np.where(even, code, ODD)


def first_of_its_kind(
    placing: Placing, known: Sequence[Placing], fill: Sequence[int], degrees: dict[Axis, Codes]
) -> NDArray[np.bool_]:
    """Return for which rows `placing` can be, and none of those before it in `known` is the same."""
    result = allowed(placing, degrees)
    own = codes(placing, fill, degrees)
    trivial = (degrees["pp"] == 1) | (degrees["dp"] == 1)
    for other in known[: known.index(placing)]:
        if other[1] is not None and placing[1] is not None and len(other[1]) == len(placing[1]):
            continue
        same = (own == codes(other, fill, degrees)) & (own != ODD)
        same |= trivial & (other[1] is None) & (placing[1] is None)
        result &= ~(same & allowed(other, degrees))
    return result
