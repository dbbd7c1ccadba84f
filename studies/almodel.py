"""Study of the ALModel parallelism strategy analysis.

`report.md` is what `forescale report --preset almodel` writes; `tables.md` has what each quirk of the analysis is
worth, and the same question under our own engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

from study import Output, Study, bounds, table
from winners import Winners

from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.models import load_model
from forescale.cli.formats.markdown import to_markdown
from forescale.presets.almodel import (
    QUESTION,
    Almodel,
    AlmodelResult,
    Quirks,
    Ranked,
    first_table_terms,
    measured_terms,
    search_almodel,
)
from forescale.presets.almodel.preset import POLICIES
from forescale.project import project
from forescale.projection.result import Projection
from forescale.question import Question
from forescale.report.almodel import almodel_report, policy_name
from forescale.spec import Cluster, Layout, Workload, phrases
from forescale.spec.space import Space
from forescale.units import GIB

MODEL = load_model(QUESTION.model)
CLUSTER = load_cluster(QUESTION.cluster, QUESTION.devices)
WORKLOAD = Workload(seq_len=QUESTION.seq_len, global_batch_size=QUESTION.global_batch_size)
COMPILED = Layout(graphs="full", zero=3)
"""XLA compiles the step: no launch waits for a host."""
SPACE = Space(zero=(3,), etp=(1,), cp_kind=("all_gather",), recompute=POLICIES, base=COMPILED)
MEASURED_RATE = 186e9
"""byte/s of the gather over 8 devices in the hardware table, in place of the nominal 600 GB/s."""


def output(winners: Winners) -> Output:
    """Return report, tables and figures."""
    result = search_almodel(MODEL, CLUSTER, WORKLOAD)
    other = search_almodel(
        MODEL, CLUSTER, WORKLOAD, preset=Almodel(terms=first_table_terms()), worst=0, least_mfu=0.2
    )
    quirks = quirk_cases()
    detailed = [(one, *own(one.strategy)) for one in result.best[:5]]
    best = {
        rate: winners.best(rate, question(cluster), top=5)
        for rate, cluster in ((NOMINAL, CLUSTER), (MEASURED, as_measured(CLUSTER)))
    }
    parts = ["# The ALModel analysis: tables", quirk_table(quirks), engine_table(detailed), best_table(best)]
    stages = winners.best("186 GB/s, pp 2", question(as_measured(CLUSTER)).with_space(pp=(2,)))
    figures = {
        **analysis_figures(result, quirks),
        **engine_figures(*detailed[0]),
        **best_figures(best[NOMINAL][0], best[MEASURED][0], stages[0], detailed[0][1]),
    }
    return Output(
        tables={
            "report.md": to_markdown(almodel_report(result, other)),
            "tables.md": "\n\n".join(parts) + "\n",
        },
        charts={},
        figures=figures,
        claims=claims(best, detailed[0][1]),
    )


def question(cluster: Cluster) -> Question:
    """Return what our own engine is asked."""
    return Question(model=MODEL, cluster=cluster, workload=WORKLOAD, space=SPACE)


def own(layout: Layout) -> tuple[Projection, Projection]:
    """Return a layout under our own engine, at the nominal rate and at the measured one."""
    nominal, measured = (
        project(MODEL, cluster, replace(layout, graphs="full"), WORKLOAD)
        for cluster in (CLUSTER, as_measured(CLUSTER))
    )
    return nominal, measured


def analysis_figures(almodel_result: AlmodelResult, quirks: Mapping[str, AlmodelResult]) -> dict[str, object]:
    """Return what the page says of the analysis."""
    first = almodel_result.best[0]
    without = {name: result.best[0] for name, result in quirks.items()}
    flops = first.projection.model_flops_full_attention_per_step
    return {
        "detailed_steps": bounds(float(one.step.total) for one in almodel_result.best[:5]),
        "steps": (first.step.total, almodel_result.slowest[0].step.total),
        "mfus": bounds(percent(one) for one in (*almodel_result.slowest, *almodel_result.best)),
        "petaflop": flops / 1e15,
        "num_candidates": almodel_result.num_candidates,
        "num_feasible": almodel_result.num_feasible,
        "more_feasible": almodel_result.num_feasible - quirks["without `scores_shrink_twice`"].num_feasible,
        "analysis": first,
        "analysis_short": short(first),
        "analysis_mfu": percent(first),
        "analysis_mfu_masked": first.projection.mfu,
        "without": {name.strip("`").split("`")[-1]: one.step.total for name, one in without.items()},
        "replay_gain": 1.0 - without["without `replays_everything`"].step.total / first.step.total,
        "bf16_best": layout(without["without `gathers_fp32`"]),
        "meant_best": short(without[MEANT]),
        "meant_mfu": percent(without[MEANT]),
        "division": almodel_result.best[2].step.total / first.step.total - 1.0,
    }


def engine_figures(one: Ranked, nominal: Projection, measured: Projection) -> dict[str, object]:
    """Return what the page says of the analysis's best layout under our own engine."""
    (stage,) = nominal.memory.stages
    divided = [
        project(MODEL, CLUSTER, replace(nominal.strategy, dp_replicate=n, dp_shard=128 // n), WORKLOAD)
        for n in (1, 2, 4)
    ]
    states = stage.weights_bytes + stage.gradients_bytes + stage.optimizer_bytes
    least, most = bounds(item.step_time_s for item in divided)
    return {
        "nominal": nominal,
        "measured": measured,
        "nominal_compute": compute(nominal),
        "nominal_exposed": exposed(nominal),
        "measured_exposed": exposed(measured),
        "analysis_exposed": one.step.communication,
        "analysis_gib": one.memory.total / GIB,
        "nominal_gib": nominal.memory.peak_bytes / GIB,
        "compute_ratio": compute(nominal) / one.step.compute,
        "moe_s": nominal.time_s["moe"],
        "own_division": most / least - 1.0,
        "more_states_gib": (states - one.memory.weights - one.memory.gradients - one.memory.optimizer) / GIB,
        "less_gib": (one.memory.total - nominal.memory.peak_bytes) / GIB,
        "overhead_gib": stage.overhead_bytes / GIB,
        "reserve_gib": one.memory.overhead / GIB,
        "less_activations_gib": (one.memory.activations - stage.activations_bytes) / GIB,
        "less_buffers_gib": (one.memory.buffers - stage.buffers_bytes) / GIB,
    }


def best_figures(
    nominal: Projection, slow: Projection, stages: Projection, published: Projection
) -> dict[str, object]:
    """Return what the page says of the best layouts of our own engine."""
    return {
        "best": nominal,
        "best_words": phrases.layout(nominal.strategy),
        "best_gib": nominal.memory.peak_bytes / GIB,
        "best_gain": published.step_time_s / nominal.step_time_s - 1.0,
        "slow": slow,
        "slow_words": phrases.layout(slow.strategy),
        "slow_gib": slow.memory.peak_bytes / GIB,
        "slow_micro": slow.strategy.micro_batch_size,
        "best_micro": nominal.strategy.micro_batch_size,
        "stages_behind": stages.step_time_s / slow.step_time_s - 1.0,
    }


def claims(best: Mapping[str, Sequence[Projection]], published: Projection) -> dict[str, bool]:
    """Return which statements of the page hold."""
    nominal, slow = best[NOMINAL][0], best[MEASURED][0]
    return {
        "The bottleneck is compute, not FSDP.": compute(published) > 5.0 * exposed(published),
        "The best layout recomputes whole layers": slow.strategy.recompute.granularity == "full",
        "its larger micro-batch": slow.strategy.micro_batch_size > nominal.strategy.micro_batch_size,
        "Expert parallelism loses in both": all(
            one.strategy.ep == 1 for item in best.values() for one in item
        ),
    }


NOMINAL, MEASURED = "600 GB/s (nominal)", "186 GB/s"
MEANT = "as meant (without any)"


def quirk_cases() -> dict[str, AlmodelResult]:
    """Return what the analysis finds with each quirk left out, and with all."""
    cases = {"as published": Quirks()}
    cases |= {f"without `{item.name}`": Quirks(**{item.name: False}) for item in fields(Quirks)}
    cases |= {MEANT: Quirks.none()}
    return {
        name: search_almodel(
            MODEL,
            CLUSTER,
            WORKLOAD,
            preset=Almodel(terms=replace(measured_terms(), quirks=quirks)),
            top=1,
            worst=1,
        )
        for name, quirks in cases.items()
    }


def quirk_table(quirks: Mapping[str, AlmodelResult]) -> str:
    """Return the best and the slowest layout with each quirk left out, and with all."""
    rows = []
    for name, quirk in quirks.items():
        best, worst = quirk.best[0], quirk.slowest[0]
        rows.append((name, short(best), seconds(best), f"{percent(best):.1f}", short(worst), seconds(worst)))
    return table("Quirks", ("", "best", "step (s)", "MFU (%)", "slowest that fits", "step (s)"), rows)


def engine_table(detailed: Sequence[tuple[Ranked, Projection, Projection]]) -> str:
    """Return the detailed configurations under the analysis and under our own engine."""
    rows = [
        (
            short(one),
            seconds(one),
            f"{local.step_time_s:.2f} ({local.step_time.low:.1f} to {local.step_time.high:.1f})",
            f"{measured.step_time_s:.2f}",
            f"{one.step.compute:.2f}",
            f"{compute(local):.2f}",
            f"{one.step.communication:.2f}",
            f"{exposed(local):.2f}",
            f"{exposed(measured):.2f}",
            f"{one.memory.total / GIB:.1f}",
            f"{local.memory.peak_bytes / GIB:.1f}",
        )
        for one, local, measured in detailed
    ]
    heads = (
        *("layout", "step (s)", "ours", "ours, measured rate", "compute (s)", "ours"),
        *("exposed communication (s)", "ours", "ours, measured rate", "memory (GiB)", "ours"),
    )
    return table("The five detailed configurations", heads, rows)


def best_table(best: Mapping[str, Sequence[Projection]]) -> str:
    """Return the best layouts of our own engine over all degrees, at the nominal rate and at the measured one."""
    rows = [
        (
            name,
            phrases.layout(one.strategy),
            f"{one.step_time_s:.2f}",
            f"{100 * one.mfu_full_attention:.1f}",
            f"{compute(one):.2f}",
            f"{exposed(one):.2f}",
            f"{one.memory.peak_bytes / GIB:.1f}",
        )
        for name, item in best.items()
        for one in item
    ]
    heads = ("network", "layout", "step (s)", "MFU (%)", "compute (s)", "exposed (s)", "GiB")
    return table("The best layouts under our own engine", heads, rows)


def as_measured(cluster: Cluster) -> Cluster:
    """Return the cluster with the measured rate on its network."""
    (tier,) = cluster.tiers
    links = 2 * tier.dimensions
    return replace(
        cluster, tiers=(replace(tier, bandwidth=MEASURED_RATE, link_bandwidth=MEASURED_RATE / links),)
    )


def layout(one: Ranked) -> str:
    """Return the degrees of a layout."""
    plan = one.strategy
    degrees = {"DP": plan.dp_replicate, "EP": plan.ep, "FSDP": one.fsdp, "CP": plan.cp}
    return " ".join(f"{name} {degree}" for name, degree in degrees.items() if degree > 1)


def short(one: Ranked) -> str:
    """Return a layout in few words."""
    return f"{layout(one)} {policy_name(one.strategy.recompute)}, PDB {one.per_device_batch:g}"


def seconds(one: Ranked) -> str:
    """Return the step time."""
    return f"{one.step.total:.2f}"


def percent(one: Ranked) -> float:
    """Return MFU without the mask, in percent."""
    return 100.0 * one.projection.mfu_full_attention


def compute(one: Projection) -> float:
    """Return seconds of compute, recompute included."""
    parts = ("attention", "ffn", "moe", "norm", "embedding", "head", "recompute")
    return sum(one.time_s[part] for part in parts)


def exposed(one: Projection) -> float:
    """Return seconds of exposed communication."""
    return sum(value for name, value in one.time_s.items() if name.endswith("_comm"))


STUDY = Study(name="almodel", output=output)
