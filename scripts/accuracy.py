"""Write the scoreboard of a corpus of measured runs as a page, with pictures beside it.

    .venv/bin/python scripts/accuracy.py RUNS.csv MEGATRON_CI.csv docs/accuracy.md

It asks llm-analysis too where that is installed: pip install --no-deps llm-analysis fire termcolor.
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

from scripts.plain_questions import PlainOutcome, ask_plainly, by_group

from forescale.atomic_write import write_text
from forescale.cost.calibration import (
    AttentionParameters,
    Calibration,
    GemmParameters,
    calibration_names,
    read_calibration,
)
from forescale.cost.collectives.calibration import link_calibrations
from forescale.cost.run_calibration import load_run_calibration
from forescale.cost.select import Costs
from forescale.errors import ForescaleError
from forescale.escaping import markdown as safe
from forescale.escaping import printable
from forescale.files import packaged
from forescale.spec.attention import FullAttention
from forescale.spec.cluster import Cluster
from forescale.spec.layout import Layout
from forescale.spec.model import DenseFfn, Model, MoeFfn
from forescale.units import GB, TB
from forescale.validation.case import Case, InexpressibleError, projector_of
from forescale.validation.cases import load_cases
from forescale.validation.chart import points, scatter, time_chart
from forescale.validation.metrics import ErrorSummary, coverage, summarise
from forescale.validation.peers import PeerGroup, compare_peers
from forescale.validation.scoreboard import (
    DIMENSIONS,
    ErrorGroup,
    RowOutcome,
    Scoreboard,
    mean_regret,
    mean_spearman,
    score,
)
from forescale.view.bars import Bar, BarChart
from forescale.view.lines import LineChart
from forescale.view.page import Chart, write_chart


def main(runs: str, tests: str, page: str) -> None:
    """Write the page of the runs in a table and of Megatron-LM's tests in another, and its pictures."""
    projector, cases = projector_of("default", Costs()), load_cases(Path(runs))
    board = score(cases, projector)
    question = {LLM_ANALYSIS: llm_analysis_step} if find_spec("llm_analysis") is not None else None
    peers, target = compare_peers(board, question), Path(page)
    text = markdown(
        board,
        corpus=_shown(Path(runs)),
        peers=peers,
        pictures=_drawn(board, peers, target.with_suffix("")),
        plain={
            name: ask_plainly(Path(runs), with_framework=name == "named") for name in ("named", "not named")
        },
        tests=score(load_cases(Path(tests)), projector),
    )
    write_text(target, text)
    readme = Path("README.md")
    write_text(readme, with_accuracy(readme.read_text(encoding="utf-8"), text))


README_GROUPS = MappingProxyType(
    {
        "core": "all rows whose configuration is known",
        "hopper/16": "Hopper, 16-bit",
        "hopper/8": "Hopper, 8-bit",
        "blackwell/16": "Blackwell, 16-bit",
        "blackwell/8": "Blackwell, 8-bit",
        "ampere/16": "Ampere, 16-bit",
        "dense": "dense models",
        "moe": "mixtures of experts",
    }
)
"""Groups of runs of a publisher that no fit had seen, as README.md calls them."""


def with_accuracy(readme: str, page: str) -> str:
    """Return README.md with the held-out errors of the page between its two comments."""
    cells = {
        row[1]: row
        for line in page.splitlines()
        if line.startswith("| new family |")
        and (row := [cell.strip() for cell in line.strip("| ").split("|")])
    }
    table = [
        "| runs | rows | median error | 90th percentile | within the 80 % interval |",
        "|---|---:|---:|---:|---:|",
    ]
    for group, words in README_GROUPS.items():
        _, _, rows, median, worst, _, _, inside = cells[group]
        table.append(f"| {words} | {rows} | {median} | {worst} | {inside} |")
    head, rest = readme.split("writes these rows -->\n", 1)
    return (
        f"{head}writes these rows -->\n"
        + "\n".join(["", *table, ""])
        + "\n<!-- end of accuracy"
        + rest.split("<!-- end of accuracy", 1)[1]
    )


def _shown(path: Path) -> str:
    """Return a path as it was given, unless it holds for this machine only."""
    return path.name if path.is_absolute() else path.as_posix()


