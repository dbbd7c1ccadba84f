"""Configurations of the search of Subramanian et al. 2024 as a table."""

from __future__ import annotations

from dataclasses import asdict

from rich.console import Group
from rich.table import Table
from rich.text import Text

from forescale.cli.render import words
from forescale.presets.subramanian2024 import Configuration, Ranked, StudyResult
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
    header = Text.assemble(
        (result.model.name, "bold"),
        f" on {result.cluster.num_devices:,} × {result.cluster.name} · seq_len {result.seq_len:,}"
        f" · global_batch_size {result.global_batch_size:,} · preset subramanian2024, {result.tensor_parallel}",
    )
    counts = (
        f"{counted(result.num_candidates, 'configuration')}, {result.num_feasible:,} fit; "
        f"evaluated in {result.elapsed_s:.3f} s; ranked by step time"
    )
    left_out = [name for name, kept in asdict(result.quirks).items() if not kept]
    notes = [Text(f"without {', '.join(left_out)}", style="dim")] if left_out else []
    return Group(header, "", _ranking(result), "", Text(counts), *notes)


def _ranking(result: StudyResult) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    degrees = ["tp1", "pp", "dp"] if result.tensor_parallel == "1d" else ["tp1", "tp2", "pp", "dp"]
    panels = ["panels"] if result.tensor_parallel == "summa" else []
    for name in ("#", *degrees, "mbs", "m", *panels):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column(f"of {result.cluster.tiers[0].size} near", no_wrap=True)
    for name in ("step", "samples/s", "GB", *TIMES.values()):
        table.add_column(name, justify="right", no_wrap=True)
    for place, one in enumerate(result.best, start=1):
        chosen = one.configuration
        table.add_row(
            str(place),
            *(str(getattr(chosen, name)) for name in degrees),
            str(chosen.micro_batch_size),
            str(chosen.num_microbatches),
            *(str(getattr(chosen, name)) for name in panels),
            _near(chosen),
            format_seconds(one.step_time_s),
            f"{one.samples_per_s:,.1f}",
            f"{one.memory_bytes.total / GB:.1f}",
            *_shares(one),
        )
    return table


def _near(chosen: Configuration) -> str:
    """Return which ranks share a fast domain, ones left out."""
    near = {name: count for name, count in asdict(chosen.placement).items() if count > 1}
    return " ".join(f"{name}:{count}" for name, count in near.items()) or "–"


def _shares(one: Ranked) -> list[str]:
    return [words.percent(getattr(one.time_s, name) / one.step_time_s) for name in TIMES]
