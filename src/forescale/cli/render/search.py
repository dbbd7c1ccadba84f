"""The best layouts as a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from forescale.cli.render import words
from forescale.cli.render.words import asked, table
from forescale.projection.result import AT_RISK, Projection
from forescale.search import ParetoResult, Relaxation, SearchResult
from forescale.spec import phrases
from forescale.spec.layout import Layout
from forescale.units import counted, format_count, format_seconds

PLACEMENT = ("dp", "zero", "mbs")
"""Columns of a layout after its degrees."""
DEGREES = ("tp", "cp", "ep", "etp", "pp", "vpp")
SURE = "✓"
FOLDED_LEGEND = (
    "+N: variants of this layout at least as fast as the last row shown (--all-variants ranks each of them)"
)
SMALL_FOLDED_LEGEND = (
    "+N: variants of this layout at least as small as the last row shown (--all-variants ranks each of them)"
)
VISIBLE = 5e-4
"""Least gain that a table shows."""
ALWAYS = frozenset({"tp", "pp"})


def search_view(result: SearchResult) -> Group:
    """Return the assumptions, the ranking, how many layouts there were, and what limits the best."""
    first = result.best[0]
    header = asked(first.model, first.cluster, f"{words.workload(first.workload)} · preset {first.preset}")
    least = "" if result.num_feasible_is_exact else "at least "
    counts = (
        f"{least}{result.num_feasible:,} fit; {result.num_evaluated:,} evaluated, the others excluded by bounds, in "
        f"{result.elapsed_s:.2f} s; ranked by {result.objective.replace('_', ' ')}"
    )
    style = "yellow" if result.gap > 0.0 else "bold"
    claims = [Text(result.claim, style=style), Text(f"held fixed: {'; '.join(map(str, result.held_fixed))}")]
    gains = _gains(result)
    notes = words.notes(first.notes)
    ranked: list[tuple[int | str, Projection]] = list(enumerate(result.best, start=1))
    sure = [] if result.surest is None or result.surest in result.best else [(SURE, result.surest)]
    legend = verdict_legend([one for _, one in (*ranked, *sure)])
    legend += [Text(line) for line in [result.margin] if line is not None]
    folded = FOLDED_LEGEND if result.objective == "step_time" else SMALL_FOLDED_LEGEND
    legend += [Text(folded, style="dim")] if any(result.variants) else []
    legend += [Text(f"the first: {words.calendar(first)}")] if first.training_days is not None else []
    shown = ranking([*ranked, *sure], cost=result.run_cost, variants=result.variants)
    return Group(
        header, *words.left_out(first.model), "", shown, "", *legend, *claims, Text(counts), *gains, *notes
    )


def ranking(
    ranked: Sequence[tuple[int | str, Projection]],
    *,
    cost: Callable[[Projection], float | None] = lambda _: None,
    variants: Sequence[int] = (),
) -> Table:
    """Return one row per layout and its place; degrees that are 1 everywhere have no column.

    Days, ideal and on the calendar, and `cost` of the whole run have one where they are known. The first rows stand for
    so many `variants` more.
    """
    names = degrees_of([one.strategy for _, one in ranked])
    sized = len({one.cluster.num_devices for _, one in ranked}) > 1
    scenarios = [words.scenario(one) for _, one in ranked]
    varied = len(set(scenarios)) > 1
    head = ("#", *(["devices"] if sized else []), *names, *PLACEMENT, "<variants")
    days = [f"{one.training_days:,.1f}" for _, one in ranked if one.training_days is not None]
    ends = [words.ends(one) for _, one in ranked] if days else []
    costs = [format_count(paid) for _, one in ranked if (paid := cost(one)) is not None]
    runs = {name: known for name, known in (("days", days), ("calendar", ends), ("cost", costs)) if known}
    figures = ("step", *runs, "tok/s/dev", "MFU", "GiB")
    rows = table(*head, *(["<numbers, overlap"] if varied else []), *figures, gap=1)
    rows.add_column("fit", no_wrap=True)
    rows.add_column("dominant", no_wrap=True)
    for row, ((place, one), scenario) in enumerate(zip(ranked, scenarios, strict=True)):
        rows.add_row(
            str(place),
            *([str(one.cluster.num_devices)] if sized else []),
            *layout_cells(one.strategy, names, variants[row] if row < len(variants) else 0),
            *([scenario] if varied else []),
            format_seconds(one.step_time_s),
            *(known[row] for known in runs.values()),
            f"{one.tokens_per_s_per_device:,.0f}",
            words.percent(one.mfu),
            words.gib(one.memory.peak_bytes),
            one.memory.verdict,
            f"{words.time_part(one.dominant_cost)} {words.percent(one.time_s[one.dominant_cost] / one.step_time_s, 0)}",
        )
    return rows


def degrees_of(layouts: Sequence[Layout]) -> list[str]:
    """Return the degrees worth a column: those that are not 1 everywhere."""
    return [
        name for name in DEGREES if name in ALWAYS or any(getattr(layout, name) > 1 for layout in layouts)
    ]


def layout_cells(layout: Layout, degrees: Sequence[str], folded: int = 0) -> list[str]:
    """Return a layout's cells under `degrees`, `PLACEMENT` and variants, of which so many more are `folded`."""
    return [
        *(str(getattr(layout, name)) for name in degrees),
        phrases.replicas(layout),
        str(layout.zero),
        str(layout.micro_batch_size),
        ", ".join(filter(None, [phrases.variants(layout), f"+{folded:,} more" if folded else ""])) or "–",
    ]


