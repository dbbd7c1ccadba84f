"""Bounds that discard whole sub-spaces: no layout behind a cell is faster, or needs less memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from forescale.formula import formula
from forescale.graph.layout import Choices, Degrees, split_strategy
from forescale.graph.operator import Block, Operator
from forescale.graph.ops import Collective, Primitive
from forescale.graph.stage import plan_stages
from forescale.numeric import Array, Numeric
from forescale.project import setting_of
from forescale.projection.blocks import BlockSeconds, PricedBlock, block_seconds, price_operators
from forescale.projection.data_parallel import DataTraffic, free_traffic
from forescale.projection.evaluate import Setting
from forescale.projection.memory import narrow_weights, standing_buffers, state_bytes
from forescale.projection.mesh import Order
from forescale.projection.pieces import Holding, Parts, holdings, price_blocks
from forescale.projection.stages import Stages, over_stages, stack_plans
from forescale.search.batches import Batch, Least, distinct, first_rows
from forescale.search.cells import Cells, Mask
from forescale.search.evaluate import BLOCK_KEY, Question, Scores, as_degrees, score
from forescale.search.space import Columns, Rows, Variant
from forescale.spec.strategy import DEFAULT_AXIS_ORDER

MARGIN = 1.0 - 1e-9
"""Rounding never lifts a bound above what it bounds by more than this."""
KEYS_AT_ONCE = 4096
"""Distinct blocks priced at once."""
PLACE_KEY = ("tp", "cp", "ep", "etp", "pp", "vpp", "flagged")
"""What the parameters of a stage and the ways to shard them depend on."""


@formula(unit="s", source="the slowest stage is no faster than the mean, and every micro-batch passes it")
def mean_stage_seconds(
    *, model_seconds: Numeric, global_batch_size: float, ranks: Numeric, micro_batch_size: Numeric
) -> Numeric:
    """m·(model/p) = B/(dp·p·b)·model; `ranks` is dp·p."""
    return global_batch_size / (ranks * micro_batch_size) * model_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantList:
    """Variants that differ in what they recompute alone, and are legal together."""

    variants: tuple[int, ...]
    first: Variant


def variant_lists(variants: tuple[Variant, ...]) -> tuple[VariantList, ...]:
    """Return the variants by operator list, placement and schedule."""
    lists: dict[tuple[object, ...], list[int]] = {}
    for index, each in enumerate(variants):
        lists.setdefault((each.structure, each.recompute.num_layers), []).append(index)
    return tuple(VariantList(variants=tuple(found), first=variants[found[0]]) for found in lists.values())


COARSE_KEY = ("tp", "cp", "micro_batch_size")
"""What the work of everything but experts depends on."""
EXPERT_PARTS = ("moe", "expert_comm", "overhead")
"""Parts of a step that depend on how experts are laid out; of the wait for the host, how much kernels cover."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkBounds:
    """Seconds that no layout of a cell is faster than: the mean stage's own work for all micro-batches.

    Recompute, waiting, messages between stages and data-parallel traffic only add to it.
    """

    question: Question
    cells: Cells
    lists: tuple[VariantList, ...]

    def coarse(self, legal: Mask) -> tuple[Array, Rows]:
        """Return bounds without experts: ascending values, and which each (list, cell) pair has; -1 if illegal."""
        columns = self.cells.whole.columns
        table = distinct(columns, (*COARSE_KEY, "sp"))
        seconds = np.stack(
            [
                self._over(np.full(len(table), row), table.columns, self._coarse)
                for row in range(len(self.lists))
            ]
        )
        values, of_key = np.unique(seconds, return_inverse=True)
        allowed = np.stack([legal[each.variants[0]] for each in self.lists])
        return values, np.where(allowed, of_key.reshape(seconds.shape)[:, table.where], -1)

    def fine(self, rows: Rows, cells: Rows) -> Array:
        """Return the bounds of some (list, cell) pairs, experts and all."""
        columns = {name: values[cells] for name, values in self.cells.whole.columns.items()}
        return self._over(rows, columns, self._fine)

    def _over(self, rows: Rows, columns: Columns, of: Callable[[Rows, Columns, Choices], Array]) -> Array:
        """Return bounds for the lists `rows` from the work of one micro-batch, which `of` gives by choices."""
        common = split_strategy(self.cells.whole.base)[1]
        kinds = [tuple(each.first.choices.items()) for each in self.lists]
        work = np.full(len(rows), np.inf)
        for kind in dict.fromkeys(kinds):
            of_kind = np.array([each == kind for each in kinds])[rows]
            for sp in (True, False):
                pairs = np.flatnonzero(of_kind & (columns["sp"] == sp))
                if len(pairs):
                    choices = replace(common, sp=sp, **dict(kind))
                    chosen = {name: each[pairs] for name, each in columns.items()}
                    work[pairs] = of(rows[pairs], chosen, choices)
        seconds = mean_stage_seconds(
            model_seconds=work,
            global_batch_size=float(self.question.workload.global_batch_size),
            ranks=self.question.cluster.num_devices / (columns["tp"] * columns["cp"]),
            micro_batch_size=columns["micro_batch_size"].astype(float),
        )
        return np.asarray(seconds * (1.0 + _setting(self.question, Choices()).straggler_share) * MARGIN)

    def _coarse(self, rows: Rows, columns: Columns, choices: Choices) -> Array:
        table = distinct(columns, COARSE_KEY)
        orders = {self.lists[row].first.order for row in set(rows.tolist())}
        pulled = {part for order in orders for part in apart(order)}
        parts = _model_seconds(self.question, table.columns, choices)
        return _sum(parts, pulled.union(EXPERT_PARTS))[table.where]

    def _fine(self, rows: Rows, columns: Columns, choices: Choices) -> Array:
        """Return the work; of communicators that an axis order pulls apart, the exchange of experts alone."""
        table = distinct(columns, BLOCK_KEY)
        parts = _model_seconds(self.question, table.columns, choices)
        work = np.full(len(rows), np.inf)
        for row in sorted(set(rows.tolist())):
            order, pairs = self.lists[row].first.order, np.flatnonzero(rows == row)
            pulled = apart(order)
            if self.lists[row].first.placement is not None:
                work[pairs] = self._placed(
                    order, {name: each[pairs] for name, each in columns.items()}, choices
                )
                continue
            work[pairs] = _sum(parts, pulled)[table.where[pairs]]
            if pulled == EXCHANGE and not choices.overlap.expert:
                chosen = {name: each[pairs] for name, each in columns.items()}
                others = _sum(parts, {*EXCHANGE, "overhead"})[table.where[pairs]]
                placed = others + _exchange_seconds(self.question, chosen, choices, order)
                work[pairs] = np.maximum(work[pairs], placed)
        return work

    def _placed(self, order: Order, columns: Columns, choices: Choices) -> Array:
        """Return the work where ranks are placed: every communicator's place is known."""
        table = distinct(columns, BLOCK_KEY)
        return _sum(_model_seconds(self.question, table.columns, choices, order), ())[table.where]


