"""Layouts as arrays: rows of degrees, and the choices and placements of ranks that are crossed with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import product
from math import gcd
from typing import Any, TypeAlias

import numpy as np
from msgspec import field
from msgspec.structs import replace
from numpy.typing import NDArray

from forescale.errors import SpecError, no_layout
from forescale.graph.sharding import Degrees
from forescale.graph.stages import layers_per_chunk
from forescale.numeric import divisors
from forescale.question import Question
from forescale.schedule.legality import LEGALITY
from forescale.spec.cluster import Cluster
from forescale.spec.constraints import fills_tiers, legal
from forescale.spec.context import ContextKind
from forescale.spec.dispatchers import Dispatcher
from forescale.spec.layout import (
    DEFAULT_AXIS_ORDER,
    Axis,
    LaunchGraphs,
    Layout,
    Overlap,
    Placement,
    Recompute,
    Share,
    TensorKind,
    settled,
)
from forescale.spec.model import Model
from forescale.spec.proposal import Constraint, ManyLayouts, Proposal, violated
from forescale.spec.space import DEGREE_NAMES, PlacementChoice, Space, default_recompute
from forescale.spec.summa import summa_refusal
from forescale.spec.workload import Workload, num_microbatches
from forescale.struct import Struct
from forescale.units import counted

Rows: TypeAlias = NDArray[np.int64]
Columns: TypeAlias = dict[str, Rows]
"""One integer array per dimension of the space, all of one length."""
RankOrder: TypeAlias = tuple[tuple[Axis, ...], Placement | None]
"""An order of axes, or where a placement replaces it."""
Codes: TypeAlias = NDArray[np.int64]
LISTED = ("tp_kind", "summa_panels", "cp_kind", "dispatcher", "graphs", "overlap")
"""Choices that change the operators of a block, or their prices."""
BRANCHED = (*LISTED, "schedule")
"""Choices that make a branch: they change the operators of a block, or the schedule."""
ODD = -1
"""Code of ranks that do not fill tiers in whole parts."""
SPARSE = 8
"""Numbers per value beyond which sorting the values is faster than counting through the numbers."""
LARGEST = 2**62
"""Numbers by which rows are told apart, at most."""


class Variant(Struct, frozen=True, kw_only=True):
    """The choices of a strategy that are crossed with every row of degrees, by its names."""

    recompute: Recompute
    cp_kind: ContextKind
    axis_order: tuple[Axis, ...]
    placement: Placement | None = None
    schedule: str | None = None
    tp_kind: TensorKind = "1d"
    summa_panels: int = 1
    dispatcher: Dispatcher = "all_to_all"
    graphs: LaunchGraphs = "none"
    overlap: Overlap = field(default_factory=Overlap)

    @property
    def choices(self) -> dict[str, Any]:
        """What changes the operators of a block, by name."""
        return {name: getattr(self, name) for name in LISTED}

    @property
    def branch(self) -> tuple[object, ...]:
        """What variants of one operator list and schedule have in common."""
        return tuple(getattr(self, name) for name in BRANCHED)

    @property
    def rank_order(self) -> RankOrder:
        """Where the ranks lie."""
        return self.axis_order, self.placement


class Candidates(Struct, frozen=True, kw_only=True):
    """All legal layouts of a space: rows of degrees, each with the variants it allows."""

    model: Model
    columns: Columns
    """Degrees and sp, one array each."""
    variants: tuple[Variant, ...]
    base: Layout
    cluster: Cluster
    workload: Workload
    refused: dict[str, int]
    """Rows that each constraint refused."""
    rules: tuple[Constraint, ...] = LEGALITY
    """What a layout keeps to; those that depend on variants are looked at here."""

    @property
    def domain(self) -> int:
        """Devices that share the fastest tier."""
        return self.cluster.domain

    def take(self, rows: Rows) -> Candidates:
        """Return some rows."""
        return replace(self, columns={name: values[rows] for name, values in self.columns.items()})

    @property
    def num_rows(self) -> int:
        """Number of rows of degrees."""
        return len(self.columns["tp"])

    def __len__(self) -> int:
        """Return the number of legal layouts."""
        return int(self.legal.sum())

    @property
    def legal(self) -> NDArray[np.bool_]:
        """(variants, rows) flags: where a variant is a layout of its own.

        Equivalent spellings count once: the kind of context parallelism matters where cp > 1, an order of ranks
        where no other has the same ranks share the tiers of the network.
        """
        known = tuple(dict.fromkeys(variant.rank_order for variant in self.variants))
        orders = dict(zip(known, self.allows_orders(known), strict=True))
        firsts = {variant.branch: variant for variant in reversed(self.variants)}
        branches = tuple(dict.fromkeys(variant.branch for variant in self.variants))
        allowed = self.allows_branches([firsts[branch] for branch in branches])
        by_branch = dict(zip(branches, allowed, strict=True))
        return np.stack(
            [
                by_branch[variant.branch]
                & orders[variant.rank_order]
                & self.allows_recompute(variant)
                & self.goes_together(variant)
                for variant in self.variants
            ]
        )

    def allows_branches(self, firsts: Sequence[Variant]) -> NDArray[np.bool_]:
        """Return (branches, rows) flags: where operators and schedule of a branch are legal, and repeat none before it.

        Each branch is given by one of its variants.
        """
        flags = np.ones((len(firsts), self.num_rows), dtype=bool)
        tp, cp, pp = (self.columns[name] for name in ("tp", "cp", "pp"))
        kinds = {alone: np.broadcast_to(where, tp.shape) for alone, where in _alone(tp, cp, pp).items()}
        for index, variant in enumerate(firsts):
            flags[index] = self._legal(variant, BRANCHED)
            for alone, where in kinds.items():
                spelt = _spelt(variant, alone)
                for before, other in enumerate(firsts[:index]):
                    if _spelt(other, alone) == spelt:
                        flags[index] &= ~(where & flags[before])
        return flags

    def goes_together(self, variant: Variant) -> bool:
        """Return whether the branch of a variant is legal with what it recomputes, whatever the degrees."""
        base = replace(self.base, recompute=variant.recompute, **variant.choices)
        proposal = Proposal(model=self.model, cluster=self.cluster, workload=self.workload, degrees=base)
        return not violated(proposal, [rule for rule in self.rules if _joins(rule)])

    def _legal(self, variant: Variant, choices: tuple[str, ...]) -> NDArray[np.bool_]:
        """Return where the choices of a variant keep to all rules that depend on some of them, and on no others."""
        rules = [rule for rule in self.rules if set(rule.choices) & set(choices) and not _joins(rule)]
        base = replace(self.base, **{name: getattr(variant, name) for name in choices})
        proposal = Proposal(
            model=self.model,
            cluster=self.cluster,
            workload=self.workload,
            degrees=ManyLayouts(self.columns, base),
        )
        return legal(proposal, (self.num_rows,), rules=rules)[0]

    def allows_orders(self, known: Sequence[RankOrder]) -> NDArray[np.bool_]:
        """Return (orders, rows) flags: where ranks can lie in each of `known`, and in none before it as well."""
        dp = self.columns["dp_replicate"] * self.columns["dp_shard"]
        degrees: dict[Axis, Rows] = {**{axis: self.columns[axis] for axis in ("tp", "cp", "pp")}, "dp": dp}
        return first_of_their_kind(known, self.cluster.tier_fill, degrees)

    def allows_recompute(self, variant: Variant) -> NDArray[np.bool_]:
        """Return for which rows `variant` recomputes something else than others do."""
        allowed = self._legal(variant, ("recompute",))
        return allowed if variant.recompute.num_layers is None else allowed & self._fewer(variant.recompute)

    def _fewer(self, recompute: Recompute) -> NDArray[np.bool_]:
        """Return where so many layers of a virtual stage are fewer than all, or the least number that is all.

        All layers by number are what no number means, except for multi-token prediction (`replayed_mtp`) and for
        vision towers that do as the decoder (`Recompute.of_towers`).
        """
        counts = {
            item.num_layers
            for item in {variant.recompute for variant in self.variants}
            if not item.layer_ids and replace(item, num_layers=recompute.num_layers) == recompute
        }
        smaller = [count for count in counts if count is not None and count < int(recompute.num_layers or 0)]
        apart = self.model.num_mtp_layers or (self.model.vision is not None and recompute.towers is None)
        if None in counts and not apart:
            smaller.append(int(recompute.num_layers or 0))
        longest = longest_chunk(self.model.num_layers, self.columns["pp"], self.columns["vpp"])
        return np.asarray(longest > max(smaller, default=0))

    @property
    def num_microbatches(self) -> Rows:
        """Micro-batches of every row."""
        dp, batch = self.columns["dp_replicate"] * self.columns["dp_shard"], self.columns["micro_batch_size"]
        count = num_microbatches(
            global_batch_size=self.workload.global_batch_size,
            dp=dp.astype(float),
            micro_batch_size=batch.astype(float),
        )
        return np.asarray(count, dtype=np.int64)

    def strategy(self, variant: int, row: int) -> Layout:
        """Return one layout as a strategy."""
        selected = self.variants[variant]
        degrees: dict[str, Any] = {name: int(self.columns[name][row]) for name in DEGREE_NAMES}
        others = {name: getattr(selected, name) for name in VARIED}
        sp = bool(self.columns["sp"][row])
        return settled(replace(self.base, **degrees, **others, sp=sp), self.domain)


def _joins(rule: Constraint) -> bool:
    """Return whether a rule depends on a branch and on what is recomputed at once; such rules ask no degrees."""
    return "recompute" in rule.choices and len(rule.choices) > 1


def _alone(tp: Rows, cp: Rows, pp: Rows) -> dict[tuple[bool, ...], NDArray[np.bool_]]:
    """Return the rows by which of cp, tp × cp and pp are 1: where choices about them make no difference."""
    flags = np.stack([cp == 1, tp * cp == 1, pp == 1])
    kinds = product((False, True), repeat=len(flags))
    result = {kind: (flags == np.array(kind)[:, None]).all(axis=0) for kind in kinds if any(kind)}
    return {kind: where for kind, where in result.items() if where.any()}


def _spelt(variant: Variant, alone: tuple[bool, ...]) -> tuple[object, ...]:
    """Return what of a branch makes a difference where cp, tp × cp or pp are 1."""
    no_context, one_device, no_pipeline = alone
    kind = "" if no_context and (variant.tp_kind == "1d" or one_device) else variant.cp_kind
    tensor = ("", 1) if one_device else (variant.tp_kind, variant.summa_panels)
    others = (variant.dispatcher, variant.graphs, variant.overlap)
    return (*tensor, kind, None if no_pipeline else variant.schedule, *others)


VARIED = tuple(Variant.__dataclass_fields__)
"""Fields of a layout that variants have."""


def uncrossed(layout: Layout) -> Layout:
    """Return what of a layout neither rows of degrees nor variants say; these are as usual."""
    usual = Layout()
    return replace(layout, **{name: getattr(usual, name) for name in (*DEGREE_NAMES, "sp", *VARIED)})


def candidates_of(question: Question, layouts: Sequence[Layout], base: Layout) -> tuple[Candidates, Rows]:
    """Return legal layouts that are alike but for degrees and variants, one row each, and the variant of each."""
    variants = [Variant(**{name: getattr(layout, name) for name in VARIED}) for layout in layouts]
    known = {variant: index for index, variant in enumerate(dict.fromkeys(variants))}
    candidates = Candidates(
        model=question.model,
        columns={
            name: np.array([getattr(layout, name) for layout in layouts], dtype=np.int64)
            for name in (*DEGREE_NAMES, "sp")
        },
        variants=tuple(known),
        base=base,
        cluster=question.cluster,
        workload=question.workload,
        refused={},
    )
    return candidates, np.array([known[variant] for variant in variants], dtype=np.int64)


@lru_cache(maxsize=16)
def variants_of(space: Space, model: Model, cluster: Cluster) -> tuple[Variant, ...]:
    """Return the choices of a space that are crossed with every row."""
    if space.tp_kind == ("summa",) and (reason := summa_refusal(model)) is not None:
        raise SpecError(reason)
    dispatchers = space.values_of("dispatcher") if model.is_moe else (space.base.dispatcher,)
    return tuple(
        Variant(
            recompute=recompute,
            cp_kind=kind,
            axis_order=order,
            placement=placement,
            schedule=schedule,
            tp_kind=tensor,
            summa_panels=panels,
            dispatcher=dispatcher,
            graphs=graphs,
            overlap=overlap,
        )
        for schedule in space.schedule
        for dispatcher in dispatchers
        for graphs in space.values_of("graphs")
        for overlap in space.values_of("overlap")
        for tensor, panels, kind in _kinds(space)
        for order, placement in rank_orders(cluster, space.axis_order, space.placement or ("orders",))
        for recompute in space.recompute or default_recompute(model)
    )


def _kinds(space: Space) -> tuple[tuple[TensorKind, int, ContextKind], ...]:
    """Return the kinds of tensor and context parallelism that go together; SUMMA gathers keys and values."""
    tensor_kinds: list[tuple[TensorKind, int, ContextKind]] = []
    for tensor in space.tp_kind:
        if tensor == "summa":
            tensor_kinds += [(tensor, panels, "all_gather") for panels in space.summa_panels]
        else:
            tensor_kinds += [(tensor, 1, kind) for kind in space.cp_kind]
    return tuple(tensor_kinds)


def longest_chunk(num_layers: int, pp: Rows, vpp: Rows) -> Rows:
    """Return the layers of the longest virtual stage of every row."""
    table = distinct({"pp": pp, "vpp": vpp}, ("pp", "vpp"))
    shapes = zip(*(column.tolist() for column in table.columns.values()), strict=True)
    longest = [max(map(len, layers_per_chunk(num_layers, p * v, spare_ends=v > 1))) for p, v in shapes]
    return np.array(longest, dtype=np.int64)[table.where]


def options(values: Sequence[int] | None, possible: Sequence[int]) -> tuple[int, ...]:
    """Return what may be chosen of what is possible."""
    return tuple(possible) if values is None else tuple(value for value in values if value in possible)


def expert_degrees(model: Model, space: Space, stage_devices: int) -> list[tuple[int, int]]:
    """Return the (ep, etp) pairs that fold over the devices of one stage."""
    moe = model.moe
    dealt = gcd(*(trace.ep for trace in model.traces)) or 1
    possible_ep = divisors(dealt if moe is None else moe.num_experts)
    possible_etp = (1,) if moe is None else divisors(moe.ffn_hidden_size)
    return [
        (ep, etp)
        for ep in options(space.ep, possible_ep)
        for etp in options(space.etp, possible_etp)
        if stage_devices % (ep * etp) == 0
    ]


def shardings(space: Space, dp: int) -> list[tuple[int, int, int]]:
    """Return all (dp_replicate, dp_shard, zero): ascending stages, and shards; all shards first at stage 0."""
    return [
        (dp // shard, shard, zero)
        for zero in sorted(space.zero)
        for shard in sorted(divisors(dp), reverse=zero == 0)
        if (space.dp_shard is None or shard in space.dp_shard)
        and (space.dp_replicate is None or dp // shard in space.dp_replicate)
    ]


def rank_orders(
    cluster: Cluster, orders: Sequence[tuple[Axis, ...]], choices: Sequence[PlacementChoice]
) -> list[RankOrder]:
    """Return what a search tries, each once: axis orders before placements."""
    result: list[RankOrder] = [(order, None) for order in orders] if "orders" in choices else []
    for choice in choices:
        if choice == "all":
            result += [(DEFAULT_AXIS_ORDER, placement) for placement in placements(cluster)]
        elif choice != "orders":
            result.append((DEFAULT_AXIS_ORDER, choice))
    fitting = [item for item in dict.fromkeys(result) if fills_tiers(item[1] or (), cluster)]
    if not fitting:
        where = " × ".join(map(str, cluster.tier_fill))
        devices = f"{counted(cluster.num_devices, 'device')} of {cluster.name}"
        raise no_layout(f"fills the tiers of {devices}, which take {where}")
    return fitting


def placements(cluster: Cluster) -> Iterator[Placement]:
    """Yield every way to fill tiers, from the innermost out, with ranks of tp, cp, dp and pp; first all of them.

    The tiers that a placement does not name take the ranks that are left in the usual order, evenly or not.
    """
    fill = cluster.tier_fill
    for named in range(len(fill), 0, -1):
        yield from product(*(tuple(_shares(ranks)) for ranks in fill[:named]))


def _shares(ranks: int) -> Iterator[Share]:
    """Yield the ordered factorisations of the ranks that fill a tier; tensor parallel closest first."""
    for tp in reversed(divisors(ranks)):
        for cp in reversed(divisors(ranks // tp)):
            for dp in reversed(divisors(ranks // (tp * cp))):
                yield Share(tp=tp, cp=cp, dp=dp, pp=ranks // (tp * cp * dp))


def allowed(rank_order: RankOrder, degrees: dict[Axis, Codes]) -> NDArray[np.bool_]:
    """Return for which rows of degrees a placement can be."""
    result = np.ones(len(degrees["tp"]), dtype=bool)
    for axis, degree in degrees.items():
        result &= degree % int(np.prod([getattr(share, axis) for share in rank_order[1] or ()])) == 0
    return result


def codes(rank_order: RankOrder, fill: Sequence[int], degrees: dict[Axis, Codes]) -> Codes:
    """Return a number per row that says how many ranks of each axis share each tier; `ODD` for uneven ones.

    Equal numbers mean the same ranks per tier for every communicator, and so the same time and memory.
    """
    order, placement = rank_order
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


def first_of_their_kind(
    known: Sequence[RankOrder], fill: Sequence[int], degrees: dict[Axis, Codes]
) -> NDArray[np.bool_]:
    """Return (orders, rows) flags: where each can be, and none of those before it is the same."""
    result = np.stack([allowed(item, degrees) for item in known])
    possible, numbers = result.copy(), [codes(item, fill, degrees) for item in known]
    several = np.stack([degrees[axis] > 1 for axis in DEFAULT_AXIS_ORDER])
    kinds, kind = np.unique(several, axis=1, return_inverse=True)
    written = np.array(
        [
            [_several(order, placement, dict(zip(DEFAULT_AXIS_ORDER, item, strict=True))) for item in kinds.T]
            for order, placement in known
        ]
    )[:, kind.reshape(-1)]
    for index, (_, placement) in enumerate(known):
        number = numbers[index]
        for before, (_, other) in enumerate(known[:index]):
            if other is not None and placement is not None and len(other) == len(placement):
                continue
            same = (number == numbers[before]) & (number != ODD)
            if other is None and placement is None:
                same |= written[index] == written[before]
            result[index] &= ~(same & possible[before])
    return result


def _several(order: tuple[Axis, ...], placement: Placement | None, several: Mapping[Axis, bool]) -> str:
    """Return an order of axes as far as it matters: of axes with several ranks."""
    return "" if placement is not None else "-".join(axis for axis in order if several[axis])


class Table(Struct, frozen=True, kw_only=True):
    """Distinct rows of some columns, and where each candidate's row stands."""

    columns: Columns
    where: Rows

    def __len__(self) -> int:
        """Return the number of distinct rows."""
        return len(next(iter(self.columns.values())))


