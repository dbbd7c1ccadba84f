"""Evaluate all layouts of a space: price each distinct block once, gather, compose in chunks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from forescale.graph.layout import Choices, Degrees, Layout
from forescale.graph.operator import Block
from forescale.graph.stage import plan_stages
from forescale.numeric import Array, Numeric
from forescale.project import pricing_of, setting_of
from forescale.projection.blocks import PricedBlock
from forescale.projection.data_parallel import DataTraffic, data_traffic
from forescale.projection.evaluate import Inputs, evaluate
from forescale.projection.pieces import Holding, Parts, Piece, build_blocks, build_pieces, holdings, price_blocks
from forescale.projection.stages import Stages, stack_plans
from forescale.search.space import Candidates, Columns
from forescale.spec.cluster import Cluster
from forescale.spec.model import Model
from forescale.spec.strategy import Axis
from forescale.spec.workload import Workload

CHUNK = 16384
"""Candidates composed at once: small enough for the cache, large enough to hide Python's overhead."""
BLOCK_KEY = ("tp", "cp", "ep", "etp", "micro_batch_size")
"""What the price of a block depends on."""
TRAFFIC_KEY = ("tp", "cp", "ep", "etp", "pp", "vpp", "dp_replicate", "dp_shard")
"""What data-parallel traffic depends on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What a search ranks by, one number per candidate."""

    step_time: Array
    peak: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Distinct rows of some columns, and where each candidate's row stands."""

    columns: Columns
    where: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of distinct rows."""
        return len(next(iter(self.columns.values())))


def score(
    model: Model, cluster: Cluster, workload: Workload, candidates: Candidates, *, chunk: int = CHUNK
) -> Scores:
    """Return step time and peak memory of every candidate; the result does not depend on `chunk`."""
    size = len(candidates)
    scores = Scores(step_time=np.empty(size), peak=np.empty(size))
    plans = _plans(model, candidates.columns)
    for rows, choices, order in _groups(candidates):
        columns = {name: values[rows] for name, values in candidates.columns.items()}
        group = _Group(model, cluster, workload, columns, choices, order, plans[1][rows], plans[0])
        for policy, recompute in enumerate(candidates.recompute):
            inside = np.flatnonzero(columns["recompute"] == policy)
            if len(inside) == 0:
                continue
            pieces = build_pieces(group.priced, recompute, asynchronous_tensor=choices.overlap.tensor)
            setting = setting_of(model, cluster, workload, replace(choices, recompute=recompute))
            for start in range(0, len(inside), chunk):
                part = inside[start : start + chunk]
                evaluation = evaluate(setting, group.inputs(part, pieces))
                scores.step_time[rows[part]] = evaluation.step_time
                scores.peak[rows[part]] = evaluation.peak
    return scores


def _groups(candidates: Candidates) -> Iterator[tuple[NDArray[np.int64], Choices, tuple[Axis, ...]]]:
    """Yield candidates that share every choice but recompute: rows, choices, axis order."""
    columns = candidates.columns
    table = distinct(columns, ("sp", "cp_kind", "axis_order"))
    for index in range(len(table)):
        rows = np.flatnonzero(table.where == index)
        choices = Choices(
            sp=bool(table.columns["sp"][index]),
            cp_kind=candidates.cp_kinds[table.columns["cp_kind"][index]],
            overlap=candidates.overlap,
        )
        yield rows, choices, candidates.orders[table.columns["axis_order"][index]]


def distinct(columns: Columns, names: tuple[str, ...]) -> Table:
    """Return the distinct rows of the named columns, in ascending order."""
    key = np.zeros(len(columns[names[0]]), dtype=np.int64)
    for name in names:
        size, code = _codes(columns[name])
        key = _codes(key * size + code)[1]
    first = _first_rows(key)
    return Table(columns={name: columns[name][first] for name in names}, where=key)


def _codes(values: NDArray[np.int64]) -> tuple[int, NDArray[np.int64]]:
    """Return how many distinct non-negative values there are, and the rank of each among them."""
    present = np.zeros(int(values.max(initial=0)) + 1, dtype=bool)
    present[values] = True
    rank = np.cumsum(present) - 1
    return int(rank[-1]) + 1, rank[values]


def _first_rows(where: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the first row of every code 0, 1, 2, ... in `where`."""
    first = np.empty(int(where.max(initial=-1)) + 1, dtype=np.int64)
    first[where[::-1]] = np.arange(len(where))[::-1]
    return first


