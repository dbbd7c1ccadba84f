"""The scoreboard: every case projected or listed with the reason, and the errors by group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median
from types import MappingProxyType
from typing import TypeAlias

from msgspec.structs import replace

from forescale.errors import ForescaleError, UnknownNameError
from forescale.repr import ReprMixin
from forescale.spec import Model
from forescale.struct import Struct
from forescale.validation.case import Case, Prediction, Projector
from forescale.validation.metrics import ErrorSummary, coverage, regret, relative_error, spearman, summarise
from forescale.validation.published import published_flops

Label: TypeAlias = Callable[[Case], str]


class RowOutcome(Struct, frozen=True, kw_only=True):
    """One case with what was predicted of it, or why nothing was."""

    case: Case
    prediction: Prediction | None = None
    naive_s: float | None = None
    skipped: str | None = None

    @property
    def error(self) -> float | None:
        """Relative error of the step time."""
        return _error(
            self.prediction.step_time_s if self.prediction else None, self.case.measured.step_time_s
        )

    @property
    def naive_error(self) -> float | None:
        """Relative error of the naive line."""
        return _error(self.naive_s, self.case.measured.step_time_s)

    @property
    def memory_error(self) -> float | None:
        """Relative error of the peak memory."""
        return _error(self.prediction.peak_bytes if self.prediction else None, self.case.measured.peak_bytes)


def _error(predicted: float | None, measured: float | None) -> float | None:
    return relative_error(predicted, measured) if predicted and measured else None


class ErrorGroup(Struct, frozen=True, kw_only=True):
    """The errors of one group of outcomes, ours and the naive line's on the same rows."""

    dimension: str
    name: str
    time: ErrorSummary
    naive: ErrorSummary
    memory: ErrorSummary
    coverage: float | None = None
    """Share of measured step times inside the projected interval."""


class Scoreboard(ReprMixin, Struct, frozen=True, kw_only=True):
    """All outcomes of a corpus, and what they add up to."""

    outcomes: tuple[RowOutcome, ...]
    sweeps: tuple[LayoutSweep, ...]
    naive_rates: Rates

    def essentials(self) -> dict[str, int]:
        """Return how many runs and sweeps there are."""
        return {
            "num_rows": len(self.outcomes),
            "num_skipped": len(self.skipped),
            "num_sweeps": len(self.sweeps),
        }

    @property
    def skipped(self) -> tuple[RowOutcome, ...]:
        """The outcomes without a prediction."""
        return tuple(outcome for outcome in self.outcomes if outcome.skipped is not None)

    @property
    def refused(self) -> tuple[RowOutcome, ...]:
        """The runs, all of which ran, that the projection says do not fit."""
        return tuple(o for o in self.outcomes if o.prediction is not None and o.prediction.verdict == "OOM")

    @property
    def core_skipped_share(self) -> float:
        """Share of the core rows that were skipped."""
        core = [outcome for outcome in self.outcomes if outcome.case.core]
        return sum(outcome.skipped is not None for outcome in core) / len(core) if core else 0.0

    def total(self, *, core: bool) -> ErrorGroup:
        """Return the errors of all rows, or of the core rows only."""
        return group_of("all", "core rows" if core else "all rows", self._measured(core=core))

    def headline(self) -> list[ErrorGroup]:
        """Return the errors of the core rows by precision and vendor."""
        return self._grouped("headline", headline_label, core=True)

    def by(self, dimension: str, *, core: bool = True) -> list[ErrorGroup]:
        """Return the errors by one of `DIMENSIONS`, largest group first."""
        groups = self._grouped(dimension, DIMENSIONS[dimension], core=core)
        return sorted(groups, key=lambda group: (-group.time.count, group.name))

    def _measured(self, *, core: bool) -> list[RowOutcome]:
        return [o for o in self.outcomes if o.skipped is None and (o.case.core or not core)]

    def _grouped(self, dimension: str, label: Label, *, core: bool) -> list[ErrorGroup]:
        members: dict[str, list[RowOutcome]] = defaultdict(list)
        for outcome in self._measured(core=core):
            members[label(outcome.case)].append(outcome)
        return [group_of(dimension, name, members[name]) for name in sorted(members)]


def score(cases: Sequence[Case], projector: Projector) -> Scoreboard:
    """Project every case and compare; a case that cannot be projected is kept with the reason."""
    rates = naive_rates(cases)
    outcomes = tuple(_outcome(case, projector, rates) for case in cases)
    predicted = {o.case.id: o.prediction.step_time_s for o in outcomes if o.prediction is not None}
    return Scoreboard(
        outcomes=outcomes,
        sweeps=tuple(sweeps_of(cases, predicted)),
        naive_rates=MappingProxyType(dict(rates)),
    )


