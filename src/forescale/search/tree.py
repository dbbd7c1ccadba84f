"""All legal layouts in factored form: cells, each of which stands for its ways to shard states, and their variants."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import TypeAlias

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from forescale.numeric import divisors
from forescale.search.layouts import (
    Candidates,
    Columns,
    Rows,
    Variant,
    distinct,
    expert_degrees,
    first_rows,
    options,
    shardings,
    variants_of,
    virtual_stages,
)
from forescale.spec.cluster import Cluster
from forescale.spec.constraints import Proposal, inner_widths, legal
from forescale.spec.model import Model
from forescale.spec.space import DEGREE_NAMES, Space
from forescale.spec.strategy import Strategy
from forescale.spec.workload import Workload
from forescale.struct import Struct

Mask = NDArray[np.bool_]
SHARDING = ("dp_replicate", "dp_shard", "zero")
"""What a cell leaves open."""
Shape: TypeAlias = tuple[int, int, int]
"""tp, cp and pp."""
Shapes: TypeAlias = Mapping[Shape, tuple[tuple[int, ...], tuple[int, ...]]]
"""The virtual stages and micro-batches to which each shape is held."""
BRANCH_KEY = ("tp", "cp", "pp", "vpp", "sp", "dp_replicate", "dp_shard", "micro_batch_size")
"""What operators and schedules may ask of degrees: no more than that of experts is left out."""
_OWN = ("place", "step", "width", "listed", "flagged", "num_layouts")
_COLUMNS = (*DEGREE_NAMES, "sp", *_OWN)


class Cells(Struct, frozen=True, kw_only=True):
    """Every combination of degrees but those of `SHARDING`, of which at least one way to shard is legal."""

    whole: Candidates
    """One row per cell, as one shard of all data-parallel ranks at stage 0, which need not be legal."""
    place: Rows
    """Where in the order of the space the cell's first sharding stands, legal or not; each next is `step` on."""
    step: Rows
    width: Rows
    """Shardings that a cell looks at, legal or not."""
    listed: Rows
    """Where a cell's shardings begin in `table`."""
    table: NDArray[np.int64]
    """(shardings, 3) dp_replicate, dp_shard, zero."""
    flagged: Rows
    """Where a cell's flags begin in `flags`: which of its shardings are legal."""
    flags: Mask
    num_layouts: Rows
    """Legal shardings of a cell."""

    def __len__(self) -> int:
        """Return the number of cells."""
        return len(self.place)

    def some(self, cells: Rows) -> Cells:
        """Return some cells with the ways to shard each."""
        own = {name: getattr(self, name)[cells] for name in _OWN}
        return replace(self, whole=self.whole.take(cells), **own)

    def expand(self, cells: Rows) -> tuple[Candidates, Rows, Rows]:
        """Return the layouts of some cells: their rows, which of `cells` each belongs to, and their places."""
        width = self.width[cells]
        owner = np.repeat(np.arange(len(cells)), width)
        nth = np.arange(len(owner)) - np.repeat(np.cumsum(width) - width, width)
        chosen = np.flatnonzero(self.flags[self.flagged[cells][owner] + nth])
        owner, nth = owner[chosen], nth[chosen]
        columns = {name: values[cells][owner] for name, values in self.whole.columns.items()}
        shards = self.table[self.listed[cells][owner] + nth]
        columns.update(zip(SHARDING, shards.T, strict=True))
        place = self.place[cells][owner] + self.step[cells][owner] * nth
        return replace(self.whole, columns=columns), owner, place


def enumerate_cells(
    model: Model, cluster: Cluster, workload: Workload, space: Space, shapes: Shapes | None = None
) -> Cells:
    """Return all legal layouts of `space`, or of some shapes, by cells, and how many rows each constraint refused."""
    found = _Found()
    for shape in _outer(model, cluster, space) if shapes is None else shapes:
        own = space
        if shapes is not None:
            chunks, batches = shapes[shape]
            own = replace(space, vpp=chunks, micro_batch_size=batches)
        _Block(model, cluster, workload, own, *shape).add_to(found)
    return found.cells(model, cluster, workload, space)


def enumerate_layouts(model: Model, cluster: Cluster, workload: Workload, space: Space) -> Candidates:
    """Return every legal layout of `space`, in a fixed order and each once."""
    cells = enumerate_cells(model, cluster, workload, space)
    rows, _, place = cells.expand(np.arange(len(cells)))
    order = np.argsort(place)
    return rows.take(order)


