"""Configurations of the search of Subramanian et al. 2024 as a table."""

from __future__ import annotations

from dataclasses import asdict

from rich.console import Group
from rich.table import Table
from rich.text import Text

from forescale.cli.render import words
from forescale.cli.render.words import asked, table
from forescale.presets.subramanian2024 import Configuration, StudyResult
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


def study_view(result: StudyResult) -> Group:
    """Return the question, the ranking with shares of the step, and how many configurations there were."""
    rest = (
        f"seq_len {result.seq_len:,} · global_batch_size {result.global_batch_size:,} · preset subramanian2024, "
        f"{result.tensor_parallel}"
    )
    counts = (
        f"{counted(result.num_candidates, 'configuration')}, {result.num_feasible:,} fit; "
        f"evaluated in {result.elapsed_s:.3f} s; ranked by step time"
    )
    left_out = [name for name, kept in asdict(result.quirks).items() if not kept]
    notes = [Text(f"without {', '.join(left_out)}", style="dim")] if left_out else []
    return Group(asked(result.model, result.cluster, rest), "", _ranking(result), "", Text(counts), *notes)


def _ranking(result: StudyResult) -> Table:
    degrees = ["tp1", "pp", "dp"] if result.tensor_parallel == "1d" else ["tp1", "tp2", "pp", "dp"]
    panels = ["panels"] if result.tensor_parallel == "summa" else []
    near = f"<of {result.cluster.tiers[0].size} near"
    figures = ("step", "samples/s", "GB", *TIMES.values())
    rows = table("#", *degrees, "mbs", "m", *panels, near, *figures, gap=1)
    for place, one in enumerate(result.best, start=1):
        configuration = one.configuration
        rows.add_row(
            str(place),
            *(str(getattr(configuration, name)) for name in degrees),
            str(configuration.micro_batch_size),
            str(configuration.num_microbatches),
            *(str(getattr(configuration, name)) for name in panels),
            _near(configuration),
            format_seconds(one.step_time_s),
            f"{one.samples_per_s:,.1f}",
            f"{one.memory_bytes.total / GB:.1f}",
            *(words.percent(getattr(one.time_s, name) / one.step_time_s) for name in TIMES),
        )
    return rows


def _near(configuration: Configuration) -> str:
    """Return which ranks share a fast domain, ones left out."""
    near = {name: count for name, count in asdict(configuration.placement).items() if count > 1}
    return " ".join(f"{name}:{count}" for name, count in near.items()) or "–"