def _drawn(board: Scoreboard, peers: Sequence[PeerGroup], folder: Path) -> dict[str, str]:
    """Write all pictures to `folder`; return where they lie, seen from beside it."""
    drawn: dict[str, Chart] = {name: chart for name, make in PICTURES.items() if (chart := make(board))}
    if (pairs := peer_chart(peers)) is not None:
        drawn["peers"] = pairs
    if drawn:
        folder.mkdir(exist_ok=True)
    for name, picture in drawn.items():
        write_chart(picture, folder / f"{name}.svg")
    return {name: f"{folder.name}/{name}.svg" for name in drawn}


def memory_chart(board: Scoreboard) -> LineChart | None:
    """Return projected over measured peak memory of all rows that measured it; None without any."""
    result = points(
        board,
        lambda outcome: outcome.memory_error,
        lambda outcome: (outcome.case.measured.peak_bytes or 0.0) / GB,
        lambda case: case.source,
    )
    return scatter(
        "Peak memory", "all rows; 1 is right, above it projected too large", "measured peak (GB)", result
    )


PICTURES: Mapping[str, Callable[[Scoreboard], LineChart | None]] = MappingProxyType(
    {"step-time": time_chart, "memory": memory_chart}
)
"""Pictures of a scoreboard by the name of their file."""


def peer_chart(peers: Sequence[PeerGroup]) -> BarChart | None:
    """Return the median error of every other tool beside ours on the same rows; None without any."""
    if not peers:
        return None
    bars = []
    for group in peers:
        name, rows = group.peer.partition(",")[0], f"{group.time.count} rows"
        theirs, ours = (100.0 * (item.median_abs or 0.0) for item in (group.time, group.our_time))
        bars += [
            Bar(label=name, values={"other tool": theirs}, remark=f"% on {rows}"),
            Bar(label=f"ours beside {name}", values={"Forescale": ours}, remark="%"),
        ]
    return BarChart(
        title="Median error of the step time",
        note="each pair on the rows that both answer, ours in-sample",
        axis="",
        unit="%",
        bars=tuple(bars),
    )


_WORST = 15


def markdown(
    board: Scoreboard,
    *,
    corpus: str,
    peers: Sequence[PeerGroup] = (),
    pictures: Mapping[str, str] | None = None,
    plain: Mapping[str, Sequence[PlainOutcome]] = MappingProxyType({}),
    tests: Scoreboard | None = None,
) -> str:
    """Return the accuracy page: step time, memory, choice of layout, groups, worst and skipped rows, notes.

    Parameters
    ----------
    board
        What was found.
    corpus
        Name of the file, for the opening line.
    peers
        Other tools on the same rows.
    pictures
        Where pictures lie, by name: step-time, memory, peers.
    plain
        Runs asked as a user asks them, by whether their framework is named.
    tests
        Megatron-LM's own tests.
    """
    drawn = {name: f"![{name}]({path})\n\n" for name, path in (pictures or {}).items()}
    sections = (
        _opening(board, corpus),
        _headline(board, drawn.get("step-time", "")),
        _plain(plain),
        _held_out(),
        _later(),
        _kernels(),
        _memory(board, drawn.get("memory", "")),
        _doubtful(board),
        _tests(tests),
        _choice(board),
        _peers(peers, drawn.get("peers", "")),
        *(_breakdown(board, name) for name in DIMENSIONS),
        _worst(board),
        _skipped(board),
        _assumptions(board),
    )
    return "\n\n".join(section for section in sections if section) + "\n"


def _opening(board: Scoreboard, corpus: str) -> str:
    count, skipped = len(board.outcomes), len(board.skipped)
    core = sum(outcome.case.core for outcome in board.outcomes)
    return (
        "# Accuracy\n\n"
        f"`./scripts/accuracy` writes this page: {count} measured runs of `{_code(corpus)}`, projected by our own "
        f"engine. {skipped} rows could not be projected; each is listed below with the reason. "
        f"{core} rows are *core*: every field of their configuration is known. "
        f"{_percent(board.core_skipped_share)} of them were skipped.\n\n"
        "An error is projected / measured − 1, so above zero the projection is too slow or too large; the "
        "bias is the mean of the signed errors. The *naive line* is one rate per device and compute type, "
        "fitted to these very rows, times 1 + (pp − 1) / (m · vpp); its FLOPs count two per weight and "
        "token, attention over the whole square, and full recompute."
    )


