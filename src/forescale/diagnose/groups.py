"""A step in groups of work that both a projection and a profiler trace know."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean

from forescale.diagnose.work import Work
from forescale.graph.ops import AttentionCore, Gemm, GroupedGemm
from forescale.inputs import prepare
from forescale.profiles import TraceSummary, part_of
from forescale.projection.result import Projection
from forescale.question import Question
from forescale.time.price import all_origins

GROUPS = ("attention", "gemm", "other_compute", "communication", "optimizer", "data", "waiting")
"""Attention kernels, products, all other kernels, exposed communication, the update, waiting for data, and all waiting
besides: the pipeline's bubble, gaps between launches."""
COMPUTE = ("attention", "ffn", "moe", "norm", "embedding", "head", "vision", "recompute")
"""Parts of a projection that compute."""
MESSAGES = ("tensor_comm", "context_comm", "expert_comm", "data_comm", "host_comm")
PARTS = {"attention": "attention", "gemm": "gemm", "grouped_gemm": "gemm", "optimizer": "optimizer"}
"""Groups of the kinds of kernels of a trace; other kernels that compute are other_compute."""
Groups = Mapping[str, float]


def expected_groups(question: Question, projection: Projection) -> dict[str, float]:
    """Return the seconds of a step by group, on the average stage.

    The kernels of a micro-batch are split by what they are; the shares hold for the whole step.
    """
    times = projection.time_s
    compute = sum(times.get(name, 0.0) for name in COMPUTE)
    shares = _shares(question)
    return {
        **{name: compute * shares[name] for name in ("attention", "gemm", "other_compute")},
        "communication": sum(times.get(name, 0.0) for name in MESSAGES),
        "optimizer": times.get("optimizer", 0.0),
        "data": 0.0,
        "waiting": sum(times.get(name, 0.0) for name in ("bubble", "pipeline_comm", "overhead")),
    }


def groups_of_work(work: Work) -> dict[str, float]:
    """Return the seconds of recorded work by group; without waiting."""
    groups = dict.fromkeys(("attention", "gemm", "other_compute", "optimizer"), 0.0)
    for name, (_, seconds) in work.operators.items():
        groups[PARTS.get(part_of(name)[0], "other_compute")] += seconds
    return groups


def _shares(question: Question) -> dict[str, float]:
    prepared = prepare(question)
    seconds: dict[str, float] = defaultdict(float)
    origins = all_origins(prepared.priced.priced, prepared.plan, num_mtp=question.model.num_mtp_layers)
    for origin, spent in origins:
        if not origin.message:
            seconds[_group_of(origin.primitive)] += spent
    total = sum(seconds.values()) or 1.0
    return {name: seconds[name] / total for name in ("attention", "gemm", "other_compute")}


def _group_of(primitive: object) -> str:
    if isinstance(primitive, AttentionCore):
        return "attention"
    return "gemm" if isinstance(primitive, Gemm | GroupedGemm) else "other_compute"


def measured_groups(summaries: Sequence[TraceSummary], *, pipelined: bool) -> dict[str, float]:
    """Return the seconds of a step by group, the mean over ranks.

    Parameters
    ----------
    summaries
        One per rank.
    pipelined
        Whether stages wait for each other in sends and receives: these seconds are waiting then.
    """
    ranks = [_of_rank(summary, pipelined=pipelined) for summary in summaries]
    return {name: fmean(rank[name] for rank in ranks) for name in GROUPS}


def _of_rank(summary: TraceSummary, *, pipelined: bool) -> dict[str, float]:
    groups = dict.fromkeys(GROUPS, 0.0)
    for part, seconds in summary.parts_s.items():
        if part not in summary.exposed_s:
            groups[PARTS.get(part, "other_compute")] += seconds
    # Kernels that compute may run side by side: they take no longer together than while any of them runs.
    computing = sum(groups.values())
    if computing > summary.computing_s > 0.0:
        groups = {name: seconds * summary.computing_s / computing for name, seconds in groups.items()}
    between = summary.exposed_s.get("point_to_point", 0.0) if pipelined else 0.0
    groups["communication"] = sum(summary.exposed_s.values()) - between
    groups["data"] = min(summary.data_s, summary.idle_s)
    groups["waiting"] = summary.idle_s - groups["data"] + between
    return groups
