"""`fit`: what makes a layout fit, or shortens its step: single changes of it, and pairs of them, evaluated exactly."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations, product
from typing import Any

from msgspec.structs import replace

from forescale.advise.changes import KINDS, Change, changed, changes
from forescale.advise.check import verdict_within
from forescale.advise.decide import LEAST_GAIN
from forescale.arrays import np
from forescale.errors import ForescaleError, SpecError, UnknownNameError
from forescale.inputs import RECORDED, recorded_question, with_high_precision_layers
from forescale.project import project
from forescale.projection.result import Projection, Verdict
from forescale.question import Question
from forescale.results import Result
from forescale.search.evaluate import score_layouts
from forescale.search.rank import pareto_front
from forescale.spec.layout import Layout
from forescale.spec.model import Model
from forescale.spec.workload import Trainable, Workload
from forescale.struct import Struct, attributes, jsonable
from forescale.units import GIB, format_bytes, format_seconds
from forescale.view.bars import Bar, BarChart
from forescale.view.page import Chart

SCHEMA = "forescale.fit/1"
MOST_OF_A_KIND = 6
"""Changes of one kind that are paired with others: of those that no other of the kind beats in time and memory."""
MOST_PAIRS = 5
"""Pairs that are listed."""
DEGREES = ("tp", "cp", "pp", "vpp", "micro_batch_size")
"""What is paired even where it is not legal by itself."""
GRADED = ("vpp", "micro_batch_size")
"""For a layout that does not fit with margin, list every value of a kind that is not dominated by another one."""
MOST_TIMES = 16
"""How many times as many devices are tried at most."""
SHORTEST = 256
"""Tokens of the shortest sequences that are tried."""
USUAL_RANK = 16
"""Rank of the adapters that are tried."""
LEAST_FREED = 0.005
"""Share of its peak that a layout which does not fit with a change must lose by it for the change to be listed."""
MOST_BEFORE = 2
"""Single changes of the layout that come before the first change of the run."""
TOO_MUCH = 0.5
"""Share of the step by which a change lengthens it so much that a changed run must not need it."""
NARROW_MOMENTS = ("fp8",)
"""Moments that are tried where no framework limits its options."""
ALONE = ("schedule",)
"""What is not paired: every shape of a named schedule is simulated."""
GRADES: Mapping[Verdict, int] = {"FITS": 0, "AT RISK": 1, "OOM": 2}


class Fix(Struct, frozen=True, kw_only=True):
    """One change or two, and what the layout then takes."""

    changes: tuple[Change, ...]
    projection: Projection
    verdict: Verdict
    """Against the limit of the question."""
    lost_s: float
    """Seconds that a step takes longer; negative where it is shorter."""
    freed_bytes: float
    """Bytes that the fullest device needs less."""

    @classmethod
    def over(cls, now: Projection, changes: tuple[Change, ...], result: Projection, limit: float) -> Fix:
        """Return what changes make of the projection of `now`, under a limit of memory [byte]."""
        return cls(
            changes=changes,
            projection=result,
            verdict=verdict_within(result, limit),
            lost_s=result.step_time_s - now.step_time_s,
            freed_bytes=now.memory.peak_bytes - result.memory.peak_bytes,
        )

    @property
    def text(self) -> str:
        """The changes in words."""
        return ", ".join(change.text for change in self.changes)

    @property
    def kinds(self) -> tuple[str, ...]:
        """What is changed."""
        return tuple(change.kind for change in self.changes)

    @property
    def lost_s_per_gib(self) -> float | None:
        """Seconds lost per GiB saved; None where nothing is saved."""
        return None if self.freed_bytes <= 0.0 else self.lost_s / (self.freed_bytes / GIB)

    def row(self) -> dict[str, Any]:
        """Return the figures that fixes are compared by."""
        memory = self.projection.memory
        return {
            "change": self.text,
            **attributes(self.projection, "step_time_s", "tokens_per_s"),
            "lost_s": self.lost_s,
            **attributes(memory, "peak_bytes", "peak_high_bytes"),
            **attributes(self, "freed_bytes", "lost_s_per_gib", "verdict"),
        }


class Fit(Result, Struct, frozen=True, kw_only=True):
    """What can be done about a layout; best first."""

    question: Question
    now: Projection
    verdict: Verdict
    """Of the layout as it is, against the limit of the question."""
    fixes: tuple[Fix, ...]
    """Where the layout does not fit with margin: the cheapest fewest changes that make it fit so, then what else does,
    fastest first, then what loses least per byte that it frees. Else what shortens the step and fits with margin,
    fastest first."""
    num_tried: int
    """Legal layouts that were evaluated."""
    shorter: int | None = None
    """Sequence length, halved until the layout fits with margin as it is; None where it fits, or no half down to
    `SHORTEST` tokens does."""
    adapters: Fit | None = None
    """The same question with LoRA, or with QLoRA, where the layout does not fit with margin."""
    larger: Fit | None = None
    """The same question on twice, four times … the devices, at most `MOST_TIMES`, in the same case."""
    states: Fit | None = None
    """The same question with moments of 8 bits, in the same case, where the framework has them."""

    @property
    def fits(self) -> bool:
        """Whether the layout fits with margin as it is, or with what is proposed."""
        return self.verdict == "FITS" or self.first is not None

    @property
    def first(self) -> Fix | None:
        """What is proposed; None where nothing that was tried fits with margin."""
        fix = self.fixes[0] if self.fixes else None
        return fix if fix is not None and fix.verdict == "FITS" else None

    @property
    def headline(self) -> str:
        """The projection, and what is proposed, on one line."""
        first = self.first
        if first is None:
            fits = (
                "it fits with margin" if self.verdict == "FITS" else "nothing that was tried fits with margin"
            )
            return f"{self.now.headline}; {fits}"
        now, memory = first.projection, format_bytes(first.projection.memory.peak_bytes)
        rate = f"{format_seconds(now.step_time_s)} per step, {now.tokens_per_s:,.0f} tokens/s"
        proposed = f"{rate}, {memory} per device ({first.verdict})"
        return f"{self.now.headline}; with {first.text}: {proposed}"

    def essentials(self) -> Mapping[str, Any]:
        """Return the layout's verdict and what is proposed."""
        first = self.first
        return {
            "verdict": self.verdict,
            "first": None if first is None else first.text,
            "fixes": len(self.fixes),
        }

    @property
    def remedies(self) -> tuple[Fix, ...]:
        """The fixes, and changes of the run.

        The first change of the run follows at most two single changes of the layout that may fit; the others follow
        all of these. A run that needs a change which makes the layout fit by itself is left out.
        """
        place = sum(fix.verdict != "OOM" and len(fix.changes) == 1 for fix in self.fixes)
        place = max(place, 1) if self.first is not None else place
        enough = [fix.changes for fix in self.fixes if fix.verdict == "FITS"]
        needed = [run for run in self._runs() if run.changes[1:] not in enough]
        lead = min(place, MOST_BEFORE)
        return (
            *self.fixes[:lead],
            *needed[:1],
            *self.fixes[lead:place],
            *needed[1:],
            *self.fixes[place:],
        )

    def _runs(self) -> tuple[Fix, ...]:
        """Return what changes of the run make of it, the one that acts on the largest part of the memory first.

        The others follow in one order: on one device what is trained comes first, else more devices.
        """
        moments, adapters, devices = (
            None if other is None else _of_run(self, other, text)
            for other, text in zip((self.states, self.adapters, self.larger), _texts(self), strict=True)
        )
        trained = (moments, length := _cut(self), adapters)
        runs = (*trained, devices) if self.question.cluster.num_devices == 1 else (devices, *trained)
        stage = max(self.now.memory.stages, key=lambda stage: stage.peak_bytes)
        acts_on = {
            "activations": (stage.activations_bytes + stage.fragmentation_bytes, length),
            "optimizer": (stage.optimizer_bytes, moments),
            "weights": (stage.frozen_bytes, adapters),
        }
        _, lead = max(acts_on.values(), key=lambda pair: pair[0])
        return tuple(run for run in (lead, *(run for run in runs if run is not lead)) if run is not None)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per fix and changed run."""
        return [{"rank": place, **fix.row()} for place, fix in enumerate(self.remedies, start=1)]

    def pictures(self) -> Sequence[Chart]:
        """Return the parts of the step, now and under every fix."""
        every = (("now", self.now), *((fix.text, fix.projection) for fix in self.fixes))
        bars = tuple(Bar(label=name, values=one.time_s) for name, one in every)
        return (
            BarChart(title="Time of a step", note="now, and with each change", axis="", unit="s", bars=bars),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the `forescale.fit/1` document."""
        return {
            "schema": SCHEMA,
            "limit_bytes": self.question.memory_limit,
            **attributes(self, "verdict", "num_tried", "shorter", "now"),
            **{
                name: None if (other := getattr(self, name)) is None else other.to_json()
                for name in ("adapters", "larger", "states")
            },
            "fixes": [
                {
                    **fix.row(),
                    "sets": [
                        {name: jsonable(value) for name, value in change.overrides.items()}
                        for change in fix.changes
                    ],
                    "projection": fix.projection.to_json(),
                }
                for fix in self.fixes
            ],
        }


