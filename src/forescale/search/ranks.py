"""Where the ranks of candidates lie: in an order, at placements, or for bounds wherever their messages take least."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from forescale.cost.mesh import (
    AXES,
    Group,
    Inside,
    LazyGroups,
    Order,
    groups,
    placed,
    ranks_per_node,
    ranks_per_tier,
)
from forescale.graph.ops import MeshAxis
from forescale.graph.sharding import Degrees, StructuralOptions
from forescale.inputs import communicators, pricing_between, pricing_of
from forescale.numeric import Array, Numeric, mapped, taking
from forescale.question import Question
from forescale.search.layouts import (
    Candidates,
    Columns,
    RankOrder,
    Rows,
    as_degrees,
    distinct,
    first_rows,
    occurring,
)
from forescale.spec.cluster import Cluster
from forescale.spec.context import CONTEXT_KINDS
from forescale.spec.layout import Axis
from forescale.spec.model import Model
from forescale.struct import Struct
from forescale.time.anywhere import Anywhere
from forescale.time.price import Pricing
from forescale.time.stacked import Known
from forescale.workers import ALONE, Workers

Mask = NDArray[np.bool_]
DENSE: tuple[MeshAxis, ...] = ("tp", "cp", "cp_inner", "cp_outer", "pp")
EXPERT: tuple[MeshAxis, ...] = ("ep", "etp", "expert_dp")
DENSE_KEY = ("tp", "cp", "pp")
EXPERT_KEY = (*DENSE_KEY, "ep", "etp")
"""What the places of communicators depend on, as the devices are given."""
APART_FROM_BLOCKS = ("pp", "expert_dp")
"""Axes whose messages are no part of a block."""
SHARED_FROM = 8192
"""Rows from which on several processes are worth their start."""


class Communicators(Struct, frozen=True, kw_only=True):
    """Distinct rows of degrees, and each row's."""

    where: Rows
    places: dict[MeshAxis, Group]
    """(places, codes) the communicators of every axis at all places where placements put them; some repeat."""
    codes: dict[MeshAxis, Rows]
    """Which of the `places` each row has: few are distinct."""


class RelaxedPlacement(Struct, frozen=True, kw_only=True):
    """The places of the communicators of candidates, whatever placement they have."""

    parts: tuple[Communicators, ...]
    """Of what experts do not change, and then of what they do."""

    @property
    def dense(self) -> RelaxedPlacement:
        """Of communicators that experts do not change."""
        return RelaxedPlacement(parts=self.parts[:1])

    @property
    def experts(self) -> RelaxedPlacement:
        """Of those that they do."""
        return RelaxedPlacement(parts=self.parts[1:])

    def keys(self, rows: Rows) -> Columns:
        """Return what the price of a block in some rows depends on beside degrees."""
        return {
            f"{axis} places": codes[part.where[rows]]
            for part in self.parts
            for axis, codes in part.codes.items()
            if axis not in APART_FROM_BLOCKS
        }

    def pricing(
        self,
        question: Question,
        degrees: Degrees,
        choices: StructuralOptions,
        rows: Rows,
        known: Known | None = None,
    ) -> Pricing:
        """Return the cost models of some rows, whose degrees are given: messages take the least of all places.

        `known` has what was priced for the same rows already.
        """
        anywhere = {
            axis: Anywhere(group=group, rows=part.codes[axis][part.where[rows]])
            for part in self.parts
            for axis, group in part.places.items()
        }
        plain = pricing_of(question, degrees, choices, ())
        groups = LazyGroups(
            {**plain.groups, **anywhere},
            lambda axis: anywhere[axis].at(0) if axis in anywhere else plain.groups[axis],
        )
        return replace(plain, groups=groups, anywhere=anywhere, known=known)

    def at(self, rows: Rows) -> RelaxedPlacement:
        """Return the places of some rows."""
        return RelaxedPlacement(parts=tuple(replace(part, where=part.where[rows]) for part in self.parts))


def relaxed_placement(
    candidates: Candidates, cluster: Cluster, *, experts: bool = True, workers: Workers = ALONE
) -> RelaxedPlacement:
    """Return where communicators of candidates, of `experts` too, may lie under the placements of their variants."""
    hierarchical = any(CONTEXT_KINDS[variant.cp_kind].halves for variant in candidates.variants)
    inner = candidates.base.cp_inner if hierarchical else None
    parts = [(DENSE_KEY, DENSE), *([(EXPERT_KEY, EXPERT)] if experts and candidates.model.is_moe else [])]
    return RelaxedPlacement(
        parts=tuple(
            _communicators(
                candidates,
                cluster,
                key,
                axes,
                inner,
                workers if candidates.num_rows >= SHARED_FROM else ALONE,
            )
            for key, axes in parts
            if len(candidates.columns["tp"])
        )
    )


