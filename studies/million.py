"""Study of runs of 1e26 to 1e28 FLOP on up to a million devices: the cases of examples/million.toml."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from charts import Chart, degree_chart, dot_chart, stack_chart, titled
from study import Output, Study, bounds, table
from winners import Winners

from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.models import load_model
from forescale.cost.mesh import Group
from forescale.cost.select import Costs
from forescale.errors import SpecError
from forescale.goodput.operations import calendar
from forescale.graph.counts import count_parameters
from forescale.graph.ops import CollectiveKind
from forescale.projection.result import Calendar, Projection
from forescale.question import Question
from forescale.spec import Cluster, Workload
from forescale.spec.cluster import LinkParameters
from forescale.spec.operations import Operations
from forescale.sweep import read_sweep
from forescale.sweep.columns import COMMUNICATION
from forescale.units import format_seconds
from forescale.view.axes import SERIES
from forescale.whole_run.prices import published_prices

SWEEP = Path(__file__).parents[1] / "examples" / "million.toml"
MODEL = load_model("llama-3.1-405b")
PARAMETERS = count_parameters(MODEL).total
FLOP = {41e12: "1e26", 410e12: "1e27", 4100e12: "1e28"}
"""By tokens of the run."""
TOKENS = 41e12
SIZES = (16384, 65536, 262144, 1048576)
GRID = {"H100": "h100-sxm", "GB200": "gb200-nvl72"}
ANNOUNCED = ("Colossus", "Colossus 2", "Project Rainier", "OCI Zettascale10", "Anthropic's TPUs")
RESTARTS = (1000.0, 300.0, 60.0)
"""Seconds: Llama 3's upper bound, and what-ifs."""
PARTS = {
    "training": ("goodput", SERIES[0]),
    "restarting": ("infrastructure_recovery_from_disruption", SERIES[1]),
    "planned interruptions": ("custom_badput_events", SERIES[3]),
    "done again": ("wasted_progress_from_disruption", SERIES[4]),
    "reading states": ("unproductive_checkpoint_restore_time", SERIES[5]),
}
"""Of the calendar: its name in ml-goodput, its colour."""
Row = dict[str, Any]
Known = Mapping[str, Projection]
"""The best layout of every case."""


def best_layouts(winners: Winners) -> dict[str, Projection]:
    """Return the best layout of every case of the sweep, which is the same for all tokens."""
    sweep = read_sweep(SWEEP)
    result = {}
    for point in sweep.asked:
        shown = dict(zip(sweep.axes.names, point.shown, strict=True))
        if shown["tokens"] == TOKENS:
            assert point.question is not None
            result[str(shown["case"])] = winners.best(str(shown["case"]), point.question)[0]
    return result


def named(machine: str, devices: int) -> str:
    """Return the case of a machine of so many devices."""
    return f"{machine}, {devices:,}"


def days(one: Projection, restart: float, tokens: float = TOKENS) -> Calendar | None:
    """Return the calendar of a layout with another restart; None where it never ends."""
    work = replace(one.workload, tokens=tokens)
    try:
        return calendar(PARAMETERS, one.cluster, work, one.step_time, Operations(restart=restart))
    except SpecError:
        return None


def said_days(result: Calendar | None) -> str:
    """Return days with their range."""
    if result is None:
        return "never ends"
    return f"{result.days.expected:,.0f} ({result.days.low:,.0f} to {result.days.high:,.0f})"


def share(value: float | None) -> str:
    """Return a share in percent."""
    return "–" if value is None else f"{100.0 * value:.1f} %"


def goodput(result: Calendar | None) -> float | None:
    """Return the share of the calendar that trains."""
    return None if result is None else result.goodput


def layout(one: Projection) -> str:
    """Return the degrees of a layout."""
    plan = one.strategy
    names = ("tp", "cp", "pp", "vpp", "dp_replicate", "dp_shard")
    degrees = [f"{name} {getattr(plan, name)}" for name in names if getattr(plan, name) > 1]
    return " ".join([*degrees, f"zero {plan.zero}"])