def distinct(columns: Columns, names: tuple[str, ...]) -> Table:
    """Return the distinct rows of the named columns, in ascending order."""
    sizes, key = 1, np.zeros(len(columns[names[0]]), dtype=np.int64)
    for name in names:
        size = int(columns[name].max(initial=0)) + 1
        if sizes * size > LARGEST:  # ranks of what is known so far take less room
            sizes, key = _codes(key)
        sizes, key = sizes * size, key * size + columns[name]
    key = _codes(key)[1]
    first = first_rows(key)
    return Table(columns={name: columns[name][first] for name in names}, where=key)


def _codes(values: Rows) -> tuple[int, Rows]:
    """Return how many distinct non-negative values there are, and the rank of each among them."""
    largest = int(values.max(initial=0))
    if largest > SPARSE * len(values):
        result, where = np.unique(values, return_inverse=True)
        return len(result), where
    present = np.zeros(largest + 1, dtype=bool)
    present[values] = True
    rank = np.cumsum(present) - 1
    return int(rank[-1]) + 1, rank[values]


def occurring(codes: Rows) -> Rows:
    """Return which of the numbers 0, 1, 2, ... are among `codes`, ascending."""
    present = np.zeros(int(codes.max(initial=-1)) + 1, dtype=bool)
    present[codes] = True
    return np.flatnonzero(present)