EXCHANGE = frozenset({"expert_comm"})


def apart(order: Order) -> frozenset[str]:
    """Return the parts of a step whose communicators an axis order may pull apart, of the default's neighbours."""
    if order[:2] != DEFAULT_AXIS_ORDER[:2]:
        return EXCHANGE | {"tensor_comm", "context_comm"}
    return frozenset() if order[-1] == "pp" else EXCHANGE


def _sum(parts: dict[str, Array], without: Iterable[str]) -> Array:
    left = set(without)
    return np.asarray(sum(values for name, values in parts.items() if name not in left))


def _model_seconds(
    question: Question, keys: Columns, choices: Choices, order: Order = DEFAULT_AXIS_ORDER
) -> dict[str, Array]:
    """Return seconds of one micro-batch through all layers and back, nothing recomputed, by part."""
    found: dict[str, list[Array]] = {}
    total = len(next(iter(keys.values())))
    for start in range(0, total, KEYS_AT_ONCE):
        degrees = as_degrees({name: values[start : start + KEYS_AT_ONCE] for name, values in keys.items()})
        pricing = question.pricing(degrees, choices, order)
        priced = price_blocks(question.blocks(degrees, choices), pricing)
        for name, values in _summed(question, priced, choices, degrees).items():
            found.setdefault(name, []).append(values)
    return {name: np.concatenate(values) for name, values in found.items()}


