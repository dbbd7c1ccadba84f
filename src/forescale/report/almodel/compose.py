"""The whole report of the analysis, from its own search."""

from __future__ import annotations

from functools import partial

from forescale.graph.ops import CollectiveKind
from forescale.graph.parameters import count_parameters
from forescale.presets.almodel import AlmodelResult, Ranked, Terms
from forescale.presets.almodel.flops import sequence_flops
from forescale.presets.almodel.memory import almodel_state_bytes
from forescale.report.almodel.columns import COLUMNS, LABELS
from forescale.report.almodel.details import details, policy_name
from forescale.report.document import Heading, Report, Section, Table
from forescale.report.headers import hardware_section, model_section, training_section
from forescale.report.layouts import Layouts, Ranking, layouts_report
from forescale.spec.strategy import Recompute
from forescale.units import GB, GIB, counted

SHORT: dict[CollectiveKind, str] = {
    "all_reduce": "AR",
    "all_gather": "AG",
    "reduce_scatter": "RS",
    "all_to_all": "A2A (inferred)",
}


def almodel_report(
    found: AlmodelResult, first_table: AlmodelResult | None = None, *, num_detailed: int = 5
) -> Report:
    """Return the whole report.

    Parameters
    ----------
    first_table
        The same search on the terms of the analysis's first table, listed as a second ranking.
    """
    best, slowest = found.best, found.slowest
    other = () if first_table is None else (_of_first_table(first_table),)
    return layouts_report(
        Layouts(
            title=f"Parallelism strategies of {found.model.name} on {counted(found.cluster.num_devices, 'device')} "
            "(preset almodel)",
            headers=_headers(found),
            columns=COLUMNS,
            best=(
                Ranking(
                    title="Layouts by step time",
                    entries=best,
                    lead=f"The best {len(best)} of {found.num_layouts} layouts, each with the policy and the largest "
                    "micro-batch that are fastest for it; GB are 2^30 bytes. The printed rates, 30 % in reserve.",
                ),
                *other,
            ),
            legend=(_policies(),),
            slowest=Ranking(
                title=f"Slowest {counted(len(slowest), 'layout')}",
                entries=slowest,
                lead="Of all layouts and policies, each with the largest micro-batch that fits.",
            ),
            name=_name,
            details=partial(details, found),
            num_detailed=num_detailed,
            summary=_summary(found),
            notes=tuple(note.text for note in best[0].projection.notes) if best else (),
        )
    )


def _of_first_table(found: AlmodelResult) -> Ranking[Ranked]:
    return Ranking(
        title="Layouts on the terms of the analysis's first table",
        entries=found.best,
        lead="The analysis printed this table with other rates than those of its hardware table, and with 25 % in "
        "reserve. FSDP at 131.5 GB/s, the rates of CP by group size and of DP are inferred from its rows; the "
        "formulas are the same. Layouts with an MFU of 20 % or more.",
    )


def _headers(found: AlmodelResult) -> tuple[Section, ...]:
    model, work, terms = found.model, found.workload, found.preset.terms
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
            found.cluster,
            work,
            [
                ("Measured rates by group size (GB/s)", _rates(terms)),
                ("PP ppermute", f"{terms.rates.bandwidth['p2p'][2] / GB:,.0f} GB/s (overlapped)"),
                ("FSDP overlap", f"{terms.overlap:.0%}"),
                ("XLA reserve", f"{terms.reserve:.0%}"),
                ("Total memory (no parallelism)", states),
            ],
        ),
    )


def _policies() -> Table:
    """Return the analysis's short names of policies."""
    rows = tuple((label, "save_all" if name == "none" else name) for name, label in LABELS.items())
    return Table(
        headings=(Heading(text="Remat", align="left"), Heading(text="Policy", align="left")), rows=rows
    )


def _rates(terms: Terms) -> str:
    return ", ".join(
        f"{short}={{{', '.join(f'{size}: {rate / GB:.1f}' for size, rate in terms.rates.bandwidth[kind].items())}}}"
        for kind, short in SHORT.items()
    )


def _name(one: Ranked) -> str:
    layout = one.strategy
    return (
        f"TP={layout.tp} DP={layout.dp_replicate} PP={layout.pp} EP={layout.ep} FSDP={one.fsdp} "
        f"CP={layout.cp} remat={policy_name(layout.recompute)}"
    )


def _summary(found: AlmodelResult) -> tuple[str, ...]:
    if not found.best or not found.slowest:
        return ()
    best, worst = found.best[0], found.slowest[0]
    low, high = (100 * one.projection.mfu_full_attention for one in (worst, best))
    return (
        f"Best layout: {_name(best)}",
        f"Best step time: {best.step.total:.3f}s, MFU: {high:.1f}%",
        f"MFU range: {low:.1f}% - {high:.1f}%",
        f"Step time range: {best.step.total:.3f}s - {worst.step.total:.3f}s",
        f"{found.num_candidates:,} layouts with policies and micro-batches; {found.num_feasible:,} layouts with "
        "policies fit",
    )
