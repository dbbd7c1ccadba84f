"""The report of the ALModel analysis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter

from forescale.graph.counts import count_parameters
from forescale.graph.ops import CollectiveKind
from forescale.numeric import Numeric
from forescale.presets.almodel import AlmodelResult, Ranked, Terms
from forescale.presets.almodel.step import (
    Message,
    almodel_device_parameters,
    almodel_state_bytes,
    sequence_flops,
)
from forescale.report.document import Bullets, Column, Content, Report, Section, Table, line, table
from forescale.report.layouts import (
    LayoutRanking,
    Layouts,
    P,
    hardware_section,
    layouts_report,
    model_section,
    training_section,
)
from forescale.spec.layout import Recompute
from forescale.units import GB, GIB, counted

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


PARTS = {
    "Compute": "compute",
    "TP": "tp.seconds",
    "EP": "ep.seconds",
    "FSDP": "fsdp_exposed",
    "DP": "dp.seconds",
    "CP": "cp.seconds",
    "Bubble": "bubble",
    "Optimizer": "optimizer.seconds",
}
"""Parts of a step by the analysis's names."""


def bottleneck(one: Ranked) -> str:
    """Return the largest part of a step."""
    return max(PARTS, key=lambda name: float(attrgetter(PARTS[name])(one.step)))


def _degree(name: str) -> Column[Ranked]:
    meaning = "Tensor / Data / Pipeline / Expert / Fully-sharded-data / Context parallelism degree"
    return Column(name, lambda one: str(_degrees(one)[name]), meaning)


def _gb(part: str) -> Callable[[Ranked], str]:
    return lambda one: f"{getattr(one.memory, part) / GIB:.1f}"


def _seconds(part: str) -> Callable[[Ranked], str]:
    return lambda one: f"{float(attrgetter(part)(one.step)):.2f}"


COLUMNS: tuple[Column[Ranked], ...] = (
    *map(_degree, ("TP", "DP", "PP", "EP", "FSDP", "CP")),
    Column(
        "<Remat",
        lambda one: LABELS[one.strategy.recompute.policy or one.strategy.recompute.granularity],
        "Policy of rematerialisation: what is kept, the rest is computed again",
    ),
    Column("PDB", lambda one: f"{one.per_device_batch:g}", "per_device_batch_size of MaxText"),
    Column(
        "MB",
        lambda one: str(one.strategy.micro_batch_size),
        "Sequences per micro-batch of a data-parallel rank: PDB × TP × CP",
    ),
    Column("GA", lambda one: str(one.projection.num_microbatches), "Gradient accumulation steps"),
    Column("W(GB)", _gb("weights"), "Weights per device, fp32"),
    Column("O(GB)", _gb("optimizer"), "Optimizer states per device: both moments of Adam, fp32"),
    Column("G(GB)", _gb("gradients"), "Gradients per device, fp32"),
    Column(
        "FBuf",
        _gb("buffers"),
        "Buffer of gathered weights (GB): 2 layers × full layer weight × (FSDP−1)/FSDP",
    ),
    Column("Act(GB)", _gb("activations"), "Activations per device, by micro-batch and policy"),
    Column("Rsv", _gb("overhead"), "Reserve for XLA (GB): a share of everything modelled"),
    Column("Tot(GB)", _gb("total"), "HBM per device: W + O + G + FBuf + Act + Rsv"),
    Column(
        "Trn(PF)",
        lambda one: f"{one.projection.model_flops_full_attention_per_step / P:.1f}",
        "Useful FLOPs per step (PFLOP): forward and backward, nothing recomputed",
    ),
    Column("Rmt%", lambda one: f"{100 * one.flops.overhead:.0f}", "What recompute adds to them"),
    Column("Comp", _seconds("compute"), "Compute (s): executed FLOPs / (devices × peak)"),
    Column("TP(s)", _seconds("tp.seconds"), "All-reduces of TP, exposed"),
    Column("EP(s)", _seconds("ep.seconds"), "Exchange of tokens between experts, exposed"),
    Column(
        "FSDP+",
        _seconds("fsdp_exposed"),
        "Gathers and scatters of FSDP (s) that compute does not hide: total − 85 % of Comp",
    ),
    Column("DP(s)", _seconds("dp.seconds"), "All-reduce of gradients, exposed"),
    Column("CP(s)", _seconds("cp.seconds"), "Gather of keys and values, scatter of their gradients, exposed"),
    Column("PP+(s)", _seconds("pp.seconds"), "Sends between stages, hidden entirely"),
    Column(
        "Bub",
        _seconds("bubble"),
        "Pipeline bubble (s): (PP−1)/(num_repeats × GA + PP−1) of compute and bubble",
    ),
    Column(
        "Opt", _seconds("optimizer.seconds"), "Optimizer step (s): 28 bytes per parameter at the rate of HBM"
    ),
    Column("Step(s)", _seconds("total"), "Step time: Comp + exposed communication + Bub + Opt"),
    Column(
        "MFU%",
        lambda one: f"{100 * one.projection.mfu_full_attention:.1f}",
        "Useful FLOPs / (step time × devices × peak), attention counted without its mask",
    ),
    Column("<Bottleneck", bottleneck, "The largest part of the step"),
)