def _plans(model: Model, columns: Columns) -> tuple[Stages, NDArray[np.int64]]:
    """Return the compressed stage plan of every distinct (pp, vpp), and each candidate's."""
    table = distinct(columns, ("pp", "vpp"))
    pairs = zip(table.columns["pp"].tolist(), table.columns["vpp"].tolist(), strict=True)
    return stack_plans([plan_stages(model, pp=pp, vpp=vpp).compressed() for pp, vpp in pairs]), table.where


def _as_degrees(columns: Columns) -> Degrees:
    """Return columns as degrees; a degree that is not among them is 1."""
    one = np.ones(len(next(iter(columns.values()))))
    return Degrees(**{name: columns[name].astype(float) if name in columns else one for name in Degrees.__dataclass_fields__})


class _Group:
    """Candidates of one operator list and axis order, with their tables of distinct blocks and traffic."""

    def __init__(
        self, model: Model, cluster: Cluster, workload: Workload, columns: Columns, choices: Choices,
        order: tuple[Axis, ...], plan: NDArray[np.int64], plans: Stages,
    ) -> None:  # fmt: skip
        self.degrees, self.plan, self.plans = _as_degrees(columns), plan, plans
        self.cluster, self.order = cluster, order
        gap = ("pp",) if model.is_moe and order[-1] != "pp" else ()
        self.block_table = distinct(columns, (*BLOCK_KEY, *gap))
        degrees = _as_degrees(self._with_dp(self.block_table, columns))
        blocks = self._blocks(model, workload, degrees, choices)
        self.priced: Parts[PricedBlock] = price_blocks(blocks, pricing_of(cluster, degrees, order))
        self.held: Parts[Holding] = holdings(blocks)
        self.traffic_table = distinct(columns, TRAFFIC_KEY)
        degrees = _as_degrees(self.traffic_table.columns)
        held = holdings(self._blocks(model, workload, degrees, choices))
        first = _first_rows(self.traffic_table.where)
        self.traffic: DataTraffic = data_traffic(
            held, plans.take(plan[first]), degrees, workload.precision, pricing_of(cluster, degrees, order),
            tied=model.tied_embeddings, num_mtp=model.num_mtp_layers,
        )  # fmt: skip

    @staticmethod
    def _with_dp(table: Table, columns: Columns) -> Columns:
        """Give each distinct block the data-parallel size of one of its candidates: experts fold over it."""
        first = _first_rows(table.where)
        return {**table.columns, "dp_shard": (columns["dp_shard"] * columns["dp_replicate"])[first], "pp": columns["pp"][first]}

    @staticmethod
    def _blocks(model: Model, workload: Workload, degrees: Degrees, choices: Choices) -> Parts[Block]:
        layout = Layout(degrees=degrees, choices=choices, precision=workload.precision, seq_len=float(workload.seq_len))
        return build_blocks(model, layout)

    def inputs(self, part: NDArray[np.int64], pieces: Parts[Piece]) -> Inputs:
        """Return the priced numbers of some candidates of the group."""
        degrees = Degrees(**{name: getattr(self.degrees, name)[part] for name in Degrees.__dataclass_fields__})
        at_block, at_traffic = self.block_table.where[part], self.traffic_table.where[part]
        return Inputs(
            degrees=degrees,
            stages=self.plans.take(self.plan[part]),
            pieces=pieces.map(lambda piece: piece.take(_gather(at_block))),
            held=self.held.map(lambda held: held.take(_gather(at_block))),
            traffic=self.traffic.take(_gather(at_traffic)),
            pricing=pricing_of(self.cluster, degrees, self.order),
        )


class _gather:  # noqa: N801 (a function with state)
    """Takes candidates from the last axis; plain numbers stay."""

    def __init__(self, where: NDArray[np.int64]) -> None:
        self.where = where

    def __call__(self, value: Numeric) -> Numeric:
        if isinstance(value, float) or np.ndim(value) == 0 or np.shape(value)[-1] == 1:
            return value
        return value[..., self.where]