def megawatts(one: Projection) -> float:
    """Return what the devices draw at their rated power with the overhead of their data centre."""
    pue = published_prices().pue
    return float(one.cluster.num_devices) * one.cluster.device.power_w * (pue.value if pue else 1.0) / 1e6


def gigawatt_hours(one: Projection, result: Calendar) -> float:
    """Return the energy of a run."""
    return 24.0 * result.days.expected * megawatts(one) / 1e3


def hourly(one: Projection) -> float:
    """Return the published price of an hour of a device, 0 where none is known."""
    price = published_prices().price(one.cluster.device.name)
    return 0.0 if price is None else price[0].expected


def millions(one: Projection, result: Calendar) -> float:
    """Return the price of the device hours of a run, in millions."""
    return one.cluster.num_devices * 24 * result.days.expected * hourly(one) / 1e6


def grid_rows(known: Known) -> Iterator[tuple[str, ...]]:
    """Yield what every size of both machines takes for 1e26 FLOP."""
    for machine in GRID:
        for devices in SIZES:
            one = known[named(machine, devices)]
            result = one.calendar
            yield (
                *(machine, f"{devices:,}", layout(one), f"{one.step_time_s:.2f}", share(one.mfu)),
                f"{one.training_days:.1f}",
                said_days(result),
                *(share(goodput(result)), f"{megawatts(one):,.0f}"),
                "–" if result is None else f"{gigawatt_hours(one, result):,.0f}",
                "–" if result is None else f"{millions(one, result):,.0f}",
            )


def restart_rows(known: Known) -> Iterator[tuple[str, ...]]:
    """Yield goodput by restart and size of H100."""
    for restart in RESTARTS:
        result = [days(known[named("H100", devices)], restart) for devices in SIZES]
        yield (f"{restart:,.0f} s", *(share(goodput(one)) for one in result))


def announced_rows(known: Known) -> Iterator[tuple[str, ...]]:
    """Yield days of every size of run on the machines that were announced, ideal and with restarts of a minute."""
    for name in ANNOUNCED:
        one = known[name]
        ends = [days(one, RESTARTS[-1], tokens) for tokens in FLOP]
        yield (
            *(name, f"{one.cluster.num_devices:,} {one.cluster.device.name}", layout(one), share(one.mfu)),
            *(f"{one.training_days:.1f}", f"{megawatts(one):,.0f}" if megawatts(one) else "–"),
            said_days(one.calendar),
            *("never ends" if end is None else f"{end.days.expected:,.0f}" for end in ends),
        )


HIERARCHICAL = ("ring", "tree", "hierarchical", "in_network", "direct_exchange", "p2p")
"""What the library is given beside what it has: tier by tier, reduce-scatter outwards and all-gather back in."""


def altered(cluster: Cluster, *, sharp: bool = False, hierarchical: bool = False) -> Cluster:
    """Return the cluster with reduction in its outer switches, or with hierarchical collectives."""
    *inner, last = cluster.tiers
    if sharp:
        last = replace(last, in_network_reduction=True)
    if hierarchical:
        last = replace(last, parameters=LinkParameters(algorithms=HIERARCHICAL))
    return replace(cluster, tiers=(*inner, last))


CHANGES = {"as it is": {}, "hierarchical": {"hierarchical": True}, "SHARP": {"sharp": True}}
BYTES = 2.0**30
SUMS: tuple[CollectiveKind, ...] = ("all_reduce", "reduce_scatter")


def collective_rows() -> Iterator[tuple[str, ...]]:
    """Yield the time of a GiB over all devices by what the network can do."""
    for machine, cluster in GRID.items():
        for devices in (SIZES[1], SIZES[-1]):
            value, group = load_cluster(cluster, devices), Group(size=float(devices))
            for name, change in CHANGES.items():
                model = Costs().collective_model(altered(value, **change))
                times = (float(model.seconds(kind=kind, num_bytes=BYTES, group=group)) for kind in SUMS)
                yield (machine, f"{devices:,}", name, *map(format_seconds, times))


