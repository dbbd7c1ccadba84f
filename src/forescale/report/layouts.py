"""A report on ranked layouts: headers, rankings with legend, details, slowest, summary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from forescale.cost.roofline import peak_rate
from forescale.graph.counts import BACKWARD_PER_FORWARD, count_parameters, model_flops
from forescale.projection.result import AT_RISK, TIME_PARTS, Projection, StageMemory
from forescale.report.document import (
    Bullets,
    ChartBlock,
    Column,
    Content,
    Report,
    Section,
    Table,
    legend,
    line,
    properties,
    ranking,
    table,
)
from forescale.search.rank import SearchResult
from forescale.spec import phrases
from forescale.spec.attention import Attention
from forescale.spec.cluster import Cluster
from forescale.spec.layout import Layout, Recompute
from forescale.spec.model import DenseFfn, Model, MoeFfn
from forescale.spec.option import declared
from forescale.spec.space import DEGREE_NAMES
from forescale.spec.workload import Workload
from forescale.struct import Struct
from forescale.units import GB, GIB, counted
from forescale.view.page import Chart

E = TypeVar("E")


class LayoutRanking(Struct, Generic[E], frozen=True, kw_only=True):
    """Layouts in order, under a title."""

    title: str
    entries: Sequence[E]
    lead: str = ""
    charts: tuple[Chart, ...] = ()


class Layouts(Struct, Generic[E], frozen=True, kw_only=True):
    """What a search of any kind found, and how its layouts are shown."""

    title: str
    headers: tuple[Section, ...]
    columns: tuple[Column[E], ...]
    best: tuple[LayoutRanking[E], ...]
    """Rankings, fastest first; the first of them is detailed."""
    slowest: LayoutRanking[E]
    name: Callable[[E], str]
    """A layout in one line."""
    details: Callable[[E], Sequence[Section]]
    num_detailed: int
    summary: tuple[str, ...]
    legend: tuple[Content, ...] = ()
    """What stands below the legend of columns."""
    notes: tuple[str, ...] = ()


def layouts_report(layouts: Layouts[E]) -> Report:
    """Return the report; a ranking without entries and details of none are left out."""
    detailed = [
        section
        for place, entry in enumerate(layouts.best[0].entries[: layouts.num_detailed], start=1)
        for section in (
            Section(f"#{place}: {layouts.name(entry)}", (), 2),
            *layouts.details(entry),
        )
    ]
    rankings = [_ranked(item, layouts.columns) for item in layouts.best if item.entries]
    legends = Section("Column legend", (legend(layouts.columns), *layouts.legend), 2)
    slowest = [_ranked(layouts.slowest, layouts.columns)] if layouts.slowest.entries else []
    notes = [Section("Notes", (Bullets(layouts.notes),))] if layouts.notes else []
    return Report(
        title=layouts.title,
        contents=(
            *layouts.headers,
            *rankings[:1],
            legends,
            *rankings[1:],
            *([Section("Detailed layouts", ()), *detailed] if detailed else []),
            *slowest,
            Section("Summary", (Bullets(layouts.summary),)),
            *notes,
        ),
    )


def _ranked(item: LayoutRanking[E], columns: Sequence[Column[E]]) -> Section:
    lead: list[Content] = [line(item.lead)] if item.lead else []
    return Section(item.title, (*lead, *map(ChartBlock, item.charts), ranking(columns, item.entries)))


Rows = Sequence[tuple[str, str]]
T, P = 1e12, 1e15


def model_section(model: Model) -> Section:
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
    return "without attention" if attention is None else attention.description


def _experts(moe: MoeFfn) -> str:
    shared = f", shared expert {moe.shared_ffn_hidden_size:,}" if moe.shared_ffn_hidden_size else ""
    return f"{moe.num_experts} × FFN {moe.ffn_hidden_size:,}, top_k={moe.top_k}{shared}"


def _heads(model: Model) -> str:
    texts = [
        f"{kind.attention.num_heads}h × {kind.attention.value_dim}d"
        for kind in model.layer_kinds
        if kind.attention is not None
    ]
    dense = [kind.ffn.ffn_hidden_size for kind in model.layer_kinds if isinstance(kind.ffn, DenseFfn)]
    wide = f"; dense FFN {', '.join(f'{width:,}' for width in dict.fromkeys(dense))}" if dense else ""
    return ", ".join(dict.fromkeys(texts)) + wide


COMPUTE = ("attention", "ffn", "moe", "norm", "embedding", "head", "recompute", "reference")
"""Parts of a step that are compute."""
MEMORY = ("weights", "optimizer", "gradients", "buffers", "activations", "overhead")
MEANINGS = {
    "weights": "Weights, and what is kept of them in the compute type",
    "optimizer": "Optimizer states with the master copy",
    "gradients": "Gradients",
    "buffers": "Buffers of communication and gathered weights",
    "activations": "Activations of all micro-batches in flight",
    "overhead": "Fragmentation and what lies outside the allocator",
}


def search_report(
    result: SearchResult, slowest: Sequence[Projection] = (), *, num_detailed: int = 5
) -> Report:
    """Return the report of a search: headers, ranking with legend, details, slowest layouts and summary."""
    first = result.best[0]
    model, cluster, work = first.model, first.cluster, first.workload
    objective = result.objective.replace("_", " ")
    return layouts_report(
        Layouts(
            title=f"Layouts of {model.name} on {counted(cluster.num_devices, 'device')} of {cluster.name}",
            headers=(
                model_section(model),
                training_section(
                    model,
                    work,
                    [("… attention with its mask", f"{first.model_flops_per_step / P:,.2f} PFLOPs")],
                ),
                hardware_section(cluster, work),
            ),
            columns=(*_columns(result.best, slowest), *_folded(result)),
            best=(
                LayoutRanking(
                    title=f"Layouts by {objective}",
                    entries=result.best,
                    lead=f"The best {len(result.best)} of {_fitting(result)} layouts that fit; {result.num_legal:,} "
                    "are legal. Memory in GiB on the fullest device, times in seconds per step.",
                    charts=tuple(result.pictures()),
                ),
            ),
            slowest=LayoutRanking(
                title=f"Slowest {counted(len(slowest), 'layout')} that fit", entries=slowest
            ),
            name=lambda one: phrases.layout(one.strategy),
            details=_details,
            num_detailed=num_detailed,
            summary=_summary(result, slowest),
            notes=tuple(f"{note.topic}: {note.text}" for note in first.notes),
        )
    )


def _fitting(result: SearchResult) -> str:
    """Return how many layouts fit: those left out as slower than the best were not counted."""
    return f"{'' if result.num_feasible_is_exact else 'at least '}{result.num_feasible:,}"


def _recompute(recompute: Recompute) -> str:
    return recompute.policy or "+".join(recompute.modules) or recompute.granularity


def _fullest(one: Projection) -> StageMemory:
    return max(one.memory.stages, key=lambda stage: stage.peak_bytes)


def _compute(one: Projection) -> float:
    return sum(one.time_s[name] for name in COMPUTE)


def _bottleneck(one: Projection) -> str:
    """Return the largest part of the step, compute taken together."""
    parts = {"compute": _compute(one), **{k: v for k, v in one.time_s.items() if k not in COMPUTE}}
    return max(parts, key=parts.__getitem__)


DEGREES = frozenset(DEGREE_NAMES) - {"zero", "micro_batch_size"}
"""Degrees that have a column where one is above 1."""


def _columns(best: Sequence[Projection], slowest: Sequence[Projection]) -> tuple[Column[Projection], ...]:
    """Return the columns; degrees that are 1 everywhere and choices that are usual everywhere have none."""
    shown = [*best, *slowest]
    columns = [
        Column(item.name, _degree(item.name), item.option.help.partition(";")[0].rstrip("."))
        for item in declared(Layout)
        if item.name in DEGREES and any(getattr(one.strategy, item.name) > 1 for one in shown)
    ]
    choices: Column[Projection] = Column(
        "<choices",
        lambda one: phrases.choices(one.strategy),
        "Choices other than recompute that differ from the defaults",
    )
    unusual = any(phrases.choices(one.strategy) for one in shown)
    return (*columns, *_BATCH, *([choices] if unusual else []), *_MEMORY, *_WORK, *_TIMES, *_RESULTS)


def _folded(result: SearchResult) -> tuple[Column[Projection], ...]:
    """Return the column of what the best stand for, if any stands for more than itself."""
    counts = {id(one): count for one, count in zip(result.best, result.variants, strict=True)}
    meaning = "Variants of this layout at least as good as the last of the ranking"
    column: Column[Projection] = Column("more", lambda one: str(counts.get(id(one), "")), meaning)
    return (column,) if any(result.variants) else ()


def _degree(name: str) -> Callable[[Projection], str]:
    return lambda one: str(getattr(one.strategy, name))


def _gib(name: str) -> Callable[[Projection], str]:
    return lambda one: f"{getattr(_fullest(one), f'{name}_bytes') / GIB:.1f}"


def _time(name: str) -> Callable[[Projection], str]:
    return lambda one: f"{one.time_s[name]:.3f}"


_BATCH: tuple[Column[Projection], ...] = (
    Column("zero", _degree("zero"), "States sharded over dp: 0 none, 1 optimizer, 2 gradients, 3 weights"),
    Column("mbs", _degree("micro_batch_size"), "Sequences per micro-batch and data-parallel rank"),
    Column("m", lambda one: str(one.num_microbatches), "Micro-batches per step"),
    Column(
        "<recompute", lambda one: _recompute(one.strategy.recompute), "What is computed again in backward"
    ),
)
_MEMORY: tuple[Column[Projection], ...] = (
    *(Column(name, _gib(name), MEANINGS[name]) for name in MEMORY),
    Column("peak", _gib("peak"), "Peak on the fullest device"),
    Column("<fit", lambda one: one.memory.verdict, f"FITS, or AT RISK: {AT_RISK}"),
)
_WORK: tuple[Column[Projection], ...] = (
    Column(
        "PFLOP",
        lambda one: f"{one.model_flops_per_step / P:.1f}",
        "Useful FLOPs per step: forward and backward, attention with its mask",
    ),
    Column(
        "executed",
        lambda one: f"{one.hardware_flops_per_step / P:.1f}",
        "PFLOP that the devices execute per step, recompute included",
    ),
)
_TIMES: tuple[Column[Projection], ...] = (
    Column(
        "compute",
        lambda one: f"{_compute(one):.3f}",
        "Attention, feed-forward, norms, embedding, head and recompute on the slowest stage",
    ),
    Column("tp(s)", _time("tensor_comm"), "Tensor parallel, exposed"),
    Column("cp(s)", _time("context_comm"), "Context parallel, exposed"),
    Column("ep(s)", _time("expert_comm"), "Expert parallel, exposed"),
    Column("pp(s)", _time("pipeline_comm"), "Pipeline sends, exposed"),
    Column("dp(s)", _time("data_comm"), "Data parallel (gathers and reductions), exposed"),
    Column("bubble", _time("bubble"), "Waiting in the pipeline"),
    Column("opt(s)", _time("optimizer"), "Update of the weights"),
    Column("other", _time("overhead"), "Losses of whole runs: hosts, stragglers, launches"),
)
_RESULTS: tuple[Column[Projection], ...] = (
    Column("step(s)", lambda one: f"{one.step_time_s:.3f}", "Expected step time"),
    Column("MFU%", lambda one: f"{100 * one.mfu:.1f}", "Useful FLOPs over peak, attention with its mask"),
    Column("tok/s/dev", lambda one: f"{one.tokens_per_s_per_device:,.0f}", "Tokens per second and device"),
    Column("<bottleneck", _bottleneck, "The largest part of the step"),
)


def _details(one: Projection) -> tuple[Section, ...]:
    time, memory = one.pictures()
    return (
        Section("Memory on the fullest device", (ChartBlock(memory), _memory(one)), 3),
        Section("Batch and FLOPs", (_batch(one),), 3),
        Section("Time by part", (ChartBlock(time), _times(one)), 3),
        Section("Performance", (_performance(one),), 3),
    )


def _memory(one: Projection) -> Table:
    stage, memory = _fullest(one), one.memory
    rows = [(name, f"{getattr(stage, f'{name}_bytes') / GIB:.2f}", MEANINGS[name]) for name in MEMORY]
    room = memory.capacity_bytes / GIB
    low, high = memory.peak_low_bytes / GIB, memory.peak_high_bytes / GIB
    expected = f"; {low:.1f} to {high:.1f} expected" if low < high else ""
    used = f"{memory.verdict}: {stage.peak_bytes / GIB / room:.0%} of {room:.1f} GiB{expected}"
    rows.append(
        ("peak", f"{stage.peak_bytes / GIB:.2f}", f"{used}; stage {stage.stage} of {one.strategy.pp}")
    )
    return table("<Component", "GiB", "<Detail", rows=rows)


def _batch(one: Projection) -> Table:
    layout = one.strategy
    return properties(
        [
            ("Micro-batch", f"{counted(layout.micro_batch_size, 'sequence')} per data-parallel rank"),
            ("Micro-batches per step", f"{one.num_microbatches}"),
            ("Data-parallel ranks", f"{layout.dp} ({layout.dp_replicate} × {layout.dp_shard})"),
            ("Useful FLOPs", f"{one.model_flops_per_step / P:,.1f} PFLOP"),
            ("… attention unmasked", f"{one.model_flops_full_attention_per_step / P:,.1f} PFLOP"),
            ("Executed FLOPs", f"{one.hardware_flops_per_step / P:,.1f} PFLOP"),
        ]
    )


def _times(one: Projection) -> Table:
    rows = [
        (name, f"{one.time_s[name]:.4f}", f"{one.time_s[name] / one.step_time_s:.1%}")
        for name in TIME_PARTS
        if one.time_s[name]
    ]
    return table("<Part", "Seconds", "Share", rows=[*rows, ("step", f"{one.step_time_s:.4f}", "100.0%")])


def _performance(one: Projection) -> Bullets:
    interval = one.step_time
    return Bullets(
        (
            f"Step time: {interval.expected:.3f}s ({interval.low:.3f} to {interval.high:.3f})",
            f"MFU: {100 * one.mfu:.1f}% ({100 * one.mfu_full_attention:.1f}% with attention unmasked), "
            f"HFU: {100 * one.hfu:.1f}%",
            f"Tokens per second and device: {one.tokens_per_s_per_device:,.0f}",
            f"Bottleneck: {_bottleneck(one)}",
        )
    )


def _summary(result: SearchResult, slowest: Sequence[Projection]) -> tuple[str, ...]:
    best = result.best[0]
    span = (
        (
            f"Step time range of what fits: {best.step_time_s:.3f}s - {slowest[0].step_time_s:.3f}s",
            f"MFU range: {100 * slowest[0].mfu:.1f}% - {100 * best.mfu:.1f}%",
        )
        if slowest and result.objective == "step_time"
        else ()
    )
    gains = tuple(
        f"with {item.change}: {item.step_time_s:.3f}s per step, {item.gain:.1%} less"
        for item in result.relaxations
    )
    text = f"Held fixed: {'; '.join(map(str, result.held_fixed))}"
    claims = filter(None, [result.margin, result.claim, text])
    return (
        f"Best layout: {phrases.layout(best.strategy)}",
        f"Best step time: {best.step_time_s:.3f}s, MFU: {100 * best.mfu:.1f}%",
        *claims,
        *span,
        f"{counted(result.num_legal, 'legal layout')}; {_fitting(result)} fit",
        *gains,
    )