def _headline(board: Scoreboard, picture: str) -> str:
    groups = [*board.headline(), board.total(core=True), board.total(core=False)]
    return f"## Step time\n\n{picture}Core rows by vendor and width of the numbers.\n\n" + _time_table(groups)


def _held_out() -> str:
    """Return how the shipped losses of whole runs did on runs of which they had not seen something."""
    calibration = load_run_calibration()
    rows = [
        [
            novelty,
            group,
            str(spread.rows),
            _percent(spread.median_abs),
            _percent(spread.p90_abs),
            _signed(spread.bias),
            f"±{_percent(math.expm1(spread.p90))}",
            _percent(spread.coverage),
        ]
        for novelty, groups in calibration.spreads.items()
        if novelty != LATER
        for group, spread in groups.items()
        if group in PRINTED or group.endswith(("/8", "/16"))
    ]
    title = ("new to the fit", "group", "rows", "median", "90th pct", "bias", "interval", "in interval")
    return (
        "### What the calibration has not seen\n\n"
        "The losses of whole runs (clocks, launches, stragglers, software) that every projection uses are fitted "
        f"to {calibration.source}, so on these rows the figures above are in-sample. Every run is "
        "also predicted by fits that had not seen it: without a tenth of all runs (*known source*); without its "
        "source, where other releases of that document stay (*new release*); without all releases of its document "
        "(*new family*); the same, asked as one asks who does not know the stack, with the usual framework and all its "
        "defaults (*new stack*); without its generation of devices (*new device*). Errors are "
        "ln(measured / projected), every row counted alike. The interval is what 8 core rows in 10 of the "
        "group lie within (all its rows, where fewer "
        "than 20 are core), where a family's rows weigh less the more it has, and the range that a projection states: "
        "of generation and kind together, where there are too few runs of both the wider of either's (a pair "
        "that a single family ran has an interval of its own only where that is wider), and of what is new of the "
        "question (nothing named of the framework: a new stack; `--framework`: a new family), never "
        "narrower than that of a known source. Where devices "
        "wait for the host, their range is wider: the interval of *waiting* (rows that wait a fifth of their step and "
        "more) is of the seconds that they wait, and is added to the others' in squares. Software stacks of which "
        "fewer than 20 runs are known on their generation and width of numbers (*few runs*), and those that nobody "
        "names, have a wider range: the interval of such runs is by how much. The last column says how many "
        "rows lie within the range that all *other* families give; rows that leave something open (*, open*) are "
        "judged by an interval of such rows, no narrower than that of fully known ones.\n\n"
        + table(title, rows)
    )


LATER = "later release"
"""Key of the errors forward in time among the spreads of a calibration (benchmarks/fit_runs.py)."""
PRINTED = ("all", "all, open", "core", "dense", "few runs", "moe", "waiting")


UNSEEN = "each machine predicted from the others"


def _kernels() -> str:
    """Return how products, attention and collectives of a machine were predicted by fits that had not seen it."""
    rows = [
        [
            name,
            what,
            ", ".join(entry.fit.machines),
            unseen.source.removeprefix(UNSEEN).removeprefix(", ") or "all",
            str(unseen.rows),
            *map(_signed, (unseen.p10, unseen.bias, unseen.p90)),
            _percent(unseen.median_abs),
        ]
        for name in sorted(calibration_names())
        for what, entry in _timed(read_calibration(name))
        for unseen in entry.fit.held_out
        if unseen.source.startswith(UNSEEN)
    ]
    links = [
        [
            link.name,
            unseen.source,
            str(unseen.rows),
            *map(_signed, (unseen.p10, unseen.bias, unseen.p90)),
            _percent(unseen.median_abs),
        ]
        for link in link_calibrations()
        for unseen in link.fit.held_out
    ]
    figures = ("rows", "10th pct", "bias", "90th pct", "median")
    return (
        "### Kernels and messages of a machine that was not seen\n\n"
        "Timed products and attention of `data/published/kernels.csv`, predicted by a fit to the other machines of "
        "the generation; errors are ln(predicted / measured). bf16 products of B200 cannot be known better than their "
        "sources agree. Where SimuMax's loops on B200 last 0.15 s and longer, two near shapes (each extent within "
        "a third, the same layout) differ from their mean by 0.3 % in the median and 3 % at the 90th percentile. "
        "Shorter loops differ by 4.2 and 20.8 %: they follow others of a layout, most of the shortest within what "
        "the device takes to notice its load, the rest in one phase or another of the swings of its power "
        "controller, full clock or two thirds of it (4096 × 3584 × 4096 ran at 1,386 TFLOP/s and 4096 × 4096 × "
        "3584 at 879). Under their power limit B200 of two sources differ by 15 to 20 %. Two collections of one "
        "source on the same kind of machine differ from their mean by 1 to 2 % in the median and by 6 to 9 % at "
        "the 90th percentile.\n\n"
        + table(("generation", "what", "machines", "which", *figures), rows)
        + "\n\nThe same of collectives from 32 KiB on, by fits to other machines, or to fewer nodes.\n\n"
        + table(("link", "machine", *figures), links)
    )


