"""Columns of the analysis's rankings, with its legend."""

from __future__ import annotations

from collections.abc import Callable

from forescale.numeric import Numeric
from forescale.presets.almodel import Ranked
from forescale.report.document import Column
from forescale.report.headers import P
from forescale.units import GIB

LABELS = {
    "none": "save_all",
    "minimal_with_context": "min+ctx",
    "minimal": "minimal",
    "save_dot_with_context_except_mlp": "dot-mlp+ctx",
    "save_dot_except_mlpwi": "dot-mlpwi",
    "save_dot_except_mlp": "dot-mlp",
    "save_qkv_proj": "qkv_proj",
    "save_out_proj": "out_proj",
    "full": "full",
}
"""Short names of policies in the analysis."""


def bottleneck(one: Ranked) -> str:
    """Return the largest part of a step."""
    step = one.step
    parts = {
        "Compute": step.compute,
        "TP": step.tp.seconds,
        "EP": step.ep.seconds,
        "FSDP": step.fsdp_exposed,
        "DP": step.dp.seconds,
        "CP": step.cp.seconds,
        "Bubble": step.bubble,
        "Optimizer": step.optimizer.seconds,
    }
    return max(parts, key=lambda name: float(parts[name]))


def _gb(part: str) -> Callable[[Ranked], str]:
    return lambda one: f"{getattr(one.memory, part) / GIB:.1f}"


def _seconds(value: Callable[[Ranked], Numeric]) -> Callable[[Ranked], str]:
    return lambda one: f"{float(value(one)):.2f}"


_DEGREES = "Tensor / Data / Pipeline / Expert / Fully-sharded-data / Context parallelism degree"
COLUMNS: tuple[Column[Ranked], ...] = (
    Column(heading="TP", meaning=_DEGREES, show=lambda one: str(one.strategy.tp)),
    Column(heading="DP", meaning=_DEGREES, show=lambda one: str(one.strategy.dp_replicate)),
    Column(heading="PP", meaning=_DEGREES, show=lambda one: str(one.strategy.pp)),
    Column(heading="EP", meaning=_DEGREES, show=lambda one: str(one.strategy.ep)),
    Column(heading="FSDP", meaning=_DEGREES, show=lambda one: str(one.fsdp)),
    Column(heading="CP", meaning=_DEGREES, show=lambda one: str(one.strategy.cp)),
    Column(
        heading="Remat",
        meaning="Policy of rematerialisation: what is kept, the rest is computed again",
        show=lambda one: LABELS[one.strategy.recompute.policy or one.strategy.recompute.granularity],
        align="left",
    ),
    Column(
        heading="PDB",
        meaning="per_device_batch_size of MaxText",
        show=lambda one: f"{one.per_device_batch:g}",
    ),
    Column(
        heading="MB",
        meaning="Sequences per micro-batch of a data-parallel rank: PDB × TP × CP",
        show=lambda one: str(one.strategy.micro_batch_size),
    ),
    Column(
        heading="GA",
        meaning="Gradient accumulation steps",
        show=lambda one: str(one.projection.num_microbatches),
    ),
    Column(heading="W(GB)", meaning="Weights per device, fp32", show=_gb("weights")),
    Column(
        heading="O(GB)",
        meaning="Optimizer states per device: both moments of Adam, fp32",
        show=_gb("optimizer"),
    ),
    Column(heading="G(GB)", meaning="Gradients per device, fp32", show=_gb("gradients")),
    Column(
        heading="FBuf",
        meaning="Buffer of gathered weights (GB): 2 layers × full layer weight × (FSDP−1)/FSDP",
        show=_gb("buffer"),
    ),
    Column(
        heading="Act(GB)",
        meaning="Activations per device, by micro-batch and policy",
        show=_gb("activations"),
    ),
    Column(
        heading="Rsv", meaning="Reserve for XLA (GB): a share of everything modelled", show=_gb("reserve")
    ),
    Column(heading="Tot(GB)", meaning="HBM per device: W + O + G + FBuf + Act + Rsv", show=_gb("total")),
    Column(
        heading="Trn(PF)",
        meaning="Useful FLOPs per step (PFLOP): forward and backward, nothing recomputed",
        show=lambda one: f"{one.projection.model_flops_full_attention_per_step / P:.1f}",
    ),
    Column(
        heading="Rmt%",
        meaning="What recompute adds to them",
        show=lambda one: f"{100 * one.flops.overhead:.0f}",
    ),
    Column(
        heading="Comp",
        meaning="Compute (s): executed FLOPs / (devices × peak)",
        show=_seconds(lambda one: one.step.compute),
    ),
    Column(
        heading="TP(s)", meaning="All-reduces of TP, exposed", show=_seconds(lambda one: one.step.tp.seconds)
    ),
    Column(
        heading="EP(s)",
        meaning="Exchange of tokens between experts, exposed",
        show=_seconds(lambda one: one.step.ep.seconds),
    ),
    Column(
        heading="FSDP+",
        meaning="Gathers and scatters of FSDP (s) that compute does not hide: total − 85 % of Comp",
        show=_seconds(lambda one: one.step.fsdp_exposed),
    ),
    Column(
        heading="DP(s)",
        meaning="All-reduce of gradients, exposed",
        show=_seconds(lambda one: one.step.dp.seconds),
    ),
    Column(
        heading="CP(s)",
        meaning="Gather of keys and values, scatter of their gradients, exposed",
        show=_seconds(lambda one: one.step.cp.seconds),
    ),
    Column(
        heading="PP+(s)",
        meaning="Sends between stages, hidden entirely",
        show=_seconds(lambda one: one.step.pp.seconds),
    ),
    Column(
        heading="Bub",
        meaning="Pipeline bubble (s): (PP−1)/(num_repeats × GA + PP−1) of compute and bubble",
        show=_seconds(lambda one: one.step.bubble),
    ),
    Column(
        heading="Opt",
        meaning="Optimizer step (s): 28 bytes per parameter at the rate of HBM",
        show=_seconds(lambda one: one.step.optimizer.seconds),
    ),
    Column(
        heading="Step(s)",
        meaning="Step time: Comp + exposed communication + Bub + Opt",
        show=_seconds(lambda one: one.step.total),
    ),
    Column(
        heading="MFU%",
        meaning="Useful FLOPs / (step time × devices × peak), attention counted without its mask",
        show=lambda one: f"{100 * one.projection.mfu_full_attention:.1f}",
    ),
    Column(
        heading="Bottleneck",
        meaning="The largest part of the step",
        show=bottleneck,
        align="left",
    ),
)