def _texts(result: Fit) -> tuple[str, str, str]:
    """Return in words what the changed runs are: moments of 8 bits, adapters, more devices."""
    moments = adapters = devices = ""
    if result.states is not None:
        moments = f"--moment-dtype {result.states.question.workload.precision.moments}"
    if result.adapters is not None:
        workload = result.adapters.question.workload
        frozen = workload.precision.frozen
        adapters = f"--lora-rank {workload.trainable.lora_rank}" + (
            f" --frozen-dtype {frozen}" if frozen else ""
        )
    if result.larger is not None:
        devices = f"--devices {result.larger.question.cluster.num_devices}"
        before, after = result.question.layout, result.larger.question.layout
        grown = (name for name in ("tp", "pp") if getattr(after, name) != getattr(before, name))
        devices += "".join(f" --{name} {getattr(after, name)}" for name in grown)
    return moments, adapters, devices


def _of_run(now: Fit, other: Fit, text: str) -> Fix:
    """Return the fix that a changed run is, with the change of its layout that makes it fit."""
    first = None if other.verdict == "FITS" else other.first
    result = other.now if first is None else first.projection
    made = (Change(kind="run", text=text, overrides={}), *(() if first is None else first.changes))
    return Fix.over(now.now, made, result, other.question.memory_limit)