def _timed(calibration: Calibration) -> Iterable[tuple[str, GemmParameters | AttentionParameters]]:
    """Return what a generation has fits of: products by type, attention by direction."""
    yield from calibration.gemm.items()
    for direction in ("forward", "backward"):
        yield f"attention, {direction}", calibration.attention[direction]


def _memory(board: Scoreboard, picture: str) -> str:
    measures = _measures(board)
    groups = [*board.by("source", core=False), board.total(core=True), board.total(core=False)]
    rows = [
        [group.name, measures.get(group.name, ""), *_cells(group.memory)]
        for group in groups
        if group.memory.count
    ]
    if not rows:
        return ""
    text = (
        f"## Peak memory\n\n{picture}"
        "All rows that measured it, by source. A projection is compared by the measure that "
        "its source publishes: what the allocator handed out (*allocated*), what it held (*reserved*), or what "
        "the device had in use (*device*; also where the source does not say, *unstated*).\n\n"
    )
    sure = [outcome for outcome in board.outcomes if not outcome.case.doubt]
    rows.append(["rows whose memory follows from what they say", "", *_cells(_of(sure))])
    text += table(["source", "measure", *_MEMORY_TITLE], rows) + "\n\n" + _unseen_peaks()
    for dimension in ("architecture", "parallelism"):
        cells = [
            [group.name, *_cells(group.memory)]
            for group in board.by(dimension, core=False)
            if group.memory.count
        ]
        text += f"\n\nThe same by {dimension}.\n\n" + table([dimension, *_MEMORY_TITLE], cells)
    return text


def _unseen_peaks() -> str:
    """Return the intervals of peaks, and how they did on families that they had not seen."""
    widths = packaged("calibrations/memory/spreads")["widths"]
    rows = [
        [
            *(measure, str(width["rows"]), _percent(width["median_abs"]), _percent(width["p90_abs"])),
            *(_signed(width["bias"]), f"±{_percent(math.expm1(width['p90']))}", _percent(width["coverage"])),
        ]
        for measure, width in widths.items()
    ]
    return (
        "The interval that is stated of a peak is what 8 rows in 10 of its measure lie within. Errors are "
        "ln(measured / projected); the last column says how many rows lie within the interval that all *other* "
        "families give.\n\n"
        + table(("measure", "rows", "median", "90th pct", "bias", "interval", "in interval"), rows)
    )


def _inside(outcomes: Iterable[RowOutcome]) -> str:
    """Return the share of measured peaks that lie in their stated interval."""
    result = [
        (measured, message.peak_low_bytes, message.peak_high_bytes)
        for measured, message in (
            (outcome.case.measured.peak_bytes, outcome.prediction) for outcome in outcomes
        )
        if measured and message and message.peak_low_bytes and message.peak_high_bytes
    ]
    return _percent(coverage(*zip(*result, strict=True))) if result else "–"


def _of(outcomes: Iterable[RowOutcome]) -> ErrorSummary:
    """Return the errors of peaks."""
    return summarise([outcome.memory_error for outcome in outcomes if outcome.memory_error is not None])


