"""Lower bounds of sub-spaces: no layout behind a cell is faster, or needs less memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace as replace_fields
from functools import partial, reduce
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
from msgspec.structs import replace

from forescale.formula import formula
from forescale.graph.operator import Operator
from forescale.graph.per_block import PerBlock, RecomputeSplit
from forescale.graph.recompute import NO_RECOMPUTE
from forescale.graph.sharding import OF_BLOCKS, StructuralOptions, split_layout
from forescale.graph.stages import over_stages, plan_stages, stack_plans
from forescale.inputs import resident_of, setting_of
from forescale.memory.inputs import StateBytes
from forescale.memory.liveness import BlockBytes
from forescale.memory.parameters import Sharded
from forescale.memory.peak import footprint, highest_peak
from forescale.numeric import Array, Numeric, mapped, maximum, taking
from forescale.question import Question
from forescale.search.blocks import KnownBlocks, PricedOnce, blocks_of
from forescale.search.evaluate import (
    CHUNK,
    Batch,
    batches,
    numbered,
    operators_of,
    uncounted,
)
from forescale.search.experts import (
    KEYS_AT_ONCE,
    PARTS,
    compute_of_others,
    goes_by_tokens,
    is_of_experts,
    launched,
    only,
    priced_experts,
    with_others,
)
from forescale.search.host_memory import AtOnce
from forescale.search.layouts import (
    Candidates,
    Columns,
    Rows,
    as_degrees,
    as_sequence_parallel,
    distinct,
    first_rows,
    in_parts,
    occurring,
    same_rows,
)
from forescale.search.least import MARGIN, LeastStates
from forescale.search.least_bytes import least_bytes
from forescale.search.ranks import RelaxedPlacement
from forescale.search.stages import stages_of
from forescale.search.tree import Branch, Cells, Tree
from forescale.time.blocks import block_seconds, deferred_seconds
from forescale.time.crossing import crosses, uncrossed_time
from forescale.time.pipeline import engine_time
from forescale.time.price import PricedBlock, launch_gap, price_blocks
from forescale.time.stacked import Known
from forescale.time.straggler import straggler_share
from forescale.workers import ALONE, Workers

Kind: TypeAlias = tuple[tuple[str, Any], ...]
"""What changes the operators of a block, or what is hidden behind what, by name."""
Choices: TypeAlias = Sequence[tuple[int, StructuralOptions]]
"""Choices with the same operators, and which of the lists each is."""
Seconds: TypeAlias = Callable[[Rows, Columns, Sequence[Choices]], list[PerBlock[Array]]]
"""Returns seconds of the blocks of cells, whose columns are given, for each of the choices of some groups."""
SHAPES_AT_ONCE = 65536
"""Shapes with experts that are bounded together."""
SHARED_FROM = 4096
"""Shapes with experts from which on several processes are worth their start."""
DENSE_KEY = ("tp", "cp", "micro_batch_size", "sp")
"""What the work of everything but experts depends on, beside places."""
FAMILY_KEY = ("tp", "cp", "ep", "etp", "pp", "vpp", "sp", "flagged")
"""What cells that differ in their micro-batch size alone have in common, and which ways to shard are legal."""


@formula(
    unit="s", source="every micro-batch passes the slowest stage; the others are crossed once, chunk by chunk"
)
def least_step_seconds(
    *, slowest_seconds: Numeric, model_seconds: Numeric, num_microbatches: Numeric, vpp: Numeric
) -> Numeric:
    """m·slowest + (model − slowest)/v."""
    return num_microbatches * slowest_seconds + (model_seconds - slowest_seconds) / vpp


class WorkBounds:
    """Seconds that no layout of a cell is faster than: its work, on stages that nothing delays.

    Messages lie where they take least; recompute, messages between stages and data-parallel traffic only add to it.
    """

    def __init__(
        self,
        question: Question,
        whole: Candidates,
        branches: tuple[Branch, ...],
        placement: RelaxedPlacement,
        workers: Workers = ALONE,
    ) -> None:
        self.question, self.whole, self.branches, self.placement = question, whole, branches, placement
        keys = placement.dense.keys(np.arange(whole.num_rows))
        columns = {**whole.columns, **keys}
        table = distinct(columns, (*DENSE_KEY, *keys))
        self.where, first = table.where, first_rows(table.where)
        self.kinds, self.kind = numbered([tuple(branch.first.choices.items()) for branch in branches])
        self.operators = numbered([operators_of(branch.first) for branch in branches])[1]
        self.apart = [_apart(kind) for kind in self.kinds]
        firsts = dict(zip(self.kind.tolist(), (branch.first for branch in branches), strict=True))
        self.priced = numbered([operators_of(firsts[kind]) for kind in range(len(self.kinds))])[1].tolist()
        self.alike = self._first_like("cp_kind", self.apart)
        like = self._first_like("dispatcher", [question.model.is_moe] * len(self.kinds)).tolist()
        kinds = sorted({*like}) if len(first) else []
        known = dict(zip(kinds, self._of_kinds(kinds, first, self._dense, workers), strict=True))
        work = {kind: of_kind.map(_work) for kind, of_kind in known.items()}
        around = {kind: of_kind.map(_columns_from(2)) for kind, of_kind in known.items()}
        self.dense = [work[kind] for kind in like] if known else []
        """(..., 2) seconds of everything but experts, and of launching it where experts are launched with it."""
        self.around = [around[kind] for kind in like] if known else []
        """Seconds of compute of everything but experts, (..., 2) of forward and backward, where passes cross."""

    def _first_like(self, name: str, ignored: Sequence[bool]) -> Rows:
        """Return the first list like each but for the choice `name`, where that is ignored."""
        keys = [
            tuple(item for item in kind if not (ignore and item[0] == name))
            for kind, ignore in zip(self.kinds, ignored, strict=True)
        ]
        return np.array([keys.index(key) for key in keys])

    def on(self, cells: Candidates, placement: RelaxedPlacement) -> WorkBounds:
        """Return the bounds of cells of the same variants, each of which is a row of these but for its experts."""
        other = copy(self)
        other.whole, other.placement = cells, placement
        other.where = self.where[same_rows(self.whole.columns, cells.columns)]
        return other

    def list_of(self, nodes: Rows) -> Rows:
        """Return the number of the operator list of each node, whatever is hidden behind what."""
        return self.operators[nodes // self.whole.num_rows]

    def coarse(self, workers: Workers = ALONE) -> Array:
        """Return (branches, cells) bounds, without experts where there are any: they are of few distinct cells."""
        columns = {"work": self.where, **{name: self.whole.columns[name] for name in ("pp", "vpp")}}
        where = distinct(columns, tuple(columns)).where
        first = first_rows(where)
        work = self.where[first]

        def of(row: int) -> Array:
            dense = self.dense[int(self.kind[row])].map(self._with_launches)
            model = self.of_model(dense)[work]
            return self.step(row, first, model, self._slowest(row, first, model, dense, work))

        keys = [
            (id(self.dense[kind]), self.branches[row].first.schedule is None)
            for row, kind in enumerate(self.kind.tolist() if len(first) else ())
        ]
        known = {key: row for row, key in reversed([*enumerate(keys)])}
        bounds = dict(zip(known, workers.share([partial(of, row) for row in known.values()]), strict=True))
        result = np.empty((len(self.branches), len(where)))
        for row, key in enumerate(keys):
            result[row] = bounds[key][where]
        return result

    def of_shapes(self, cells: Candidates, placement: RelaxedPlacement, workers: Workers = ALONE) -> Array:
        """Return (cells,) bounds of all branches and numbers of virtual stages, experts and all."""
        within = self.on(cells, placement)
        alone = {**cells.columns, "vpp": np.ones_like(cells.columns["vpp"])}
        within.whole = replace(cells, columns=alone)
        every = np.arange(cells.num_rows)
        parts = in_parts(alone, every, workers.jobs if len(every) >= SHARED_FROM else 1, SHAPES_AT_ONCE)
        least = np.empty(cells.num_rows)
        several = workers.share([partial(within.on_mean_stage, part) for part in parts])
        for part, bounds in zip(parts, several, strict=True):
            least[part] = bounds
        return least

    def on_mean_stage(self, cells: Rows) -> Array:
        """Return the bounds of some cells on the mean stage, the least of all branches, experts and all."""
        kinds, at = occurring(self.alike).tolist(), _at(self.where[cells])
        experts = dict(zip(kinds, self.of_experts(kinds, cells), strict=True))
        least = np.full(len(cells), np.inf)
        for row, kind in enumerate(self.kind.tolist()):
            work = experts[int(self.alike[kind])].map(_work)
            model = self.of_model(self.dense[kind].map(at).zipped(work, np.add).map(self._with_launches))
            mean = model / self.whole.columns["pp"][cells]
            least = np.minimum(least, self.step(row, cells, mean, mean))
        return least

    def of_experts(self, kinds: Sequence[int], cells: Rows) -> list[PerBlock[Array]]:
        """Return (cells, 3) seconds of experts of some cells, of launches, and hidden, under some lists."""
        return self._of_kinds(kinds, cells, self._experts)

    def fine(self, rows: Rows, cells: Rows) -> Array:
        """Return the bounds of some (branch, cell) pairs, experts and all.

        Branches that differ in their schedule alone have the same work, and most kinds of context parallelism the
        same experts.
        """
        bounds, kinds = np.empty(len(rows)), self.kind[rows]
        alike, cell = occurring(self.alike[kinds]).tolist(), occurring(cells)
        experts = dict(zip(alike, self.of_experts(alike, cell), strict=True))
        for kind in occurring(kinds).tolist():
            pairs = np.flatnonzero(kinds == kind)
            local, at = np.unique(cells[pairs], return_inverse=True)
            among = experts[int(self.alike[kind])].map(_at(np.searchsorted(cell, local)))
            dense = self.dense[kind].map(_at(self.where[local]))
            blocks, hidden = (
                dense.zipped(among.map(_work), np.add).map(self._with_launches),
                among.map(_column(2)),
            )
            bounds[pairs] = self._of_kind(rows[pairs], cells[pairs], blocks, hidden, at)
        return bounds

    def _of_kind(
        self, rows: Rows, cells: Rows, blocks: PerBlock[Array], hidden: PerBlock[Array], at: Rows
    ) -> Array:
        """Return the bounds of pairs of one list, whose blocks are the ones `at`, as is what they hide."""
        bounds, model = np.empty(len(rows)), self.of_model(blocks)
        for row in occurring(rows).tolist():
            local = np.flatnonzero(rows == row)
            slowest = self._slowest(row, cells[local], model[at[local]], blocks, at[local])
            apart = self.apart[int(self.kind[row])]
            least = 0.0 if apart else self._least_on_stage(row, cells[local], hidden, at[local])
            bounds[local] = self.step(row, cells[local], model[at[local]], slowest, least)
        return bounds

    def _with_launches(self, work: Array) -> Array:
        """Return the seconds that a block takes at least, from (..., 2) its work and its launches."""
        busy, blocking = work[:, 0], self.whole.base.kernels.blocking_launches
        return np.asarray(busy + launch_gap(kernels=work[:, 1], interval=1.0, busy=busy, blocking=blocking))

    def of_model(self, blocks: PerBlock[Array]) -> Array:
        """Return the seconds of all layers and both ends."""
        model = self.question.model
        whole = stack_plans([plan_stages(model, pp=1)])
        seconds: Array = np.asarray(over_stages(whole, blocks, _own, num_mtp=model.num_mtp_layers))[0]
        return seconds

    def _slowest(self, row: int, cells: Rows, model: Array, blocks: PerBlock[Array], at: Rows) -> Array:
        """Return the seconds of the slowest stage; of the mean one where a named schedule says what stands on each."""
        if self.branches[row].first.schedule is not None:
            return model / self.whole.columns["pp"][cells]
        seconds, present = self._on_stages(cells, blocks, at)
        return np.asarray(np.max(np.where(present, seconds, 0.0), axis=0))

    def _least_on_stage(self, row: int, cells: Rows, blocks: PerBlock[Array], at: Rows) -> Numeric:
        """Return the least seconds of any stage; 0 where a named schedule says what stands on each."""
        if self.branches[row].first.schedule is not None:
            return 0.0
        seconds, present = self._on_stages(cells, blocks, at)
        return np.asarray(np.min(np.where(present, seconds, np.inf), axis=0))

    def _on_stages(self, cells: Rows, blocks: PerBlock[Array], at: Rows) -> tuple[Array, Array]:
        """Return (stages, cells) seconds, and which of the stages there are."""
        result = stages_of(
            self.question.model, {name: self.whole.columns[name][cells] for name in ("pp", "vpp")}
        )
        stages = result.plans.picked(taking(result.plan))  # moments do not matter
        num_mtp = self.question.model.num_mtp_layers
        seconds = np.asarray(over_stages(stages, blocks.map(_at(at)), _own, num_mtp=num_mtp))
        return seconds, np.asarray(stages.multiplicity > 0)

    def step(self, row: int, cells: Rows, model: Array, slowest: Array, hidden: Numeric = 0.0) -> Array:
        """Return the seconds of a step from those of one micro-batch, through the model and its slowest stage.

        `hidden` is what a stage hides at least of exchanges of experts where passes cross.
        """
        columns = {
            name: self.whole.columns[name][cells].astype(float)
            for name in ("tp", "cp", "pp", "vpp", "micro_batch_size")
        }
        pp, vpp = columns["pp"], columns["vpp"]
        first, kernels = self.branches[row].first, self.whole.base.kernels
        closed = first.schedule is None
        if closed and first.graphs != "full" and (kernels.blocking_launches or not kernels.runs_ahead):
            engine = engine_time(overhead=self.question.run.microbatch_overhead_s, vpp=vpp)
            model, slowest = model + pp * engine, slowest + engine
        dp = self.question.cluster.num_devices / (columns["tp"] * columns["cp"] * pp)
        count = float(self.question.workload.global_batch_size) / (dp * columns["micro_batch_size"])
        seconds = least_step_seconds(
            slowest_seconds=slowest,
            model_seconds=model if closed else slowest,
            num_microbatches=count,
            vpp=vpp,
        )
        seconds = seconds + uncrossed_time(hidden=hidden, pp=pp, microbatches=count)
        if (anchor := self.question.costs.anchor) is not None:
            seconds = anchor.of_step(seconds)
        return np.asarray(
            seconds * (1.0 + straggler_share(self.question.run, self.question.cluster)) * MARGIN
        )

    def _of_kinds(
        self, kinds: Sequence[int], cells: Rows, of: Seconds, workers: Workers = ALONE
    ) -> list[PerBlock[Array]]:
        """Return seconds of the blocks of some cells under lists; the same operators are priced once."""
        groups: dict[int, list[int]] = {}
        for kind in kinds:
            groups.setdefault(self.priced[kind], []).append(kind)
        shared = np.array_split(np.arange(len(groups)), min(workers.jobs, len(groups)) or 1)
        lists = list(groups.values())
        parts = [
            partial(self._over, lists[some[0] : some[-1] + 1], cells, of) for some in shared if len(some)
        ]
        seconds = chain.from_iterable(workers.share(parts))
        result = dict(zip(chain.from_iterable(groups.values()), seconds, strict=True))
        return [result[kind] for kind in kinds]

    def _over(self, groups: Sequence[Sequence[int]], cells: Rows, of: Seconds) -> list[PerBlock[Array]]:
        """Return seconds of the blocks of some cells under lists, those with the same operators together."""
        common = split_layout(self.whole.base, domain=self.whole.domain)[1]
        columns = {name: values[cells] for name, values in self.whole.columns.items()}
        parallel = as_sequence_parallel(columns)
        order, parts = [], []
        for sp in (True, False):
            pairs = np.flatnonzero(parallel == sp)
            if len(pairs):
                choices = [
                    [(kind, replace(common, sp=sp, **dict(self.kinds[kind]))) for kind in group]
                    for group in groups
                ]
                selected = {name: values[pairs] for name, values in columns.items()}
                order.append(pairs)
                parts.append(of(cells[pairs], selected, choices))
        back = _at(np.argsort(np.concatenate(order)))
        return [reduce(_joined, part).map(back) for part in zip(*parts, strict=True)]

    def _dense(self, cells: Rows, columns: Columns, groups: Sequence[Choices]) -> list[PerBlock[Array]]:
        """Return the seconds of everything but experts, or of all where there are none."""
        without = (*PARTS, "overhead") if self.question.model.is_moe else ()
        names = ("tp", "cp", "micro_batch_size")
        return self._priced({name: columns[name] for name in names}, cells, groups, without=without)

    def _experts(self, cells: Rows, columns: Columns, groups: Sequence[Choices]) -> list[PerBlock[Array]]:
        """Return (cells, 3): seconds of experts and of sending tokens there and back, of launches, and hidden."""
        keys = self.placement.experts.keys(cells)
        table = distinct({**columns, **keys}, (*OF_BLOCKS, *keys))
        distinct_cells = cells[first_rows(table.where)]
        of_blocks = {name: table.columns[name] for name in OF_BLOCKS}
        known: dict[object, Known] = defaultdict(Known)
        result: dict[int, PerBlock[Array]] = {}
        by_place: dict[bool, list[Choices]] = {}
        for group in groups:
            if goes_by_tokens(self.question, group[0][1]):
                result |= self._by_tokens(distinct_cells, table.columns, group, known)
                continue
            for alone in (True, False):
                if some := [item for item in group if self.apart[item[0]] == alone]:
                    by_place.setdefault(alone, []).append(some)
        for alone, others in by_place.items():
            operators = is_of_experts if alone else None
            seconds = self._priced(of_blocks, distinct_cells, others, within=PARTS, operators=operators)
            result |= zip((kind for group in others for kind, _ in group), seconds, strict=True)
        return [result[kind].map(_at(table.where)) for group in groups for kind, _ in group]

    def _by_tokens(
        self, cells: Rows, columns: Columns, group: Choices, known: Mapping[object, Known]
    ) -> dict[int, PerBlock[Array]]:
        """Return the same of distinct cells by list, each operator priced once for all that give it the same work."""
        placement, shared = self.placement.experts, group[0][1].of_operators
        order: list[Rows] = []
        result: dict[int, list[PerBlock[Array]]] = {kind: [] for kind, _ in group}
        for rows, priced in priced_experts(self.question, placement, cells, columns, shared, known):
            order.append(rows)
            for kind, choices in group:
                result[kind].append(self._of_experts(kind, choices, cells[rows], priced))
        back = _at(np.argsort(np.concatenate(order)))
        return {kind: reduce(_joined, parts).map(back) for kind, parts in result.items()}

    def _of_experts(
        self, kind: int, choices: StructuralOptions, cells: Rows, priced: PerBlock[PricedBlock]
    ) -> PerBlock[Array]:
        """Return the seconds of experts of some cells under a list, once for blocks with the same operators."""
        seconds = partial(self._seconds, choices, np.ones(len(cells)), within=PARTS, without=())
        if choices.overlap.expert:
            around = self.around[kind].map(_at(self.where[cells]))
            return priced.zipped(around, lambda block, others: seconds(with_others(block, others)))
        known: dict[tuple[int, ...], Array] = {}

        def once(block: PricedBlock) -> Array:
            key = tuple(map(id, block.operators.values()))
            if key not in known:
                known[key] = seconds(block)
            return known[key]

        return priced.map(once)

    def _priced(
        self,
        columns: Columns,
        cells: Rows,
        groups: Sequence[Choices],
        *,
        within: tuple[str, ...] | None = None,
        without: tuple[str, ...] = (),
        operators: Callable[[Operator], bool] | None = None,
    ) -> list[PerBlock[Array]]:
        """Return the seconds of one micro-batch through each block and back, nothing recomputed, of some parts.

        One result for each of the choices of all groups; what primitives of several have in common is priced once.
        """
        question, result = self.question, []
        placement = self.placement.dense if within is None else self.placement.experts
        for start in range(0, len(cells), KEYS_AT_ONCE):
            subset, known = slice(start, start + KEYS_AT_ONCE), Known()
            degrees = as_degrees({name: values[subset] for name, values in columns.items()})
            some: list[PerBlock[Array]] = []
            for group in groups:
                shared = group[0][1].of_operators
                blocks = blocks_of(question, degrees, shared)
                if operators is not None:
                    blocks = blocks.map(partial(only, operators))
                pricing = placement.pricing(question, degrees, shared, cells[subset], known)
                priced = price_blocks(blocks, replace_fields(pricing, without_flops=within is not None))
                some += (
                    priced.map(partial(self._seconds, choices, degrees.tp, within=within, without=without))
                    for _, choices in group
                )
            result.append(some)
        return [reduce(_joined, part) for part in zip(*result, strict=True)]

    def _seconds(
        self,
        choices: StructuralOptions,
        tp: Numeric,
        priced: PricedBlock,
        *,
        within: tuple[str, ...] | None,
        without: tuple[str, ...],
    ) -> Array:
        """Return (…, 2) seconds of a block in some parts and of launches, of parts `within` also what they hide."""
        local = block_seconds(priced, (), overlap=choices.overlapped, halves=choices.kernels.halves_cross)
        named = [
            value
            for parts in (local.forward_parts, local.backward_parts)
            for name, value in parts.items()
            if name not in without and (within is None or name in within)
        ]
        launches: Numeric = 0.0
        if within is None and choices.deferred_head_gradients and priced.block.name == "head":
            saved, _ = deferred_seconds(priced, local, choices)  # its launches among it
            named.append(-maximum(saved, 0.0) * (1.0 + self.question.model.num_mtp_layers))
        elif self.question.model.is_moe:
            launches = launched(priced, choices.overlapped, experts=within is not None)
        others: tuple[Numeric, ...] = (sum(local.hidden),)
        if within is None:
            others = compute_of_others(priced) if choices.overlap.expert and crosses(priced) else ()
        zeros = 0.0 * np.asarray(tp)
        return np.stack([item + zeros for item in (sum(named), launches, *others)], axis=1)


def _apart(kind: Kind) -> bool:
    """Return whether experts hide nothing of what else a list does, so that they are priced by themselves."""
    overlap = dict(kind)["overlap"]
    return not (overlap.expert or overlap.shared_experts)


def _own(seconds: Array) -> Numeric:
    return seconds


def _work(values: Array) -> Array:
    return values[:, :2]


def _column(nth: int) -> Callable[[Array], Array]:
    return lambda values: values[:, nth]


def _columns_from(first: int) -> Callable[[Array], Array]:
    return lambda values: values[:, first:]


def _at(rows: Rows) -> Callable[[Array], Array]:
    return lambda values: values[rows]


def _joined(blocks: PerBlock[Array], more: PerBlock[Array]) -> PerBlock[Array]:
    """Return the numbers of both, one after the other."""
    return blocks.zipped(more, lambda one, other: np.concatenate([one, other]))


class MemoryBounds:
    """Bytes that no layout of a cell needs less than, however states are sharded and whatever is recomputed."""

    def __init__(
        self,
        question: Question,
        cells: Cells,
        tree: Tree,
        placement: RelaxedPlacement,
        at_once: int = AtOnce().shardings,
    ) -> None:
        self.question, self.cells, self.placement, self.at_once = question, cells, placement, at_once
        self.nodes = tree.nodes
        self.closest = np.zeros_like(self.nodes)
        """Nodes whose coarse bound is also their fine one."""
        variants = tuple(replace(branch.first, recompute=NO_RECOMPUTE) for branch in tree.branches)
        self.bare = replace(cells.whole, variants=variants)
        recomputes = [cells.whole.variants[index].recompute for index in tree.branches[0].variants[0]]
        self.policies = tuple(dict.fromkeys(map(uncounted, recomputes)))
        """What may be recomputed; of counts of layers one stands for all."""

    def coarse(self) -> Array:
        """Return (branches, cells) bounds: of cells that differ in their micro-batch size alone that of the smallest.

        A larger micro-batch keeps and needs no less, and there are no fewer sequences in flight.
        """
        bounds = np.full(self.nodes.shape, np.inf)
        families = [self._families(row) for row in range(len(bounds))]
        sizes = [len(first) for _, _, first in families]
        rows = np.repeat(np.arange(len(bounds)), sizes)
        fine = self.fine(rows, np.concatenate([first for *_, first in families]))
        for row, (cells, where, _) in enumerate(families):
            start = sum(sizes[:row])
            bounds[row, cells] = fine[start : start + sizes[row]][where]
            self.closest[row, families[row][2]] = True
        return bounds

    def _families(self, row: int) -> tuple[Rows, Rows, Rows]:
        """Return the cells of a branch, the family of each, and the cell of each family with the smallest micro-batch.

        A named schedule, short groups of micro-batches and passes that cross depend on the number of micro-batches in
        other ways: there every cell is a family.
        """
        cells, base = np.flatnonzero(self.nodes[row]), self.cells.whole.base
        closed = self.bare.variants[row].schedule is None and base.microbatch_group is None
        frees = self.question.model.traces or base.kernels.frees_gradients
        closed = closed and not frees  # one micro-batch has fewer gradients at its loss
        if not closed or self.bare.variants[row].overlap.expert or len(cells) == 0:
            return cells, np.arange(len(cells)), cells
        columns = {name: values[cells] for name, values in self.cells.whole.columns.items()}
        where = distinct({**columns, "flagged": self.cells.flagged[cells]}, FAMILY_KEY).where
        order = np.argsort(columns["micro_batch_size"], kind="stable")
        return cells, where, cells[order[first_rows(where[order])]]

    def fine(self, rows: Rows, cells: Rows, blocks: KnownBlocks | None = None) -> Array:
        """Return the bounds of some (branch, cell) pairs; of blocks that schedules share the least is found once.

        `blocks` are those of the same question that are known already.
        """
        bounds = np.full(len(rows), np.inf)
        least = LeastStates(
            question=self.question,
            cells=self.cells,
            selected=np.arange(len(self.cells)),
            at_once=self.at_once,
        )
        result = batches(
            self.question, self.bare, rows, cells, relaxed=self.placement, bounded=True, known=blocks
        )
        known: dict[tuple[PricedOnce, int], PerBlock[RecomputeSplit[BlockBytes]]] = {}
        for batch in result:
            key = batch.blocks, batch.choices.deferred_head_gradients
            if key not in known:
                known[key] = least_bytes(batch.blocks, self.policies, batch.choices)
            bounds[batch.pairs] = self._of(batch, known[key], least(batch)) * MARGIN
        return bounds

    def _of(self, batch: Batch, costs: PerBlock[RecomputeSplit[BlockBytes]], floor: StateBytes) -> Array:
        """Return the bounds of a batch, whose states and what is gathered take `floor` (stages, pairs)."""
        question, choices = self.question, replace(batch.choices, recompute=NO_RECOMPUTE)
        columns = {name: values[batch.rows] for name, values in self.cells.whole.columns.items()}
        setting = setting_of(question, choices)
        peaks = np.empty(len(batch.rows))
        for start in range(0, len(peaks), CHUNK):
            part = np.arange(start, min(start + CHUNK, len(peaks)))
            degrees = as_degrees({name: values[part] for name, values in columns.items()})
            stages = batch.stages(part)
            pricing = batch.ranks.pricing(question, degrees, choices, part)
            inputs = resident_of(
                setting,
                Sharded.from_model(question.model, batch.block_parameters(part), stages, degrees),
                mapped(costs, taking(batch.block[part])),
                pricing,
                batch.pipeline.take(part).in_flight,
                mapped(floor, taking(part)),
            )
            result = footprint(setting, inputs)
            peaks[part] = highest_peak(result, setting.overhead, stages) if question.safe else result.peak
        return peaks
