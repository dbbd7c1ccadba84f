"""Known causes of a step that is not what it should be, each as a change of the question that has it.

The projection of the changed question says what the cause takes from every group of work, so causes are told apart by
the whole step. A new cause is a new row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from forescale.question import Question
from forescale.spec.layout import Overlap, Recompute
from forescale.struct import Struct

GRADES = (1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
"""Strengths of causes that have one."""
Change = Callable[[Question, float], Question | None]


class Cause(Struct, frozen=True, kw_only=True):
    """One cause: what it changes, and what to do."""

    name: str
    text: str
    """What is the case; {grade} is its strength."""
    change: Change
    """Returns the question with the cause; None where the question has it already, or cannot have it."""
    remedy: str
    """{…} are names of settings in the words of the user's framework."""
    grades: tuple[float, ...] = (1.0,)


def _layout(**changes: Any) -> Change:  # noqa: ANN401  (fields of a layout)
    def change(question: Question, grade: float) -> Question | None:  # noqa: ARG001
        layout = question.layout
        return None if _has(layout, changes) else question.with_layout(replace(layout, **changes))

    return change


def _kernels(**changes: Any) -> Change:  # noqa: ANN401
    def change(question: Question, grade: float) -> Question | None:  # noqa: ARG001
        layout = question.layout
        if _has(layout.kernels, changes):
            return None
        return question.with_layout(replace(layout, kernels=replace(layout.kernels, **changes)))

    return change


def _overlap(*names: str) -> Change:
    def change(question: Question, grade: float) -> Question | None:  # noqa: ARG001
        layout = question.layout
        off: Mapping[str, Any] = dict.fromkeys(names, False)
        if _has(layout.overlap, off):
            return None
        overlap: Overlap = replace(layout.overlap, **off)
        return question.with_layout(replace(layout, overlap=overlap))

    return change


def _has(values: object, changes: Mapping[str, Any]) -> bool:
    return all(getattr(values, name) == value for name, value in changes.items())


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
    layout = question.layout
    moe = question.model.moe
    if moe is None or layout.ep == 1 or grade > min(layout.ep, moe.num_experts / moe.top_k):
        return None
    routing = replace(layout.routing, imbalance=layout.routing.imbalance * grade)
    return question.with_layout(replace(layout, routing=routing))


def _half_batches(question: Question, grade: float) -> Question | None:  # noqa: ARG001
    size = question.layout.micro_batch_size
    if size % 2:
        return None
    return question.with_layout(replace(question.layout, micro_batch_size=size // 2))


CAUSES: tuple[Cause, ...] = (
    Cause(
        name="recompute",
        text="activations are recomputed in full, which was not asked for",
        change=_layout(recompute=Recompute(granularity="full")),
        remedy="turn activation checkpointing off, or make it selective",
    ),
    Cause(
        name="no_recompute",
        text="activations are not recomputed, which was asked for",
        change=_layout(recompute=Recompute(granularity="none")),
        remedy="check that activation checkpointing is on",
    ),
    Cause(
        name="unfused_attention",
        text="attention is not fused",
        change=_layout(flash_attention=False),
        remedy="use a fused attention kernel (flash attention, scaled_dot_product_attention without a mask)",
    ),
    Cause(
        name="fp32_products",
        text="products run in fp32",
        change=_precision("fp32"),
        remedy="enable bf16 (autocast, or weights in bf16)",
    ),
    Cause(
        name="tf32_products",
        text="products run in tf32",
        change=_precision("tf32"),
        remedy="enable bf16 (autocast, or weights in bf16)",
    ),
    Cause(
        name="bf16_products",
        text="products run in bf16, not in the narrow type that was asked for",
        change=lambda question, grade: (
            _precision("bf16")(question, grade) if question.workload.precision.is_narrow else None
        ),
        remedy="check that the fp8 recipe reaches the linear layers",
    ),
    Cause(
        name="no_overlap_of_gradients",
        text="gradient reductions and weight gathers do not overlap with compute",
        change=_overlap("grad_reduce", "param_gather"),
        remedy="enable overlap of gradient reduction and parameter gathering",
    ),
    Cause(
        name="no_overlap_of_tensor",
        text="tensor-parallel communication does not overlap with compute",
        change=_overlap("tensor"),
        remedy="enable tensor-parallel communication overlap",
    ),
    Cause(
        name="unfused_kernels",
        text="norms, activations and the optimizer run in one kernel per operator",
        change=_kernels(fused_update=False),
        remedy="enable fused kernels (fused norm, fused optimizer)",
    ),
    Cause(
        name="small_micro_batches",
        text="micro-batches are half as large as asked for",
        change=_half_batches,
        remedy="check micro-batch size and gradient accumulation",
    ),
    Cause(
        name="expert_imbalance",
        text="the fullest rank gets {grade} × the mean of the tokens",
        change=_imbalance,
        remedy="check the load-balancing loss, or set a capacity factor",
        grades=GRADES,
    ),
    Cause(
        name="slow_clock",
        text="the device computes {grade} × slower than its usual clock",
        change=_clock,
        remedy="look for power or thermal throttling (nvidia-smi -q -d PERFORMANCE)",
        grades=GRADES,
    ),
    Cause(
        name="slow_memory",
        text="memory-bound kernels run {grade} × slower",
        change=_memory_rate,
        remedy="look for unfused element-wise kernels, or other processes on the device",
        grades=GRADES,
    ),
    Cause(
        name="slow_network",
        text="the network between nodes has 1/{grade} of its bandwidth",
        change=_network(inner=False),
        remedy="check the links and NCCL's choice of transport (NCCL_DEBUG=INFO)",
        grades=GRADES,
    ),
    Cause(
        name="slow_links",
        text="the links inside a node have 1/{grade} of their bandwidth",
        change=_network(inner=True),
        remedy="check NVLink and P2P (nvidia-smi topo -m)",
        grades=GRADES,
    ),
    Cause(
        name="slow_host",
        text="the host launches kernels {grade} × slower",
        change=_host,
        remedy="CUDA graphs, fewer and larger kernels, or a faster host process",
        grades=GRADES,
    ),
)
"""All causes, the more specific first: of two that explain the same, the first is named first."""