def _outer(model: Model, cluster: Cluster, space: Space) -> Iterator[Shape]:
    total = cluster.num_devices
    for tp in options(space.tp, divisors(total)):
        for cp in options(space.cp, divisors(total // tp)):
            for pp in options(space.pp, divisors(total // (tp * cp))):
                if pp <= model.num_layers:
                    yield tp, cp, pp


def possible_rows(model: Model, cluster: Cluster, workload: Workload, space: Space) -> Candidates:
    """Return a row per shape, virtual stages, micro-batch and sp that is legal with all else at its least refused."""
    shapes = np.array([*_outer(model, cluster, space)], dtype=np.int64).reshape(-1, 3)
    some = _possible(model, cluster, workload, space, dict(zip(("tp", "cp", "pp"), shapes.T, strict=True)))
    rows = [
        (tp, cp, pp, *own)
        for tp, cp, pp in zip(*(some[name].tolist() for name in ("tp", "cp", "pp")), strict=True)
        for own in product(*_inner(model, cluster, workload, space, tp, cp, pp))
    ]
    names = ("tp", "cp", "pp", "vpp", "micro_batch_size", "sp")
    table = np.array(rows, dtype=np.int64).reshape(-1, len(names))
    found = _possible(model, cluster, workload, space, dict(zip(names, table.T, strict=True)))
    return _candidates(model, cluster, workload, space, found, {})


def _possible(model: Model, cluster: Cluster, workload: Workload, space: Space, given: Columns) -> Columns:
    """Return the legal ones of some rows, all else at what any constraint refuses least."""
    least = {**dict.fromkeys(DEGREE_NAMES, 1), "zero": 3, "sp": 0}
    columns = {name: np.full_like(given["tp"], value) for name, value in least.items()} | given
    columns["dp_shard"] = cluster.num_devices // (columns["tp"] * columns["cp"] * columns["pp"])
    degrees = _Degrees(columns, Strategy(kernels=space.base.kernels), any_schedule=True)
    question = Proposal(model=model, cluster=cluster, workload=workload, degrees=degrees)
    mask, _ = legal(question, given["tp"].shape, waived=space.waived)
    return {name: values[mask] for name, values in columns.items()}


def _inner(
    model: Model, cluster: Cluster, workload: Workload, space: Space, tp: int, cp: int, pp: int
) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    """Return the virtual stages, micro-batches and sp under a shape."""
    share, rest = divmod(workload.global_batch_size, cluster.num_devices // (tp * cp * pp))
    return (
        options(space.vpp, virtual_stages(model.num_layers, pp)),
        () if rest else options(space.micro_batch_size, divisors(share)),
        _sequence_parallel(space, model, tp),
    )


def unlisted(model: Model, cluster: Cluster, workload: Workload, space: Space) -> dict[str, int]:
    """Return how many layouts are not even tried, by the constraint that they would break: only divisors are."""
    found: dict[str, int] = {}
    for tp, cp, pp in _outer(model, cluster, space):
        block = _Block(model, cluster, workload, space, tp, cp, pp)
        sizes = dict(zip(block.lists, block.shape, strict=True))
        if not sizes["micro_batch_size"]:
            name = "global batch"
        elif not sizes["vpp"]:
            name = "layers over pp × vpp" if pp > 1 else "vpp needs pp"
        else:
            continue
        found[name] = found.get(name, 0) + math.prod(max(size, 1) for size in block.shape)
    return found


def shapes_of(rows: Candidates) -> Shapes:
    """Return the shapes of some rows, with the virtual stages and micro-batches that occur under each."""
    found: dict[Shape, tuple[set[int], set[int]]] = {}
    names = ("tp", "cp", "pp", "vpp", "micro_batch_size")
    for *shape, vpp, batch in zip(*(rows.columns[name].tolist() for name in names), strict=True):
        chunks, batches = found.setdefault(tuple(shape), (set(), set()))
        chunks.add(vpp)
        batches.add(batch)
    return {
        shape: (tuple(sorted(chunks)), tuple(sorted(batches))) for shape, (chunks, batches) in found.items()
    }


def _candidates(
    model: Model,
    cluster: Cluster,
    workload: Workload,
    space: Space,
    columns: Columns,
    refused: dict[str, int],
) -> Candidates:
    """Return rows of degrees crossed with the variants of a space."""
    return Candidates(
        domain=cluster.domain,
        model=model,
        columns=columns,
        variants=variants_of(space, model, cluster),
        base=replace(space.base, stage_layers=None),  # a search deals layers evenly
        global_batch_size=workload.global_batch_size,
        fill=cluster.tier_fill,
        refused=refused,
        widths=inner_widths(model),
    )


class _Found:
    """Cells collected so far."""

    def __init__(self) -> None:
        self.place = self.num_flags = self.num_shardings = 0
        self.refused: dict[str, int] = {}
        self.columns: list[Columns] = []
        self.tables: list[NDArray[np.int64]] = []
        self.flags: list[Mask] = []

    def cells(self, model: Model, cluster: Cluster, workload: Workload, space: Space) -> Cells:
        """Return all of them."""
        names = self.columns[0] if self.columns else dict.fromkeys(_COLUMNS)
        empty = np.zeros(0, dtype=np.int64)
        columns = {name: np.concatenate([empty, *(each[name] for each in self.columns)]) for name in names}
        own = {name: columns.pop(name) for name in _OWN}
        whole = _candidates(model, cluster, workload, space, columns, self.refused)
        return Cells(
            whole=whole,
            table=np.concatenate([np.zeros((0, 3), dtype=np.int64), *self.tables]),
            flags=np.concatenate([np.zeros(0, dtype=bool), *self.flags]),
            **own,
        )


class _Block:
    """All rows of one choice of tp, cp and pp: experts × chunks × shardings × micro-batches × sp, in this order."""

    def __init__(
        self, model: Model, cluster: Cluster, workload: Workload, space: Space, tp: int, cp: int, pp: int
    ) -> None:
        self.outer = {"tp": tp, "cp": cp, "pp": pp}
        self.dp, self.rules = cluster.num_devices // (tp * cp * pp), space.rules
        self.waived = space.waived
        chunks, batches, sp = _inner(model, cluster, workload, space, tp, cp, pp)
        self.lowest = min(space.zero)
        shared = tp * cp if model.is_moe else cp
        self.shards = np.array(shardings(space, self.dp, shared), dtype=np.int64).reshape(-1, 3)
        self.lists = {
            "expert": np.array(expert_degrees(model, space, tp * cp * self.dp), dtype=np.int64).reshape(
                -1, 2
            ),
            "vpp": np.array(chunks, dtype=np.int64),
            "shard": self.shards,
            "micro_batch_size": np.array(batches, dtype=np.int64),
            "sp": np.array(sp, dtype=np.int64),
        }
        self.shape = tuple(len(values) for values in self.lists.values())
        self.question = Proposal(
            model=model, cluster=cluster, workload=workload, degrees=self._degrees(space)
        )

    def _degrees(self, space: Space) -> _Degrees:
        columns: Columns = {name: np.array(value) for name, value in self.outer.items()}
        for axis, (name, values) in enumerate(self.lists.items()):
            along = (-1,) + (1,) * (len(self.lists) - 1 - axis)
            names = {"expert": ("ep", "etp"), "shard": SHARDING}.get(name, (name,))
            for column, each in zip(names, np.atleast_2d(values.T), strict=True):
                columns[column] = each.reshape(along)
        return _Degrees(columns, space.base, any_schedule=space.schedule != (None,))

    def add_to(self, found: _Found) -> None:
        """Add the cells of the block; their shardings share flags where these depend on the experts alone."""
        mask, refused = legal(self.question, self.shape, rules=self.rules, waived=self.waived)
        for name, count in refused.items():
            found.refused[name] = found.refused.get(name, 0) + count
        size, width = mask.size, self.shape[2]
        mask = np.moveaxis(mask & self._distinct(), 2, -1)
        cells = np.nonzero(mask.any(axis=-1))
        if len(cells[0]):
            flags, flagged = self._flags(mask, cells)
            expert, chunk, batch, sp = cells
            inner = self.shape[3] * self.shape[4]
            first = (expert * self.shape[1] + chunk) * width * inner + batch * self.shape[4] + sp
            columns = {
                **self.outer,
                "ep": self.lists["expert"][expert, 0],
                "etp": self.lists["expert"][expert, 1],
                "vpp": self.lists["vpp"][chunk],
                "dp_replicate": 1,
                "dp_shard": self.dp,
                "zero": 0,
                "micro_batch_size": self.lists["micro_batch_size"][batch],
                "sp": self.lists["sp"][sp],
                "place": found.place + first,
                "step": inner,
                "width": width,
                "listed": found.num_shardings,
                "flagged": found.num_flags + flagged * width,
                "num_layouts": flags.sum(axis=-1)[flagged],
            }
            found.columns.append({name: _column(columns[name], len(expert)) for name in _COLUMNS})
            found.flags.append(flags.reshape(-1))
            found.num_flags += flags.size
        found.tables.append(self.shards)
        found.num_shardings += width
        found.place += size

    def _distinct(self) -> Mask:
        """Return which shardings are not stage 0 by another name: experts may have replicas where others have none."""
        tp, cp, (_, shard, zero) = self.outer["tp"], self.outer["cp"], self.shards.T
        folded = self.lists["expert"].prod(axis=1)[:, np.newaxis]
        alone = (zero == self.lowest) & (self.dp * cp == 1)
        distinct = (zero == 0) | (shard * cp > 1) | (tp * cp * shard > folded) | alone
        return np.asarray(distinct).reshape(len(folded), 1, len(zero), 1, 1)

    def _flags(self, mask: Mask, cells: tuple[Rows, ...]) -> tuple[Mask, Rows]:
        """Return distinct rows of flags over shardings, and which row is each cell's."""
        by_expert: Mask = np.logical_or.reduce(mask, axis=(1, 2, 3))
        if np.array_equal(mask[cells], by_expert[cells[0]]):
            return by_expert, np.asarray(cells[0])
        return mask[cells], np.arange(len(cells[0]))


def _column(value: Rows | int, size: int) -> Rows:
    return np.asarray(np.broadcast_to(np.asarray(value, dtype=np.int64), (size,)))


def _sequence_parallel(space: Space, model: Model, tp: int) -> list[int]:
    """Return sp or not: nothing to choose without tp, and experts under tp have it unless it is held off."""
    if tp == 1:
        return [int(value) for value in space.sp if value == (True in space.sp)]
    return [int(value) for value in space.sp if value or not model.is_moe or True not in space.sp]


class _Degrees:
    """Columns seen as attributes, for the constraints; rules of one schedule do not bind where any may run."""

    def __init__(self, columns: Columns, base: Strategy, *, any_schedule: bool) -> None:
        self.kernels, self.reshard = base.kernels, base.reshard
        self.schedule = "any" if any_schedule else None
        self.microbatch_group = None if any_schedule else base.microbatch_group
        self.__dict__.update(columns)


class Branch(Struct, frozen=True, kw_only=True):
    """Variants that share their operators and schedule."""

    variants: NDArray[np.int64]
    """(orders, recomputes) which variants."""
    first: Variant


class Tree(Struct, frozen=True, kw_only=True):
    """Nodes (branch, cell), and what each is branched by: orders of ranks, and recompute policies, that are its own."""

    branches: tuple[Branch, ...]
    branch_of: Rows
    """The branch of every variant, and its recompute policy among those of a branch."""
    policy_of: Rows
    by_branch: Mask
    """(branches, cells)"""
    by_order: Mask
    """(orders, cells)"""
    by_policy: Mask
    """(recomputes, cells)"""

    @classmethod
    def of(cls, cells: Cells) -> Tree:
        """Return what is legal on some cells."""
        variants = cells.whole.variants
        branches = branches_of(variants)
        grid = np.zeros((2, len(variants)), dtype=np.int64)
        for index, each in enumerate(branches):
            grid[0, each.variants] = index
            grid[1, each.variants] = np.arange(each.variants.shape[1])
        first = [variants[index] for index in branches[0].variants[:, 0]]
        known = tuple(each.rank_order for each in first)
        policies = [variants[index] for index in branches[0].variants[0]]
        branched, by_degrees = _rows(cells.whole, BRANCH_KEY)
        placed, by_place = _rows(cells.whole, ("tp", "cp", "pp"))
        shaped, by_shape = _rows(cells.whole, ("pp", "vpp"))
        return cls(
            branches=branches,
            branch_of=grid[0],
            policy_of=grid[1],
            by_branch=np.stack([branched.allows_branch(each.first) for each in branches])[:, by_degrees],
            by_order=placed.allows_orders(known)[:, by_place],
            by_policy=np.stack([shaped.allows_recompute(each) for each in policies])[:, by_shape],
        )

    @property
    def nodes(self) -> Mask:
        """(branches, cells) flags: where some variant of a branch is legal."""
        some = self.by_order.any(axis=0) & self.by_policy.any(axis=0)
        return np.asarray(self.by_branch & some)

    def num_layouts(self, cells: Cells) -> Rows:
        """Return the layouts of every cell under one branch that it allows."""
        orders = self.orders_of(np.arange(len(cells)))
        return np.asarray(cells.num_layouts * orders * self.by_policy.sum(axis=0))

    def orders_of(self, cells: Rows) -> Rows:
        """Orders of ranks of some cells."""
        return np.asarray(self.by_order[:, cells].sum(axis=0))


def branches_of(variants: tuple[Variant, ...]) -> tuple[Branch, ...]:
    """Return the variants by operator list and schedule, each crossed with all orders of ranks and recomputes."""
    found: dict[object, list[int]] = {}
    for index, each in enumerate(variants):
        found.setdefault((*each.choices.values(), each.schedule), []).append(index)
    num_orders = len({each.rank_order for each in variants})
    return tuple(
        Branch(variants=np.array(indices).reshape(num_orders, -1), first=variants[indices[0]])
        for indices in found.values()
    )


def _rows(candidates: Candidates, names: tuple[str, ...]) -> tuple[Candidates, Rows]:
    """Return one candidate of each distinct row of some columns, and where each candidate's row stands."""
    where = distinct(candidates.columns, names).where
    return candidates.take(first_rows(where)), where