def group_of(dimension: str, name: str, outcomes: Sequence[RowOutcome]) -> ErrorGroup:
    """Return the errors of `outcomes` as one group."""
    bounded = [
        (o.case.measured.step_time_s, o.prediction.low_s, o.prediction.high_s)
        for o in outcomes
        if o.case.measured.step_time_s and o.prediction and o.prediction.low_s and o.prediction.high_s
    ]
    return ErrorGroup(
        dimension=dimension,
        name=name,
        time=summarise([o.error for o in outcomes if o.error is not None]),
        naive=summarise([o.naive_error for o in outcomes if o.naive_error is not None]),
        memory=summarise([o.memory_error for o in outcomes if o.memory_error is not None]),
        coverage=coverage([b[0] for b in bounded], [b[1] for b in bounded], [b[2] for b in bounded]),
    )


def _outcome(case: Case, projector: Projector, rates: Rates) -> RowOutcome:
    if case.skipped_reason is not None:
        return RowOutcome(case=case, skipped=case.skipped_reason)
    try:
        prediction = projector(case)
    except ForescaleError as error:
        return RowOutcome(case=case, skipped=str(error))
    return RowOutcome(case=case, prediction=prediction, naive_s=naive_seconds(case, rates))


def headline_label(case: Case) -> str:
    """Return the group that a figure for this case is quoted in: vendor, generation, width of numbers."""
    _, cluster, _, workload = case.question.parts
    vendor = cluster.device.vendor
    if vendor == "Google":
        return "TPU"
    if vendor != "NVIDIA":
        return vendor
    narrow = workload.precision.is_narrow
    if cluster.device.name.startswith("gb"):
        return "NVIDIA GB200/GB300"
    return "NVIDIA 8- and 4-bit" if narrow else "NVIDIA 16-bit"


def parallelism(case: Case) -> str:
    """Return which kinds of parallelism the layout uses, such as "tp+pp+dp" or "fsdp"."""
    layout = case.question.layout
    kinds = [name for name in ("tp", "cp", "ep", "pp") if getattr(layout, name) > 1]
    if layout.dp > 1:
        kinds.append("fsdp" if layout.zero == 3 else "dp")
    return "+".join(kinds) or "single device"


def architecture(case: Case) -> str:
    """Return what the layers are made of, such as "dense", "mla+moe" or "hybrid+moe"."""
    model = case.question.model
    groups = {attention.architecture for attention in model.attentions}
    attention = next((name for name in ("hybrid", "mla", *sorted(groups)) if name in groups), "")
    return "+".join(filter(None, (attention, "moe" if model.is_moe else ""))) or "dense"


def peak_measure(case: Case) -> str:
    """Return what the source means by peak memory."""
    return case.measured.peak_measure


def scale(case: Case) -> str:
    """Return the band of device counts."""
    count = case.question.layout.num_devices
    bands = ((8, "1-8"), (64, "9-64"), (512, "65-512"), (2048, "513-2048"))
    return next((name for limit, name in bands if count <= limit), "over 2048") + " devices"


def model_family(case: Case) -> str:
    """Return the model's name without size and remark, such as "Llama" or "Qwen"."""
    name = case.model_name.split("(")[0].strip()
    head = name.split("-")[0].split(" ")[0].rstrip("0123456789.")
    return f"{head or name} ({case.family})"


DIMENSIONS: Mapping[str, Label] = MappingProxyType(
    {
        "architecture": architecture,
        "hardware": lambda case: case.question.cluster.device.name,
        "model family": model_family,
        "parallelism": parallelism,
        "peak measure": peak_measure,
        "precision": lambda case: case.question.workload.precision.compute,
        "scale": scale,
        "source": lambda case: case.source,
    }
)
"""What the scoreboard can be broken down by."""


def check_dimension(name: str) -> None:
    """Refuse a breakdown that does not exist.

    Raises
    ------
    UnknownNameError
        It names the nearest ones.
    """
    kind, known = "breakdown", ("headline", *DIMENSIONS)
    if name not in known:
        raise UnknownNameError(kind, name, known)


Rates: TypeAlias = Mapping[tuple[str, str], float]
"""FLOP/s of one device by (device name, compute type)."""

_COUNT = {"attention": "full", "recompute": True}


def naive_rates(cases: Sequence[Case]) -> Rates:
    """Return the rate of each device and compute type for the naive line, which is fitted to the rows it is judged by.

    step time = FLOPs / (rate × devices) × (1 + (pp − 1) / (m × vpp))

    A rate is the median over core rows, over all rows if none is core.
    """
    core: dict[tuple[str, str], list[float]] = defaultdict(list)
    every: dict[tuple[str, str], list[float]] = defaultdict(list)
    for case in cases:
        if case.skipped_reason is None and case.measured.step_time_s:
            rate = naive_work(case) / case.measured.step_time_s
            every[_rate_key(case)].append(rate)
            if case.core:
                core[_rate_key(case)].append(rate)
    return {name: median(core.get(name, every[name])) for name in sorted(every)}


