"""The search of the analysis: for each layout and policy the largest micro-batch that fits, ranked by step time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from forescale.brief import Brief
from forescale.errors import InfeasibleError
from forescale.graph.layout import Choices, Degrees
from forescale.numeric import Array, divisors
from forescale.presets.almodel.preset import Almodel, Ranked, evaluate
from forescale.presets.almodel.step import Clock
from forescale.question import Question
from forescale.spec.cluster import Cluster
from forescale.spec.constraints import Proposal, legal
from forescale.spec.model import Model
from forescale.spec.strategy import Recompute, RematPolicy, Strategy
from forescale.spec.workload import Workload
from forescale.units import counted, format_bytes

OTHERS = ("torch_per_op", "torch_per_op_compiled", "torch_per_mm_compiled", "custom")
OF_MAXTEXT = tuple(policy for policy in get_args(RematPolicy) if policy not in OTHERS)
POLICIES = (
    Recompute(),
    *(Recompute(granularity="policy", policy=policy) for policy in OF_MAXTEXT),
    Recompute(granularity="full"),
)
"""save_all, MaxText's policies and full, in the order of the analysis."""
LARGEST_CP = 8
"""The analysis has no layout with more: at 16 one would be slower than its slowest."""
SCHEMA = "forescale.almodel/1"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AlmodelResult(Brief):
    """What the search found."""

    model: Model
    cluster: Cluster
    workload: Workload
    preset: Almodel
    best: tuple[Ranked, ...]
    """Layouts, fastest first, each with the policy and micro-batch that are fastest for it."""
    slowest: tuple[Ranked, ...]
    """Of all layouts and policies, each with the largest micro-batch that fits, slowest first."""
    num_candidates: int
    """Layouts, policies and micro-batches together."""
    num_feasible: int
    """Layouts and policies of which some micro-batch fits."""
    num_layouts: int
    """Layouts of which something fits."""
    refused: dict[str, int]
    elapsed_s: float = field(compare=False)

    def to_json(self) -> dict[str, Any]:
        """Return the `forescale.almodel/1` document."""
        return {
            "schema": SCHEMA,
            "terms": self.preset.terms.name,
            "num_candidates": self.num_candidates,
            "num_feasible": self.num_feasible,
            "num_layouts": self.num_layouts,
            "refused": self.refused,
            "elapsed_s": self.elapsed_s,
            "best": [one.projection.to_json() for one in self.best],
            "slowest": [one.projection.to_json() for one in self.slowest],
        }


