"""Configurations of the search of Subramanian et al. 2024 as a table."""

from __future__ import annotations

from dataclasses import asdict
from operator import attrgetter

from forescale.cli.render import words
from forescale.presets.subramanian2024 import Configuration, StudyResult
from forescale.presets.subramanian2024.preset import Ranked
from forescale.report.document import Column, View, line, ranking
from forescale.units import GB, counted, format_seconds

TIMES = {
    "compute": "compute",
    "memory": "HBM",
    "tensor": "tp",
    "data": "dp",
    "pipeline": "pp",
    "bubble": "bubble",
}
"""Heading of each part of a step."""


def study_view(result: StudyResult) -> View:
    """Return the question, the ranking with shares of the step, and how many configurations there were."""
    left_out = [name for name, kept in asdict(result.quirks).items() if not kept]
    return View(
        title=words.asked(result.model, result.cluster),
        lead=f"seq_len {result.seq_len:,} · global_batch_size {result.global_batch_size:,} · preset subramanian2024, "
        f"{result.tensor_parallel}",
        contents=(
            ranking(_columns(result), result.best, gap=1),
            line(
                f"{counted(result.num_candidates, 'configuration')}, {result.num_feasible:,} fit; "
                f"evaluated in {result.elapsed_s:.3f} s; ranked by step time"
            ),
            *([line(f"without {', '.join(left_out)}", style="dim")] if left_out else []),
        ),
    )


def _columns(result: StudyResult) -> list[Column[Ranked]]:
    degrees = {name: name for name in ("tp1", "tp2", "pp", "dp")}
    if result.tensor_parallel == "1d":
        del degrees["tp2"]
    degrees |= {"mbs": "micro_batch_size", "m": "num_microbatches"}
    degrees |= {"panels": "panels"} if result.tensor_parallel == "summa" else {}

    def chosen(heading: str, name: str) -> Column[Ranked]:
        return Column(heading, lambda one: str(attrgetter(name)(one.configuration)))

    def share(heading: str, name: str) -> Column[Ranked]:
        return Column(heading, lambda one: words.percent(getattr(one.time_s, name) / one.step_time_s))

    return [
        *(chosen(heading, name) for heading, name in degrees.items()),
        Column(f"<of {result.cluster.tiers[0].size} near", lambda one: _near(one.configuration)),
        Column("step", lambda one: format_seconds(one.step_time_s)),
        *([Column("days", lambda one: f"{one.training_days:,.1f}")] if result.best[0].training_days else []),
        Column("?samples/s", lambda one: f"{one.samples_per_s:,.1f}"),
        Column("GB", lambda one: f"{one.memory_bytes.total / GB:.1f}"),
        *(share(heading, name) for name, heading in TIMES.items()),
    ]


def _near(configuration: Configuration) -> str:
    """Return which ranks share a fast domain, ones left out."""
    near = {name: count for name, count in asdict(configuration.placement).items() if count > 1}
    return " ".join(f"{name}:{count}" for name, count in near.items()) or "–"
