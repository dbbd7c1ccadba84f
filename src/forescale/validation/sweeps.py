"""Sweeps: several layouts of one question, and whether the projection would have picked the right one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from forescale.spec import Model
from forescale.validation.cases import Case
from forescale.validation.metrics import regret, spearman

MINIMUM_LAYOUTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Layouts of one model shape, source, hardware, device count, sequence length and compute type."""

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


def sweeps_of(cases: Sequence[Case], predicted_s: Mapping[str, float]) -> list[Sweep]:
    """Return the sweeps among `cases`, given the predicted step time of each by id; others are left out."""
    groups: dict[tuple[object, ...], list[Case]] = defaultdict(list)
    for case in cases:
        if case.skipped_reason is None and case.id in predicted_s and case.measured.step_time_s:
            groups[_key(case)].append(case)
    found = (_sweep(group, predicted_s) for group in groups.values())
    return [sweep for sweep in found if sweep is not None]


def mean_spearman(sweeps: Sequence[Sweep]) -> float | None:
    """Return the mean rank correlation of the sweeps that have one."""
    values = [sweep.spearman for sweep in sweeps if sweep.spearman is not None]
    return fmean(values) if values else None


def mean_regret(sweeps: Sequence[Sweep]) -> float | None:
    """Return the mean regret of the sweeps."""
    return fmean(sweep.regret for sweep in sweeps) if sweeps else None


def _key(case: Case) -> tuple[object, ...]:
    model, cluster, strategy, workload = case.question.parts
    compute = (workload.precision.compute, workload.precision.recipe)
    return (_shape(model), case.source, cluster.device, strategy.num_devices, workload.seq_len, compute)


def _shape(model: Model) -> Model:
    return replace(model, name="", source="")


def _sweep(cases: Sequence[Case], predicted_s: Mapping[str, float]) -> Sweep | None:
    layouts = {(case.question.layout, case.schedule) for case in cases}
    if len(layouts) < MINIMUM_LAYOUTS:
        return None
    _, cluster, strategy, workload = cases[0].question.parts
    predicted = [predicted_s[case.id] / case.tokens_per_step for case in cases]
    measured = [(case.measured.step_time_s or 0.0) / case.tokens_per_step for case in cases]
    return Sweep(
        source=cases[0].source,
        model_name=cases[0].model_name,
        hardware=cluster.device.name,
        num_devices=strategy.num_devices,
        seq_len=workload.seq_len,
        compute=workload.precision.compute,
        cases=tuple(case.id for case in cases),
        num_layouts=len(layouts),
        spearman=spearman(predicted, measured),
        regret=regret(predicted, measured),
        picked=cases[predicted.index(min(predicted))].id,
        best=cases[measured.index(min(measured))].id,
    )