def _communicators(
    candidates: Candidates,
    cluster: Cluster,
    key: tuple[str, ...],
    axes: tuple[MeshAxis, ...],
    cp_inner: int | None,
    workers: Workers,
) -> Communicators:
    table = distinct(candidates.columns, key)
    rows = candidates.take(first_rows(table.where))
    orders = tuple(dict.fromkeys(variant.rank_order for variant in candidates.variants))
    allowed = rows.allows_orders(orders)
    degrees = as_degrees(rows.columns)
    result = [groups(degrees, placed(*order), cp_inner=cp_inner) for order in orders]
    present = [axis for axis in axes if axis in result[0]]
    several = [[item[axis] for item in result] for axis in present]
    each = workers.share([partial(_distinct, item, allowed, cluster) for item in several])
    places = dict(zip(present, [place for place, _ in each], strict=True))
    codes = dict(zip(present, [code for _, code in each], strict=True))
    return Communicators(where=table.where, places=places, codes=codes)


def _distinct(result: Sequence[Group], allowed: Mask, cluster: Cluster) -> tuple[Group, Rows]:
    """Return the distinct sets of the rows' allowed groups, and which of them each row has."""
    size = allowed.shape[1]
    allowed = allowed | (~allowed.any(axis=0) & (np.arange(len(result)) == 0)[:, None])
    which, row = np.nonzero(allowed)
    code = np.zeros(len(which), dtype=np.int64)
    for level in zip(*(_shares(group, cluster) for group in result), strict=True):
        shares = np.stack([np.broadcast_to(item, size) for item in level])[allowed]
        values, where = np.unique(shares, return_inverse=True)
        code = code * len(values) + where
    code = np.unique(code, return_inverse=True)[1]
    kinds = int(code.max(initial=0)) + 1
    pairs, first = np.unique(row * kinds + code, return_index=True)
    count = np.bincount(pairs // kinds, minlength=size)
    start = np.cumsum(count) - count
    starts = [start + np.minimum(index, count - 1) for index in range(int(count.max(initial=1)))]
    sets = {str(index): pairs[item] % kinds for index, item in enumerate(starts)}
    where = distinct(sets, tuple(sets)).where
    rows = first_rows(where)
    return _picked(result, np.stack([which[first[item[rows]]] for item in starts]), rows, size), where


def _shares(group: Group, cluster: Cluster) -> list[Numeric]:
    """Return all that the price of a group may depend on beside its size: ranks per tier, and per node."""
    return [*ranks_per_tier(group, cluster), ranks_per_node(group, cluster)]


def _picked(groups: Sequence[Group], which: NDArray[np.int64], rows: Rows, size: int) -> Group:
    """Return the (places, rows) groups that `which` names, of groups of so many rows."""
    length = max(len(group.axes) for group in groups)
    axes = [(*group.axes, *[(1.0, 1.0)] * (length - len(group.axes))) for group in groups]
    parts = np.array([[[np.broadcast_to(item, size) for item in part] for part in group] for group in axes])
    (inner, stride), *outer = [tuple(part) for part in np.moveaxis(parts[which, :, :, rows], (2, 3), (0, 1))]
    return Group(size=inner, stride=stride, outer=tuple(outer))


class Ranks(Protocol):
    """Where the ranks of pairs lie."""

    def take(self, rows: Rows) -> Ranks:
        """Return those of some pairs."""
        ...

    def keys(self, model: Model) -> Columns:
        """Return what else the price of a block depends on, a column per pair."""
        ...

    def keys_like(self, other: Any, model: Model) -> Columns | None:  # noqa: ANN401  (of the same class)
        """Return the same as others of the same class number it; None if they do not know it."""
        ...

    def pricing(
        self, question: Question, degrees: Degrees, choices: StructuralOptions, pairs: Rows
    ) -> Pricing:
        """Return the cost models of some pairs, whose degrees are given."""
        ...


class GivenRanks(Struct, frozen=True, kw_only=True):
    """Ranks where layouts say that they lie: in orders of axes, and at placements."""

    orders: tuple[RankOrder, ...]
    which: Rows
    """Which of `orders` each pair has."""
    pp: Rows

    def take(self, rows: Rows) -> GivenRanks:
        """Return the ranks of some pairs."""
        return replace(self, which=self.which[rows], pp=self.pp[rows])

    def keys(self, model: Model) -> Columns:
        """Return the order, and pp where pipeline stages may stand between the ranks of an expert's group."""
        keys = {"ranks": self.which}
        if model.is_moe:
            between = np.array([where is None and axes[-1] != "pp" for axes, where in self.orders])
            keys["pp"] = np.where(between[self.which], self.pp, 1)
        return keys

    def keys_like(self, other: GivenRanks, model: Model) -> Columns | None:
        """Return the keys with the numbers that others give to orders; None if they lack one."""
        numbers = {order: number for number, order in enumerate(other.orders)}
        ranks = np.array([numbers.get(order, -1) for order in self.orders], dtype=np.int64)[self.which]
        return None if ranks.min(initial=0) < 0 else self.keys(model) | {"ranks": ranks}

    def pricing(
        self, question: Question, degrees: Degrees, choices: StructuralOptions, pairs: Rows
    ) -> Pricing:
        """Return the cost models, the communicators of each pair as its own order has them."""
        alike = np.array(_alike(self.orders))[self.which[pairs]]
        result = []
        for kind in occurring(alike).tolist():
            rows = np.flatnonzero(alike == kind)
            local = mapped(degrees, taking(rows))
            result.append((rows, communicators(local, choices, self._order(self.which[pairs[rows]]))))
        between = result[0][1] if len(result) == 1 else _side_by_side(result, len(pairs))
        return pricing_between(question, choices, between)

    def _order(self, which: Rows) -> Order:
        """Return the order of pairs that are alike; at placements, the ranks inside each tier are arrays."""
        axes, placement = self.orders[int(which[0])]
        if placement is None:
            return axes
        tiers = range(len(placement))
        return tuple(Inside(**{axis: self._inside(tier, axis)[which] for axis in AXES}) for tier in tiers)

    def _inside(self, tier: int, axis: Axis) -> Array:
        """Return the ranks of an axis inside a tier by order; 1 at orders and placements without that tier."""
        placements = (placement or () for _, placement in self.orders)
        shares = [getattr(placement[tier], axis) if tier < len(placement) else 1 for placement in placements]
        return np.array(shares, dtype=float)


def _alike(orders: Sequence[RankOrder]) -> list[int]:
    """Return numbers that are equal for orders whose communicators have one form: one order, or as many tiers."""
    kinds: dict[object, int] = {}
    forms = [axes if placement is None else len(placement) for axes, placement in orders]
    return [kinds.setdefault(form, len(kinds)) for form in forms]


def _side_by_side(
    groups: Sequence[tuple[Rows, Mapping[MeshAxis, Group]]], size: int
) -> Mapping[MeshAxis, Group]:
    """Return the communicators of all rows from those of some rows each."""

    def make(axis: MeshAxis) -> Group:
        parts = np.ones((max(len(local[axis].axes) for _, local in groups), 2, size))
        for rows, local in groups:
            for at, part in enumerate(local[axis].axes):
                for item, values in enumerate(part):
                    parts[at, item, rows] = values
        (inner, stride), *outer = [(part[0], part[1]) for part in parts]
        return Group(size=inner, stride=stride, outer=tuple(outer))

    return LazyGroups(groups[0][1], make)


class RelaxedRanks(Struct, frozen=True, kw_only=True):
    """Ranks wherever a message takes least."""

    placement: RelaxedPlacement
    rows: Rows

    def take(self, rows: Rows) -> RelaxedRanks:
        """Return the ranks of some pairs."""
        return replace(self, rows=self.rows[rows])

    def keys(self, model: Model) -> Columns:  # noqa: ARG002
        """Return the sets of places."""
        return self.placement.keys(self.rows)

    def keys_like(self, other: RelaxedRanks, model: Model) -> Columns | None:
        """Return the keys if others have them of the same communicators."""
        pairs = zip(self.placement.parts, other.placement.parts, strict=True)
        return self.keys(model) if all(one.codes is two.codes for one, two in pairs) else None

    def pricing(
        self, question: Question, degrees: Degrees, choices: StructuralOptions, pairs: Rows
    ) -> Pricing:
        """Return the cost models of messages at their best places."""
        return self.placement.pricing(question, degrees, choices, self.rows[pairs])
