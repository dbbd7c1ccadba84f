"""Pictures and tables of the study of runs of 1e26 to 1e28 FLOP on up to a million devices.

`python studies/million.py FOLDER SWEEP` takes the points of examples/million.toml from the folder SWEEP, where
`forescale sweep examples/million.toml --output SWEEP` left them; it searches those that are missing.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from charts import Chart, degree_chart, dot_chart, stack_chart, write

from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.models import load_model
from forescale.cost.mesh import Group
from forescale.cost.select import Costs
from forescale.errors import SpecError
from forescale.goodput.operations import calendar
from forescale.graph.counts import count_parameters
from forescale.graph.ops import CollectiveKind
from forescale.projection.result import Calendar, Interval
from forescale.search import search
from forescale.spec import Cluster, Workload
from forescale.spec.cluster import LinkParameters
from forescale.spec.operations import Operations
from forescale.sweep import read_sweep, run
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


def points(folder: Path) -> dict[tuple[str, float], Row]:
    """Return the points of the sweep by case and tokens."""
    found = run(read_sweep(SWEEP), output=folder)
    return {(row["vary.case"], row["vary.tokens"]): row for row in found.rows}


def named(machine: str, devices: int) -> str:
    """Return the case of a machine of so many devices."""
    return f"{machine}, {devices:,}"


def days(row: Row, restart: float, tokens: float = TOKENS) -> Calendar | None:
    """Return the calendar of a point's best layout with another restart; None where it never ends."""
    cluster = load_cluster(row["cluster"], row["num_devices"])
    work = Workload(seq_len=row["seq_len"], global_batch_size=row["global_batch_size"], tokens=tokens)
    step = Interval(low=row["step_time_low_s"], expected=row["step_time_s"], high=row["step_time_high_s"])
    try:
        return calendar(PARAMETERS, cluster, work, step, Operations(restart=restart))
    except SpecError:
        return None


def said_days(low: float | None, expected: float | None, high: float | None) -> str:
    """Return days with their range."""
    if low is None or expected is None or high is None:
        return "never ends"
    return f"{expected:,.0f} ({low:,.0f} to {high:,.0f})"


def share(value: float | None) -> str:
    """Return a share in percent."""
    return "–" if value is None else f"{100.0 * value:.1f} %"


def layout(row: Row) -> str:
    """Return the degrees of a row."""
    names = ("tp", "cp", "pp", "vpp", "dp_replicate", "dp_shard")
    return " ".join([*(f"{name} {row[name]}" for name in names if row[name] > 1), f"zero {row['zero']}"])


def megawatts(row: Row) -> float:
    """Return what the devices draw at their rated power with the overhead of their data centre."""
    device = load_cluster(row["cluster"], row["num_devices"]).device
    pue = published_prices().pue
    return float(row["num_devices"]) * device.power_w * (pue.value if pue else 1.0) / 1e6  # 0 where unknown


def millions(row: Row, calendar_days: float) -> str:
    """Return money for device-hours, in millions."""
    found = published_prices().price(load_cluster(row["cluster"], row["num_devices"]).device.name)
    return (
        "–" if found is None else f"{row['num_devices'] * 24 * calendar_days * found[0].expected / 1e6:,.0f}"
    )


def grid_rows(known: dict[tuple[str, float], Row]) -> Iterator[tuple[str, ...]]:
    """Yield what every size of both machines takes for 1e26 FLOP."""
    for machine in GRID:
        for devices in SIZES:
            row = known[named(machine, devices), TOKENS]
            calendar_days = row["calendar_days"]
            yield (
                *(machine, f"{devices:,}", layout(row), f"{row['step_time_s']:.2f}", share(row["mfu"])),
                f"{row['training_days']:.1f}",
                said_days(row["calendar_days_low"], calendar_days, row["calendar_days_high"]),
                *(share(row["goodput"]), f"{megawatts(row):,.0f}"),
                "–" if calendar_days is None else f"{24 * calendar_days * megawatts(row) / 1e3:,.0f}",
                "–" if calendar_days is None else millions(row, calendar_days),
            )


def restart_rows(known: dict[tuple[str, float], Row]) -> Iterator[tuple[str, ...]]:
    """Yield goodput by restart and size of H100."""
    for restart in RESTARTS:
        found = [days(known[named("H100", devices), TOKENS], restart) for devices in SIZES]
        yield (f"{restart:,.0f} s", *(share(one.goodput if one else None) for one in found))


