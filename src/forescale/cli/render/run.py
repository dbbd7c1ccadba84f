"""A whole run on one screen."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from math import isfinite
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from forescale.cli.render import words
from forescale.cli.render.projection import VERDICT_STYLE
from forescale.cli.render.search import PLACEMENT, degrees_of, layout_cells
from forescale.cli.render.words import asked, table
from forescale.goodput.expected import PARTS
from forescale.goodput.operations import rates_of
from forescale.projection.result import Interval, Projection
from forescale.units import counted, format_count, format_seconds
from forescale.whole_run import RunProjection
from forescale.whole_run.plans import EqualBudget, Plan, Plans

APART = ("sites", "layout", "devices", "schedule", "cluster")
"""Topics of notes that are shown of a run."""
VISIBLE = 0.005
"""Share of a range that a cause has at least to be named."""
CAUSES = 6
"""Causes of interruptions that are shown by name."""


def run_view(result: RunProjection) -> Group:
    """Return phases, where the days go, interruptions, checkpoints, and what it costs."""
    first = result.phases[0].projection
    head = Text.assemble(
        (first.model.name, "bold"), f" on {first.cluster.name} · ",
        f"failures as {rates_of(result.operations).name}",
    )  # fmt: skip
    apart = _apart(*(phase.projection for phase in result.phases))
    return Group(
        head, "", _phases(result), "", *_layouts(result), *_too_large(result), "", _days(result), "",
        *_lines(result), *apart,
    )  # fmt: skip


def _apart(*found: Projection) -> list[Text]:
    """Return once what is said of sites that train by themselves, and of the layout in every phase."""
    message = dict.fromkeys(note for one in found for note in one.notes if note.topic in APART)
    return words.notes(
        [item for item in message if item.topic == "sites" or all(item in one.notes for one in found)]
    )


def _layouts(result: RunProjection) -> list[Text]:
    """Return the layout of every phase, and how it was chosen; equal ones of neighbours once."""
    lines: list[Text] = []
    for (layout, origin), item in groupby(result.rows(), lambda row: (row["layout"], row["layout_origin"])):
        names = [row["phase"] for row in item]
        which = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
        text = "" if origin == "given" else f" ({origin})"
        lines.append(Text(f"layout of phase {which}: {layout}{text}"))
    return lines


def _too_large(result: RunProjection) -> list[Text]:
    """Return which phases run out of memory, or may."""
    verdicts = (
        (
            "OOM",
            "the layout runs out of memory; the figures below ignore that. fit and search find layouts that fit",
        ),
        ("AT RISK", "the layout may run out of memory (upper end of the 80 % interval exceeds capacity)"),
    )
    lines = []
    for verdict, text in verdicts:
        if named := [row["phase"] for row in result.rows() if row["verdict"] == verdict]:
            which = f"phase{'s' if len(named) > 1 else ''} {', '.join(named)}"
            lines.append(Text(f"{verdict} in {which}: {text}", style=VERDICT_STYLE[verdict]))
    return lines


def plans_view(result: Plans) -> Group:
    """Return the plan asked for, marked on the front of days against cost."""
    first = result.chosen.projection
    head = asked(first.model, first.cluster, words.workload(first.workload), devices="")
    degrees = degrees_of([item.projection.strategy for item in result.front])
    cost = "device-hours" if result.price is None else "cost"
    figures = ("devices", "+ spare nodes", "saved every", "step", "days", "8 in 10", "goodput", cost)
    rows = table(*figures, *degrees, *PLACEMENT, "<variants", gap=1)
    for item in result.front:
        days = item.calendar.days
        rows.add_row(
            f"{'▶ ' if item is result.chosen else ''}{item.projection.cluster.num_devices:,}",
            str(item.spares),
            format_seconds(item.calendar.checkpoint_interval_s),
            format_seconds(item.projection.step_time_s),
            f"{item.days:,.1f}",
            f"{days.low:,.1f}–{days.high:,.1f}",
            words.percent(item.calendar.goodput),
            format_count(item.cost),
            *layout_cells(item.projection.strategy, degrees),
            style="bold" if item is result.chosen else None,
        )
    text = f"{'the cheapest' if result.limits.deadline else 'the soonest'} of {counted(result.num_tried, 'number')} of "
    text += "devices; the rows are the front: none is both sooner and cheaper than another"
    counted_as = Text(f"failures as {result.failures}", style="dim")
    return Group(head, "", rows, "", Text(text), counted_as, *_apart(first))


def equal_budget_view(result: EqualBudget) -> Group:
    """Return what each question gets for the money, and which is soonest."""
    rows = table(
        "<plan", "<cluster", "devices", "+ spare nodes", "step", "days", "8 in 10", "goodput", "cost", gap=1
    )
    plans = {name: plan for name, plan in result.found.items() if isinstance(plan, Plan)}
    for name, plan in plans.items():
        days, projection = plan.calendar.days, plan.projection
        rows.add_row(
            name,
            projection.cluster.name,
            f"{projection.cluster.num_devices:,}",
            str(plan.spares),
            format_seconds(projection.step_time_s),
            f"{plan.days:,.1f}",
            f"{days.low:,.1f}–{days.high:,.1f}",
            words.percent(plan.calendar.goodput),
            format_count(plan.cost),
        )
    problems = [
        Text(f"{name}: {why}", style="yellow") for name, why in result.found.items() if isinstance(why, str)
    ]
    message = problems
    if plans:
        message.append(Text(f"the soonest run of each for at most {format_count(result.budget)}"))
    if len(plans) > 1:
        soonest, *_, latest = sorted(plans, key=lambda name: plans[name].days)
        message.append(
            Text(f"{soonest} ends in {plans[soonest].days / plans[latest].days:.0%} of the days of {latest}")
        )
    return Group(*((rows, "") if plans else ()), *message)


def _phases(result: RunProjection) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in (
        "phase",
        "devices",
        "tokens",
        "seq_len",
        "batch",
        "steps",
        "step",
        "MFU",
        "memory",
        "ideal days",
    ):
        table.add_column(title, justify="right")
    for row in result.rows():
        table.add_row(
            row["phase"],
            f"{row['devices']:,}",
            format_count(row["tokens"]),
            f"{row['seq_len']:,}",
            f"{row['global_batch_size']:,}",
            f"{row['steps']:,.0f}",
            format_seconds(row["step_time_s"]),
            f"{row['mfu']:.1%}",
            Text(row["verdict"], style=VERDICT_STYLE[row["verdict"]]),
            f"{row['ideal_days']:.1f}",
        )
    return table


def _days(result: RunProjection) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("where the days go")
    table.add_column("days", justify="right")
    table.add_column("share", justify="right")
    total = sum(result.parts_days.values())
    for name, days in result.parts_days.items():
        if days > 0:
            table.add_row(f"{name}: {PARTS[name]}", f"{days:.2f}", f"{days / total:.1%}")
    table.add_row("on the calendar", f"{total:.2f}", "100.0%", style="bold")
    return table


def _lines(result: RunProjection) -> list[str]:
    saved = result.checkpoint
    causes = sorted(result.interruptions.items(), key=lambda item: -item[1])
    named = ", ".join(f"{cause} {count:.0f}" for cause, count in causes[:CAUSES] if count >= 1.0)
    apart = f", one every {format_seconds(result.mttf_s)}" if isfinite(result.mttf_s) else ""
    lines = [
        f"days           {_range(result.days, '{:,.1f}')}; {result.ideal_days:.1f} if nothing failed; "
        f"goodput {result.goodput:.1%}{_causes(result.spread)}",
        f"interruptions  {sum(result.interruptions.values()):.0f} unexpected{apart}"
        f"{f' ({named})' if named else ''}; {result.planned:.0f} planned",
        f"checkpoints    {saved.bytes / 1e12:.2f} TB every {format_seconds(result.interval_s)}; training stops for "
        f"{format_seconds(saved.blocking)}, whole after {format_seconds(saved.written)}, read in "
        f"{format_seconds(saved.reload)}; written {saved.reload / result.interval_s:.1%} of the time",
        f"device-hours   {_range(result.device_hours, '{:,.0f}')}",
    ]
    if result.money is not None:
        money = f"{result.currency} {_range(result.money, '{:,.0f}')}".lstrip()
        lines.append(f"money          {money}{_causes(result.money_spread)}")
    if result.mwh:
        lines.append(f"energy         {result.mwh:,.0f} MWh at rated power, {result.tonnes_co2:,.0f} t CO2")
    if result.closed_forms:
        forms = result.closed_forms
        lines.append(
            f"closed forms   Daly {forms['daly_goodput']:.1%}, best every {format_seconds(forms['daly_interval_s'])} "
            f"(Young {format_seconds(forms['young_interval_s'])}, of those simulated "
            f"{format_seconds(forms['events_interval_s'])}); Kokolis {forms['kokolis_goodput']:.1%}"
        )
    return lines


def _causes(spread: Mapping[str, float]) -> str:
    """Return what a range comes from, the largest first."""
    shares = [f"{name} {share:.0%}" for name, share in spread.items() if share >= VISIBLE]
    return f"\n               its range comes from {', '.join(shares)}" if shares else ""


def sites_view(document: Mapping[str, Any]) -> Group:
    """Return the bandwidth between sites for each share of the time that computes."""
    outer = document["outer"]
    head = (
        f"{document['model']} on {counted(document['num_sites'], 'site')} · step of one by itself "
        f"{format_seconds(document['site_step_s'])} · {outer['method']}, exchanged every "
        f"{counted(outer['every'], 'step')} in {counted(outer['fragments'], 'piece')}, overlapped with "
        f"{counted(outer['overlap'], 'step')}, {outer['bits']:g} bits"
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("computes", justify="right")
    table.add_column("Gbit/s of each site", justify="right")
    for share, bits in document["bandwidth_bit_per_s"].items():
        table.add_row(f"{share} %", "none: it is the latency" if bits is None else f"{bits / 1e9:,.2f}")
    used = (
        f"at {8.0 * document['bandwidth'] / 1e9:,.4g} Gbit/s devices compute {document['utilisation']:.1%} of it; "
        f"gradients reduced in every step would take {format_seconds(document['every_step_s'])} a step"
    )
    return Group(head, "", table, "", used, "What exchanging less often does to the loss is not projected.")


def _range(value: Interval, form: str) -> str:
    low, middle, high = (form.format(item) for item in (value.low, value.expected, value.high))
    return f"{middle} ({low} to {high} in 8 cases of 10)"