NETWORKS = [(machine, devices) for machine in GRID for devices in (SIZES[1], SIZES[-1])]
Steps = Mapping[tuple[str, int], tuple[float, float, float]]
"""Seconds of the best step as it is, with hierarchical collectives and with SHARP."""


def best_steps(known: Known, winners: Winners) -> Steps:
    """Return the best step by what the network can do; the sweep has those with and without SHARP."""
    result = {}
    for machine, devices in NETWORKS:
        name = named(machine, devices)
        question = Question(
            model=MODEL,
            cluster=altered(load_cluster(GRID[machine], devices), hierarchical=True),
            workload=Workload(seq_len=8192, global_batch_size=8192),
        )
        tiered = winners.best(f"{name}, hierarchical", question)[0]
        result[machine, devices] = (
            known[name].step_time_s,
            tiered.step_time_s,
            known[f"{name}, SHARP"].step_time_s,
        )
    return result


def change_rows(steps: Steps) -> Iterator[tuple[str, ...]]:
    """Yield the best step by what the network can do."""
    for (machine, devices), (plain, *others) in steps.items():
        gains = (f"{one:.3f} ({one / plain - 1.0:+.1%})" for one in others)
        yield (machine, f"{devices:,}", f"{plain:.3f}", *gains)


def day_rows(known: Known) -> Iterator[Row]:
    """Yield days for 1e26 FLOP over H100: on the calendar by restart, and ideal."""
    for restart in RESTARTS:
        for devices in SIZES:
            if (one := days(known[named("H100", devices)], restart)) is not None:
                yield {"degree": devices, "value": one.days.expected, "line": f"{restart:,.0f} s"}
    for devices in SIZES:
        ideal = known[named("H100", devices)].training_days
        yield {"degree": devices, "value": ideal, "line": "without failures"}


def goodput_rows(known: Known) -> Iterator[Row]:
    """Yield goodput over devices by restart."""
    for restart in RESTARTS:
        for devices in SIZES:
            one = days(known[named("H100", devices)], restart)
            value = 0.0 if one is None else 100.0 * one.goodput
            yield {"degree": devices, "value": value, "line": f"{restart:,.0f} s"}


def part_rows(known: Known) -> Iterator[Row]:
    """Yield where the days of 1e26 FLOP go, with restarts of a minute."""
    for devices in SIZES:
        one = days(known[named("H100", devices)], RESTARTS[-1])
        for part, (name, _) in PARTS.items():
            if one is not None:
                yield {"bar": f"{devices:,}", "part": part, "value": one.parts_days.get(name, 0.0)}


def announced_points(known: Known) -> Iterator[Row]:
    """Yield days on the announced machines by size of run, with restarts of a minute."""
    for name in ANNOUNCED:
        for tokens, flop in FLOP.items():
            if (one := days(known[name], RESTARTS[-1], tokens)) is not None:
                yield {"machine": name, "days": one.days.expected, "FLOP": flop}


def pictures(known: Known) -> dict[str, tuple[str, Chart]]:
    """Return title and chart by file."""
    colours = {part: colour for part, (_, colour) in PARTS.items()}
    return {
        "calendar_days": (
            "Days for 1e26 FLOP over H100, by how long a restart takes",
            degree_chart([*day_rows(known)], x="devices", y="days", log=True),
        ),
        "goodput": (
            "Share of the calendar that trains over H100, by how long a restart takes",
            degree_chart([*goodput_rows(known)], x="devices", y="goodput, %"),
        ),
        "parts": (
            "Where the days of 1e26 FLOP go on H100, with restarts of 60 s",
            stack_chart([*part_rows(known)], x="devices", y="days", colours=colours),
        ),
        "announced": (
            "Days for 1e26, 1e27 and 1e28 FLOP on announced machines, with restarts of 60 s",
            dot_chart([*announced_points(known)], x="days", y="machine", colour="FLOP"),
        ),
    }


