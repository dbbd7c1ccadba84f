"""The scoreboard: every case projected or listed with the reason, and the errors by group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from forescale.brief import Brief
from forescale.errors import ForescaleError, UnknownNameError
from forescale.spec.model import LatentAttention, LinearAttention
from forescale.validation import naive
from forescale.validation.cases import Case, Prediction, Projector
from forescale.validation.metrics import ErrorSummary, coverage, relative_error, summarise
from forescale.validation.sweeps import Sweep, sweeps_of

Label: TypeAlias = Callable[[Case], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One case with what was predicted of it, or why nothing was."""

    case: Case
    prediction: Prediction | None = None
    naive_s: float | None = None
    skipped: str | None = None

    @property
    def error(self) -> float | None:
        """Relative error of the step time."""
        if self.prediction is None or not self.case.measured.step_time_s:
            return None
        return relative_error(self.prediction.step_time_s, self.case.measured.step_time_s)

    @property
    def naive_error(self) -> float | None:
        """Relative error of the naive line."""
        if self.naive_s is None or not self.case.measured.step_time_s:
            return None
        return relative_error(self.naive_s, self.case.measured.step_time_s)

    @property
    def memory_error(self) -> float | None:
        """Relative error of the peak memory."""
        if self.prediction is None or not self.prediction.peak_bytes or not self.case.measured.peak_bytes:
            return None
        return relative_error(self.prediction.peak_bytes, self.case.measured.peak_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The errors of one group of outcomes, ours and the naive line's on the same rows."""

    dimension: str
    name: str
    time: ErrorSummary
    naive: ErrorSummary
    memory: ErrorSummary
    coverage: float | None = None
    """Share of measured step times inside the projected interval."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Scoreboard(Brief):
    """All outcomes of a corpus, and what they add up to."""

    outcomes: tuple[Outcome, ...]
    sweeps: tuple[Sweep, ...]
    naive_rates: naive.Rates

    def essentials(self) -> dict[str, int]:
        """Return how many runs and sweeps there are."""
        return {
            "num_rows": len(self.outcomes),
            "num_skipped": len(self.skipped),
            "num_sweeps": len(self.sweeps),
        }

    @property
    def skipped(self) -> tuple[Outcome, ...]:
        """The outcomes without a prediction."""
        return tuple(outcome for outcome in self.outcomes if outcome.skipped is not None)

    @property
    def core_skipped_share(self) -> float:
        """Share of the core rows that were skipped."""
        core = [outcome for outcome in self.outcomes if outcome.case.core]
        return sum(outcome.skipped is not None for outcome in core) / len(core) if core else 0.0

    def total(self, *, core: bool) -> Group:
        """Return the errors of all rows, or of the core rows only."""
        return group_of("all", "core rows" if core else "all rows", self._measured(core=core))

    def headline(self) -> list[Group]:
        """Return the errors of the core rows by precision and vendor."""
        return self._grouped("headline", headline_label, core=True)

    def by(self, dimension: str, *, core: bool = True) -> list[Group]:
        """Return the errors by one of `DIMENSIONS`, largest group first."""
        groups = self._grouped(dimension, DIMENSIONS[dimension], core=core)
        return sorted(groups, key=lambda group: (-group.time.count, group.name))

    def _measured(self, *, core: bool) -> list[Outcome]:
        return [o for o in self.outcomes if o.skipped is None and (o.case.core or not core)]

    def _grouped(self, dimension: str, label: Label, *, core: bool) -> list[Group]:
        members: dict[str, list[Outcome]] = defaultdict(list)
        for outcome in self._measured(core=core):
            members[label(outcome.case)].append(outcome)
        return [group_of(dimension, name, members[name]) for name in sorted(members)]


def score(cases: Sequence[Case], projector: Projector) -> Scoreboard:
    """Project every case and compare; a case that cannot be projected is kept with the reason."""
    rates = naive.fit(cases)
    outcomes = tuple(_outcome(case, projector, rates) for case in cases)
    predicted = {o.case.id: o.prediction.step_time_s for o in outcomes if o.prediction is not None}
    return Scoreboard(
        outcomes=outcomes,
        sweeps=tuple(sweeps_of(cases, predicted)),
        naive_rates=MappingProxyType(dict(rates)),
    )


def group_of(dimension: str, name: str, outcomes: Sequence[Outcome]) -> Group:
    """Return the errors of `outcomes` as one group."""
    bounded = [
        (o.case.measured.step_time_s, o.prediction.low_s, o.prediction.high_s)
        for o in outcomes
        if o.case.measured.step_time_s and o.prediction and o.prediction.low_s and o.prediction.high_s
    ]
    return Group(
        dimension=dimension,
        name=name,
        time=summarise([o.error for o in outcomes if o.error is not None]),
        naive=summarise([o.naive_error for o in outcomes if o.naive_error is not None]),
        memory=summarise([o.memory_error for o in outcomes if o.memory_error is not None]),
        coverage=coverage([b[0] for b in bounded], [b[1] for b in bounded], [b[2] for b in bounded]),
    )


def _outcome(case: Case, projector: Projector, rates: naive.Rates) -> Outcome:
    if case.skipped_reason is not None:
        return Outcome(case=case, skipped=case.skipped_reason)
    try:
        prediction = projector(case)
    except ForescaleError as error:
        return Outcome(case=case, skipped=str(error))
    return Outcome(case=case, prediction=prediction, naive_s=naive.predict(case, rates))


def headline_label(case: Case) -> str:
    """Return the group that a figure for this case is quoted in: vendor, generation, width of numbers."""
    _, cluster, _, workload = case.question.parts
    vendor = cluster.device.vendor
    if vendor == "Google":
        return "TPU"
    if vendor != "NVIDIA":
        return vendor
    narrow = workload.precision.compute in {"fp8", "mxfp8", "nvfp4"}
    if cluster.device.name.startswith("gb"):
        return "NVIDIA GB200/GB300"
    return "NVIDIA 8- and 4-bit" if narrow else "NVIDIA 16-bit"


def parallelism(case: Case) -> str:
    """Return which kinds of parallelism the layout uses, such as "tp+pp+dp" or "fsdp"."""
    strategy = case.question.layout
    kinds = [name for name in ("tp", "cp", "ep", "pp") if getattr(strategy, name) > 1]
    if strategy.dp > 1:
        kinds.append("fsdp" if strategy.zero == 3 else "dp")
    return "+".join(kinds) or "single device"


def architecture(case: Case) -> str:
    """Return what the layers are made of, such as "dense", "mla+moe" or "hybrid+moe"."""
    model = case.question.model
    kinds = {type(layer.attention) for layer in model.layer_kinds}
    attention = "hybrid" if LinearAttention in kinds else "mla" if LatentAttention in kinds else ""
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
