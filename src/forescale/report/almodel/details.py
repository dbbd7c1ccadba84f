"""One layout of the analysis in detail: memory, batch, FLOPs, communication and performance."""

from __future__ import annotations

from collections.abc import Sequence

from forescale.graph.parameters import count_parameters
from forescale.numeric import Numeric
from forescale.presets.almodel import AlmodelResult, Ranked
from forescale.presets.almodel.memory import almodel_device_parameters, almodel_state_bytes
from forescale.presets.almodel.step import Message
from forescale.report.almodel.columns import bottleneck
from forescale.report.document import Bullets, Heading, Paragraph, Section, Table
from forescale.report.headers import P
from forescale.spec.strategy import Recompute
from forescale.units import GB, GIB


def policy_name(recompute: Recompute) -> str:
    """Return the analysis's name of a policy."""
    return recompute.policy or {"none": "save_all"}.get(recompute.granularity, recompute.granularity)


def details(found: AlmodelResult, one: Ranked) -> Sequence[Section]:
    """Return the sections of one layout."""
    return (
        Section(title="Memory per device", contents=(_memory(found, one),), level=3),
        Section(title="Batch", contents=(Paragraph(text=_batch(found, one)),), level=3),
        Section(title="FLOPs", contents=(Paragraph(text=_flops(one)),), level=3),
        Section(title="Communication", contents=(_communication(found, one),), level=3),
        Section(title="Performance", contents=(_performance(one),), level=3),
    )


def _memory(found: AlmodelResult, one: Ranked) -> Table:
    memory, layout = one.memory, one.strategy
    count = found.cluster.device.hbm_bytes / GIB
    in_flight = min(layout.pp, one.projection.num_microbatches)
    rows = (
        ("Weights", memory.weights, _weights(found, one)),
        ("Optimizer", memory.optimizer, "Adam mu + nu"),
        ("Gradients", memory.gradients, ""),
        ("FSDP buffer", memory.buffer, "peak of gathers: 2 layers × full layer weight × (FSDP−1)/FSDP"),
        (
            "Activations",
            memory.activations,
            f"micro_batch={layout.micro_batch_size} × inflight={in_flight}, remat={policy_name(layout.recompute)}",
        ),
        ("XLA reserve", memory.reserve, f"{found.preset.terms.reserve:.0%} of everything modelled"),
        ("Total", memory.total, f"of {count:g} GiB HBM ({float(memory.total) / GIB / count:.0%} used)"),
    )
    return Table(
        headings=(
            Heading(text="Component", align="left"),
            Heading(text="Size (GB)"),
            Heading(text="Detail", align="left"),
        ),
        rows=tuple((name, f"{float(size) / GIB:.2f}", detail) for name, size, detail in rows),
    )


def _weights(found: AlmodelResult, one: Ranked) -> str:
    """Return how the weights of a device divide into experts and the rest."""
    layout, expert = one.strategy, float(count_parameters(found.model).expert)
    elements = almodel_device_parameters(
        expert=expert, other=0.0, ep=layout.ep, fsdp=one.fsdp, model_ranks=layout.tp * layout.pp
    )
    own = float(almodel_state_bytes(parameters=elements, copies=1.0))
    return f"expert: {own / GIB:.2f} + non-expert: {(float(one.memory.weights) - own) / GIB:.2f}"


def _batch(found: AlmodelResult, one: Ranked) -> str:
    count, size = one.projection.num_microbatches, one.strategy.micro_batch_size
    return (
        f"per_device_batch={one.per_device_batch:g}, micro_batch={size} (PDB × TP × CP), GA={count}, "
        f"data-parallel ranks={one.strategy.dp}, sequences per rank and step={count * size}, "
        f"devices={found.cluster.num_devices}"
    )


def _flops(one: Ranked) -> str:
    projection = one.projection
    return (
        f"useful={projection.model_flops_full_attention_per_step / P:.1f} PFLOPs, "
        f"actual={projection.hardware_flops_per_step / P:.1f} PFLOPs, remat={100 * one.flops.overhead:+.0f}%"
    )


def _communication(found: AlmodelResult, one: Ranked) -> Table:
    step, terms = one.step, found.preset.terms
    exposed = f"{float(step.fsdp.seconds):.2f} total, {float(step.fsdp_exposed):.2f} exposed"
    device = found.cluster.device
    rows = (
        _row("TP all-reduce", step.tp, "exposed"),
        _row("EP all-to-all", step.ep, "exposed"),
        ("FSDP gather + scatter", _gib(step.fsdp.volume), exposed, f"overlap={terms.overlap:.0%} of compute"),
        _row("DP all-reduce", step.dp, "exposed"),
        _row("CP all-gather (KV)", step.cp, "exposed"),
        _row("PP ppermute", step.pp, "hidden"),
        _row(
            "Optimizer (AdamW)",
            step.optimizer,
            f"memory-bound, {terms.optimizer_bytes_per_parameter:g}B/param, HBM={device.hbm_bandwidth / GB:,.0f}GB/s",
        ),
    )
    return Table(
        headings=(
            Heading(text="Type", align="left"),
            Heading(text="Volume (GB)"),
            Heading(text="Time (s)"),
            Heading(text="Note", align="left"),
        ),
        rows=rows,
    )


def _row(name: str, message: Message, note: str) -> tuple[str, ...]:
    return (name, _gib(message.volume), f"{float(message.seconds):.2f}", note)


def _gib(volume: Numeric) -> str:
    return f"{float(volume) / GIB:.1f}"


def _performance(one: Ranked) -> Bullets:
    step = one.step
    bubble = f" + bubble={step.bubble:.3f}" if step.bubble else ""
    return Bullets(
        items=(
            f"Step time: {step.total:.3f}s (compute={step.compute:.3f} + comm={step.communication:.3f}{bubble} + "
            f"optimizer={step.optimizer.seconds:.3f})",
            f"MFU: {100 * one.projection.mfu_full_attention:.1f}%",
            f"Bottleneck: {bottleneck(one)}",
        )
    )
