"""A whole run on one screen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import groupby
from math import isfinite
from typing import Any

from forescale.cli.render import words
from forescale.cli.render.search import layout_columns
from forescale.goodput.expected import PARTS, enough_spares
from forescale.projection.result import Interval, Projection
from forescale.question import Note
from forescale.report.document import (
    Column,
    Content,
    Table,
    TextLine,
    View,
    facts,
    line,
    listed,
    styled,
    table,
)
from forescale.units import counted, format_count, format_seconds, format_span
from forescale.whole_run import RunProjection
from forescale.whole_run.plans import EqualBudget, Plan, Plans

APART = ("left out", "sites", "layout", "devices", "schedule", "cluster", "length", "tokens", "framework")
"""Topics of notes that are shown of a run."""
VISIBLE = 0.005
"""Share of a range that a cause has at least to be named."""
RARELY = 0.05
"""Nodes away on average below which spares are not named."""
LITTLE = 100.0
"""What is below it is shown with three digits."""
SEEN = 5e-4
"""Share of the days that a part has at least to be listed."""
RARE = 0.5
"""Expected interruptions of a run below which closed forms of failures say nothing."""
CAUSES = 6
"""Causes of interruptions that are shown by name."""


def run_view(result: RunProjection) -> View:
    """Return phases, where the days go, interruptions, checkpoints, and what it costs."""
    first = result.phases[0].projection
    return View(
        title=words.asked(first.model, first.cluster, ""),
        lead=f"failures as {result.failures}",
        contents=(
            _answer(result),
            listed(_PHASES, result.rows()),
            *_layouts(result),
            *_too_large(result),
            *_days(result),
            facts(_facts(result)),
        ),
        notes=_apart(*(phase.projection for phase in result.phases)),
    )


def _answer(result: RunProjection) -> TextLine:
    """Return what is trained, how long it takes and what it costs, on one line."""
    tokens = format_count(sum(phase.tokens for phase in result.phases))
    low, high = words.days(result.days.low), words.days(result.days.high)
    took = f"{words.days(result.days.expected)} days{_hours(result)} ({low} to {high})"
    cost = ""
    if result.money is not None:
        amount = _amount(result.money.expected)
        cost = (
            f" for {result.currency} {amount}"
            if result.currency
            else f" for {amount} in the price's currency"
        )
    return line((f"{tokens} tokens in {took}{cost}", "bold"))


def _apart(*projections: Projection) -> tuple[Note, ...]:
    """Return once the notes on sites that train by themselves, and those on the layout in every phase."""
    message = dict.fromkeys(note for one in projections for note in one.notes if note.topic in APART)
    return tuple(
        item for item in message if item.topic == "sites" or all(item in one.notes for one in projections)
    )


def _layouts(result: RunProjection) -> list[TextLine]:
    """Return the layout of every phase, and how it was chosen; equal ones of neighbours once."""
    lines: list[TextLine] = []
    for (layout, origin), item in groupby(result.rows(), lambda row: (row["layout"], row["layout_origin"])):
        names = [row["phase"] for row in item]
        which = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
        text = "" if origin == "given" else f" ({origin})"
        lines.append(line(f"layout of phase {which}: {layout}{text}"))
    return lines


def _too_large(result: RunProjection) -> list[TextLine]:
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
            lines.append(line(f"{verdict} in {which}: {text}", style=words.VERDICT_STYLE[verdict]))
    return lines


_FIGURES: tuple[Column[Plan], ...] = (
    Column("+ spare nodes", lambda plan: str(plan.spares)),
    Column("saved every", lambda plan: format_span(plan.calendar.checkpoint_interval_s)),
    Column("step", lambda plan: format_seconds(plan.projection.step_time_s)),
    Column("days", lambda plan: words.days(plan.days)),
    Column(
        "8 in 10", lambda plan: "–".join(map(words.days, (plan.calendar.days.low, plan.calendar.days.high)))
    ),
    Column("goodput", lambda plan: words.percent(plan.calendar.goodput)),
    Column("cost", lambda plan: format_count(plan.cost)),
)


def plans_view(result: Plans) -> View:
    """Return the plan asked for, marked on the front of days against cost."""
    first = result.chosen.projection
    layouts: list[Column[Plan]] = layout_columns(
        [item.projection.strategy for item in result.front], lambda plan: plan.projection.strategy
    )
    columns = [
        *_FIGURES[:-1],
        Column("device-hours" if result.price is None else "cost", _FIGURES[-1].show),
        *layouts,
    ]
    rows = []
    for plan in result.front:
        selected = plan is result.chosen
        devices = f"{'▶ ' if selected else ''}{plan.projection.cluster.num_devices:,}"
        rows.append(styled("bold" if selected else "", (devices, *(column.show(plan) for column in columns))))
    return View(
        title=words.asked(first.model, first.cluster, ""),
        lead=words.workload(first.workload),
        contents=(
            table("devices", *(column.heading for column in columns), rows=rows, gap=1),
            line(
                f"{'the cheapest' if result.limits.deadline else 'the soonest'} of "
                f"{counted(result.num_tried, 'number')} of devices; the rows are the front: none is both sooner and "
                "cheaper than another"
            ),
            line(f"failures as {result.failures}", style="dim"),
        ),
        notes=_apart(first),
    )


def equal_budget_view(result: EqualBudget) -> View:
    """Return what each question gets for the money, and which is soonest."""
    plans = {name: plan for name, plan in result.found.items() if isinstance(plan, Plan)}
    columns = [column for column in _FIGURES if column.heading != "saved every"]
    rows = (
        (name, cluster.name, f"{cluster.num_devices:,}", *(column.show(plan) for column in columns))
        for name, plan in plans.items()
        for cluster in [plan.projection.cluster]
    )
    headings = ("<plan", "<cluster", "devices", *(column.heading for column in columns))
    contents: list[Content] = [table(*headings, rows=rows, gap=1)] if plans else []
    contents += [
        line(f"{name}: {why}", style="yellow") for name, why in result.found.items() if isinstance(why, str)
    ]
    if plans:
        contents.append(line(f"the soonest run of each for at most {format_count(result.budget)}"))
    if len(plans) > 1:
        soonest, *_, latest = sorted(plans, key=lambda name: plans[name].days)
        share = plans[soonest].days / plans[latest].days
        contents.append(line(f"{soonest} ends in {share:.0%} of the days of {latest}"))
    return View(contents=tuple(contents))


_PHASES: tuple[Column[dict[str, Any]], ...] = (
    Column("phase", lambda row: row["phase"]),
    Column("devices", lambda row: f"{row['devices']:,}"),
    Column("tokens", lambda row: format_count(row["tokens"])),
    Column("seq_len", lambda row: f"{row['seq_len']:,}"),
    Column("batch", lambda row: f"{row['global_batch_size']:,}"),
    Column("steps", lambda row: f"{row['steps']:,.0f}"),
    Column("step", lambda row: format_seconds(row["step_time_s"])),
    Column("MFU", lambda row: f"{row['mfu']:.1%}"),
    Column("memory", lambda row: words.verdict(row["verdict"])),
    Column("ideal days", lambda row: words.days(row["ideal_days"])),
)


def _days(result: RunProjection) -> list[Table]:
    """Return where the days go, without what takes next to none of them; nothing where all of them train."""
    total = sum(result.parts_days.values())
    rows = [
        (PARTS[name], f"{days:.2f}", f"{days / total:.1%}")
        for name, days in result.parts_days.items()
        if days > SEEN * total
    ]
    last = styled("bold", ("on the calendar", f"{total:.2f}", "100.0%"))
    return (
        [table("<where the days go, mean of the simulated runs", "days", "share", rows=[*rows, last])]
        if len(rows) > 1
        else []
    )


def _facts(result: RunProjection) -> list[tuple[str, str]]:
    saved = result.checkpoint
    rows = [
        (
            "days",
            f"{_range(result.days, words.days)}{_hours(result)}; {words.days(result.ideal_days)} without failures; "
            f"goodput {result.goodput:.1%} (steps that count, of all time){_causes(result.spread)}",
        ),
        ("interruptions", f"{_unexpected(result)}; {result.planned:.0f} planned"),
        (
            "checkpoints",
            f"{words.decimal_bytes(saved.bytes)} every {format_span(result.interval_s)}; training stops for "
            f"{saved.blocking:.3g} s, whole after {saved.written:.3g} s, read in "
            f"{saved.reload:.3g} s; written {saved.reload / result.interval_s:.1%} of the time",
        ),
        *_spares(result),
        ("device-hours", _range(result.device_hours, _amount)),
    ]
    if result.money is not None:
        rows.append(("money", _money(result, result.money)))
    if result.mwh:
        rows.append(("energy", _energy(result)))
    if result.closed_forms and sum(result.interruptions.values()) >= RARE:
        forms = result.closed_forms
        text = (
            f"goodput {forms['daly_goodput']:.1%} by Daly, {forms['kokolis_goodput']:.1%} by Kokolis (of "
            f"failures and checkpoints alone); best interval {format_span(forms['daly_interval_s'])} by Daly, "
            f"{format_span(forms['young_interval_s'])} by Young, {format_span(forms['events_interval_s'])} simulated"
        )
        rows.append(("formulas", text))
    return rows


def _unexpected(result: RunProjection) -> str:
    """Return the number of unexpected interruptions, by cause; the counts shown add up to it."""
    causes = sorted(result.interruptions.items(), key=lambda item: -item[1])
    counts = {cause: round(count) for cause, count in causes[:CAUSES] if count >= 1.0}
    total = round(sum(result.interruptions.values()))
    if counts and (others := total - sum(counts.values())) > 0:
        counts["others"] = others
    named = ", ".join(f"{cause} {count}" for cause, count in counts.items())
    apart = f", one every {format_span(result.mttf_s)}" if isfinite(result.mttf_s) else ""
    return f"{total} unexpected{apart}{f' ({named})' if named else ''}"


def _energy(result: RunProjection) -> str:
    """Return what whole nodes draw at most, where that is known, and what the devices do at their rated power."""
    hours, devices = words.HOURS * result.days.expected, result.device_hours.expected

    def figure(mwh: float) -> str:
        co2 = f"{_amount(result.tonnes_co2 / result.mwh * mwh)} t CO2"
        return f"{_energy_of(mwh)}, {_drawn(1e3 * mwh / hours)}, {co2}"

    bill = (
        ""
        if result.electricity is None
        else f"; electricity costs {_electricity(result.node_electricity, result.electricity)}"
    )
    power = result.phases[0].projection.cluster.device.power_w
    pue = 1e6 * result.mwh / devices / power
    rated = f"devices at their rated power of {power:,.0f} W {figure(result.mwh)}"
    if result.node_mwh:
        return (
            f"whole nodes, with hosts, up to {figure(result.node_mwh)}; {rated}; PUE {pue:.3g} included{bill}"
        )
    return f"{rated}; PUE {pue:.3g} included, hosts are not counted{bill}"


def _electricity(nodes: float | None, devices: float) -> str:
    """Return the cost of the energy: of whole nodes where their power is known, and of the devices."""
    return (
        _amount(devices)
        if nodes is None
        else f"{_amount(nodes)} for whole nodes, {_amount(devices)} for the devices"
    )


def _energy_of(mwh: float) -> str:
    return f"{_amount(mwh)} MWh" if mwh >= 1.0 else f"{_amount(1e3 * mwh)} kWh"


def _drawn(kilowatt: float) -> str:
    return f"{_amount(kilowatt / 1e3)} MW" if kilowatt >= LITTLE else f"{kilowatt:.3g} kW"


def _money(result: RunProjection, money: Interval) -> str:
    """Return the cost of a run and of a million tokens."""
    total = _range(money, _amount)
    total = f"{result.currency} {total}" if result.currency else f"{total} in the currency of the price given"
    millions = 1e-6 * sum(phase.tokens for phase in result.phases)
    return f"{total}; {_amount(money.expected / millions)} per million tokens{_causes(result.money_spread)}"


def _causes(spread: Mapping[str, float]) -> str:
    """Return what a range comes from, the largest first."""
    shares = [f"{name} {share:.0%}" for name, share in spread.items() if share >= VISIBLE]
    return f"; its range comes from {', '.join(shares)}" if shares else ""


def sites_view(document: Mapping[str, Any]) -> View:
    """Return the bandwidth between sites for each share of the time that computes."""
    outer = document["outer"]
    each_step = document["bandwidth_of_each_step_bit_per_s"]
    rows = (
        (f"{share} %", _bandwidth(bits), _bandwidth(each_step[share]))
        for share, bits in document["bandwidth_bit_per_s"].items()
    )
    return View(
        title=f"{document['model']} on {counted(document['num_sites'], 'site')}",
        lead=f"step of one by itself {format_seconds(document['site_step_s'])} · {outer['method']}, exchanged every "
        f"{counted(outer['every'], 'step')} in {counted(outer['fragments'], 'piece')}, overlapped with "
        f"{counted(outer['overlap'], 'step')}, {outer['bits']:g} bits",
        contents=(
            table("time computing", "Gbit/s of each site", "reduced in every step", rows=rows),
            line(
                f"at {8.0 * document['bandwidth'] / 1e9:,.4g} Gbit/s devices compute {document['utilisation']:.1%} of "
                "it; gradients reduced in every step would take "
                f"{format_seconds(document['every_step_s'])} a step"
            ),
            line("What exchanging less often does to the loss is not projected."),
        ),
    )


def _bandwidth(bits: float | None) -> str:
    return "none: it is the latency" if bits is None else f"{bits / 1e9:,.2f}"


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= LITTLE else f"{value:.3g}"


def _hours(result: RunProjection) -> str:
    """Return the hours of a short run."""
    days = result.days.expected
    return f" = {words.HOURS * days:.2g} hours" if days < words.SHORT else ""


def _spares(result: RunProjection) -> list[tuple[str, str]]:
    """Return how many nodes are away, and the spares that replace them; nothing where hardly any is."""
    away = result.nodes_away
    if away < RARELY:
        return []
    spares = result.operations.spares
    enough = counted(enough_spares(away), "spare")
    text = f"{away:.1f} away for repairs on average; {enough} would be enough 99 % of the time"
    return [("nodes", f"{text} ({'enough assumed' if spares is None else f'{spares} given'})")]


def _range(value: Interval, form: Callable[[float], str]) -> str:
    low, middle, high = (form(item) for item in (value.low, value.expected, value.high))
    return f"{middle} ({low} to {high}, 80 % interval)"