FAILED_EVERY_H = 54.0 * 24.0 / 419.0 * 16384.0
"""Device hours from one unexpected failure of Llama 3's training to the next (section 3.3.4)."""


def best_size(known: Known, restart: float) -> int:
    """Return the number of H100 on which the calendar is shortest."""
    result = {devices: days(known[named("H100", devices)], restart) for devices in SIZES}
    return min((one.days.expected, devices) for devices, one in result.items() if one is not None)[1]


def grid_figures(known: Known) -> Row:
    """Return what the page says of both machines at every size."""
    table = {row[:2]: row for row in grid_rows(known)}
    shortest = min(
        (known[named(machine, devices)].calendar for machine in GRID for devices in SIZES),
        key=lambda result: result.days.expected if result else float("inf"),
    )
    lines = []
    for devices in SIZES:
        ours, other = table["H100", f"{devices:,}"], table["GB200", f"{devices:,}"]
        ends = [f"**{row[6]}**" if row[6] == said_days(shortest) else row[6] for row in (ours, other)]
        lines.append(
            f"| {devices:,} | {ours[5]} | {ends[0]} | {ours[7]} | {ours[4]} | {other[5]} | {ends[1]} | {other[4]} |"
        )
    largest = known[named("H100", SIZES[-1])]
    plan = largest.strategy
    return {
        "grid": "\n".join(lines),
        "restarts": "\n".join(f"  | {' | '.join(row)} |" for row in restart_rows(known)),
        "best_size": {int(restart): best_size(known, restart) for restart in RESTARTS},
        "replica": plan.tp * plan.cp * plan.pp,
        "plan": f"tp {plan.tp}, cp {plan.cp}, pp {plan.pp}",
        "sequences": largest.workload.global_batch_size // plan.dp,
        "waits": sum(largest.time_s[part] for part in COMMUNICATION) / largest.step_time_s,
        "mfu_left": {
            machine: known[named(machine, SIZES[-1])].mfu / known[named(machine, SIZES[0])].mfu
            for machine in GRID
        },
        "goodputs": [goodput(days(known[named("H100", size)], RESTARTS[-1])) or 0.0 for size in SIZES],
        "failures_h": [FAILED_EVERY_H / devices for devices in SIZES],
        "failures_min": [60.0 * FAILED_EVERY_H / devices for devices in SIZES],
    }


def cost_figures(known: Known) -> Row:
    """Return what the page says of power and money."""
    result = {}
    for machine in GRID:
        sizes = [known[named(machine, devices)] for devices in SIZES]
        (small, _), (half, ends) = [(one, one.calendar) for one in sizes[:2]]
        longer = {name: days(half, RESTARTS[0], tokens) for tokens, name in FLOP.items()}
        assert small.calendar is not None
        assert ends is not None
        result[machine] = {
            "mw": [megawatts(one) for one in sizes],
            "gwh": gigawatt_hours(half, ends),
            "hour": hourly(small),
            "money": (millions(small, small.calendar), millions(half, ends)),
            "days": {name: item.days.expected for name, item in longer.items() if item},
            "billions": {name: millions(half, item) / 1e3 for name, item in longer.items() if item},
        }
    return {"h100": result["H100"], "gb200": result["GB200"]}


