"""A report on ranked layouts: headers, rankings with legend, details, slowest, summary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from forescale.cost.roofline import peak_rate
from forescale.graph.counts import BACKWARD_PER_FORWARD, count_parameters, model_flops
from forescale.report.document import (
    Bullets,
    Column,
    Content,
    Paragraph,
    Picture,
    Report,
    Section,
    legend,
    properties,
    ranking,
)
from forescale.spec.cluster import Cluster
from forescale.spec.model import (
    Attention,
    DenseFfn,
    FullAttention,
    LatentAttention,
    LinearAttention,
    Model,
    MoeFfn,
)
from forescale.spec.workload import Workload
from forescale.units import GB, GIB
from forescale.view.page import Chart

E = TypeVar("E")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking(Generic[E]):
    """Layouts in order, under a title."""

    title: str
    entries: Sequence[E]
    lead: str = ""
    charts: tuple[Chart, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts(Generic[E]):
    """What a search of any kind found, and how its layouts are shown."""

    title: str
    headers: tuple[Section, ...]
    columns: tuple[Column[E], ...]
    best: tuple[Ranking[E], ...]
    """Rankings, fastest first; the first of them is detailed."""
    slowest: Ranking[E]
    name: Callable[[E], str]
    """A layout in one line."""
    details: Callable[[E], Sequence[Section]]
    num_detailed: int
    summary: tuple[str, ...]
    legend: tuple[Content, ...] = ()
    """What stands below the legend of columns."""
    notes: tuple[str, ...] = ()


def layouts_report(found: Layouts[E]) -> Report:
    """Return the report; a ranking without entries and details of none are left out."""
    detailed = [
        section
        for place, entry in enumerate(found.best[0].entries[: found.num_detailed], start=1)
        for section in (
            Section(f"#{place}: {found.name(entry)}", (), 2),
            *found.details(entry),
        )
    ]
    rankings = [_ranked(item, found.columns) for item in found.best if item.entries]
    legends = Section("Column legend", (legend(found.columns), *found.legend), 2)
    slowest = [_ranked(found.slowest, found.columns)] if found.slowest.entries else []
    notes = [Section("Notes", (Bullets(found.notes),))] if found.notes else []
    return Report(
        title=found.title,
        sections=(
            *found.headers,
            *rankings[:1],
            legends,
            *rankings[1:],
            *([Section("Detailed layouts", ()), *detailed] if detailed else []),
            *slowest,
            Section("Summary", (Bullets(found.summary),)),
            *notes,
        ),
    )


def _ranked(item: Ranking[E], columns: Sequence[Column[E]]) -> Section:
    lead: list[Content] = [Paragraph(item.lead)] if item.lead else []
    return Section(item.title, (*lead, *map(Picture, item.charts), ranking(columns, item.entries)))


Rows = Sequence[tuple[str, str]]
T, P = 1e12, 1e15


def model_section(model: Model, more: Rows = ()) -> Section:
    """Return parameters, layers, experts and widths."""
    counts = count_parameters(model)
    split = (
        f" (expert: {billions(counts.expert)}, non-expert: {billions(counts.total - counts.expert)})"
        if counts.expert
        else ""
    )
    rows = [
        ("Model", model.name),
        ("Parameters", billions(counts.total) + split),
        ("Layers", _layers(model)),
        *([("Experts", _experts(model.moe))] if model.moe is not None else []),
        ("Attention", _heads(model)),
        ("Hidden size", f"{model.hidden_size:,}"),
        ("Vocabulary", f"{model.vocab_size:,}"),
        *more,
    ]
    return Section("Model", (properties(rows),))


def training_section(model: Model, workload: Workload, more: Rows = ()) -> Section:
    """Return batch and FLOP: products only, every pair of attention counted."""
    useful = model_flops(model, workload.seq_len).full
    forward = useful / (1.0 + BACKWARD_PER_FORWARD)
    rows = [
        ("Global batch size", f"{workload.global_batch_size:,}"),
        ("Sequence length", f"{workload.seq_len:,}"),
        ("Forward FLOPs/sample", f"{forward / T:,.2f} TFLOPs"),
        ("Backward FLOPs/sample", f"{(useful - forward) / T:,.2f} TFLOPs"),
        ("Training FLOPs/sample", f"{useful / T:,.2f} TFLOPs"),
        ("Training FLOPs/step", f"{useful * workload.global_batch_size / P:,.2f} PFLOPs"),
        *more,
    ]
    return Section("Training", (properties(rows),))


def hardware_section(cluster: Cluster, workload: Workload, more: Rows = ()) -> Section:
    """Return devices, memory and network."""
    peak = peak_rate(cluster.device, workload.precision.compute)
    rows = [
        (
            "Devices",
            f"{cluster.num_devices:,} × {peak / T:,.1f} TFLOPs/device ({cluster.device.name}, "
            f"{workload.precision.compute}) = {cluster.num_devices * peak / T:,.0f} TFLOPs total",
        ),
        (
            "HBM",
            f"{cluster.device.hbm_bytes / GIB:.4g} GiB/device at {cluster.device.hbm_bandwidth / GB:,.0f} GB/s",
        ),
        *(
            (
                f"Network, {tier.name}",
                f"{tier.bandwidth / GB:,.0f} GB/s per device and direction, {tier.topology}",
            )
            for tier in cluster.tiers
        ),
        *more,
    ]
    return Section("Hardware", (properties(rows),))


def billions(count: float) -> str:
    """Return a count of parameters."""
    return f"{count / 1e9:,.2f}B"


def _layers(model: Model) -> str:
    """Return how many layers there are of each kind of attention and of feed-forward."""
    attention = _counted([_attention_name(layer.attention) for layer in model.layers])
    ffn = _counted(
        [
            "MoE" if isinstance(layer.ffn, MoeFfn) else "dense"
            for layer in model.layers
            if layer.ffn is not None
        ]
    )
    return f"{model.num_layers} ({attention}; {ffn})"


def _counted(names: list[str]) -> str:
    return " + ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names))


def _attention_name(attention: Attention | None) -> str:
    match attention:
        case LinearAttention():
            return "linear attention"
        case LatentAttention():
            return "latent attention"
        case FullAttention():
            return "softmax attention"
        case None:
            return "without attention"


def _experts(moe: MoeFfn) -> str:
    shared = f", shared expert {moe.shared_ffn_hidden_size:,}" if moe.shared_ffn_hidden_size else ""
    return f"{moe.num_experts} × FFN {moe.ffn_hidden_size:,}, top_k={moe.top_k}{shared}"


def _heads(model: Model) -> str:
    found = [
        f"{kind.attention.num_heads}h × {_head_width(kind.attention)}d"
        for kind in model.layer_kinds
        if kind.attention is not None
    ]
    dense = [kind.ffn.ffn_hidden_size for kind in model.layer_kinds if isinstance(kind.ffn, DenseFfn)]
    wide = f"; dense FFN {', '.join(f'{width:,}' for width in dict.fromkeys(dense))}" if dense else ""
    return ", ".join(dict.fromkeys(found)) + wide


def _head_width(attention: Attention) -> int:
    match attention:
        case LinearAttention(value_head_dim=width) | LatentAttention(v_head_dim=width):
            return width
        case FullAttention(head_dim=width):
            return width
