"""The best layouts as a table."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table
from rich.text import Text

from forescale.cli.render import words
from forescale.search import Relaxation, SearchResult
from forescale.units import format_seconds

DEGREES = ("tp", "cp", "ep", "etp", "pp", "vpp")
ALWAYS = frozenset({"tp", "pp"})


def search_view(result: SearchResult) -> Group:
    """Return the assumptions, the ranking, how many layouts there were, and what limits the best."""
    first = result.best[0]
    header = Text.assemble(
        (first.model.name, "bold"),
        f" on {first.cluster.num_devices:,} × {first.cluster.name} · {words.workload(first.workload)}"
        f" · preset {first.preset}",
    )
    counts = (
        f"{result.num_legal:,} legal layouts, {result.num_feasible:,} fit; "
        f"evaluated in {result.elapsed_s:.2f} s; ranked by {result.objective.replace('_', ' ')}"
    )
    risky = any(one.memory.verdict != "FITS" for one in result.best)
    legend = (
        [Text("! above the device's memory at the upper end of its range", style="yellow")] if risky else []
    )
    gains = [_gain(item) for item in result.relaxations]
    notes = [Text(f"note ({note.topic}): {note.text}", style="yellow") for note in first.notes]
    return Group(header, "", _ranking(result), "", *legend, Text(counts), *gains, *notes)


def _ranking(result: SearchResult) -> Table:
    """Return one row per layout; degrees that are 1 everywhere have no column."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    degrees = [
        name
        for name in DEGREES
        if name in ALWAYS or any(getattr(one.strategy, name) > 1 for one in result.best)
    ]
    for name in ("#", *degrees, "dp", "zero", "mbs"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("variants")
    for name in ("step", "tok/s/dev", "MFU", "GiB"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("dominant", no_wrap=True)
    for place, one in enumerate(result.best, start=1):
        plan = one.strategy
        table.add_row(
            str(place),
            *(str(getattr(plan, name)) for name in degrees),
            words.replicas(plan),
            str(plan.zero),
            str(plan.micro_batch_size),
            words.variants(plan) or "–",
            format_seconds(one.step_time_s),
            f"{one.tokens_per_s_per_device:,.0f}",
            words.percent(one.mfu),
            words.gib(one.memory.peak_bytes) + (" " if one.memory.verdict == "FITS" else "!"),
            f"{one.dominant_cost} {words.percent(one.time_s[one.dominant_cost] / one.step_time_s, 0)}",
        )
    return table


def _gain(item: Relaxation) -> Text:
    step = format_seconds(item.step_time_s)
    return Text(f"{item.change}: {step} per step, {words.percent(item.gain)} less", style="dim")
