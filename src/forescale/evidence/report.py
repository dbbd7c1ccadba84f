"""The scoreboard as a Markdown page."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from forescale.cost.run_calibration import load_run_calibration
from forescale.escaping import markdown as safe
from forescale.escaping import plain
from forescale.evidence.metrics import ErrorSummary
from forescale.evidence.peers import PeerGroup
from forescale.evidence.scoreboard import DIMENSIONS, Group, Outcome, Scoreboard, mean_regret, mean_spearman

_WORST = 15


def markdown(
    board: Scoreboard,
    *,
    corpus: str,
    preset: str,
    command: str,
    peers: Sequence[PeerGroup] = (),
    pictures: Mapping[str, str] | None = None,
) -> str:
    """Return the accuracy page: step time, memory, choice of layout, groups, worst and skipped rows, notes.

    Parameters
    ----------
    board
        What was found.
    corpus, preset
        Name of the file and of the preset, for the opening line.
    command
        The command that writes this page.
    peers
        Other tools on the same rows.
    pictures
        Where pictures lie, by name: step-time, memory, peers.
    """
    drawn = {name: f"![{name}]({path})\n\n" for name, path in (pictures or {}).items()}
    sections = (
        _opening(board, corpus, preset, command),
        _headline(board, drawn.get("step-time", "")),
        _held_out(preset),
        _memory(board, drawn.get("memory", "")),
        _choice(board),
        _peers(peers, drawn.get("peers", "")),
        *(_breakdown(board, name) for name in DIMENSIONS),
        _worst(board),
        _skipped(board),
        _assumptions(board),
    )
    return "\n\n".join(section for section in sections if section) + "\n"


def _opening(board: Scoreboard, corpus: str, preset: str, command: str) -> str:
    count, skipped = len(board.outcomes), len(board.skipped)
    core = sum(outcome.case.core for outcome in board.outcomes)
    return (
        "# Accuracy\n\n"
        f"`{_code(command)}` writes this page: {count} measured runs of `{_code(corpus)}`, projected under the "
        f"preset `{_code(preset)}`. {skipped} rows could not be projected; each is listed below with the reason. "
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


def _held_out(preset: str) -> str:
    """Return how the shipped losses of whole runs did on runs of which they had not seen something."""
    if preset != "default":
        return ""
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
        for group, spread in groups.items()
        if group in PRINTED or group.endswith(("/8", "/16"))
    ]
    title = ("new to the fit", "group", "rows", "median", "90th pct", "bias", "interval", "in interval")
    return (
        "### What the calibration has not seen\n\n"
        "The losses of whole runs (clocks, launches, stragglers, software) that every projection uses are fitted "
        f"to {calibration.source}, so on these rows the figures above are in-sample: nothing is new, a "
        "*known source*. Every run is also predicted by fits that had not seen it: without its source, where other "
        "releases of that document stay (*new release*); without all releases of its document (*new family*); the "
        "same, asked as one asks who does not know the stack, with the usual framework and all its defaults (*new "
        "stack*); without its generation of devices (*new device*). Errors are ln(measured / projected), every row "
        "counted alike. The interval is what 8 rows in 10 of the group lie within, core rows counting most; it is "
        "the range that a projection states: of the closest group and of what is new of the question (nothing "
        "named of the framework: a new stack; `--framework`: a new family). The last column says how many rows "
        "lie within the interval that all *other* families give.\n\n" + table(title, rows)
    )


PRINTED = ("all", "core", "dense", "moe")


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
    text += table(["source", "measure", *_MEMORY_TITLE], rows)
    for dimension in ("architecture", "parallelism"):
        found = [
            [group.name, *_cells(group.memory)]
            for group in board.by(dimension, core=False)
            if group.memory.count
        ]
        text += f"\n\nThe same by {dimension}.\n\n" + table([dimension, *_MEMORY_TITLE], found)
    return text


_MEMORY_TITLE = ("rows", "median", "90th pct", "bias", "worst")


def _measures(board: Scoreboard) -> dict[str, str]:
    """Return, by source, the measures of the rows whose memory is compared."""
    found: dict[str, dict[str, None]] = {}
    for outcome in board.outcomes:
        if outcome.memory_error is not None:
            found.setdefault(outcome.case.source, {})[outcome.case.measured.peak_measure] = None
    return {source: ", ".join(sorted(measures)) for source, measures in found.items()}


def _choice(board: Scoreboard) -> str:
    text = (
        "## Choice of layout\n\n"
        "A sweep is at least 3 layouts of one model shape, source, device, device count, sequence length "
        "and compute type, compared by time per token. Spearman is the rank correlation of projected and "
        "measured; the regret is how much slower the layout that the projection picks was measured than the "
        "best one.\n\n"
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


def _layout(outcome: Outcome) -> str:
    strategy = outcome.case.question.layout
    names = ("tp", "cp", "ep", "pp", "vpp", "dp")
    degrees = [f"{name}{getattr(strategy, name)}" for name in names if getattr(strategy, name) > 1]
    return " ".join([*degrees, f"zero{strategy.zero}", f"mbs{strategy.micro_batch_size}"])


def _skipped(board: Scoreboard) -> str:
    if not board.skipped:
        return "## Rows not projected\n\nNone."
    reasons: dict[str, list[str]] = {}
    for outcome in board.skipped:
        reasons.setdefault(outcome.skipped or "", []).append(_marked(outcome))
    rows = [[str(len(ids)), reason, ", ".join(ids)] for reason, ids in reasons.items()]
    rows.sort(key=lambda row: (-int(row[0]), row[1]))
    return "## Rows not projected\n\nCore rows in bold.\n\n" + table(["rows", "reason", "ids"], rows, ready=1)


def _marked(outcome: Outcome) -> str:
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


def _time_table(groups: Iterable[Group]) -> str:
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
    own = len(title) - ready
    cells = [[*map(safe, row[:own]), *row[own:]] for row in rows]
    lines = [list(title), ["---:" if right else "---" for right in numeric], *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _is_number(cell: str) -> bool:
    return cell in {"", "–"} or cell.lstrip("+−-")[:1].isdigit()


def _code(text: str) -> str:
    """Return text that stays inside `such marks`."""
    return plain(text).replace("`", "'")


def _percent(value: float | None) -> str:
    return "–" if value is None else _minus(f"{100.0 * value:.1f} %")


def _signed(value: float | None) -> str:
    return "–" if value is None else _minus(f"{100.0 * value:+.1f} %")


def _number(value: float | None) -> str:
    return "–" if value is None else _minus(f"{value:.2f}")


def _minus(text: str) -> str:
    return text.replace("-", "−")


SCHEMA = "forescale.validation/1"


def document(board: Scoreboard, peers: Sequence[PeerGroup] = ()) -> dict[str, Any]:
    """Return the scoreboard as plain values: `rows`, one for every row of the corpus, `summary` and `peers`.

    Times are in seconds, sizes in bytes, errors are predicted / measured − 1; what is unknown is null, and
    `skipped` holds the reason where a row was not projected.
    """
    return {
        "schema": SCHEMA,
        "rows": [_row(outcome) for outcome in board.outcomes],
        "summary": _summary(board),
        "peers": [asdict(group) for group in peers],
    }


def _row(outcome: Outcome) -> dict[str, Any]:
    prediction, measured = outcome.prediction, outcome.case.measured
    return {
        "id": outcome.case.id,
        "predicted_step_time_s": prediction.step_time_s if prediction else None,
        "predicted_step_time_low_s": prediction.low_s if prediction else None,
        "predicted_step_time_high_s": prediction.high_s if prediction else None,
        "measured_step_time_s": measured.step_time_s,
        "error": outcome.error,
        "predicted_peak_bytes": prediction.peak_bytes if prediction else None,
        "predicted_peak_low_bytes": prediction.peak_low_bytes if prediction else None,
        "predicted_peak_high_bytes": prediction.peak_high_bytes if prediction else None,
        "measured_peak_bytes": measured.peak_bytes,
        "peak_measure": measured.peak_measure,
        "memory_error": outcome.memory_error,
        "skipped": outcome.skipped,
    }


def _summary(board: Scoreboard) -> dict[str, Any]:
    return {
        "num_rows": len(board.outcomes),
        "num_skipped": len(board.skipped),
        "num_core": sum(outcome.case.core for outcome in board.outcomes),
        "core_skipped_share": board.core_skipped_share,
        "core": _group(board.total(core=True)),
        "all": _group(board.total(core=False)),
        "headline": [_group(group) for group in board.headline()],
        "groups": {name: [_group(group) for group in board.by(name)] for name in DIMENSIONS},
        "num_sweeps": len(board.sweeps),
        "mean_spearman": mean_spearman(board.sweeps),
        "mean_regret": mean_regret(board.sweeps),
        "sweeps": [asdict(sweep) | {"cases": list(sweep.cases)} for sweep in board.sweeps],
        "naive_rates": [
            {"device": device, "compute": compute, "flops_per_s": rate}
            for (device, compute), rate in board.naive_rates.items()
        ],
    }


def _group(group: Group) -> dict[str, Any]:
    return {
        "name": group.name,
        "step_time": asdict(group.time),
        "naive": asdict(group.naive),
        "memory": asdict(group.memory),
        "coverage": group.coverage,
    }