def announced_rows(known: dict[tuple[str, float], Row]) -> Iterator[tuple[str, ...]]:
    """Yield days of every size of run on the machines that were announced, ideal and with restarts of a minute."""
    for name in ANNOUNCED:
        row = known[name, TOKENS]
        ends = [days(row, RESTARTS[-1], tokens) for tokens in FLOP]
        yield (
            *(name, f"{row['num_devices']:,} {row['device']}", layout(row), share(row["mfu"])),
            *(f"{row['training_days']:.1f}", f"{megawatts(row):,.0f}" if megawatts(row) else "–"),
            said_days(row["calendar_days_low"], row["calendar_days"], row["calendar_days_high"]),
            *("never ends" if one is None else f"{one.days.expected:,.0f}" for one in ends),
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
            given, group = load_cluster(cluster, devices), Group(size=float(devices))
            for name, change in CHANGES.items():
                model = Costs().collective_model(altered(given, **change))
                times = (float(model.seconds(kind=kind, num_bytes=BYTES, group=group)) for kind in SUMS)
                yield (machine, f"{devices:,}", name, *map(format_seconds, times))


def change_rows(known: dict[tuple[str, float], Row]) -> Iterator[tuple[str, ...]]:
    """Yield the best step by what the network can do; the sweep has those with and without SHARP."""
    work = Workload(seq_len=8192, global_batch_size=8192)
    for machine, cluster in GRID.items():
        for devices in (SIZES[1], SIZES[-1]):
            name = named(machine, devices)
            plain, sharp = (known[case, TOKENS]["step_time_s"] for case in (name, f"{name}, SHARP"))
            other = altered(load_cluster(cluster, devices), hierarchical=True)
            tiered = search(MODEL, other, work, top=1).best[0].step_time_s
            gains = (f"{one:.3f} ({one / plain - 1.0:+.1%})" for one in (tiered, sharp))
            yield (machine, f"{devices:,}", f"{plain:.3f}", *gains)


def day_rows(known: dict[tuple[str, float], Row]) -> Iterator[Row]:
    """Yield days for 1e26 FLOP over H100: on the calendar by restart, and ideal."""
    for restart in RESTARTS:
        for devices in SIZES:
            if (one := days(known[named("H100", devices), TOKENS], restart)) is not None:
                yield {"degree": devices, "value": one.days.expected, "line": f"{restart:,.0f} s"}
    for devices in SIZES:
        ideal = known[named("H100", devices), TOKENS]["training_days"]
        yield {"degree": devices, "value": ideal, "line": "if nothing failed"}


def goodput_rows(known: dict[tuple[str, float], Row]) -> Iterator[Row]:
    """Yield goodput over devices by restart."""
    for restart in RESTARTS:
        for devices in SIZES:
            one = days(known[named("H100", devices), TOKENS], restart)
            value = 0.0 if one is None else 100.0 * one.goodput
            yield {"degree": devices, "value": value, "line": f"{restart:,.0f} s"}


def part_rows(known: dict[tuple[str, float], Row]) -> Iterator[Row]:
    """Yield where the days of 1e26 FLOP go, with restarts of a minute."""
    for devices in SIZES:
        one = days(known[named("H100", devices), TOKENS], RESTARTS[-1])
        for part, (name, _) in PARTS.items():
            if one is not None:
                yield {"bar": f"{devices:,}", "part": part, "value": one.parts_days.get(name, 0.0)}


def announced_points(known: dict[tuple[str, float], Row]) -> Iterator[Row]:
    """Yield days on the announced machines by size of run, with restarts of a minute."""
    for name in ANNOUNCED:
        for tokens, flop in FLOP.items():
            if (one := days(known[name, TOKENS], RESTARTS[-1], tokens)) is not None:
                yield {"machine": name, "days": one.days.expected, "FLOP": flop}


def pictures(known: dict[tuple[str, float], Row]) -> dict[str, tuple[str, Chart]]:
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


def table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a Markdown table under a heading."""
    lines = [f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *rows)]
    return [f"## {title}", "\n".join(lines)]


def main() -> None:
    """Write everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where pictures and tables go")
    parser.add_argument("sweep", type=Path, help="the folder of the sweep")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    known = points(asked.sweep)
    for name, (title, chart) in pictures(known).items():
        write(asked.folder, name, chart, title=title)
    heads = ["machine", "devices", "layout", "step (s)", "MFU", "days if nothing failed", "on the calendar"]
    heads += ["goodput", "MW", "GWh", "million USD"]
    parts = ["# Tables of the study of a million devices", "Written by `studies/million.py`."]
    parts += table("1e26 FLOP by machine and devices", heads, grid_rows(known))
    sizes = [f"{devices:,} H100" for devices in SIZES]
    parts += table("Goodput by restart", ["restart", *sizes], restart_rows(known))
    heads = [
        "machine",
        "taken as",
        "layout",
        "MFU",
        "1e26: days if nothing failed",
        "MW",
        "restarts of 1,000 s",
    ]
    heads += ["restarts of 60 s: 1e26", "1e27", "1e28"]
    parts += table("Announced machines", heads, announced_rows(known))
    heads = ["machine", "ranks", "network", "all-reduce", "reduce-scatter"]
    parts += table("One GiB over all devices", heads, collective_rows())
    heads = ["machine", "devices", "best step (s)", "with hierarchical collectives", "with SHARP"]
    parts += table("What the network could do", heads, change_rows(known))
    (asked.folder / "tables.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
