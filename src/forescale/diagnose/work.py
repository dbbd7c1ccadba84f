"""The work of a step, as it was recorded and as it should be: operators, products by type, attention, messages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias, TypeVar

from forescale.cost.timings import ProfiledOperator
from forescale.diagnose.scatter import Samples, usual
from forescale.graph.ops import AttentionCore, Gemm, GroupedGemm
from forescale.inputs import prepare
from forescale.profiles import RANK_PARTS, TraceSummary, part_of, profile_rows
from forescale.question import Question
from forescale.struct import Struct
from forescale.time.price import all_origins

K = TypeVar("K")
Amounts: TypeAlias = Mapping[str, tuple[float, float]]
"""Calls and seconds by name."""


class Work(Struct, frozen=True, kw_only=True):
    """What one rank does in a step; empty where nothing is known."""

    operators: Amounts
    """Of operators that compute, by name."""
    messages: Mapping[tuple[str, float], float]
    """Calls of messages by collective and bytes."""
    transfers: Amounts
    """Of messages by collective, without waiting for other ranks where several ranks were recorded."""
    flops: Mapping[str, float]
    """Of matrix products by type."""
    attention: Mapping[str, float]
    """Calls of fused attention, forward and backward."""
    waiting_s: Mapping[str, float] = {}
    """In which nothing ran: pauses, and gaps between launches."""
    samples: Mapping[str, Samples] = {}
    """Seconds in each recorded step: of operators, and of messages by collective."""
    ranks: Mapping[str, Sequence[Samples]] = {}
    """Seconds in each recorded step of every rank, by `RANK_PARTS`."""
    launches: float = 0.0
    """Kernels, or operators of the host; 0 is not known."""

    @property
    def computing_s(self) -> float:
        """Seconds of all operators that compute."""
        return sum(seconds for _, seconds in self.operators.values())

    @property
    def total_flops(self) -> float:
        """FLOP of all products."""
        return sum(self.flops.values())

    def in_parts(self, *parts: str) -> list[str]:
        """Return the names of operators of some kinds of work."""
        return [name for name in self.operators if part_of(name)[0] in parts]


def work_of_rows(rows: Iterable[ProfiledOperator], scale: float = 1.0) -> Work:
    """Return the work of recorded operators; all but the optimizer's and messages' grows by a factor."""
    operators: dict[str, tuple[float, float]] = {}
    messages: dict[tuple[str, float], float] = {}
    sent: dict[str, tuple[float, float]] = {}
    flops: dict[str, float] = {}
    attention: dict[str, float] = {}
    waiting: dict[str, float] = {}
    launches = 0.0
    samples: dict[str, Samples] = {}
    ranks: dict[str, tuple[Samples, ...]] = {}
    for row in rows:
        factor = 1.0 if row.part == "optimizer" or part_of(row.name)[1] else scale
        times = tuple(value * factor for value in row.samples or (row.seconds,))
        if row.part in RANK_PARTS.values():
            ranks[row.part] = (*ranks.get(row.part, ()), times)
        elif row.part == "waiting":
            waiting[row.name] = usual(times)
            launches = max(launches, row.calls * scale if row.name == "gaps" else 0.0)
        elif row.part == "attention_calls":
            attention[row.name] = row.calls * scale
        elif row.dtype:
            flops[row.dtype] = row.flops * scale
        elif row.num_bytes:
            messages[row.part, row.num_bytes] = row.calls
        elif part_of(row.name)[1]:
            samples[row.part] = total([samples[row.part], times]) if row.part in sent else times
            sent[row.part] = (sent.get(row.part, (0.0, 0.0))[0] + row.calls, usual(samples[row.part]))
        else:
            operators[row.name], samples[row.name] = (row.calls * factor, usual(times)), times
    return Work(
        operators=operators,
        messages=messages,
        transfers=sent,
        flops=flops,
        attention=attention,
        waiting_s=waiting,
        samples=samples,
        ranks=ranks,
        launches=launches,
    )


def measured_work(traces: Sequence[TraceSummary]) -> Work:
    """Return the work of the mean rank."""
    works = [work_of_rows(profile_rows(trace)) for trace in traces]
    calls = mean([{name: pair[0] for name, pair in work.operators.items()} for work in works])
    seconds = mean([{name: pair[1] for name, pair in work.operators.items()} for work in works])
    sent = mean([{part: pair[0] for part, pair in work.transfers.items()} for work in works])
    samples = transfers(traces)
    return Work(
        operators={name: (calls[name], seconds[name]) for name in calls},
        messages=mean([work.messages for work in works]),
        transfers={part: (sent.get(part, 0.0), usual(times)) for part, times in samples.items()},
        flops=mean([work.flops for work in works]),
        attention=mean([work.attention for work in works]),
        samples=samples,
    )


def mean(several: Sequence[Mapping[K, float]]) -> dict[K, float]:
    """Return the mean of each key over several ranks; a rank without it has 0."""
    total: dict[K, float] = defaultdict(float)
    for one in several:
        for key, value in one.items():
            total[key] += value / len(several)
    return dict(total)


def transfers(traces: Sequence[TraceSummary]) -> dict[str, Samples]:
    """Return the seconds of messages in each step by collective: of each the shortest over ranks (no waiting)."""
    result: dict[str, Samples] = {}
    for part in dict.fromkeys(part for trace in traces for part in trace.messages_s):
        times = [trace.messages_s.get(part, ()) for trace in traces]
        steps = traces[0].steps
        if len({len(one) for one in times}) > 1:
            result[part] = (min(map(sum, times)) / steps,)
            continue
        least = tuple(map(min, zip(*times, strict=True)))
        count = len(least) // steps
        even = count and len(least) % steps == 0
        result[part] = (
            tuple(sum(least[step * count :][:count]) for step in range(steps))
            if even
            else (sum(least) / steps,)
        )
    return result


def total(several: Iterable[Samples]) -> Samples:
    """Return sums in each step; the sum of the usual steps where not all have as many."""
    rows = list(several)
    if len({len(row) for row in rows}) == 1:
        return tuple(map(sum, zip(*rows, strict=True)))
    return (sum(map(usual, rows)),)


def expected_work(question: Question) -> Work:
    """Return what a step should do: by the profile of a bench of the question, else by its products and attention."""
    anchor = question.costs.anchor
    work, layout = question.workload, question.layout
    count = work.global_batch_size // (layout.dp * layout.micro_batch_size)
    if anchor is not None and anchor.profile:
        layers = question.model.num_layers / layout.pp
        scale = count / anchor.profiled_microbatches * layers / anchor.profiled_layers
        return work_of_rows(anchor.profile, scale)
    prepared = prepare(question)
    flops: dict[str, float] = defaultdict(float)
    attention: dict[str, float] = defaultdict(float)
    origins = all_origins(prepared.priced.priced, prepared.plan, num_mtp=question.model.num_mtp_layers)
    for origin, seconds in origins:
        op = origin.primitive
        times = count / layout.pp * seconds / max(float(origin.seconds), 1e-30)
        if isinstance(op, Gemm | GroupedGemm):
            flops[op.dtype] += float(op.flops) * times
        elif isinstance(op, AttentionCore) and op.flash:
            attention["backward" if op.backward else "forward"] += times
    return Work(operators={}, messages={}, transfers={}, flops=dict(flops), attention=dict(attention))