def _exchange_seconds(question: Question, columns: Columns, choices: Choices, order: Order) -> Array:
    """Return seconds of dispatch and combine alone, where an axis order puts the experts of each row."""
    columns = {**columns, "dp": columns["dp_replicate"] * columns["dp_shard"]}
    table = distinct(columns, (*BLOCK_KEY, "pp", "dp"))
    degrees = as_degrees({**table.columns, "dp_shard": table.columns["dp"]})
    pricing = question.pricing(degrees, choices, order)
    priced = question.blocks(degrees, choices).map(lambda block: price_operators(_exchanging(block), pricing))
    found = _summed(question, priced, choices, degrees)
    return found.get("expert_comm", np.zeros(len(table)))[table.where]


def _exchanging(block: Block) -> Block:
    """Return a block with only the operators that send tokens to experts and back."""
    own = tuple(operator for operator in block.operators if any(map(_exchanges, _works(operator))))
    return replace(block, operators=own)


def _works(operator: Operator) -> tuple[Primitive, ...]:
    return (*operator.forward, *operator.backward_input, *operator.backward_weight)


def _exchanges(primitive: Primitive) -> bool:
    return isinstance(primitive, Collective) and primitive.axis in ("ep", "etp")


def _summed(
    question: Question, priced: Parts[PricedBlock], choices: Choices, degrees: Degrees
) -> dict[str, Array]:
    """Return the seconds of all layers on one stage, by part."""
    seconds = priced.map(lambda block: block_seconds(block, (), overlap=choices.overlap))
    whole = stack_plans([plan_stages(question.model, pp=1)])
    found: dict[str, Array] = {}
    for name in dict.fromkeys(part for block in seconds.all() for part in (*block.forward, *block.backward)):
        summed = over_stages(whole, seconds, _of_part(name), num_mtp=question.model.num_mtp_layers)
        found[name] = np.asarray(summed)[0] + 0.0 * np.asarray(degrees.tp)
    return found


def _of_part(name: str) -> Callable[[BlockSeconds], Numeric]:
    return lambda seconds: seconds.forward.get(name, 0.0) + seconds.backward.get(name, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sharded:
    """What standing buffers depend on."""

    degrees: Degrees
    stages: Stages
    held: Parts[Holding]
    traffic: DataTraffic


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastStates:
    """The least memory of states and standing buffers of some cells, over all ways to shard each."""

    question: Question
    cells: Cells
    chosen: Rows
    """The cells whose rows are bounded."""

    def __call__(self, batch: Batch) -> Array:
        """Return (stages, rows) bytes, each stage's least by itself."""
        rows = self.chosen[batch.rows]
        columns = {name: values[rows] for name, values in self.cells.whole.columns.items()}
        columns["flagged"] = self.cells.flagged[rows]
        table = distinct(columns, PLACE_KEY)
        first = first_rows(table.where)
        layouts, owner, _ = self.cells.expand(rows[first])
        stages = batch.stages(first).take(owner)
        held = self._bytes(as_degrees(layouts.columns), stages, batch.choices)
        starts = np.searchsorted(owner, np.arange(len(first)))
        least: Array = np.minimum.reduceat(held, starts, axis=1)
        return least[:, table.where]

    def _bytes(self, degrees: Degrees, stages: Stages, choices: Choices) -> Array:
        question, model = self.question, self.question.model
        held = holdings(question.blocks(degrees, choices))
        traffic = free_traffic(
            held, stages, degrees, tied=model.tied_embeddings, num_mtp=model.num_mtp_layers
        )
        states = state_bytes(model, traffic.dense, traffic.expert, degrees, question.workload, choices)
        sharded = _Sharded(degrees=degrees, stages=stages, held=held, traffic=traffic)
        setting = _setting(question, choices)
        beside = standing_buffers(setting, sharded) + narrow_weights(setting, sharded)
        return np.asarray(states.weights + states.gradients + states.optimizer + beside)


def cell_bounds(question: Question, cells: Cells, chosen: Rows, only: Mask) -> Scores:
    """Return bounds of step time and peak memory of the flagged (variants, chosen cells); infinite elsewhere."""
    least: Least = LeastStates(question=question, cells=cells, chosen=chosen)
    bounds = score(question, cells.take(chosen), only=only, least=least)
    return Scores(step_time=bounds.step_time * MARGIN, peak=bounds.peak * MARGIN)


def _setting(question: Question, choices: Choices) -> Setting:
    return setting_of(question.model, question.cluster, question.workload, replace(choices), question.run)