def _later() -> str:
    """Return how runs of each release were predicted by fits to earlier releases."""
    rows = [
        [
            *(release, str(spread.rows), _percent(spread.median_abs), _percent(spread.p90_abs)),
            *(_signed(spread.bias), f"±{_percent(math.expm1(spread.p90))}", _percent(spread.coverage)),
        ]
        for release, spread in load_run_calibration().spreads.get(LATER, {}).items()
    ]
    if not rows:
        return ""
    return (
        "### Forward in time\n\n"
        "The runs of each release of a framework (year and month), predicted by a fit to earlier releases and to runs "
        "of frameworks without a date. Errors are ln(measured / projected). An interval is made from what "
        "was known before the release, by generation of devices, width of numbers and kind of model, as for a new "
        "family above; it is half as wide again on a generation that no earlier run is of. The half width printed is "
        "the median of the release's runs.\n\n"
        + table(("release", "rows", "median", "90th pct", "bias", "interval", "in interval"), rows)
    )


def _plain(plain: Mapping[str, Sequence[PlainOutcome]]) -> str:
    """Return how `forescale.project` answers runs that are asked as a user asks."""
    if not plain:
        return ""
    rows = [
        [
            *(asked, kind, framework, *_cells(group.errors)[:4], _percent(group.coverage)),
            *(f"±{_percent(group.half_width)}", ", ".join(group.unfit) or "–"),
        ]
        for asked, outcomes in plain.items()
        for (kind, framework), group in by_group(outcomes).items()
    ]
    title = ("asked", "kind", "framework of the run", "layouts", "median", "90th pct", "bias")
    return (
        "### Asked as a user asks\n\n"
        "Above, a row gives all settings that its source gives. Here `forescale.project` is called with the model, "
        "the cluster, the degrees, the schedule, the batch, the length, the precision, and what is trained on which "
        "documents; the "
        "framework and its release are named where the table says so (`named`), and otherwise left to the default of "
        "the device (`not named`). A layout of a release counts once, by the mean of "
        "its rows. The half width is the median of half the interval over the step time. The last "
        "column lists runs that took place and are said to run out of memory.\n\n"
        + table((*title, "in interval", "half width", "out of memory"), rows)
    )


def _doubtful(board: Scoreboard) -> str:
    """Return which runs are said not to fit, and whose memory does not follow from what they say."""
    doubts: dict[str, list[RowOutcome]] = {}
    for outcome in board.outcomes:
        if outcome.case.doubt and outcome.skipped is None:
            doubts.setdefault(outcome.case.doubt, []).append(outcome)
    if not (doubts or board.refused):
        return ""
    rows = [
        [
            doubt,
            str(len(result)),
            *_cells(_of(result))[:4],
            ", ".join(o.case.id for o in result if o.case.measured.peak_bytes),
        ]
        for doubt, result in doubts.items()
    ]
    refused = [
        [o.case.id, o.case.model_name, o.case.hardware, _layout(o), o.case.doubt or "–"]
        for o in board.refused
    ]
    certain = [o for o in board.outcomes if not o.case.doubt]
    title = ("why", "rows", "with a peak", "median", "90th pct", "bias", "rows with a peak")
    return (
        "### Rows whose memory does not follow from what they say\n\n"
        "They are marked by what their source leaves out, a list made with their projections at hand "
        "(`scripts/rows/tables/doubtful.json`), and are in all figures above. Without them: "
        f"median {_percent(_of(certain).median_abs)}, 90th percentile {_percent(_of(certain).p90_abs)} of "
        f"{_of(certain).count} rows.\n\n"
        + table(title, rows)
        + "\n\nEvery run of the corpus ran. These are said "
        "not to fit:\n\n" + table(("row", "model", "hardware", "layout", "doubt"), refused)
    )


