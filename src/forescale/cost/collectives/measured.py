"""Measured collectives: what a fit and its check work on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from forescale.cost.calibration import Residual
from forescale.cost.collectives.model import CollectiveModel
from forescale.cost.placement import Group
from forescale.errors import SpecError
from forescale.files import Row, read_table
from forescale.graph.ops import CollectiveKind
from forescale.limits import AMOUNT, DEVICES, within
from forescale.numeric import Array
from forescale.spec.cluster import Cluster

NUMBERS = {"msg_bytes": AMOUNT, "n_gpus": DEVICES, "nodes": DEVICES, "time_us": AMOUNT}
COLUMNS = ("id", "hardware", "kind", "op", *NUMBERS, "gpus_per_node")
"""Columns of a table of collectives; the last is for the reader."""
_KINDS: Mapping[str, CollectiveKind] = {
    "all_reduce": "all_reduce",
    "allreduce": "all_reduce",
    "all_gather": "all_gather",
    "allgather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reducescatter": "reduce_scatter",
    "all_to_all": "all_to_all",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "sendrecv": "p2p",
}


def kind_of(name: str) -> CollectiveKind | None:
    """Return the collective that a benchmark calls `name`, None if it is none of ours."""
    return _KINDS.get(name.casefold().removesuffix("_mpi").removesuffix("_perf"))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCollective:
    """One timed collective; bytes as in `graph.ops.Collective`, which is what nccl-tests prints as size."""

    kind: CollectiveKind
    num_bytes: float
    num_ranks: int
    ranks_per_node: int
    seconds: float
    id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveBatch:
    """Rows of one cluster and kind that one vectorised evaluation prices."""

    cluster: Cluster
    kind: CollectiveKind
    group: Group
    num_bytes: Array
    seconds: Array
    ids: tuple[str, ...]


def stack(cluster: Cluster, rows: Iterable[MeasuredCollective]) -> list[CollectiveBatch]:
    """Stack rows that were measured on `cluster`, which is sized to hold the largest."""
    by_kind: dict[CollectiveKind, list[MeasuredCollective]] = defaultdict(list)
    for row in rows:
        by_kind[row.kind].append(row)
    return [_batch(cluster, kind, group) for kind, group in by_kind.items()]


def _batch(cluster: Cluster, kind: CollectiveKind, rows: Sequence[MeasuredCollective]) -> CollectiveBatch:
    per_node = np.array([row.ranks_per_node for row in rows], dtype=np.float64)
    ranks = np.array([row.num_ranks for row in rows], dtype=np.float64)
    nodes = ranks / per_node
    size = float(cluster.devices_per_node)
    return CollectiveBatch(
        cluster=cluster.sized(int(size * nodes.max())),
        kind=kind,
        group=Group(
            size=per_node, stride=np.ones_like(per_node), outer=((nodes, np.full_like(nodes, size)),)
        ),
        num_bytes=np.array([row.num_bytes for row in rows], dtype=np.float64),
        seconds=np.array([row.seconds for row in rows], dtype=np.float64),
        ids=tuple(row.id for row in rows),
    )


def errors(batch: CollectiveBatch, model: CollectiveModel) -> Array:
    """Return ln(predicted / measured) of each row."""
    predicted = model.seconds(kind=batch.kind, num_bytes=batch.num_bytes, group=batch.group)
    return np.asarray(np.log(predicted / batch.seconds), dtype=np.float64)


def residual_of(values: Array, *, source: str) -> Residual:
    """Return the spread of logarithmic errors."""
    low, middle, high = (round(float(q), 4) for q in np.quantile(values, (0.1, 0.5, 0.9)))
    absolute = round(float(np.median(np.abs(values))), 4)
    return Residual(rows=values.size, median_abs=absolute, bias=middle, p10=low, p90=high, source=source)


def read_collectives(path: Path, hardware: str) -> list[MeasuredCollective]:
    """Return the collective rows of a kernel table that name `hardware`.

    Parameters
    ----------
    path
        CSV with the columns id, hardware, kind, op, msg_bytes, n_gpus, nodes and time_us.
    hardware
        Start of the hardware column.
    """
    table = read_table(path)
    table.need(COLUMNS[:-1], "table of collectives")
    parsed = [_row(row) for row in table.rows if row.text("hardware").startswith(hardware)]
    return [row for row in parsed if row is not None]


def _row(row: Row) -> MeasuredCollective | None:
    kind = kind_of(row.text("op")) if row.text("kind") == "collective" else None
    if kind is None or not all(row.text(key) for key in NUMBERS):
        return None
    values = {}
    for key, allowed in NUMBERS.items():
        try:
            values[key] = within(row.number(key), allowed, "it", whole=allowed is DEVICES)
        except SpecError as error:
            raise row.refused(key, str(error)) from error
    return MeasuredCollective(
        kind=kind,
        num_bytes=float(values["msg_bytes"]),
        num_ranks=values["n_gpus"],
        ranks_per_node=max(1, values["n_gpus"] // values["nodes"]),
        seconds=values["time_us"] * 1e-6,
        id=row.id,
    )
