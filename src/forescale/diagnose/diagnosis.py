"""The difference between a measured step and the expected one, and the causes that explain it, ranked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from msgspec.structs import replace

from forescale.diagnose.causes import CAUSES, Cause
from forescale.diagnose.groups import GROUPS, expected_groups, groups_of_work, measured_groups
from forescale.diagnose.measured import CLOSE, Convention, Measured, conventions
from forescale.diagnose.signs import Comparison, Sign, signs_of
from forescale.diagnose.work import Work, expected_work, measured_work
from forescale.errors import ForescaleError, missing
from forescale.files import packaged
from forescale.profiles import TraceSummary
from forescale.project import peak_rate
from forescale.projection.result import Projection
from forescale.question import Question
from forescale.results import Result
from forescale.struct import Struct, attributes, jsonable
from forescale.units import GIB, format_seconds
from forescale.view.axes import DIFFERENCE
from forescale.view.bars import Bar, BarChart

SCHEMA = "forescale.diagnosis/1"
Verdict: TypeAlias = Literal["as expected", "slower", "faster"]
LEAST = 0.02
"""Share of the expected step below which nothing is explained."""
EXPLAINS = 0.2
"""Share of the difference that a cause must explain to be named."""
DECIDED_BY_ATTENTION = ("recompute", "no_recompute", "unfused_attention", "small_micro_batches")
"""Causes that calls of attention in a profile show, or rule out."""
DECIDED_BY_FLOPS = ("fp32_products", "bf16_products", "expert_imbalance")
"""Causes that the shapes of matrix products in a profile show, or rule out."""
MOST = 8
"""Causes that are named."""
UNLIKE, FEW = 2.0, 20
"""Ratio of the longest marked step to the shortest, and kernels of a step, at which a trace says little."""
Project: TypeAlias = Callable[[Question], Projection]


class Explanation(Struct, frozen=True, kw_only=True):
    """A cause, and what it explains."""

    name: str
    text: str
    seconds: float
    """Of a step that it explains: what would be gained without it; negative where it makes the step shorter."""
    explained: float
    """Share of the difference between measured and expected groups that it explains, of 1."""
    evidence: str
    remedy: str
    grade: float | None = None


class Diagnosis(Result, Struct, frozen=True, kw_only=True):
    """What a run reaches, what it should, and why not."""

    projection: Projection
    measured_s: float
    verdict: Verdict
    expected: Mapping[str, float]
    """Seconds of a step by group of work."""
    measured: Mapping[str, float]
    """The same as measured; empty without a trace."""
    explanations: tuple[Explanation, ...]
    """The best first."""
    inside_scatter: tuple[Explanation, ...] = ()
    """Differences that recorded steps and ranks have without a cause: they explain nothing."""
    conventions: tuple[Convention, ...] = ()
    """Ways of counting FLOP that a printed rate agrees with."""
    remarks: tuple[str, ...] = ()
    traces: tuple[TraceSummary, ...] = ()

    @property
    def lost_s(self) -> float:
        """Seconds by which the step is longer than expected."""
        return self.measured_s - self.projection.step_time_s

    @property
    def headline(self) -> str:
        """The verdict, the measured and the expected step, and the first cause."""
        step = self.projection.step_time
        cause = f"; first cause: {self.explanations[0].text}" if self.explanations else ""
        return (
            f"{self.verdict}: {format_seconds(self.measured_s)} measured, {format_seconds(step.expected)} expected "
            f"({step.low:.4g} to {step.high:.4g}){cause}"
        )

    def pictures(self) -> Sequence[BarChart]:
        """Return the measured step above the expected one; what either has more of a part is shaded."""
        names = ("measured", "expected")
        steps = (self.measured, self.expected)
        if not self.measured:
            steps = ({"step": self.measured_s}, {"step": self.projection.step_time_s})
        bars = [
            Bar(label=label, values={
                key: value
                for part in step
                for key, value in (
                    (part, min(step[part], other[part])),
                    (part + DIFFERENCE, max(0.0, step[part] - other[part])),
                )
            })
            for label, step, other in zip(names, steps, reversed(steps), strict=True)
        ]  # fmt: skip
        title = f"A step of {self.projection.model.name}, measured and expected"
        return [
            BarChart(title=title, note="", axis="", unit="s", bars=tuple(bars), order=tuple(bars[0].values))
        ]

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per cause."""
        return [attributes(item, *item.__struct_fields__) for item in self.explanations]

    def to_json(self) -> dict[str, Any]:
        """Return the `forescale.diagnosis/1` document."""
        names = ("step_time_s=expected", "step_time_low_s=low", "step_time_high_s=high")
        return {
            "schema": SCHEMA,
            **attributes(self, "verdict", "measured_s"),
            **attributes(self.projection.step_time, *names),
            "lost_s": self.lost_s,
            "expected": dict(self.expected),
            "measured": dict(self.measured),
            "causes": self.rows(),
            "inside_scatter": jsonable(self.inside_scatter),
            "conventions": jsonable(self.conventions),
            "remarks": list(self.remarks),
            "traces": [trace.to_json() for trace in self.traces],
        }