def _tests(tests: Scoreboard | None) -> str:
    if tests is None:
        return ""
    rows = []
    for dimension in ("architecture", "hardware", "parallelism"):
        groups = tests.by(dimension, core=False)
        rows += [
            [f"{dimension}: {group.name}", *_cells(group.time), *_cells(group.memory)[1:]] for group in groups
        ]
    every = tests.total(core=False)
    rows.append(["all rows", *_cells(every.time), *_cells(every.memory)[1:]])
    title = ["group", *_MEMORY_TITLE, *(f"memory {name}" for name in _MEMORY_TITLE[1:])]
    return (
        "## Megatron-LM's own tests\n\n"
        f"{len(tests.outcomes)} golden values of Megatron-LM's continuous integration "
        "(`data/published/plans/megatron_ci.csv`): models of 12 layers and hidden size 512 on up to two nodes, each "
        f"with all its flags; {len(tests.skipped)} could not be projected. Nothing is fitted to them. Their step is "
        "the host's time, much of it deterministic algorithms, so that their seconds say little of large runs; the "
        "peak is what the allocator of the last rank handed out. "
        f"{_percent(tests.total(core=False).coverage)} of the steps and {_inside(tests.outcomes)} of the peaks lie in "
        "the stated intervals.\n\n"
        + table(title, rows)
        + "\n\n"
        + _skipped(tests).replace("## Rows", "### Tests")
    )


_MEMORY_TITLE = ("rows", "median", "90th pct", "bias", "worst")


def _measures(board: Scoreboard) -> dict[str, str]:
    """Return, by source, the measures of the rows whose memory is compared."""
    values: dict[str, dict[str, None]] = {}
    for outcome in board.outcomes:
        if outcome.memory_error is not None:
            values.setdefault(outcome.case.source, {})[outcome.case.measured.peak_measure] = None
    return {source: ", ".join(sorted(measures)) for source, measures in values.items()}


def _choice(board: Scoreboard) -> str:
    text = (
        "## Choice of layout\n\n"
        "A sweep is at least 3 layouts of one model shape, source, software, device, device count, sequence length "
        "and compute type, compared by time per token; runs that their source says are not to be compared, as the "
        "machine was changed or its load varied between them, are sweeps apart. Spearman is the rank correlation of "
        "projected and measured; the regret is how much slower the layout that the projection picks was measured "
        "than the best one.\n\n"
    )
    if not board.sweeps:
        return text + "The corpus has no sweep."
    text += (
        f"{len(board.sweeps)} sweeps: mean Spearman {_number(mean_spearman(board.sweeps))}, "
        f"mean regret {_percent(mean_regret(board.sweeps))}.\n\n"
    )
    rows = [
        [
            *(sweep.source, sweep.model_name, sweep.hardware, str(sweep.num_devices), str(sweep.seq_len)),
            *(sweep.compute, str(sweep.num_layouts), _number(sweep.spearman), _percent(sweep.regret)),
            *(sweep.picked, sweep.best),
        ]
        for sweep in sorted(board.sweeps, key=lambda sweep: (sweep.source, sweep.cases))
    ]
    title = ["source", "model", "device", "devices", "sequence", "type", "layouts", "Spearman", "regret"]
    return text + table([*title, "picked", "best"], rows)


def _peers(peers: Sequence[PeerGroup], picture: str) -> str:
    if not peers:
        return ""
    rows = [
        [group.peer, what, *_cells(theirs), *_cells(ours)[1:4]]
        for group in peers
        for what, theirs, ours in (
            ("step", group.time, group.our_time),
            ("memory", group.memory, group.our_memory),
        )
        if theirs.count
    ]
    title = ("tool", "of", *_MEMORY_TITLE, "our median", "our 90th", "our bias")
    return (
        f"## Other tools\n\n{picture}"
        "The rows that both answer; ours in-sample, as in the first table. SimuMax measured every kernel shape of "
        "its rows on that very machine, Calculon was tuned with its rows. What is asked here has core rows only: "
        "llm-analysis, at half of the peak rate (the share that its source calls usual; its default is all of it), "
        "in 16 bits, without context parallelism.\n\n" + table(title, rows)
    )


def _breakdown(board: Scoreboard, dimension: str) -> str:
    groups = board.by(dimension, core=False)
    return f"## By {dimension}\n\nAll rows.\n\n" + _time_table(groups)


def _worst(board: Scoreboard) -> str:
    wrong = sorted(
        (o for o in board.outcomes if o.case.core and o.error is not None), key=lambda o: -abs(o.error or 0.0)
    )
    rows = [
        [o.case.id, o.case.model_name, o.case.hardware, _layout(o), _signed(o.error), _signed(o.naive_error)]
        for o in wrong[:_WORST]
    ]
    title = ["row", "model", "hardware", "layout", "error", "naive"]
    return f"## Worst core rows\n\n{table(title, rows)}" if rows else ""