def announced_figures(known: Known) -> Row:
    """Return what the page says of announced machines."""
    short = {tokens: {name: days(known[name], RESTARTS[-1], tokens) for name in ANNOUNCED} for tokens in FLOP}
    ends = {
        FLOP[tokens]: sorted((one.days.expected, name) for name, one in item.items() if one)
        for tokens, item in short.items()
    }
    usual = {name: known[name].calendar for name in ANNOUNCED}
    finite = [(name, one.days.expected) for name, one in usual.items() if one]
    never = [name for name, one in usual.items() if one is None]
    return {
        "ideal": bounds(known[name].training_days or 0.0 for name in ANNOUNCED),
        "usual": ", ".join(f"{value:,.0f} on {name}" for name, value in finite),
        "never": ", ".join(never),
        "soonest": ends["1e26"][0][1],
        "ends": {flop: (end[0], end[-1]) for flop, end in ends.items()},
        "years": bounds(value / 365.25 for value, _ in ends["1e28"]),
        "rated": {
            name.replace(" ", "_"): megawatts(known[name]) for name in ANNOUNCED if megawatts(known[name])
        },
    }


def network_figures(steps: Steps) -> Row:
    """Return what the page says of the network, as a table."""
    times = {row[:3]: row[3:] for row in collective_rows()}
    lines = []
    for place, kind in enumerate(("all-reduce", "reduce-scatter")):
        for change in CHANGES:
            cells = [times[machine, f"{devices:,}", change][place] for machine, devices in NETWORKS]
            lines.append(f"| {kind}, {change} | {' | '.join(cells)} |")
    lines.append(f"| best step, as it is | {' | '.join(f'{plain:.3f} s' for plain, *_ in steps.values())} |")
    for place, change in enumerate(("hierarchical", "SHARP"), start=1):
        cells = [f"{step[place] / step[0] - 1.0:+.1%}".replace("%", " %") for step in steps.values()]
        lines.append(f"| best step, {change} | {' | '.join(cells)} |".replace("-", "−"))
    gains = [bounds(1.0 - step[place] / step[0] for step in steps.values()) for place in (1, 2)]
    return {
        "network": "\n".join(lines),
        "tiered_gain": gains[0][1],
        "sharp_gain": gains[1][1],
        "sharp_small": max(1.0 - step[2] / step[0] for (_, size), step in steps.items() if size != SIZES[-1]),
    }


def claims(known: Known) -> dict[str, bool]:
    """Return which statements of the page hold."""
    parts = days(known[named("H100", SIZES[-1])], RESTARTS[-1])
    return {
        "planned interruptions take more than training": parts is not None
        and parts.parts_days["custom_badput_events"] > parts.parts_days["goodput"],
    }


def tables(known: Known, steps: Steps) -> str:
    """Return all tables as one page."""
    heads = ["machine", "devices", "layout", "step (s)", "MFU", "days without failures", "on the calendar"]
    heads += ["goodput", "MW", "GWh", "million USD"]
    parts = ["# Tables of the study of a million devices", "Written by `studies/million.py`."]
    parts += [table("1e26 FLOP by machine and devices", heads, grid_rows(known))]
    sizes = [f"{devices:,} H100" for devices in SIZES]
    parts += [table("Goodput by restart", ["restart", *sizes], restart_rows(known))]
    heads = ["machine", "taken as", "layout", "MFU", "1e26: days without failures", "MW"]
    heads += ["restarts of 1,000 s", "restarts of 60 s: 1e26", "1e27", "1e28"]
    parts += [table("Announced machines", heads, announced_rows(known))]
    heads = ["machine", "ranks", "network", "all-reduce", "reduce-scatter"]
    parts += [table("One GiB over all devices", heads, collective_rows())]
    heads = ["machine", "devices", "best step (s)", "with hierarchical collectives", "with SHARP"]
    parts += [table("What the network could do", heads, change_rows(steps))]
    return "\n\n".join(parts) + "\n"


def output(winners: Winners) -> Output:
    """Return tables, pictures and figures."""
    known = best_layouts(winners)
    steps = best_steps(known, winners)
    return Output(
        tables={"tables.md": tables(known, steps)},
        charts={name: titled(chart, title) for name, (title, chart) in pictures(known).items()},
        figures={
            **grid_figures(known),
            **cost_figures(known),
            **announced_figures(known),
            **network_figures(steps),
        },
        claims=claims(known),
    )


STUDY = Study(name="million", output=output)