def search_almodel(
    model: Model,
    cluster: Cluster,
    workload: Workload,
    *,
    preset: Almodel | None = None,
    top: int = 10,
    worst: int = 10,
    least_mfu: float = 0.0,
) -> AlmodelResult:
    """Rank every layout of DP × EP × FSDP × CP with every policy of the analysis.

    Parameters
    ----------
    least_mfu
        MFU (attention unmasked) below which a layout is not listed among the best.

    Raises
    ------
    InfeasibleError
        If no layout is legal, or none fits.
    """
    started = time.perf_counter()
    account = preset or Almodel()
    clock = Clock(model=model, cluster=cluster, workload=workload, terms=account.terms)
    columns, refused = _columns(model, cluster, workload)
    if len(columns["cp"]) == 0:
        msg = f"no legal layout of {model.name} on {counted(cluster.num_devices, 'device')} of {cluster.name}"
        raise InfeasibleError(msg, tuple(refused.items()))
    found = _Scores.of(account, clock, columns)
    if not len(found.rows):
        room = format_bytes(cluster.device.hbm_bytes)
        msg = f"no layout of {model.name} fits {room} on {counted(cluster.num_devices, 'device')}"
        raise InfeasibleError(msg, [*refused.items(), ("memory", len(columns["cp"]) * len(POLICIES))])
    fastest = found.fastest_of_each_layout()
    question = Question(model=model, cluster=cluster, workload=workload)

    def ranked(chosen: NDArray[np.int64]) -> Iterator[Ranked]:
        for index in chosen.tolist():
            strategy = _strategy(columns, int(found.rows[index]), POLICIES[found.policies[index]])
            yield account.rank(question.of(strategy))

    best = tuple(ranked(fastest[:top]))
    return AlmodelResult(
        model=model,
        cluster=cluster,
        workload=workload,
        preset=account,
        best=tuple(one for one in best if one.projection.mfu_full_attention >= least_mfu),
        slowest=tuple(ranked(np.argsort(-found.step, kind="stable")[:worst])),
        num_candidates=len(columns["cp"]) * len(POLICIES),
        num_feasible=len(found.rows),
        num_layouts=len(fastest),
        refused=refused,
        elapsed_s=time.perf_counter() - started,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scores:
    """Layouts and policies with the largest micro-batch that fits: row, policy, layout and step time of each."""

    rows: NDArray[np.int64]
    policies: NDArray[np.int64]
    layouts: NDArray[np.int64]
    step: Array

    @classmethod
    def of(cls, account: Almodel, clock: Clock, columns: dict[str, NDArray[np.int64]]) -> _Scores:
        """Evaluate every policy over all rows and keep the largest micro-batch of each layout."""
        size, layouts = len(columns["cp"]), columns["layout"]
        degrees = Degrees(**{name: columns[name].astype(float) for name in Degrees.__dataclass_fields__})
        found: list[tuple[NDArray[np.int64], NDArray[np.int64], Array]] = []
        for number, policy in enumerate(POLICIES):
            memory, step = evaluate(account, clock, degrees, Choices(recompute=policy))
            rows = np.flatnonzero(memory.total <= clock.cluster.device.hbm_bytes)
            rows = rows[np.flatnonzero(np.diff(layouts[rows], append=-1))]
            found.append((rows, np.full(len(rows), number), np.broadcast_to(step.total, size)[rows]))
        rows, policies, seconds = (np.concatenate(item) for item in zip(*found, strict=True))
        return cls(rows=rows, policies=policies, layouts=layouts[rows], step=seconds)

    def fastest_of_each_layout(self) -> NDArray[np.int64]:
        """Return the fastest entry of every layout, fastest first."""
        order = np.argsort(self.step, kind="stable")
        _, first = np.unique(self.layouts[order], return_index=True)
        return np.asarray(order[np.sort(first)], dtype=np.int64)


class _Asked:
    """Columns seen as attributes, for the constraints."""

    sp, cp_kind, schedule = True, "all_gather", None

    def __init__(self, columns: dict[str, NDArray[np.int64]]) -> None:
        self.__dict__.update(columns)


def _columns(
    model: Model, cluster: Cluster, workload: Workload
) -> tuple[dict[str, NDArray[np.int64]], dict[str, int]]:
    """Return every legal layout and micro-batch, micro-batches of one layout ascending; and what was refused.

    TP and PP stay 1: the analysis shows no layout with more, and 21 layers do not divide by a power of two.
    """
    devices, batch = cluster.num_devices, workload.global_batch_size
    experts = 1 if model.moe is None else model.moe.num_experts
    table = [
        (layout, cp, ep, dp, fsdp * ep, batch_per_device * cp)
        for layout, (cp, ep, fsdp, dp) in enumerate(_layouts(devices, experts))
        if batch % (devices // cp) == 0
        for batch_per_device in divisors(batch // (devices // cp))
        if batch // (devices // cp) % (batch_per_device * cp) == 0
    ]
    names = ("layout", "cp", "ep", "dp_replicate", "dp_shard", "micro_batch_size")
    columns = dict(zip(names, np.array(table, dtype=np.int64).reshape(-1, len(names)).T, strict=True))
    one = np.ones(len(table), dtype=np.int64)
    columns |= dict.fromkeys(("tp", "etp", "pp", "vpp"), one) | {"zero": 3 * one}
    mask, refused = legal(Proposal(model=model, cluster=cluster, workload=workload, degrees=_Asked(columns)))
    kept = {name: values[mask] for name, values in columns.items()}
    return kept, {name: count for name, count in refused.items() if count}


def _layouts(devices: int, experts: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (cp, ep, fsdp, dp) that fill the devices."""
    for cp in divisors(devices):
        if cp > LARGEST_CP:
            continue
        for ep in divisors(devices // cp):
            if experts % ep:
                continue
            for fsdp in divisors(devices // (cp * ep)):
                yield cp, ep, fsdp, devices // (cp * ep * fsdp)


def _strategy(columns: dict[str, NDArray[np.int64]], row: int, recompute: Recompute) -> Strategy:
    degrees: dict[str, Any] = {name: int(columns[name][row]) for name in Degrees.__dataclass_fields__}
    return Strategy(**degrees, recompute=recompute)
