"""Known causes of a step that is not what it should be, each as a change of the question that has it.

The projection of the changed question says what the cause takes from every group of work, so causes are told apart by
the whole step. A new cause is a new row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from forescale.files import packaged
from forescale.question import Question
from forescale.spec.framework import merged
from forescale.spec.layout import Recompute
from forescale.struct import Struct

GRADES = (1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
"""Strengths of causes that have one."""
Change = Callable[[Question, float], Question | None]


class Cause(Struct, frozen=True, kw_only=True):
    """One cause: what it changes, and what to do."""

    name: str
    change: Change
    """Returns the question with the cause; None where the question has it already, or cannot have it."""
    grades: tuple[float, ...] = (1.0,)

    @property
    def text(self) -> str:
        """What is the case; {grade} is its strength."""
        return str(packaged("causes")["projected"][self.name][0])

    @property
    def remedy(self) -> str:
        """What to do about it."""
        return str(packaged("causes")["projected"][self.name][1])


def _layout(**words: Any) -> Change:  # noqa: ANN401  (fields of a layout, and of the tables in it)
    def change(question: Question, grade: float) -> Question | None:  # noqa: ARG001
        layout = merged(question.layout, words)
        return None if layout == question.layout else question.with_layout(layout)

    return change


def _precision(compute: str) -> Change:
    def change(question: Question, grade: float) -> Question | None:  # noqa: ARG001
        work = question.workload
        if work.precision.compute == compute:
            return None
        precision = replace(work.precision, compute=compute, recipe="none")
        return replace(question, workload=replace(work, precision=precision))

    return change


def _clock(question: Question, grade: float) -> Question:
    device = question.cluster.device
    rates = {
        name: _over(getattr(device.matrix_flops, name), grade)
        for name in device.matrix_flops.__struct_fields__
    }
    slow = replace(
        device,
        matrix_flops=replace(device.matrix_flops, **rates),
        vector_flops=device.vector_flops / grade,
        clock_hz=device.clock_hz / grade,
    )
    return replace(question, cluster=replace(question.cluster, device=slow))


def _memory_rate(question: Question, grade: float) -> Question:
    device = replace(question.cluster.device, hbm_bandwidth=question.cluster.device.hbm_bandwidth / grade)
    return replace(question, cluster=replace(question.cluster, device=device))


def _network(inner: bool) -> Change:
    def change(question: Question, grade: float) -> Question | None:
        tiers = question.cluster.tiers
        places = range(1) if inner else range(1, len(tiers))
        if not places or question.cluster.num_devices == 1:
            return None
        slow = tuple(
            replace(tier, bandwidth=tier.bandwidth / grade, link_bandwidth=_over(tier.link_bandwidth, grade))
            if place in places
            else tier
            for place, tier in enumerate(tiers)
        )
        return replace(question, cluster=replace(question.cluster, tiers=slow))

    return change


def _over(value: float | None, grade: float) -> float | None:
    return None if value is None else value / grade


def _host(question: Question, grade: float) -> Question | None:
    if question.layout.graphs == "full":
        return None
    device = question.cluster.device
    return replace(
        question,
        cluster=replace(question.cluster, device=replace(device, host_pace=device.host_pace * grade)),
    )


def _imbalance(question: Question, grade: float) -> Question | None:
    layout, moe = question.layout, question.model.moe
    if moe is None or layout.ep == 1 or grade > min(layout.ep, moe.num_experts / moe.top_k):
        return None
    return _layout(routing={"imbalance": layout.routing.imbalance * grade})(question, grade)


def _half_batches(question: Question, grade: float) -> Question | None:
    size = question.layout.micro_batch_size
    return None if size % 2 else _layout(micro_batch_size=size // 2)(question, grade)


CAUSES: tuple[Cause, ...] = (
    Cause(name="recompute", change=_layout(recompute=Recompute(granularity="full"))),
    Cause(name="no_recompute", change=_layout(recompute=Recompute(granularity="none"))),
    Cause(name="unfused_attention", change=_layout(flash_attention=False)),
    Cause(name="fp32_products", change=_precision("fp32")),
    Cause(name="tf32_products", change=_precision("tf32")),
    Cause(
        name="bf16_products",
        change=lambda question, grade: (
            _precision("bf16")(question, grade) if question.workload.precision.is_narrow else None
        ),
    ),
    Cause(
        name="no_overlap_of_gradients", change=_layout(overlap={"grad_reduce": False, "param_gather": False})
    ),
    Cause(name="no_overlap_of_tensor", change=_layout(overlap={"tensor": False})),
    Cause(name="unfused_kernels", change=_layout(kernels={"fused_update": False})),
    Cause(name="small_micro_batches", change=_half_batches),
    Cause(name="expert_imbalance", change=_imbalance, grades=GRADES),
    Cause(name="slow_clock", change=_clock, grades=GRADES),
    Cause(name="slow_memory", change=_memory_rate, grades=GRADES),
    Cause(name="slow_network", change=_network(inner=False), grades=GRADES),
    Cause(name="slow_links", change=_network(inner=True), grades=GRADES),
    Cause(name="slow_host", change=_host, grades=GRADES),
)
"""All causes, the more specific first: of two that explain the same, the first is named first."""