def _layout(outcome: RowOutcome) -> str:
    layout = outcome.case.question.layout
    names = ("tp", "cp", "ep", "pp", "vpp", "dp")
    degrees = [f"{name}{getattr(layout, name)}" for name in names if getattr(layout, name) > 1]
    return " ".join([*degrees, f"zero{layout.zero}", f"mbs{layout.micro_batch_size}"])


def _skipped(board: Scoreboard) -> str:
    if not board.skipped:
        return "## Rows not projected\n\nNone."
    reasons: dict[str, list[str]] = {}
    for outcome in board.skipped:
        reasons.setdefault(outcome.skipped or "", []).append(_marked(outcome))
    rows = [[str(len(ids)), reason, ", ".join(ids)] for reason, ids in reasons.items()]
    rows.sort(key=lambda row: (-int(row[0]), row[1]))
    return "## Rows not projected\n\nCore rows in bold.\n\n" + table(["rows", "reason", "ids"], rows, ready=1)


def _marked(outcome: RowOutcome) -> str:
    name = safe(outcome.case.id)
    return f"**{name}**" if outcome.case.core else name


def _assumptions(board: Scoreboard) -> str:
    counts: Counter[str] = Counter()
    core: Counter[str] = Counter()
    for outcome in board.outcomes:
        counts.update(set(outcome.case.notes))
        core.update(set(outcome.case.notes) if outcome.case.core else ())
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    rows = [[str(count), str(core[note]), note] for note, count in ordered]
    text = "## Assumptions\n\nWhat a row did not say, or says in other words than a layout can.\n\n"
    return text + table(["rows", "of them core", "assumption"], rows) if rows else ""


def _time_table(groups: Iterable[ErrorGroup]) -> str:
    rows = [
        [
            *(group.name, *_cells(group.time), _percent(group.coverage)),
            *(_percent(group.naive.median_abs), _percent(group.naive.p90_abs)),
        ]
        for group in groups
        if group.time.count
    ]
    title = [
        "group",
        "rows",
        "median",
        "90th pct",
        "bias",
        "worst",
        "in interval",
        "naive median",
        "naive 90th",
    ]
    return table(title, rows) if rows else "No row measured it."


def _cells(summary: ErrorSummary) -> list[str]:
    return [
        str(summary.count),
        _percent(summary.median_abs),
        _percent(summary.p90_abs),
        _signed(summary.bias),
        _signed(summary.worst),
    ]


