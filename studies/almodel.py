"""Report and tables of the study of the ALModel parallelism strategy analysis.

`python studies/almodel.py FOLDER` writes `report.md` (what `forescale report --preset almodel` writes) and `tables.md`:
what each quirk of the analysis is worth, and the same question under our own engine. It takes a minute or so.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path

from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.models import load_model
from forescale.presets.almodel import (
    QUESTION,
    Almodel,
    Quirks,
    Ranked,
    first_table_terms,
    measured_terms,
    search_almodel,
)
from forescale.presets.almodel.preset import POLICIES
from forescale.project import project
from forescale.projection.result import Projection
from forescale.report.almodel import almodel_report, policy_name
from forescale.report.document import to_markdown
from forescale.search import search
from forescale.spec import Cluster, Strategy, Workload, phrases
from forescale.spec.space import Space
from forescale.units import GIB

MODEL = load_model(QUESTION.model)
CLUSTER = load_cluster(QUESTION.cluster, QUESTION.devices)
WORKLOAD = Workload(seq_len=QUESTION.seq_len, global_batch_size=QUESTION.global_batch_size)
COMPILED = Strategy(graphs="full", zero=3)
"""XLA compiles the step: no launch waits for a host."""
SPACE = Space(zero=(3,), etp=(1,), cp_kind=("all_gather",), recompute=POLICIES, base=COMPILED)
MEASURED_RATE = 186e9
"""byte/s of the gather over 8 devices in the hardware table, in place of the nominal 600 GB/s."""


def main() -> None:
    """Write report and tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    found = search_almodel(MODEL, CLUSTER, WORKLOAD)
    other = search_almodel(
        MODEL, CLUSTER, WORKLOAD, preset=Almodel(terms=first_table_terms()), worst=0, least_mfu=0.2
    )
    (folder / "report.md").write_text(to_markdown(almodel_report(found, other)), encoding="utf-8")
    parts = ["# The ALModel analysis: tables", *quirk_table(), *engine_table(found.best[:5]), *best_table()]
    (folder / "tables.md").write_text("\n".join(parts) + "\n", encoding="utf-8")


def quirk_table() -> list[str]:
    """Return the best and the slowest layout with each quirk left out, and with all."""
    cases = {"as published": Quirks()}
    cases |= {f"without `{item.name}`": Quirks(**{item.name: False}) for item in fields(Quirks)}
    cases |= {"as meant (without any)": Quirks.none()}
    rows = []
    for name, quirks in cases.items():
        preset = Almodel(terms=replace(measured_terms(), quirks=quirks))
        found = search_almodel(MODEL, CLUSTER, WORKLOAD, preset=preset, top=1, worst=1)
        best, worst = found.best[0], found.slowest[0]
        rows.append((name, short(best), seconds(best), percent(best), short(worst), seconds(worst)))
    return table("Quirks", ("", "best", "step (s)", "MFU (%)", "slowest that fits", "step (s)"), rows)


def engine_table(best: Sequence[Ranked]) -> list[str]:
    """Return the detailed configurations under the analysis and under our own engine."""
    rows = []
    for one in best:
        own, measured = (
            project(MODEL, cluster, replace(one.strategy, graphs="full"), WORKLOAD)
            for cluster in (CLUSTER, as_measured(CLUSTER))
        )
        rows.append(
            (
                short(one),
                seconds(one),
                f"{own.step_time_s:.2f} ({own.step_time.low:.1f} to {own.step_time.high:.1f})",
                f"{measured.step_time_s:.2f}",
                f"{one.step.compute:.2f}",
                f"{compute(own):.2f}",
                f"{one.step.communication:.2f}",
                f"{exposed(own):.2f}",
                f"{exposed(measured):.2f}",
                f"{one.memory.total / GIB:.1f}",
                f"{own.memory.peak_bytes / GIB:.1f}",
            )
        )
    heads = (
        *("layout", "step (s)", "ours", "ours, measured rate", "compute (s)", "ours"),
        *("exposed communication (s)", "ours", "ours, measured rate", "memory (GiB)", "ours"),
    )
    return table("The five detailed configurations", heads, rows)


def best_table() -> list[str]:
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
        for name, cluster in (("600 GB/s (nominal)", CLUSTER), ("186 GB/s", as_measured(CLUSTER)))
        for one in search(MODEL, cluster, WORKLOAD, space=SPACE, top=5).best
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


def short(one: Ranked) -> str:
    """Return a layout in few words."""
    layout = one.strategy
    degrees = {"DP": layout.dp_replicate, "EP": layout.ep, "FSDP": one.fsdp, "CP": layout.cp}
    words = [f"{name} {degree}" for name, degree in degrees.items() if degree > 1]
    return " ".join([*words, f"{policy_name(layout.recompute)}, PDB {one.per_device_batch:g}"])


def seconds(one: Ranked) -> str:
    """Return the step time."""
    return f"{one.step.total:.2f}"


def percent(one: Ranked) -> str:
    """Return MFU without the mask."""
    return f"{100 * one.projection.mfu_full_attention:.1f}"


def compute(one: Projection) -> float:
    """Return seconds of compute, recompute included."""
    parts = ("attention", "ffn", "moe", "norm", "embedding", "head", "recompute")
    return sum(one.time_s[part] for part in parts)


def exposed(one: Projection) -> float:
    """Return seconds of exposed communication."""
    return sum(value for name, value in one.time_s.items() if name.endswith("_comm"))


def table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a Markdown table under a heading."""
    lines = [f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *rows)]
    return ["", f"## {title}", "", *lines]


if __name__ == "__main__":
    main()
