"""Evaluate all layouts of a space: price each distinct block once, gather, compose in chunks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from forescale.cost.calibration import RunFactors
from forescale.cost.select import Costs
from forescale.graph.layout import Choices, Degrees, Layout, split_strategy
from forescale.graph.operator import Block
from forescale.numeric import Array, Numeric
from forescale.project import pricing_of, setting_of
from forescale.projection.blocks import PricedBlock
from forescale.projection.data_parallel import DataTraffic, data_traffic, free_traffic, stage_parameters
from forescale.projection.evaluate import Inputs, evaluate
from forescale.projection.memory import state_bytes
from forescale.projection.mesh import Order
from forescale.projection.pieces import (
    Holding,
    Parts,
    Piece,
    build_blocks,
    build_pieces,
    holdings,
    price_blocks,
)
from forescale.projection.pipeline_floor import PipelineFloor
from forescale.projection.pricing import Pricing
from forescale.projection.stages import Stages
from forescale.search.batches import Batch, Least, Table, batches, distinct, first_rows, stage_plans
from forescale.search.space import Candidates, Columns, Rows
from forescale.spec.cluster import Cluster
from forescale.spec.model import Model
from forescale.spec.strategy import TensorKind
from forescale.spec.workload import Workload

CHUNK = 16384
"""Candidates composed at once: small enough for the cache, large enough to hide Python's overhead."""
BLOCK_KEY = ("tp", "cp", "ep", "etp", "micro_batch_size")
"""What the price of a block depends on."""
PARAMETER_KEY = ("tp", "ep", "etp", "pp", "vpp")
"""What the parameters of a stage depend on."""
TRAFFIC_KEY = (*PARAMETER_KEY, "cp", "dp_replicate", "dp_shard")
"""What data-parallel traffic depends on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is searched for: the same for all candidates."""

    model: Model
    cluster: Cluster
    workload: Workload
    software: str | None = None
    costs: Costs = field(default_factory=Costs)

    @property
    def run(self) -> RunFactors:
        """What whole runs lose on these devices under this software."""
        return self.costs.run_factors(self.cluster.device, self.software)

    def pricing(self, degrees: Degrees, choices: Choices, order: Order) -> Pricing:
        """Return the cost models for all candidates of `degrees`."""
        return pricing_of(self.model, self.cluster, degrees, choices, order, self.run, self.costs)

    def blocks(self, degrees: Degrees, choices: Choices) -> Parts[Block]:
        """Return the operator lists for all candidates of `degrees`."""
        precision, seq_len = self.workload.precision, float(self.workload.seq_len)
        return build_blocks(
            self.model, Layout(degrees=degrees, choices=choices, precision=precision, seq_len=seq_len)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What a search ranks by: arrays (variants, rows) as `Candidates`; what was not evaluated is infinite."""

    step_time: Array
    peak: Array


def score(
    question: Question,
    candidates: Candidates,
    *,
    memory_limit: float = np.inf,
    only: NDArray[np.bool_] | None = None,
    least: Least | None = None,
    chunk: int = CHUNK,
) -> Scores:
    """Return step time and peak memory of every candidate; the result does not depend on `chunk`.

    Parameters
    ----------
    memory_limit
        Rows whose states alone exceed it are not evaluated: none of their variants can fit.
    only
        (variants, rows) what to evaluate; everything legal by default.
    least
        Bytes that no sharding of states goes below. With it the scores are bounds of all layouts that differ from
        a row in their sharding alone: the same evaluation without data-parallel traffic.
    """
    shape = (len(candidates.variants), candidates.num_rows)
    scores = Scores(step_time=np.full(shape, np.inf), peak=np.full(shape, np.inf))
    if candidates.num_rows == 0:
        return scores
    fitting = _fitting(question, candidates, memory_limit)
    for batch in batches(question.model, candidates, fitting=fitting, only=only, bounded=least is not None):
        rows, choices = batch.rows, batch.choices
        columns = {name: values[rows] for name, values in candidates.columns.items()}
        group = _Group(question, columns, batch, least)
        for index in batch.variants:
            wanted = np.arange(len(rows)) if only is None else np.flatnonzero(only[index, rows])
            if len(wanted) == 0:
                continue
            recompute = candidates.variants[index].recompute
            name = choices.schedule
            pieces = build_pieces(
                group.priced,
                recompute,
                overlap=choices.overlap,
                schedule=name,
                offloaded=choices.offload.modules,
            )
            setting = setting_of(
                question.model,
                question.cluster,
                question.workload,
                replace(choices, recompute=recompute),
                question.run,
            )
            for start in range(0, len(wanted), chunk):
                part = wanted[start : start + chunk]
                evaluation = evaluate(setting, group.inputs(part, pieces))
                scores.step_time[index, rows[part]] = evaluation.step_time
                scores.peak[index, rows[part]] = evaluation.peak
    return scores


def _fitting(
    question: Question, candidates: Candidates, memory_limit: float
) -> dict[TensorKind, NDArray[np.bool_]]:
    """Return the rows whose states do not exceed the limit, by kind of tensor parallelism."""
    kinds = {each.tp_kind for each in candidates.variants}
    if memory_limit == np.inf:
        return {kind: np.ones(candidates.num_rows, dtype=bool) for kind in kinds}
    plans, plan_of_row = stage_plans(question.model, candidates.columns)
    common = split_strategy(candidates.base)[1]
    columns = candidates.columns
    return {
        kind: _states(question, columns, plans, plan_of_row, replace(common, tp_kind=kind)) <= memory_limit
        for kind in kinds
    }


def _states(
    question: Question, columns: Columns, plans: Stages, plan_of_row: Rows, choices: Choices
) -> Array:
    """Return the bytes of weights, gradients and optimizer states on the fullest stage of every row."""
    model = question.model
    table = distinct(columns, (*TRAFFIC_KEY, "zero"))
    degrees = as_degrees(table.columns)
    held = holdings(question.blocks(degrees, choices))
    stages = plans.take(plan_of_row[first_rows(table.where)])
    dense, expert = stage_parameters(
        held, stages, degrees, tied=model.tied_embeddings, num_mtp=model.num_mtp_layers
    )
    states = state_bytes(model, dense, expert, degrees, question.workload, choices)
    total = np.asarray(states.total())
    fullest: Array = np.max(np.where(stages.multiplicity > 0, total, 0.0), axis=0)
    return fullest[table.where]


def as_degrees(columns: Columns) -> Degrees:
    """Return columns as degrees; a degree that is not among them is 1."""
    one = np.ones(len(next(iter(columns.values()))))
    return Degrees(
        **{
            name: columns[name].astype(float) if name in columns else one
            for name in Degrees.__dataclass_fields__
        }
    )


class _Group:
    """Candidates of one operator list and axis order, with their tables of distinct blocks and traffic."""

    def __init__(
        self, question: Question, columns: Columns, batch: Batch, least: Least | None = None
    ) -> None:
        self.question, self.order, self.stages = question, batch.order, batch.stages
        self.floor = None if least is None else least(batch)
        self.pipeline, self.choices = batch.pipeline, batch.choices
        choices = self.choices
        self.degrees = as_degrees(columns)
        gap = ("pp",) if question.model.is_moe and self.order[-1] in ("tp", "cp", "dp") else ()
        self.block_table = distinct(columns, (*BLOCK_KEY, *gap))
        degrees = as_degrees(_with_stage_size(self.block_table, columns))
        blocks = question.blocks(degrees, choices)
        self.priced: Parts[PricedBlock] = price_blocks(blocks, question.pricing(degrees, choices, self.order))
        self.held: Parts[Holding] = holdings(blocks)
        self.traffic_table = distinct(columns, TRAFFIC_KEY)
        self.traffic = self._traffic(choices)

    def _traffic(self, choices: Choices) -> DataTraffic:
        question, model = self.question, self.question.model
        degrees = as_degrees(self.traffic_table.columns)
        held = holdings(question.blocks(degrees, choices))
        stages = self.stages(first_rows(self.traffic_table.where))
        tied, num_mtp = model.tied_embeddings, model.num_mtp_layers
        if self.floor is not None:
            return free_traffic(held, stages, degrees, tied=tied, num_mtp=num_mtp)
        return data_traffic(
            held,
            stages,
            degrees,
            question.workload.precision,
            question.pricing(degrees, choices, self.order),
            tied=tied,
            num_mtp=num_mtp,
            reshard=choices.reshard,
            tp_kind=choices.tp_kind,
        )

    def inputs(self, part: Rows, pieces: Parts[Piece]) -> Inputs:
        """Return the priced numbers of some candidates of the group."""
        degrees = Degrees(
            **{name: getattr(self.degrees, name)[part] for name in Degrees.__dataclass_fields__}
        )
        at_block, at_traffic = _Gather(self.block_table.where[part]), _Gather(self.traffic_table.where[part])
        return Inputs(
            degrees=degrees,
            stages=self.stages(part),
            pieces=pieces.map(lambda piece: piece.take(at_block)),
            held=self.held.map(lambda held: held.take(at_block)),
            traffic=self.traffic.take(at_traffic),
            floor=None if self.floor is None else self.floor[:, part],
            pricing=self.question.pricing(degrees, self.choices, self.order),
            pipeline=self.pipeline.take(part) if isinstance(self.pipeline, PipelineFloor) else self.pipeline,
        )


def _with_stage_size(table: Table, columns: Columns) -> Columns:
    """Give each distinct block the data-parallel size of one of its candidates: experts fold over it."""
    first = first_rows(table.where)
    dp = (columns["dp_shard"] * columns["dp_replicate"])[first]
    return {**table.columns, "dp_shard": dp, "pp": columns["pp"][first]}


class _Gather:
    """Takes candidates from the last axis; plain numbers stay."""

    def __init__(self, where: Rows) -> None:
        self.where = where

    def __call__(self, value: Numeric) -> Numeric:
        if isinstance(value, float) or np.ndim(value) == 0 or np.shape(value)[-1] == 1:
            return value
        return value[..., self.where]