def verdict_legend(shown: Sequence[Projection]) -> list[Text]:
    """Return what AT RISK in the column `fit` means, if any layout is."""
    risky = any(one.memory.verdict == "AT RISK" for one in shown)
    return [Text(f"AT RISK: {AT_RISK}", style="yellow")] if risky else []


def legend_of(shown: Sequence[Projection]) -> list[Text]:
    """Return what the mark next to memory means, if any layout has it."""
    risky = any(one.memory.verdict != "FITS" for one in shown)
    return [Text(words.RISKY, style="yellow")] if risky else []


def _gains(result: SearchResult) -> list[RenderableType]:
    """Return what would gain: a line each, or a table where everything was relaxed."""
    if all(item.constraint == "memory" for item in result.relaxations):
        return [Text(f"with {_gain(item)}", style="dim") for item in result.relaxations]
    gaining = [item for item in result.relaxations if item.gain >= VISIBLE]
    rows = table("<relaxed", "<to", "step", "gain", "<by")
    for item in gaining:
        layout = "" if item.strategy is None else phrases.degrees(item.strategy)
        rows.add_row(
            item.constraint, item.change, format_seconds(item.step_time_s), words.percent(item.gain), layout
        )
    others = [item.change for item in result.relaxations if item.gain < VISIBLE]
    binding = result.binding
    renderable_types: list[RenderableType] = [""]
    if binding is None:
        return [*renderable_types, Text("nothing that was relaxed makes the best layout faster")]
    renderable_types += [rows, "", Text(f"{binding.constraint} binds most: {_gain(binding)}", style="bold")]
    return [*renderable_types, *([Text(f"no gain: {'; '.join(others)}", style="dim")] if others else [])]


def _gain(item: Relaxation) -> str:
    return f"{item.change}: {format_seconds(item.step_time_s)} per step, {words.percent(item.gain)} less"


def pareto_view(result: ParetoResult, *, most: int) -> Group:
    """Return the assumptions, at most `most` layouts spread over the front, and how many there were."""
    first = result.front[0]
    shown = [(place + 1, result.front[place]) for place in spread(len(result.front), most)]
    sizes = sorted({one.cluster.num_devices for one in result.front})
    devices = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
    rest = f"{words.workload(first.workload)} · preset {first.preset}"
    header = asked(first.model, first.cluster, rest, devices=f"{devices} × ")
    objectives = ", ".join(name.replace("_", " ") for name in result.objectives)
    counts = (
        f"{counted(result.num_legal, 'legal layout')}, {result.num_feasible:,} fit; {len(result.front):,} on the "
        f"front of {objectives}; evaluated in {result.elapsed_s:.2f} s"
    )
    left = len(result.front) - len(shown)
    more = [Text(f"{left} more between those shown (all with --json, --csv or a larger --top)", style="dim")]
    notes = words.notes(first.notes)
    legend = verdict_legend([one for _, one in shown])
    head = [header, *words.left_out(first.model), Text()]
    return Group(*head, ranking(shown), "", *legend, Text(counts), *(more if left else []), *notes)


def spread(count: int, most: int) -> list[int]:
    """Return at most `most` of the places below `count`, evenly spaced, first and last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(place * (count - 1) / max(1, most - 1)) for place in range(most)})


def refusals(rows: Sequence[tuple[str, int]]) -> Table:
    """Return the constraints that failed, with how many layouts each refused, most first."""
    result = table("<constraint", "layouts refused")
    for name, count in sorted(rows, key=lambda row: -row[1]):
        result.add_row(name, f"{count:,}")
    return result


def changes(rows: Sequence[tuple[str, str, str]]) -> Table:
    """Return what could be changed, to what, and what would come of it."""
    result = table("<change", "<to", "<then")
    for row in rows:
        result.add_row(*row)
    return result