def diagnose(question: Question, measured: Measured, projected: Project) -> Diagnosis:
    """Return how a measured step differs from the expected one, and what explains it.

    Raises
    ------
    SpecError
        If nothing that was measured says how long a step takes.
    """
    projection = projected(question)
    if measured.step_s is None:
        raise missing(
            "the time of a step",
            "give --measured step=12.4s (or mfu, tflops, tokens_per_s_per_device), a log with step times, or a trace",
        )
    work = expected_work(question)
    expected = expected_groups(question, projection)
    if work.operators:
        expected |= groups_of_work(work)
    pipelined = question.layout.pp > 1
    groups = measured_groups(measured.traces, pipelined=pipelined) if measured.traces else {}
    case = Case(question, projected, expected, groups, measured.step_s, work)
    verdict = _verdict(projection, measured.step_s)
    signs = case.signs(measured, projection.step_time_s) if measured.traces else []
    lost = abs(measured.step_s - projection.step_time_s) or 1.0
    explanations = [
        *(_explanation(sign, lost) for sign in signs if sign.beyond),
        *case.projected_causes(measured),
    ]
    if not work.operators:
        explanations.sort(key=lambda item: -item.explained)
    peak, vendor = peak_rate(question.cluster, question.workload), question.cluster.device.vendor
    return Diagnosis(
        projection=projection,
        measured_s=measured.step_s,
        verdict=verdict,
        expected=expected,
        measured=groups,
        explanations=tuple(_on(vendor, item) for item in explanations[:MOST]),
        inside_scatter=tuple(_on(vendor, _explanation(sign, lost)) for sign in signs if not sign.beyond),
        conventions=conventions(measured, projection, peak),
        remarks=tuple(_remarks(measured, projection)),
        traces=measured.traces,
    )


def _explanation(sign: Sign, lost_s: float) -> Explanation:
    values = attributes(sign, "name", "text", "seconds", "evidence", "remedy")
    return Explanation(**values, explained=min(1.0, abs(sign.seconds) / lost_s))


def _on(vendor: str, explanation: Explanation) -> Explanation:
    """Return an explanation that names the tools and libraries of a vendor."""
    remedy = explanation.remedy
    for name, other in packaged("causes")["vendors"].get(vendor, {}).items():
        remedy = remedy.replace(name, other)
    return replace(explanation, remedy=remedy)


def _verdict(projection: Projection, seconds: float) -> Verdict:
    step = projection.step_time
    return "slower" if seconds > step.high else "faster" if seconds < step.low else "as expected"


def mfu_at(projection: Projection, seconds: float) -> float:
    """Return the MFU of the projected work in a step of so many seconds; above 1 the measured run is another one."""
    return projection.mfu * projection.step_time.expected / seconds


def _remarks(measured: Measured, projection: Projection) -> Iterator[str]:
    if measured.step_s and (mfu := mfu_at(projection, measured.step_s)) > 1.0:
        yield f"MFU would be {mfu:.0%}: model, devices, batch or sequence length are not those of the measured run"
    memory, peak = projection.memory, measured.peak_bytes
    if peak is not None and not memory.peak_low_bytes <= peak <= memory.peak_high_bytes:
        more = "more" if peak > memory.peak_high_bytes else "less"
        yield (
            f"memory: {peak / GIB:.1f} GiB measured, {memory.peak_low_bytes / GIB:.1f} to "
            f"{memory.peak_high_bytes / GIB:.1f} expected: {more} than this layout takes"
        )
    if measured.counted:
        yield f"the step time is from a rate of {measured.counted}; --mfu-convention counts otherwise"
    if measured.log is not None and measured.log.out_of_memory:
        yield "the log says that memory ran out"
    asked = projection.workload.global_batch_size
    batch = None if measured.log is None else measured.log.typical("global_batch_size")
    if batch is not None and abs(batch / asked - 1.0) > CLOSE:
        yield f"the log says a global batch of {batch:,.0f}, {asked:,} is asked: its steps are not those expected"
    if measured.log is not None and measured.log.restarts:
        yield f"the step number fell back {measured.log.restarts} times: the run was restarted"
    if any(not trace.on_device for trace in measured.traces):
        yield "a trace has operators of the host alone: no kernel of a device was recorded"
    for trace in measured.traces:
        times = trace.samples.get("step", (trace.step_s,))
        if max(times) > UNLIKE * min(times):
            yield (
                f"{trace.path}: the marked steps take {min(times):.4g} to {max(times):.4g} s and are not alike: "
                "record steps after the warm-up"
            )
        if trace.launches < FEW:
            yield f"{trace.path}: a step has {trace.launches} kernels, too few to tell causes apart"
    if any(trace.truncated for trace in measured.traces):
        yield "a trace ends before its last event; what comes before is counted"