def table(title: Sequence[str], rows: Sequence[Sequence[str]], *, ready: int = 0) -> str:
    """Return a Markdown table; columns of which every cell starts like a number are aligned to the right.

    Cells of the last `ready` columns are Markdown already.
    """
    numeric = [all(_is_number(row[column]) for row in rows) for column in range(len(title))]
    local = len(title) - ready
    cells = [[*map(safe, row[:local]), *row[local:]] for row in rows]
    lines = [list(title), ["---:" if right else "---" for right in numeric], *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _is_number(cell: str) -> bool:
    return cell in {"", "–"} or cell.lstrip("+−-")[:1].isdigit()


def _code(text: str) -> str:
    """Return text that stays inside `such marks`."""
    return printable(text).replace("`", "'")


def _percent(value: float | None) -> str:
    return "–" if value is None else _minus(f"{100.0 * value:.1f} %")


def _signed(value: float | None) -> str:
    return "–" if value is None else _minus(f"{100.0 * value:+.1f} %")


def _number(value: float | None) -> str:
    return "–" if value is None else _minus(f"{value:.2f}")


def _minus(text: str) -> str:
    return text.replace("-", "−")


LLM_ANALYSIS = "llm-analysis 0.2.2"
EFFICIENCY = 0.5
"""Share of the peak rate that it computes at: what its own source calls usual for training (constant.py); its
default is the whole peak."""
RECOMPUTE = {"none": 0, "selective": 1, "full": 2}


def llm_analysis_step(case: Case) -> float:
    """Return the seconds per step that llm-analysis says.

    Raises
    ------
    InexpressibleError
        If it has no words for the run.
    ForescaleError
        If it is not installed.
    """
    analysis, config = _modules()
    model, cluster, layout, workload = case.question.parts
    peak = cluster.device.matrix_flops.bf16 or cluster.device.matrix_flops.fp16
    if workload.precision.compute not in ("bf16", "fp16") or peak is None:
        msg = "llm-analysis computes in 16 bits"
        raise InexpressibleError(msg)
    if cluster.device.vendor == "Google" or layout.recompute.granularity not in RECOMPUTE or layout.cp > 1:
        msg = "llm-analysis has no TPUs, named policies or context parallelism"
        raise InexpressibleError(msg)
    device = _device(config, cluster, peak)
    llm_analysis = analysis.LLMAnalysis(
        _model(config, model, workload.seq_len),
        device,
        config.DtypeConfig(),
        _parallelism(config, layout),
        flops_efficiency=EFFICIENCY,
    )
    gated = any(isinstance(kind.ffn, DenseFfn | MoeFfn) and kind.ffn.gated for kind in model.layer_kinds)
    with contextlib.redirect_stdout(io.StringIO()):
        summary = llm_analysis.training(
            batch_size_per_gpu=layout.micro_batch_size,
            gradient_accumulation_steps=None,
            global_batch_size=workload.global_batch_size,
            seq_len=workload.seq_len,
            activation_recomputation=analysis.ActivationRecomputation(
                RECOMPUTE[layout.recompute.granularity]
            ),
            ds_zero=analysis.DSZeRO(layout.zero),
            mlp_gated_linear_units=gated,
            flash_attn=layout.flash_attention,
        )
    return float(summary["latency_per_iter"])


def _modules() -> tuple[Any, Any]:
    try:
        analysis, config = (import_module(f"llm_analysis.{name}") for name in ("analysis", "config"))
    except ImportError as error:
        msg = f"llm-analysis is not installed ({error}): pip install --no-deps llm-analysis fire termcolor"
        raise ForescaleError(msg) from error
    logging.getLogger("llm_analysis").setLevel(logging.CRITICAL)
    config.logger.setLevel(logging.CRITICAL)
    return analysis, config


def _device(config: Any, cluster: Cluster, peak: float) -> Any:  # noqa: ANN401
    inner, outer = cluster.tiers[0], cluster.tiers[-1]
    return config.GPUConfig(
        name=cluster.device.name,
        mem_per_GPU_in_GB=1e6,  # whether it fits is not asked
        hbm_bandwidth_in_GB_per_sec=cluster.device.hbm_bandwidth / GB,
        intra_node_bandwidth_in_GB_per_sec=inner.bandwidth / GB,
        intra_node_min_message_latency=inner.latency,
        peak_fp16_TFLOPS=peak / TB,
        inter_node_bandwidth_in_GB_per_sec=outer.bandwidth / GB,
    )


def _model(config: Any, model: Model, seq_len: int) -> Any:  # noqa: ANN401
    """Return the model as it describes one: equal layers of softmax attention."""
    kinds = model.layer_kinds
    attention, ffn = kinds[-1].attention, kinds[-1].ffn
    if len(kinds) > 1 or not isinstance(attention, FullAttention) or ffn is None:
        msg = "llm-analysis describes equal layers of softmax attention"
        raise InexpressibleError(msg)
    moe = ffn if isinstance(ffn, MoeFfn) else None
    return config.ModelConfig(
        name=model.name,
        num_layers=model.num_layers,
        n_head=attention.num_heads,
        hidden_dim=model.hidden_size,
        vocab_size=model.vocab_size,
        max_seq_len=seq_len,
        num_key_value_heads=attention.num_kv_heads,
        ffn_embed_dim=ffn.ffn_hidden_size,
        expansion_ratio=ffn.ffn_hidden_size / model.hidden_size,
        moe_num_experts=1 if moe is None else moe.num_experts,
        moe_top_k=1 if moe is None else moe.top_k,
    )


def _parallelism(config: Any, layout: Layout) -> Any:  # noqa: ANN401
    return config.ParallelismConfig(
        tp_size=layout.tp,
        pp_size=layout.pp,
        dp_size=layout.dp,
        ep_size=layout.ep,
        sp_size=layout.tp if layout.sp else 1,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
