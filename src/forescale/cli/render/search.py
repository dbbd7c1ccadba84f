"""The best layouts as a table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple, TypeVar

from forescale.catalogue.frameworks import first_releases
from forescale.cli.render import words
from forescale.projection.result import AT_RISK, Projection
from forescale.report.document import Code, Column, Content, Table, TextLine, View, line, listed, table
from forescale.search import ParetoResult, Relaxation, SearchResult
from forescale.spec import phrases
from forescale.spec.layout import Layout
from forescale.units import counted, format_count, format_seconds

E = TypeVar("E")
DEGREES = ("tp", "cp", "ep", "etp", "pp", "vpp")
ALWAYS = frozenset({"tp", "pp"})
SURE = "✓"
FOLDED_LEGEND = (
    "+N: variants of this layout at least as {} as the last row shown (--all-variants ranks each of them)"
)
VISIBLE = 5e-4
"""Least gain that a table shows."""


class RankedRow(NamedTuple):
    """A row of a ranking: a layout, its place, and how many variants it represents."""

    place: int | str
    found: Projection
    folded: int = 0


def search_view(result: SearchResult, *, again: str = "") -> View:
    """Return the assumptions, the ranking, how many layouts there were, and what limits the best.

    The best layout that fits with margin is the first row, whatever its place.
    """
    first = result.best[0]
    least = "" if result.num_feasible_is_exact else "at least "
    counts = (
        f"{least}{result.num_feasible:,} fit; {_evaluated(result)} in "
        f"{result.elapsed_s:.2f} s; ranked by {result.objective.replace('_', ' ')}"
    )
    ranked = [
        RankedRow(place, one, folded)
        for place, (one, folded) in enumerate(zip(result.best, result.variants, strict=True), start=1)
    ]
    places = {id(row.found): row for row in ranked}
    sure = [places.get(id(result.surest), RankedRow(SURE, result.surest))] if result.surest else []
    rows = [*sure, *(row for row in ranked if row not in sure)]
    held = "; ".join(map(str, result.held_fixed))
    folded = FOLDED_LEGEND.format("fast" if result.objective == "step_time" else "small")
    return View(
        title=words.asked(first.model, first.cluster),
        lead=words.lead(first.workload, first.preset),
        contents=(
            ranking(rows, cost=result.run_cost),
            *verdict_legend(item.found for item in rows),
            *_margin(result, sure),
            *([line(folded, style="dim")] if any(result.variants) else []),
            *([line(f"#1: {words.calendar(first)}")] if words.ends(first) else []),
            line(
                "; ".join(
                    f"{_called(row)}: {words.rate(row.found)}"
                    for row in rows
                    if row in sure or row.place == 1
                )
            ),
            line(result.claim, style="yellow" if result.gap > 0.0 else "bold"),
            *([line(f"held fixed: {held}")] if held else []),
            *_needed(result),
            *_gains(result),
            *([Code("to reproduce", again)] if again else []),
        ),
        details=(line(counts),),
        notes=first.notes,
    )


def _margin(result: SearchResult, sure: Sequence[RankedRow]) -> list[TextLine]:
    """Return which layout fits with margin where the first may not, with the mark of its row."""
    mark = f"{SURE}: " if any(row.place == SURE for row in sure) else ""
    return [] if result.margin is None else [line(f"{mark}{result.margin}")]


def _called(row: RankedRow) -> str:
    """Return what lines below a ranking call one of its rows."""
    return SURE if row.place == SURE else f"#{row.place}"


def _needed(result: SearchResult) -> list[TextLine]:
    """Return the settings of the first layout that recipes of its framework have had since some release only."""
    if (framework := result.question.framework) is None:
        return []
    releases = first_releases(framework.name, result.best[0].strategy)
    text = ", ".join(f"{setting} (from {release} on)" for setting, release in releases.items())
    return [line(f"#1 needs, by recipes of {framework.name}: {text}")] if text else []


def _evaluated(result: SearchResult) -> str:
    """Return how many layouts were evaluated; a published analysis evaluates all of them."""
    if result.question.preset != "default":
        return "all evaluated"
    return f"{result.num_evaluated:,} evaluated, the others excluded by bounds,"


def ranking(
    ranked: Sequence[RankedRow], *, cost: Callable[[Projection], float | None] = lambda _: None
) -> Table:
    """Return one row per layout and its place; degrees that are 1 everywhere have no column.

    Days, ideal and on the calendar, and `cost` of the whole run have one where they are known.
    """
    return listed(_columns([item.found for item in ranked], cost), ranked, gap=1)


def _columns(
    projections: Sequence[Projection], cost: Callable[[Projection], float | None]
) -> list[Column[RankedRow]]:
    sized = len({one.cluster.num_devices for one in projections}) > 1
    scenarios = [words.scenario(one) for one in projections]
    shared = set.intersection(*map(set, scenarios))
    varied = any(set(each) - shared for each in scenarios)
    of_all = "" if shared.isdisjoint(item[0] for item in scenarios) else "overlap"
    timed, dated = projections[0].training_days is not None, words.ends(projections[0]) is not None
    days = "?days" if dated else "days"
    layouts: list[Column[RankedRow]] = layout_columns(
        [one.strategy for one in projections], lambda item: item.found.strategy, lambda item: item.folded
    )
    columns: list[tuple[bool, Column[RankedRow]]] = [
        (True, Column("#", lambda item: str(item.place))),
        (sized, Column("devices", lambda item: str(item.found.cluster.num_devices))),
        *((True, column) for column in layouts),
        (varied, Column(f"<{of_all or 'numbers, overlap'}", lambda item: _apart(item.found, shared))),
        (True, Column("step", lambda item: format_seconds(item.found.step_time_s))),
        (timed, Column(days, lambda item: f"{item.found.training_days or 0.0:,.1f}")),
        (dated, Column("calendar", lambda item: words.ends(item.found) or "")),
        (
            cost(projections[0]) is not None,
            Column("cost", lambda item: format_count(cost(item.found) or 0.0)),
        ),
        (True, Column("tok/s/dev", lambda item: f"{item.found.tokens_per_s_per_device:,.0f}")),
        (True, Column("MFU", lambda item: words.percent(item.found.mfu))),
        (True, Column("GiB", lambda item: words.gib(item.found.memory.peak_bytes))),
        (True, Column("|fit", lambda item: item.found.memory.verdict)),
        (True, Column("?|dominant", lambda item: _dominant(item.found))),
    ]
    return [column for shown, column in columns if shown]


def _apart(one: Projection, shared: Collection[str]) -> str:
    """Return the precision and overlap of a layout that not all rows have."""
    return " ".join(word for word in words.scenario(one) if word not in shared) or "–"


def _dominant(one: Projection) -> str:
    share = words.percent(one.time_s[one.dominant_cost] / one.step_time_s, 0)
    return f"{words.time_part(one.dominant_cost)} {share}"


def layout_columns(
    layouts: Iterable[Layout], of: Callable[[E], Layout], folded: Callable[[E], int] | None = None
) -> list[Column[E]]:
    """Return the columns of a layout: degrees that are not 1 in all `layouts`, data parallelism, and variants.

    Variants are left out where nothing is `folded` and no layout has other choices than the usual ones.
    """
    several = list(layouts)
    names = [name for name in DEGREES if name in ALWAYS or any(getattr(item, name) > 1 for item in several)]

    def degree(name: str) -> Column[E]:
        return Column(name, lambda item: str(getattr(of(item), name)))

    def variants(entry: E) -> str:
        more = f"+{count:,} more" if folded is not None and (count := folded(entry)) else ""
        return ", ".join(filter(None, [phrases.variants(of(entry)), more])) or "–"

    return [
        *map(degree, names),
        Column("dp", lambda item: phrases.replicas(of(item))),
        degree("zero"),
        Column("mbs", lambda item: str(of(item).micro_batch_size)),
        *(
            [Column("<variants", variants)]
            if folded is not None or any(map(phrases.variants, several))
            else []
        ),
    ]


def verdict_legend(shown: Iterable[Projection]) -> list[TextLine]:
    """Return what AT RISK in the column `fit` means, if any layout is."""
    risky = any(one.memory.verdict == "AT RISK" for one in shown)
    return [line(f"AT RISK: {AT_RISK}", style="yellow")] if risky else []


def legend_of(shown: Iterable[Projection]) -> list[TextLine]:
    """Return what the mark next to memory means, if any layout has it."""
    risky = any(one.memory.verdict != "FITS" for one in shown)
    return [line(words.RISKY, style="yellow")] if risky else []


def _gains(result: SearchResult) -> list[Content]:
    """Return what would gain: a line each, or a table where everything was relaxed."""
    if all(item.constraint == "memory" for item in result.relaxations):
        return [line(f"with {_gain(item)}", style="dim") for item in result.relaxations]
    binding = result.binding
    if binding is None:
        return [line("nothing that was relaxed makes the best layout faster")]
    gaining = [item for item in result.relaxations if item.gain >= VISIBLE]
    others = [item.change for item in result.relaxations if item.gain < VISIBLE]
    columns: list[Column[Relaxation]] = [
        Column("<relaxed", lambda item: item.constraint),
        Column("<to", lambda item: item.change),
        Column("step", lambda item: format_seconds(item.step_time_s)),
        Column("gain", lambda item: words.percent(item.gain)),
        Column("<by", lambda item: "" if item.strategy is None else phrases.degrees(item.strategy)),
    ]
    return [
        listed(columns, gaining),
        line(f"{binding.constraint} binds most: {_gain(binding)}", style="bold"),
        *([line(f"no gain: {'; '.join(others)}", style="dim")] if others else []),
    ]


def _gain(item: Relaxation) -> str:
    return f"{item.change}: {format_seconds(item.step_time_s)} per step, {words.percent(item.gain)} less"


def pareto_view(result: ParetoResult, *, most: int) -> View:
    """Return the assumptions, at most `most` layouts spread over the front, and how many there were."""
    first = result.front[0]
    shown = [RankedRow(place + 1, result.front[place]) for place in spread(len(result.front), most)]
    sizes = sorted({one.cluster.num_devices for one in result.front})
    devices = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
    objectives = ", ".join(name.replace("_", " ") for name in result.objectives)
    counts = (
        f"{counted(result.num_legal, 'legal layout')}, {result.num_feasible:,} fit; {len(result.front):,} on the "
        f"front of {objectives}; evaluated in {result.elapsed_s:.2f} s"
    )
    left = len(result.front) - len(shown)
    more = [line(f"{left} more between those shown (all with --json, --csv or a larger --top)", style="dim")]
    return View(
        title=words.asked(first.model, first.cluster, f"{devices} × "),
        lead=words.lead(first.workload, first.preset),
        contents=(
            ranking(shown),
            *verdict_legend(item.found for item in shown),
            line(counts),
            *(more if left else []),
        ),
        notes=first.notes,
    )


def spread(count: int, most: int) -> list[int]:
    """Return at most `most` of the places below `count`, evenly spaced, first and last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(place * (count - 1) / max(1, most - 1)) for place in range(most)})


def infeasible_view(rows: Iterable[tuple[str, int]], remedies: Sequence[tuple[str, str, str]]) -> View:
    """Return the constraints that failed, with how many layouts each refused, and which changes were tried."""
    refused = ((name, f"{count:,}") for name, count in sorted(rows, key=lambda row: -row[1]))
    tried = [table("<change", "<to", "<then", rows=remedies)] if remedies else []
    return View(contents=(table("<constraint", "layouts refused", rows=refused), *tried))