def _rate_key(case: Case) -> tuple[str, str]:
    """Return (device name, compute type) of a case."""
    _, cluster, _, workload = case.question.parts
    return cluster.device.name, workload.precision.compute


def naive_seconds(case: Case, rates: Rates) -> float | None:
    """Return the naive step time in seconds, or None if no row of that device and type was measured."""
    rate = rates.get(_rate_key(case))
    return None if rate is None else naive_work(case) / rate


def naive_work(case: Case) -> float:
    """Return the FLOPs of one device and step, raised by the share of the pipeline's bubble.

    Counted simply: two per weight and token, attention over the whole square, three passes, four under full recompute.
    """
    model, _, layout, workload = case.question.parts
    flops = published_flops(model, workload.seq_len, layout, _COUNT) * case.tokens_per_step
    microbatches = workload.global_batch_size / (layout.dp * layout.micro_batch_size)
    bubble = (layout.pp - 1.0) / (microbatches * layout.vpp)
    return flops / layout.num_devices * (1.0 + bubble)


MINIMUM_LAYOUTS = 3


class LayoutSweep(Struct, frozen=True, kw_only=True):
    """Layouts of one model shape, source, software, hardware, device count, sequence length and compute type.

    Runs that their source says are not to be compared, as the machine was changed between them, are sweeps apart.
    """

    source: str
    model_name: str
    hardware: str
    num_devices: int
    seq_len: int
    compute: str
    cases: tuple[str, ...]
    """Ids of the rows."""
    num_layouts: int
    spearman: float | None
    """Rank correlation of predicted with measured time per token; None if all measured alike."""
    regret: float
    picked: str
    """Id of the row that the projection calls fastest."""
    best: str
    """Id of the row measured fastest."""


def sweeps_of(cases: Sequence[Case], predicted_s: Mapping[str, float]) -> list[LayoutSweep]:
    """Return the sweeps among `cases`, given the predicted step time of each by id; others are left out."""
    groups: dict[tuple[object, ...], list[Case]] = defaultdict(list)
    for case in cases:
        if case.skipped_reason is None and case.id in predicted_s and case.measured.step_time_s:
            groups[_key(case)].append(case)
    sweeps = (_sweep(group, predicted_s) for group in groups.values())
    return [sweep for sweep in sweeps if sweep is not None]


def mean_spearman(sweeps: Sequence[LayoutSweep]) -> float | None:
    """Return the mean rank correlation of the sweeps that have one."""
    values = [sweep.spearman for sweep in sweeps if sweep.spearman is not None]
    return fmean(values) if values else None


def mean_regret(sweeps: Sequence[LayoutSweep]) -> float | None:
    """Return the mean regret of the sweeps."""
    return fmean(sweep.regret for sweep in sweeps) if sweeps else None


def _key(case: Case) -> tuple[object, ...]:
    model, cluster, layout, workload = case.question.parts
    compute = (workload.precision.compute, workload.precision.recipe)
    ran = (
        case.source,
        case.sitting,
        layout.software,
        layout.kernels,
        cluster.device,
        layout.num_devices,
    )
    return (_shape(model), *ran, workload.seq_len, compute)


def _shape(model: Model) -> Model:
    return replace(model, name="", source="")


def _sweep(cases: Sequence[Case], predicted_s: Mapping[str, float]) -> LayoutSweep | None:
    """Return the sweep of some cases; runs that repeat a layout and its batch are one, their median time."""
    layouts = {(case.question.layout, case.schedule) for case in cases}
    if len(layouts) < MINIMUM_LAYOUTS:
        return None
    runs: dict[tuple[object, ...], list[Case]] = defaultdict(list)
    for case in cases:
        runs[case.question.layout, case.schedule, case.question.workload].append(case)
    firsts = [repeated[0] for repeated in runs.values()]
    _, cluster, layout, workload = firsts[0].question.parts
    predicted = [predicted_s[case.id] / case.tokens_per_step for case in firsts]
    measured = [
        median(case.measured.step_time_s or 0.0 for case in repeated) / repeated[0].tokens_per_step
        for repeated in runs.values()
    ]
    return LayoutSweep(
        source=cases[0].source,
        model_name=cases[0].model_name,
        hardware=cluster.device.name,
        num_devices=layout.num_devices,
        seq_len=workload.seq_len,
        compute=workload.precision.compute,
        cases=tuple(case.id for case in cases),
        num_layouts=len(layouts),
        spearman=spearman(predicted, measured),
        regret=regret(predicted, measured),
        picked=firsts[predicted.index(min(predicted))].id,
        best=firsts[measured.index(min(measured))].id,
    )
