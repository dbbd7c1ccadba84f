"""All legal layouts in factored form: cells, each of which stands for its ways to shard states, and their variants."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache, partial, reduce
from operator import and_
from typing import TypeAlias

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from forescale.numeric import divisors
from forescale.schedule.legality import LEGALITY
from forescale.search.layouts import (
    BRANCHED,
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
)
from forescale.spec.cluster import Cluster
from forescale.spec.constraints import virtual_stages
from forescale.spec.layout import Layout
from forescale.spec.model import Model
from forescale.spec.proposal import Constraint, ManyLayouts, Proposal, masks_of, refused_by
from forescale.spec.space import DEGREE_NAMES, Space
from forescale.spec.workload import Workload
from forescale.struct import Struct
from forescale.workers import ALONE, Workers

Mask = NDArray[np.bool_]
SHARDING = ("dp_replicate", "dp_shard", "zero")
"""What a cell leaves open."""
Shape: TypeAlias = tuple[int, int, int]
"""tp, cp and pp."""
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
        local = {name: getattr(self, name)[cells] for name in _OWN}
        return replace(self, whole=self.whole.take(cells), **local)

    def expand(self, cells: Rows) -> tuple[Candidates, Rows, Rows]:
        """Return the layouts of some cells: their rows, which of `cells` each belongs to, and their places."""
        width = self.width[cells]
        owner = np.repeat(np.arange(len(cells)), width)
        nth = np.arange(len(owner)) - np.repeat(np.cumsum(width) - width, width)
        flag = np.flatnonzero(self.flags[self.flagged[cells][owner] + nth])
        owner, nth = owner[flag], nth[flag]
        columns = {name: values[cells][owner] for name, values in self.whole.columns.items()}
        shards = self.table[self.listed[cells][owner] + nth]
        columns.update(zip(SHARDING, shards.T, strict=True))
        place = self.place[cells][owner] + self.step[cells][owner] * nth
        return replace(self.whole, columns=columns), owner, place


class ShapeRows(Struct, frozen=True, kw_only=True):
    """Degrees but those of experts and of sharding, a row for each combination of which some layout may be legal."""

    whole: Candidates
    """One row each, without expert parallelism and as one shard of all data-parallel ranks at stage 0."""
    num_sharded: Rows
    """Legal combinations of expert parallelism and sharding of each."""
    block: Rows
    """Which block of `Blocks` each row is of; ascending."""

    @property
    def num_layouts(self) -> Rows:
        """Legal layouts of each row, whatever their variants."""
        tree = Tree.from_candidates(self.whole)
        variants = tree.variants_of(np.arange(self.whole.num_rows)).sum(axis=0)
        return np.asarray(variants * self.num_sharded)


class Blocks:
    """All layouts of a space, by the tp, cp and pp of each: rows and cells are made of them as they are wanted."""

    def __init__(
        self, model: Model, cluster: Cluster, workload: Workload, space: Space, workers: Workers = ALONE
    ) -> None:
        self._of = (model, cluster, workload, space)
        self._blocks = _blocks(model, cluster, workload, space, workers)

    @property
    def refused(self) -> dict[str, int]:
        """How many layouts each constraint refused."""
        return dict(sum((Counter(block.refused) for block in self._blocks), Counter[str]()))

    @property
    def mixed(self) -> bool:
        """Whether the legal layouts of experts depend on other degrees of a row than tp, cp and pp."""
        return any(block.mixed is not None for block in self._blocks)

    def rows(self) -> ShapeRows:
        """Return a row for all of tp, cp, pp, virtual stages, micro-batch and sp."""
        rows = [block.rows() for block in self._blocks]
        sharded = _joined([own.pop("num_sharded") for own, _ in rows])
        sizes = np.array([len(own["vpp"]) for own, _ in rows], dtype=np.int64)
        columns = {name: _joined([own[name] for own, _ in rows]) for name in ROW_NAMES}
        for name in (*DEGREE_NAMES, "sp"):
            if name not in columns:
                columns[name] = np.repeat(np.array([of[name] for _, of in rows], dtype=np.int64), sizes)
        block = np.repeat(np.arange(len(rows)), sizes)
        return ShapeRows(whole=_candidates(*self._of, columns, {}), num_sharded=sharded, block=block)

    def cells(self, rows: ShapeRows | None = None, mask: Mask | None = None) -> Cells:
        """Return all cells, or those of the `mask` ones of `rows`, which are all rows."""
        result = _Found()
        of_block = None if rows is None else np.searchsorted(rows.block, np.arange(len(self._blocks) + 1))
        for index, block in enumerate(self._blocks):
            local = None if of_block is None or mask is None else mask[of_block[index] : of_block[index + 1]]
            if local is None or local.any():
                block.add_to(result, local)
            result.place += math.prod(block.shape)
        return result.cells(*self._of, {} if rows is not None else self.refused)


def enumerate_cells(model: Model, cluster: Cluster, workload: Workload, space: Space) -> Cells:
    """Return all legal layouts of `space` by cells, and how many rows each constraint refused."""
    return Blocks(model, cluster, workload, space).cells()


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


def _inner(
    model: Model, cluster: Cluster, workload: Workload, space: Space, tp: int, cp: int, pp: int
) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    """Return the virtual stages, micro-batches and sp under a shape."""
    share, rest = divmod(workload.global_batch_size, cluster.num_devices // (tp * cp * pp))
    return (
        options(space.vpp, virtual_stages(model, pp)),
        () if rest else options(space.micro_batch_size, divisors(share)),
        _sequence_parallel(space, model, tp),
    )


def unlisted(model: Model, cluster: Cluster, workload: Workload, space: Space) -> dict[str, int]:
    """Return how many layouts are not even tried, by the constraint that they would break: only divisors are."""
    values: dict[str, int] = {}
    for block in _blocks(model, cluster, workload, space):
        sizes = dict(zip(block.lists, block.shape, strict=True))
        if not sizes["micro_batch_size"]:
            name = "global batch"
        elif not sizes["vpp"]:
            name = "layers over pp × vpp" if block.outer["pp"] > 1 else "vpp needs pp"
        else:
            continue
        values[name] = values.get(name, 0) + math.prod(max(size, 1) for size in block.shape)
    return values


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
        model=model,
        columns=columns,
        variants=variants_of(space, model, cluster),
        base=_base(space),
        cluster=cluster,
        workload=workload,
        refused=refused,
        rules=tuple(rule for rule in _rules(space) if rule.choices),
    )


def _base(space: Space) -> Layout:
    """Return what is not searched, with each choice of which the space has one value; layers are dealt evenly."""
    names = {name: space.values_of(name) for name in BRANCHED}
    if "summa" not in space.tp_kind:
        names["summa_panels"] = (1,)
    single = {name: values[0] for name, values in names.items() if len(values) == 1}
    return replace(space.base, stage_layers=None, placement=None, **single)


def _rules(space: Space) -> tuple[Constraint, ...]:
    """Return all that a layout of a space keeps to."""
    return tuple(rule for rule in (*LEGALITY, *space.rules) if rule.name not in space.waived)


class _Found:
    """Cells collected so far."""

    def __init__(self) -> None:
        self.place = self.num_flags = self.num_shardings = 0
        self.columns: list[Columns] = []
        self.tables: list[NDArray[np.int64]] = []
        self.flags: list[Mask] = []

    def cells(
        self, model: Model, cluster: Cluster, workload: Workload, space: Space, refused: dict[str, int]
    ) -> Cells:
        """Return all of them."""
        columns = {name: _joined([column[name] for column in self.columns]) for name in _COLUMNS}
        local = {name: columns.pop(name) for name in _OWN}
        whole = _candidates(model, cluster, workload, space, columns, refused)
        return Cells(
            whole=whole,
            table=np.concatenate([np.zeros((0, 3), dtype=np.int64), *self.tables]),
            flags=np.concatenate([np.zeros(0, dtype=bool), *self.flags]),
            **local,
        )


def _joined(parts: Sequence[Rows]) -> Rows:
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts])


AXES = EXPERT, CHUNKS, SHARDS, BATCH, SP = tuple(range(5))
"""Axes of a block."""
ROW_NAMES = ("vpp", "micro_batch_size", "sp")
"""Degrees in which the rows of a block differ."""
GROUPS_AT_ONCE, SHARED_FROM = 16, 256
"""Groups of blocks that one process makes at once, and how many blocks several processes share."""


def _blocks(
    model: Model, cluster: Cluster, workload: Workload, space: Space, workers: Workers = ALONE
) -> list[_Block]:
    """Return all blocks; rules that depend on choices of which the space has several are for variants."""
    settled = {name for name in BRANCHED if len(space.values_of(name)) == 1}
    rules = [rule for rule in _rules(space) if settled.issuperset(rule.choices)]
    one = Proposal(model=model, cluster=cluster, workload=workload, degrees=_base(space))
    rules = [rule for rule in rules if rule.applies(one)]
    alike: dict[object, list[tuple[int, _Lists]]] = {}
    for place, shape in enumerate(_outer(model, cluster, space)):
        lists = _Lists(one, space, shape)
        alike.setdefault(lists.key, []).append((place, lists))
    groups = list(alike.values())
    num_blocks = sum(map(len, groups))

    def part(some: Sequence[Sequence[tuple[int, _Lists]]]) -> list[tuple[int, _Block]]:
        return [item for group in some for item in _alike(one, group, rules)]

    starts = range(0, len(groups), GROUPS_AT_ONCE)
    parts = [partial(part, groups[start : start + GROUPS_AT_ONCE]) for start in starts]
    several = workers if num_blocks >= SHARED_FROM else ALONE
    found = dict(item for blocks in several.share(parts) for item in blocks)
    return [found[place] for place in range(num_blocks)]


class _Lists:
    """What the rows of one choice of tp, cp and pp are made of, axis by axis."""

    def __init__(self, one: Proposal, space: Space, shape: Shape) -> None:
        model, cluster = one.model, one.cluster
        tp, cp, pp = shape
        self.outer = {"tp": tp, "cp": cp, "pp": pp}
        self.dp = cluster.num_devices // (tp * cp * pp)
        chunks, batches, sp = _inner(model, cluster, one.workload, space, tp, cp, pp)
        experts = expert_degrees(model, space, tp * cp * self.dp)
        self.key = (pp, self.dp, tuple(chunks), tuple(batches), tuple(sp))
        self.values = {
            "expert": np.array(experts, dtype=np.int64).reshape(-1, 2),
            "vpp": np.array(chunks, dtype=np.int64),
            "shard": np.array(shardings(space, self.dp), dtype=np.int64).reshape(-1, 3),
            "micro_batch_size": np.array(batches, dtype=np.int64),
            "sp": np.array(sp, dtype=np.int64),
        }
        self.shape = tuple(len(values) for values in self.values.values())

    def columns(self) -> Columns:
        """Return the degrees of all rows but tp and cp, each along an axis of its own."""
        columns: Columns = {"pp": np.array(self.outer["pp"])}
        for axis, (name, values) in enumerate(self.values.items()):
            along = (-1,) + (1,) * (len(self.values) - 1 - axis)
            names = {"expert": ("ep", "etp"), "shard": SHARDING}.get(name, (name,))
            for nth, column in enumerate(names):
                columns[column] = (values[:, nth] if values.ndim > 1 else values).reshape(along)
        return columns


def _alike(
    one: Proposal, group: Sequence[tuple[int, _Lists]], rules: Sequence[Constraint]
) -> Iterator[tuple[int, _Block]]:
    """Yield the blocks of choices that differ in tp and cp alone, with their places: rules are asked once for all."""
    first, lead = group[0][1], (len(group), *(1,) * len(AXES))
    tp_cp = {name: np.array([item.outer[name] for _, item in group]).reshape(lead) for name in ("tp", "cp")}
    proposal = replace(one, degrees=ManyLayouts({**first.columns(), **tp_cp}, one.degrees))
    size = math.prod(first.shape)
    masks = masks_of(proposal, rules) if size else {}  # empty blocks refuse nothing
    refused = refused_by(masks, len(group) * size)
    parts = _Parted()
    parts.add(mask.reshape((1,) * (len(lead) - mask.ndim) + mask.shape) for mask in masks.values())
    for nth, (place, lists) in enumerate(group):
        yield place, _Block(lists, parts.of(nth), refused if nth == 0 else {})


class _Parted:
    """What is legal of (experts, shardings), of (chunks, micro-batches, sp), and of all together, of blocks alike."""

    def __init__(self) -> None:
        self.sharding = self.rows = np.ones((1,) * (1 + len(AXES)), dtype=bool)
        self.mixed: list[Mask] = []

    def add(self, masks: Iterable[Mask]) -> None:
        """Add where rules hold, (blocks, *AXES)."""
        for mask in map(_reduced, masks):
            experts, chunks, shards, batches, sp = mask.shape[1:]
            if chunks == batches == sp == 1:
                self.sharding = self.sharding & mask
            elif experts == shards == 1:
                self.rows = self.rows & mask
            else:
                self.mixed.append(mask)

    def of(self, block: int) -> _Parted:
        """Return what is legal of one block: what is together for several need not be for each."""
        result = _Parted()
        result.sharding, result.rows = _at_block(self.sharding, block), _at_block(self.rows, block)
        result.add(_at_block(mask, block) for mask in self.mixed)
        return result


def _at_block(mask: Mask, block: int) -> Mask:
    return mask if len(mask) == 1 else mask[block : block + 1]


class _Block:
    """All rows of one choice of tp, cp and pp: experts × chunks × shardings × micro-batches × sp, in this order."""

    def __init__(self, lists: _Lists, legal: _Parted, refused: dict[str, int]) -> None:
        self.outer, self.dp, self.lists, self.shape = lists.outer, lists.dp, lists.values, lists.shape
        self.refused = refused
        experts, chunks, shards, batches, sp = self.shape
        self.of_sharding = np.broadcast_to(legal.sharding[0], (experts, 1, shards, 1, 1))[:, 0, :, 0, 0]
        self.of_rows = np.broadcast_to(legal.rows[0], (1, chunks, 1, batches, sp))[0, :, 0]
        self.mixed = reduce(and_, (mask[0] for mask in legal.mixed)) if legal.mixed else None

    def _mask(self, mixed: Mask) -> Mask:
        """Return all that is legal, shardings last."""
        mask = np.broadcast_to(mixed, self.shape) & self.of_sharding[:, None, :, None, None]
        return np.moveaxis(mask & self.of_rows[None, :, None], SHARDS, -1)

    @cached_property
    def _num_sharded(self) -> Rows:
        """(chunks, micro-batches, sp) legal combinations of experts and shardings."""
        if self.mixed is not None:
            return np.asarray(self._mask(self.mixed).sum(axis=(0, -1)))
        return np.asarray(self.of_rows * int(np.count_nonzero(self.of_sharding)))

    def rows(self) -> tuple[Columns, dict[str, int]]:
        """Return the rows of the block, all but experts and shardings: their own degrees, and those of the block."""
        count = self._num_sharded
        chunk, batch, sp = np.nonzero(count)
        own = {**self._degrees(chunk, batch, sp), "num_sharded": count[chunk, batch, sp]}
        return own, {**dict.fromkeys(DEGREE_NAMES, 1), **self.outer, "dp_shard": self.dp, "zero": 0}

    def _degrees(self, chunk: Rows, batch: Rows, sp: Rows) -> Columns:
        return {
            "vpp": self.lists["vpp"][chunk],
            "micro_batch_size": self.lists["micro_batch_size"][batch],
            "sp": self.lists["sp"][sp],
        }

    def add_to(self, result: _Found, mask: Mask | None = None) -> None:
        """Add the cells of the block, or of the `mask` ones of its rows.

        Their shardings share flags where these depend on the experts alone.
        """
        selected = self._num_sharded > 0
        if mask is not None:
            selected[selected] = mask
        cells, flags, flagged = self._cells(selected)
        if len(cells[0]):
            expert, chunk, batch, sp = cells
            width, inner = self.shape[SHARDS], self.shape[BATCH] * self.shape[SP]
            first = (expert * self.shape[CHUNKS] + chunk) * width * inner + batch * self.shape[SP] + sp
            columns = {
                **self.outer,
                **self._degrees(chunk, batch, sp),
                "ep": self.lists["expert"][expert, 0],
                "etp": self.lists["expert"][expert, 1],
                "dp_replicate": 1,
                "dp_shard": self.dp,
                "zero": 0,
                "place": result.place + first,
                "step": inner,
                "width": width,
                "listed": result.num_shardings,
                "flagged": result.num_flags + flagged * width,
                "num_layouts": flags.sum(axis=-1)[flagged],
            }
            result.columns.append({name: _column(columns[name], len(expert)) for name in _COLUMNS})
            result.flags.append(flags.reshape(-1))
            result.num_flags += flags.size
            result.tables.append(self.lists["shard"])
            result.num_shardings += width

    def _cells(self, selected: Mask) -> tuple[tuple[Rows, ...], Mask, Rows]:
        """Return the cells of the chosen rows, distinct rows of flags over shardings, and which row is each cell's."""
        if self.mixed is None:
            cells = np.nonzero(np.asarray(self.of_sharding.any(axis=1))[:, None, None, None] & selected)
            return cells, self.of_sharding, np.asarray(cells[0])
        mask = self._mask(self.mixed) & selected[None, ..., None]
        cells = np.nonzero(mask.any(axis=-1))
        return cells, mask[cells], np.arange(len(cells[0]))