SHORT: dict[CollectiveKind, str] = {
    "all_reduce": "AR",
    "all_gather": "AG",
    "reduce_scatter": "RS",
    "all_to_all": "A2A (inferred)",
}


def almodel_report(
    result: AlmodelResult, first_table: AlmodelResult | None = None, *, num_detailed: int = 5
) -> Report:
    """Return the whole report.

    Parameters
    ----------
    first_table
        The same search on the terms of the analysis's first table, listed as a second ranking.
    """
    best, slowest = result.best, result.slowest
    other = () if first_table is None else (_of_first_table(first_table),)
    return layouts_report(
        Layouts(
            title=f"Parallelism strategies of {result.model.name} on {counted(result.cluster.num_devices, 'device')} "
            "(preset almodel)",
            headers=_headers(result),
            columns=COLUMNS,
            best=(
                LayoutRanking(
                    title="Layouts by step time",
                    entries=best,
                    lead=f"The best {len(best)} of {result.num_layouts} layouts, each with the policy and the largest "
                    "micro-batch that are fastest for it; GB are 2^30 bytes. The printed rates, 30 % in reserve.",
                ),
                *other,
            ),
            legend=(_policies(),),
            slowest=LayoutRanking(
                title=f"Slowest {counted(len(slowest), 'layout')}",
                entries=slowest,
                lead="Of all layouts and policies, each with the largest micro-batch that fits.",
            ),
            name=_name,
            details=partial(details, result),
            num_detailed=num_detailed,
            summary=_summary(result),
            notes=tuple(note.text for note in best[0].projection.notes) if best else (),
        )
    )


def _of_first_table(result: AlmodelResult) -> LayoutRanking[Ranked]:
    return LayoutRanking(
        title="Layouts on the terms of the analysis's first table",
        entries=result.best,
        lead="The analysis printed this table with other rates than those of its hardware table, and with 25 % in "
        "reserve. FSDP at 131.5 GB/s, the rates of CP by group size and of DP are inferred from its rows; the "
        "formulas are the same. Layouts with an MFU of 20 % or more.",
    )


def _headers(result: AlmodelResult) -> tuple[Section, ...]:
    model, work, terms = result.model, result.workload, result.preset.terms
    full = sequence_flops(
        model, seq_len=work.seq_len, recompute=Recompute(granularity="full"), quirks=terms.quirks
    )
    counts = count_parameters(model)
    copy = float(almodel_state_bytes(parameters=float(counts.total), copies=1.0)) / GIB
    states = f"W={copy:.1f}GB + O={2 * copy:.1f}GB + G={copy:.1f}GB = {4 * copy:.1f}GB"
    return (
        model_section(model),
        training_section(model, work, [("Remat overhead (full)", f"{100 * full.overhead:+.1f}%")]),
        hardware_section(
            result.cluster,
            work,
            [
                ("Measured rates by group size (GB/s)", _rates(terms)),
                ("PP ppermute", f"{terms.rates['p2p'][2] / GB:,.0f} GB/s (overlapped)"),
                ("FSDP overlap", f"{terms.overlap:.0%}"),
                ("XLA reserve", f"{terms.reserve:.0%}"),
                ("Total memory (no parallelism)", states),
            ],
        ),
    )


def _policies() -> Table:
    """Return the analysis's short names of policies."""
    rows = [(label, "save_all" if name == "none" else name) for name, label in LABELS.items()]
    return table("<Remat", "<Policy", rows=rows)


def _rates(terms: Terms) -> str:
    return ", ".join(
        f"{short}={{{', '.join(f'{size}: {rate / GB:.1f}' for size, rate in terms.rates[kind].items())}}}"
        for kind, short in SHORT.items()
    )


def _degrees(one: Ranked) -> dict[str, int]:
    layout = one.strategy
    return {
        "TP": layout.tp,
        "DP": layout.dp_replicate,
        "PP": layout.pp,
        "EP": layout.ep,
        "FSDP": one.fsdp,
        "CP": layout.cp,
    }


def _name(one: Ranked) -> str:
    degrees = " ".join(f"{name}={degree}" for name, degree in _degrees(one).items())
    return f"{degrees} remat={policy_name(one.strategy.recompute)}"