def first_rows(where: Rows) -> Rows:
    """Return the first row of every code 0, 1, 2, ... in `where`."""
    first = np.empty(int(where.max(initial=-1)) + 1, dtype=np.int64)
    first[where[::-1]] = np.arange(len(where))[::-1]
    return first


def in_parts(columns: Columns, rows: Rows, count: int, most: int = LARGEST) -> list[Rows]:
    """Return the places in `rows` in about `count` parts of about equal size, each of at most so many.

    Rows with as many tokens on a rank are in one part, unless they are too many: their operators of experts are the
    same, and are priced once.
    """
    tokens = columns["micro_batch_size"][rows] / (columns["tp"][rows] * columns["cp"][rows])
    where, sizes = np.unique(tokens, return_inverse=True, return_counts=True)[1:]
    middle = np.cumsum(sizes) - sizes / 2.0
    part = (middle * (count / max(len(rows), 1))).astype(np.int64)[where]
    whole = [np.flatnonzero(part == nth) for nth in occurring(part).tolist()]
    return [some for each in whole for some in np.array_split(each, -(-len(each) // most))]


ROW_KEY = ("tp", "cp", "pp", "vpp", "micro_batch_size", "sp")
"""What tells rows apart: all degrees but those of experts and of sharding."""


def same_rows(rows: Columns, cells: Columns) -> Rows:
    """Return the row that each cell is of."""
    both = {name: np.concatenate([rows[name], cells[name]]) for name in ROW_KEY}
    where = distinct(both, ROW_KEY).where
    return np.asarray(first_rows(where)[where[len(rows["tp"]) :]])


def as_sequence_parallel(columns: Columns) -> NDArray[np.bool_]:
    """Return rows whose operators are those under sequence parallelism, which changes nothing where tp is 1."""
    return np.asarray(columns["sp"].astype(bool) | (columns["tp"] == 1))


def as_degrees(columns: Columns) -> Degrees:
    """Return columns as degrees; a degree that is not among them is 1."""
    one = np.ones(len(next(iter(columns.values()))))
    return Degrees(
        **{
            name: columns[name].astype(float) if name in columns else one
            for name in Degrees.__dataclass_fields__
        }
    )