def _reduced(mask: Mask) -> Mask:
    """Return a mask, (blocks, *AXES), with length 1 along the axes on which it does not depend."""
    for axis in [axis for axis, length in enumerate(mask.shape) if length > 1]:
        first = mask[(slice(None),) * axis + (slice(1),)]
        if (mask == first).all():
            mask = first
    return mask


def _column(value: Rows | int, size: int) -> Rows:
    return np.full(size, value) if isinstance(value, int) else value


def _sequence_parallel(space: Space, model: Model, tp: int) -> list[int]:
    """Return sp or not: without tp there is nothing to choose; experts under tp have it unless the space says."""
    values = space.sequence_parallel(model)
    return [int(value) for value in values if tp > 1 or value == (True in values)]


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
    together: Mask
    """(branches, recomputes) which go together, whatever the degrees."""

    @classmethod
    def from_candidates(cls, whole: Candidates) -> Tree:
        """Return what is legal on some rows of degrees, such as those of cells."""
        variants = whole.variants
        branches = branches_of(variants)
        grid = np.zeros((2, len(variants)), dtype=np.int64)
        for index, branch in enumerate(branches):
            grid[0, branch.variants] = index
            grid[1, branch.variants] = np.arange(branch.variants.shape[1])
        first = [variants[index] for index in branches[0].variants[:, 0]]
        known = tuple(item.rank_order for item in first)
        policies = [variants[index] for index in branches[0].variants[0]]
        branched, by_degrees = _rows_of(whole, BRANCH_KEY)
        placed, by_place = _rows_of(whole, ("tp", "cp", "pp"))
        shaped, by_shape = _rows_of(whole, ("pp", "vpp"))
        return cls(
            branches=branches,
            branch_of=grid[0],
            policy_of=grid[1],
            by_branch=branched.allows_branches([branch.first for branch in branches])[:, by_degrees],
            by_order=placed.allows_orders(known)[:, by_place],
            by_policy=np.stack([shaped.allows_recompute(policy) for policy in policies])[:, by_shape],
            together=np.array(
                [
                    [whole.goes_together(variants[index]) for index in branch.variants[0]]
                    for branch in branches
                ]
            ),
        )

    @property
    def nodes(self) -> Mask:
        """(branches, cells) flags: where some variant of a branch is legal."""
        return np.asarray(self.by_branch & self.by_order.any(axis=0) & (self._num_policies > 0))

    @property
    def _num_policies(self) -> Rows:
        """(branches, cells) recompute policies of each."""
        distinct_rows, which = np.unique(self.together, axis=0, return_inverse=True)
        counts = distinct_rows.astype(np.int64) @ self.by_policy
        return np.asarray(counts[which.reshape(-1)])

    def variants_of(self, cells: Rows) -> Rows:
        """(branches, cells) legal variants of some cells."""
        return np.asarray((self._num_policies * self.by_branch)[:, cells] * self.orders_of(cells))

    def num_layouts(self, cells: Cells) -> Rows:
        """Return the layouts of every node, (branches, cells)."""
        return np.asarray(cells.num_layouts * self.variants_of(np.arange(len(cells))))

    def orders_of(self, cells: Rows) -> Rows:
        """Orders of ranks of some cells."""
        return np.asarray(self.by_order[:, cells].sum(axis=0))


@lru_cache(maxsize=16)
def branches_of(variants: tuple[Variant, ...]) -> tuple[Branch, ...]:
    """Return the variants by operator list and schedule, each crossed with all orders of ranks and recomputes."""
    values: dict[object, list[int]] = {}
    for index, variant in enumerate(variants):
        values.setdefault(variant.branch, []).append(index)
    num_orders = len({variant.rank_order for variant in variants})
    return tuple(
        Branch(variants=np.array(indices).reshape(num_orders, -1), first=variants[indices[0]])
        for indices in values.values()
    )


def _rows_of(candidates: Candidates, names: tuple[str, ...]) -> tuple[Candidates, Rows]:
    """Return one candidate of each distinct row of some columns, and where each candidate's row stands."""
    where = distinct(candidates.columns, names).where
    return candidates.take(first_rows(where)), where
