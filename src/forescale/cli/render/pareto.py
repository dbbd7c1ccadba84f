"""A Pareto front as a table."""

from __future__ import annotations

from rich.console import Group
from rich.text import Text

from forescale.cli.render import words
from forescale.cli.render.search import legend_of, ranking
from forescale.search import ParetoResult
from forescale.units import counted


def pareto_view(result: ParetoResult, *, most: int) -> Group:
    """Return the assumptions, at most `most` layouts spread over the front, and how many there were."""
    first = result.front[0]
    shown = [(place + 1, result.front[place]) for place in spread(len(result.front), most)]
    sizes = sorted({one.cluster.num_devices for one in result.front})
    devices = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
    header = Text.assemble(
        (first.model.name, "bold"),
        f" on {devices} × {first.cluster.name} · {words.workload(first.workload)} · preset {first.preset}",
    )
    objectives = ", ".join(name.replace("_", " ") for name in result.objectives)
    counts = (
        f"{counted(result.num_legal, 'legal layout')}, {result.num_feasible:,} fit; {len(result.front):,} on the "
        f"front of {objectives}; evaluated in {result.elapsed_s:.2f} s"
    )
    left = len(result.front) - len(shown)
    more = [Text(f"{left} more between those shown (all with --json, --csv or a larger --top)", style="dim")]
    notes = words.notes(first.notes)
    legend = legend_of([one for _, one in shown])
    head = [header, *words.left_out(first.model), Text()]
    return Group(*head, ranking(shown), "", *legend, Text(counts), *(more if left else []), *notes)


def spread(count: int, most: int) -> list[int]:
    """Return at most `most` of the places below `count`, evenly spaced, first and last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(place * (count - 1) / max(1, most - 1)) for place in range(most)})