def _summary(result: AlmodelResult) -> tuple[str, ...]:
    """Return the best layout, and the ranges down to the slowest where it is known."""
    if not result.best:
        return ()
    best, slowest = result.best[0], result.slowest[:1]
    low, high = (100 * one.projection.mfu_full_attention for one in (*(slowest or (best,)), best))
    ranges = (
        f"MFU range: {low:.1f}% - {high:.1f}%",
        *(f"Step time range: {best.step.total:.3f}s - {worst.step.total:.3f}s" for worst in slowest),
    )
    return (
        f"Best layout: {_name(best)}",
        f"Best step time: {best.step.total:.3f}s, MFU: {high:.1f}%",
        *(ranges if slowest else ()),
        f"{result.num_candidates:,} layouts with policies and micro-batches; {result.num_feasible:,} layouts with "
        "policies fit",
    )


def policy_name(recompute: Recompute) -> str:
    """Return the analysis's name of a policy."""
    return recompute.policy or {"none": "save_all"}.get(recompute.granularity, recompute.granularity)


def details(result: AlmodelResult, one: Ranked) -> Sequence[Section]:
    """Return the sections of one layout."""
    contents: dict[str, Content] = {
        "Memory per device": _memory(result, one),
        "Batch": line(_batch(result, one)),
        "FLOPs": line(_flops(one)),
        "Communication": _communication(result, one),
        "Performance": _performance(one),
    }
    return [Section(title, (content,), 3) for title, content in contents.items()]


def _memory(result: AlmodelResult, one: Ranked) -> Table:
    memory, layout = one.memory, one.strategy
    count = result.cluster.device.hbm_bytes / GIB
    in_flight = min(layout.pp, one.projection.num_microbatches)
    rows = (
        ("Weights", memory.weights, _weights(result, one)),
        ("Optimizer", memory.optimizer, "Adam mu + nu"),
        ("Gradients", memory.gradients, ""),
        ("FSDP buffer", memory.buffers, "peak of gathers: 2 layers × full layer weight × (FSDP−1)/FSDP"),
        (
            "Activations",
            memory.activations,
            f"micro_batch={layout.micro_batch_size} × inflight={in_flight}, remat={policy_name(layout.recompute)}",
        ),
        ("XLA reserve", memory.overhead, f"{result.preset.terms.reserve:.0%} of everything modelled"),
        ("Total", memory.total, f"of {count:g} GiB HBM ({float(memory.total) / GIB / count:.0%} used)"),
    )
    shown = [(name, f"{float(size) / GIB:.2f}", detail) for name, size, detail in rows]
    return table("<Component", "Size (GB)", "<Detail", rows=shown)


def _weights(result: AlmodelResult, one: Ranked) -> str:
    """Return how the weights of a device divide into experts and the rest."""
    layout, expert = one.strategy, float(count_parameters(result.model).expert)
    elements = almodel_device_parameters(
        expert=expert, other=0.0, ep=layout.ep, fsdp=one.fsdp, model_ranks=layout.tp * layout.pp
    )
    local = float(almodel_state_bytes(parameters=elements, copies=1.0))
    return f"expert: {local / GIB:.2f} + non-expert: {(float(one.memory.weights) - local) / GIB:.2f}"


def _batch(result: AlmodelResult, one: Ranked) -> str:
    count, size = one.projection.num_microbatches, one.strategy.micro_batch_size
    batch_par = result.workload.global_batch_size / (one.per_device_batch * count)
    return (
        f"per_device_batch={one.per_device_batch:g}, micro_batch={size} (PDB × TP × CP), GA={count}, "
        f"batch_par={batch_par:g} (global batch / (PDB × GA)), data-parallel "
        f"ranks={one.strategy.dp}, sequences per rank and step={count * size}, "
        f"devices={result.cluster.num_devices}"
    )


def _flops(one: Ranked) -> str:
    projection = one.projection
    return (
        f"useful={projection.model_flops_full_attention_per_step / P:.1f} PFLOPs, "
        f"actual={projection.hardware_flops_per_step / P:.1f} PFLOPs, remat={100 * one.flops.overhead:+.0f}%"
    )


def _communication(result: AlmodelResult, one: Ranked) -> Table:
    step, terms = one.step, result.preset.terms
    exposed = f"{float(step.fsdp.seconds):.2f} total, {float(step.fsdp_exposed):.2f} exposed"
    device = result.cluster.device
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
    return table("<Type", "Volume (GB)", "Time (s)", "<Note", rows=rows)


def _row(name: str, message: Message, note: str) -> tuple[str, ...]:
    return (name, _gib(message.volume), f"{float(message.seconds):.2f}", note)


def _gib(volume: Numeric) -> str:
    return f"{float(volume) / GIB:.1f}"


def _performance(one: Ranked) -> Bullets:
    step = one.step
    bubble = f" + bubble={step.bubble:.3f}" if step.bubble else ""
    return Bullets(
        (
            f"Step time: {step.total:.3f}s (compute={step.compute:.3f} + comm={step.communication:.3f}{bubble} + "
            f"optimizer={step.optimizer.seconds:.3f})",
            f"MFU: {100 * one.projection.mfu_full_attention:.1f}%",
            f"Bottleneck: {bottleneck(one)}",
        )
    )