def _cut(result: Fit) -> Fix | None:
    """Return the fix that a shorter sequence is; None where none fits."""
    if result.shorter is None:
        return None
    question = result.question
    now = project(replace(question, workload=replace(question.workload, seq_len=result.shorter)))
    made = (Change(kind="run", text=f"--seq-len {result.shorter}", overrides={}),)
    return Fix.over(result.now, made, now, question.memory_limit)


class _Tried(Struct, frozen=True, kw_only=True):
    """One legal layout by what was changed, and what it takes."""

    made: tuple[Change, ...]
    layout: Layout
    step_time: float
    peak: float
    highest: float
    """The upper end of the range; infinite where not even the expected peak fits."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """What is changed."""
        return tuple(item.kind for item in self.made)


def fit(
    question: Question,
    *,
    keep: Sequence[str] = (),
    pairs: bool = True,
    accepts: Callable[[Question], bool] = lambda _: True,
    text_of: Callable[[Change], str | None] = lambda change: change.text,
) -> Fit:
    """Try every single change of a layout, and pairs of them, and say which make it fit at what price.

    Parameters
    ----------
    question
        With its layout, and its framework where it has one: only the options that it supports are tried.
    keep
        Kinds of changes that are not made, such as micro_batch_size or tp.
    pairs
        Whether changes are also made two at a time: of each kind some that no other of the kind beats.
    accepts
        Whether a layout can be run beyond what the record of the framework says, such as that its configuration can be
        written. It does not count where it refuses the layout as it is.
    text_of
        Text of a change, such as the key of a configuration that makes it; None for a change that is not made.

    Raises
    ------
    SpecError
        If the layout is illegal, or a preset is asked.
    UnknownNameError
        If `keep` names nothing that may be changed.
    """
    for kind in keep:
        if kind not in KINDS:
            what = "change"
            raise UnknownNameError(what, kind, KINDS)
    again = partial(_proposed, keep=keep, accepts=accepts, text_of=text_of)
    result = again(question, pairs=pairs)
    if result.verdict == "FITS":
        return result
    workload, adapters, states = question.workload, None, None
    changed_run = partial(again, pairs=pairs and result.first is None)
    if workload.trainable.is_all or _is_unquantized_lora(workload):
        adapters = _with_adapters(question, changed_run)
    if workload.trainable.is_all:
        states = _with_narrow_states(question, changed_run)
    larger = _on_more(question, partial(again, pairs=False))
    return replace(result, adapters=adapters, larger=larger, states=states)


def _proposed(
    question: Question,
    *,
    keep: Sequence[str],
    pairs: bool,
    accepts: Callable[[Question], bool],
    text_of: Callable[[Change], str | None],
) -> Fit:
    """Return what can be done about a layout; the rest is as for `fit`."""
    now = project(question)
    texts = ((change, text_of(change)) for change in changes(question) if change.kind not in keep)
    every = tuple(dataclasses.replace(change, text=text) for change, text in texts if text is not None)
    accepted = accepts if accepts(question) else (lambda _: True)
    tried = _tried(question, [(item,) for item in every], accepted)
    if pairs:
        tried += _tried(question, _pairs(every, tried), accepted)
    verdict = verdict_within(now, question.memory_limit)
    faster = _faster(question, now, tried) if verdict == "FITS" else _smaller(question, now, tried)
    fixes = [_fix(question, now, item) for item in faster]
    code = None if question.framework is None else question.framework.model_code
    common = IN_EVERY_TRAINER if code == RECORDED else IN_EVERY_TRAINER[:1]
    return Fit(
        question=question,
        now=now,
        verdict=verdict,
        fixes=tuple(fixes if verdict == "FITS" else _ranked(fixes, common)),
        num_tried=len(tried),
        shorter=None if verdict == "FITS" else _shorter(question),
    )


def _on_more(question: Question, again: Callable[[Question], Fit]) -> Fit | None:
    """Return what makes a question fit on twice, four times … the devices; None where `MOST_TIMES` do not.

    Data parallelism takes them where the batch allows it, else the pipeline, else tensor parallelism; of these two what
    fits as it is comes before what needs a change. What the framework does not support is left out.
    """
    layout, times = question.strategy, 2
    assert layout is not None
    data = "dp_replicate" if layout.dp_shard == 1 < layout.dp_replicate else "dp_shard"
    supported = not question.violation(layout)
    while times <= MOST_TIMES:
        fitting = list[Fit]()
        for name in (data, "pp", "tp"):
            try:
                cluster = question.cluster.sized(times * question.cluster.num_devices)
                scaled = replace(layout, **{name: times * getattr(layout, name)})
                if supported and question.violation(scaled):
                    continue
                result = again(replace(question.with_layout(scaled), cluster=cluster))
            except ForescaleError:  # not legal so, or no cluster of that size
                continue
            if _is_cheap(result, TOO_MUCH):
                fitting.append(result)
            if fitting and (name == data or result.verdict == "FITS"):
                return result
        if fitting:
            return fitting[0]
        times *= 2
    return None


def _shorter(question: Question) -> int | None:
    """Return the first half, quarter and so on of the sequence length with which the layout fits with margin."""
    length = question.workload.seq_len // 2
    while length >= SHORTEST:
        try:
            result = project(replace(question, workload=replace(question.workload, seq_len=length)))
        except SpecError:  # not divisible, or too short for images
            return None
        if verdict_within(result, question.memory_limit) == "FITS":
            return length
        length //= 2
    return None


def _is_unquantized_lora(workload: Workload) -> bool:
    return workload.trainable.lora_rank is not None and workload.precision.frozen is None


def _with_adapters(question: Question, again: Callable[[Question], Fit]) -> Fit | None:
    """Return what makes a question fit with LoRA, else with QLoRA; None where neither does."""
    workload, has_adapters = question.workload, not question.workload.trainable.is_all
    trainable = workload.trainable if has_adapters else Trainable(lora_rank=USUAL_RANK)
    for frozen in ("nf4_double",) if has_adapters else (None, "nf4_double"):
        types = replace(workload.precision, frozen=frozen)
        trained = replace(workload, trainable=trainable, precision=types)
        try:
            result = again(replace(question, workload=trained))
        except SpecError:  # not with this model or framework
            continue
        if _is_cheap(result, TOO_MUCH):
            return result
    return None


def _with_narrow_states(question: Question, again: Callable[[Question], Fit]) -> Fit | None:
    """Return what makes a question fit with moments of 8 bits; None where nothing does, or the framework lacks them."""
    limits = None if question.framework is None else question.framework.limits
    types = question.workload.precision
    kinds = NARROW_MOMENTS if limits is None else limits.reliefs.get("moments", ())
    if types.moments in kinds or question.workload.optimizer != "adamw":
        return None
    for kind in kinds:
        precision = replace(types, moments=kind, second_moments=None)
        try:
            result = again(replace(question, workload=replace(question.workload, precision=precision)))
        except SpecError:  # not with this model or framework
            continue
        if _is_cheap(result, TOO_MUCH):
            return result
    return None


def _is_cheap(result: Fit, most: float) -> bool:
    """Return whether a layout fits, or is made to by changes that lengthen the step by at most a share of it."""
    first = result.first
    return result.verdict == "FITS" or (first is not None and first.lost_s <= most * result.now.step_time_s)


def _tried(
    question: Question, combinations: Iterable[tuple[Change, ...]], accepts: Callable[[Question], bool]
) -> list[_Tried]:
    """Evaluate what combinations of changes make legal layouts that are accepted, each layout once."""
    result: dict[Layout, tuple[Change, ...]] = {}
    for made in combinations:
        if (layout := changed(question, made)) is not None:
            result.setdefault(layout, made)
    result = {layout: made for layout, made in result.items() if accepts(question.with_layout(layout))}
    alike: dict[tuple[Model, Workload], list[Layout]] = {}
    for layout in result:
        projected = with_high_precision_layers(recorded_question(question.with_layout(layout)))
        alike.setdefault((projected.model, projected.workload), []).append(layout)
    figures: dict[Layout, tuple[float, ...]] = {}
    for (model, workload), layouts in alike.items():
        figures |= _figures(replace(question, model=model, workload=workload), layouts)
    return [
        _Tried(made=made, layout=layout, step_time=step, peak=peak, highest=high)
        for layout, made in result.items()
        for step, peak, high in (figures[layout],)
    ]


def _figures(question: Question, layouts: Sequence[Layout]) -> dict[Layout, tuple[float, ...]]:
    """Return the seconds of a step, the peak and the upper end of its range of layouts whose blocks are alike."""
    scores = score_layouts(question, layouts)
    fitting = np.flatnonzero(scores.peak <= question.memory_limit).tolist()
    highest = np.full(len(layouts), np.inf)
    highest[fitting] = score_layouts(replace(question, safe=True), [layouts[at] for at in fitting]).peak
    figures = zip(scores.step_time.tolist(), scores.peak.tolist(), highest.tolist(), strict=True)
    return dict(zip(layouts, figures, strict=True))


def _pairs(every: Sequence[Change], tried: Sequence[_Tried]) -> Iterator[tuple[Change, ...]]:
    """Yield pairs of changes of two kinds: of each kind some that no other of it beats, and degrees not legal alone."""
    legal = {item.made[0] for item in tried}
    kinds = dict.fromkeys(item.kind for item in every if item.kind not in ALONE)
    worth = {}
    for kind in kinds:
        front = _front([item for item in tried if item.kinds == (kind,)])
        alone = [item for item in every if item.kind == kind and kind in DEGREES and item not in legal]
        worth[kind] = [*(item.made[0] for item in _few(front)), *alone]
    for one, other in combinations(kinds, 2):
        yield from product(worth[one], worth[other])


def _front(tried: Sequence[_Tried]) -> list[_Tried]:
    """Return those that no other beats in time and memory."""
    front = pareto_front(*(np.array([getattr(item, of) for item in tried]) for of in ("step_time", "peak")))
    return [tried[at] for at in front.tolist()]


def _few(front: list[_Tried]) -> list[_Tried]:
    """Return at most `MOST_OF_A_KIND`, the first and the last among them."""
    steps = min(len(front), MOST_OF_A_KIND)
    return [front[round(at * (len(front) - 1) / max(1, steps - 1))] for at in range(steps)]


def _smaller(question: Question, now: Projection, tried: Sequence[_Tried]) -> list[_Tried]:
    """Return the fastest of each kind that fits with margin, pairs that beat all single changes, and the rest."""
    sure = [item for item in tried if item.highest <= question.memory_limit]
    best = _best_of_kinds(sure)
    settled = {item.kinds for item in best}
    most = (1.0 - LEAST_FREED) * now.memory.peak_bytes
    short = [item for item in tried if len(item.made) == 1 and item.kinds not in settled and item.peak < most]
    graded = [item for kind in GRADED for item in _front([item for item in short if item.kinds == (kind,)])]
    least = sorted((item for item in short if item.made[0].kind not in GRADED), key=lambda item: item.peak)
    return [*best, *graded, *_first_of_kinds(least)]


def _faster(question: Question, now: Projection, tried: Sequence[_Tried]) -> list[_Tried]:
    """Return what shortens the step and fits with margin: the best of each kind, and better pairs."""
    bar = now.step_time_s * (1.0 - LEAST_GAIN)
    sure = [item for item in tried if item.highest <= question.memory_limit and item.step_time < bar]
    return sorted(_best_of_kinds(sure), key=lambda item: item.step_time)


def _best_of_kinds(sure: Sequence[_Tried]) -> list[_Tried]:
    """Return the fastest of each kind, and of each pair of kinds the fastest if no single change is as fast."""
    ordered = sorted(sure, key=lambda item: item.step_time)
    single = _first_of_kinds(item for item in ordered if len(item.made) == 1)
    bar = single[0].step_time * (1.0 - LEAST_GAIN) if single else np.inf
    pairs = _first_of_kinds(item for item in ordered if len(item.made) == 2 and item.step_time < bar)
    return [*single, *pairs[:MOST_PAIRS]]


def _first_of_kinds(ordered: Iterable[_Tried]) -> list[_Tried]:
    values: dict[tuple[str, ...], _Tried] = {}
    for item in ordered:
        values.setdefault(item.kinds, item)
    return list(values.values())


def _fix(question: Question, now: Projection, tried: _Tried) -> Fix:
    result = project(question.with_layout(tried.layout))
    return Fix.over(now, tried.made, result, question.memory_limit)


def _ranked(fixes: Sequence[Fix], common: Sequence[str] = ("micro_batch_size",)) -> list[Fix]:
    """Return the fewest changes that fit with margin and lose least, then `common` kinds that do, then by `_price`."""
    ordered = sorted(fixes, key=_price)
    sure = [item for item in ordered if item.verdict == "FITS"]
    if not sure:
        return ordered
    first = min(sure, key=lambda item: (len(item.changes), item.projection.step_time_s))
    rest = [item for item in ordered if item is not first]
    several = [[item for item in rest if item.verdict == "FITS" and item.kinds == (kind,)] for kind in common]
    lead = [item for items in several for item in items[:1]]
    return [first, *lead, *(item for item in rest if item not in lead)]


IN_EVERY_TRAINER = ("micro_batch_size", "recompute")
"""Changes that every trainer of transformers has, and that leave the sequences of a step as they are; others have the
first, and more ways to split a model."""


def _price(fix: Fix) -> tuple[bool, int, int, float]:
    """Return what a fix is ranked by: how much it changes, its verdict, then what it costs.

    What fits is ranked by the seconds of its step, what may fit by the seconds lost per GiB saved. What runs out of
    memory comes last, ranked by the peak that is left.
    """
    grade, count = GRADES[fix.verdict], len(fix.changes)
    if fix.verdict == "OOM":
        return True, count, grade, fix.projection.memory.peak_bytes
    per_gib = None if fix.verdict == "FITS" or fix.lost_s <= 0.0 else fix.lost_s_per_gib
    return False, count, grade, fix.lost_s if per_gib is None else per_gib