class Case:
    """One difference, and what explains it."""

    def __init__(
        self,
        question: Question,
        projected: Project,
        expected: Mapping[str, float],
        groups: Mapping[str, float],
        step_s: float,
        work: Work,
    ) -> None:
        self.question, self.projected, self.work = question, projected, work
        self.expected, self.groups, self.step_s = expected, groups, step_s
        self.expected_s = sum(expected.values())
        self.distance = self._distance(expected)

    @property
    def differs(self) -> bool:
        """Whether there is anything to explain."""
        return self.distance > LEAST * self.expected_s

    def _distance(self, groups: Mapping[str, float]) -> float:
        """Return the seconds by which groups of a step differ from the measured ones."""
        if not self.groups:
            return abs(self.step_s - sum(groups.values()))
        return sum(abs(self.groups[name] - groups[name]) for name in GROUPS)

    def signs(self, measured: Measured, expected_s: float) -> list[Sign]:
        """Return what a profile shows by itself, the cause that takes most first."""
        layout, work = self.question.layout, self.question.workload
        case = Comparison(
            self.work,
            measured_work(measured.traces),
            measured.traces,
            step_s=expected_s,
            waiting_s=self.expected["waiting"],
            tokens=(layout.micro_batch_size, work.seq_len // layout.cp),
            recomputes=layout.recompute.granularity == "full",
            routed=self.question.model.is_moe,
        )
        return signs_of(case)

    def projected_causes(self, measured: Measured) -> list[Explanation]:
        """Return the causes whose projections explain the measurement; none that a profile decides."""
        if not self.differs or (self.work.operators and measured.traces):
            return []
        decided = {
            name for trace in measured.traces for name in DECIDED_BY_ATTENTION if trace.shapes.attention
        }
        decided |= {name for trace in measured.traces for name in DECIDED_BY_FLOPS if trace.shapes.flops}
        causes = (self._tried(cause) for cause in CAUSES if cause.name not in decided)
        return [item for item in causes if item is not None]

    def _explained(self, groups: Mapping[str, float]) -> float:
        return 1.0 - self._distance(groups) / self.distance if self.distance else 0.0

    def _tried(self, cause: Cause) -> Explanation | None:
        """Return what a cause explains at the strength that comes nearest; None if that is little."""
        best: tuple[float, float, dict[str, float]] | None = None
        for grade in cause.grades:
            try:
                changed = cause.change(self.question, grade)
                groups = None if changed is None else expected_groups(changed, self.projected(changed))
            except ForescaleError:
                groups = None
            if groups is None:
                continue
            explained = self._explained(groups)
            if best is None or explained > best[0]:
                best = explained, grade, groups
        if best is None or best[0] < EXPLAINS:
            return None
        explained, grade, groups = best
        seconds = sum(groups.values()) - self.expected_s
        return Explanation(
            name=cause.name,
            text=cause.text.format(grade=f"{grade:g}"),
            seconds=seconds,
            explained=explained,
            evidence=self._evidence(groups),
            remedy=cause.remedy,
            grade=grade if len(cause.grades) > 1 else None,
        )

    def _evidence(self, groups: Mapping[str, float]) -> str:
        """Return the groups that the cause changes most: measured next to what it predicts."""
        if not self.groups:
            return f"the step would take {sum(groups.values()):.4g} s, measured {self.step_s:.4g} s"
        moved = sorted(GROUPS, key=lambda name: -abs(groups[name] - self.expected[name]))[:2]
        return "; ".join(
            f"{name} {self.groups[name]:.4g} s, {groups[name]:.4g} with this cause, {self.expected[name]:.4g} expected"
            for name in moved
        )
