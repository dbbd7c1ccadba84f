"""The naive line: one rate per device and compute type, fitted to the very rows that it is judged by.

    step time = FLOPs / (rate × devices) × (1 + (pp − 1) / (m × vpp))

FLOPs are those that the hardware runs, counted simply: two per weight and token, attention over the whole
square, three passes, four under full recompute. The rate of a device and type is the median over its core
rows, over all of its rows if none is core.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TypeAlias

from forescale.validation.cases import Case
from forescale.validation.published import published_flops

Rates: TypeAlias = Mapping[tuple[str, str], float]
"""FLOP/s of one device by (device name, compute type)."""

_COUNT = {"attention": "full", "recompute": True}


def fit(cases: Sequence[Case]) -> Rates:
    """Return the rate of each device and compute type: the median over its measured rows."""
    core: dict[tuple[str, str], list[float]] = defaultdict(list)
    every: dict[tuple[str, str], list[float]] = defaultdict(list)
    for case in cases:
        if case.skipped_reason is None and case.measured.step_time_s:
            rate = work(case) / case.measured.step_time_s
            every[key(case)].append(rate)
            if case.core:
                core[key(case)].append(rate)
    return {name: median(core.get(name, every[name])) for name in sorted(every)}


def key(case: Case) -> tuple[str, str]:
    """Return (device name, compute type) of a case."""
    _, cluster, _, workload = case.question.parts
    return cluster.device.name, workload.precision.compute


def predict(case: Case, rates: Rates) -> float | None:
    """Return the naive step time in seconds, or None if no row of that device and type was measured."""
    rate = rates.get(key(case))
    return None if rate is None else work(case) / rate


def work(case: Case) -> float:
    """Return the FLOPs of one device and step, raised by the share of the pipeline's bubble."""
    model, _, strategy, workload = case.question.parts
    flops = published_flops(model, workload.seq_len, strategy, _COUNT) * case.tokens_per_step
    microbatches = workload.global_batch_size / (strategy.dp * strategy.micro_batch_size)
    bubble = (strategy.pp - 1.0) / (microbatches * strategy.vpp)
    return flops / strategy.num_devices * (1.0 + bubble)
