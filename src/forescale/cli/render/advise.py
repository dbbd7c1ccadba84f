"""Advice as text, and what makes a layout fit, as a table: what each change costs and frees."""

from __future__ import annotations

from collections.abc import Sequence

from forescale.advise import Advice, Fact, Fit, Fix, Step, Trial
from forescale.cli.render import words
from forescale.cli.render.projection import headed
from forescale.question import Note
from forescale.report.document import (
    Cell,
    Column,
    Content,
    Section,
    Table,
    TextLine,
    View,
    line,
    listed,
    styled,
)
from forescale.spec import phrases
from forescale.units import GIB, counted, format_count, format_quantity, format_seconds

SHOWN = 6
"""Trials of a step shown: the last ones, among which is the one taken; the rest are counted."""
MOST_CHANGES = 6


def advice_view(result: Advice, *, notes: Sequence[Note] = ()) -> View:
    """Return every step with its numbers, then the outcome."""
    steps = (_step(number, step) for number, step in enumerate(result.steps, start=1))
    return View(
        title=words.asked(result.model, result.cluster),
        lead=words.workload(result.workload),
        contents=(*_sites(result), *steps, *_outcome(result)),
        notes=(*(note for note in result.advised.notes if note.topic in ("left out", "sites")), *notes),
    )


def _sites(result: Advice) -> list[TextLine]:
    """Return what the steps are of where sites train by themselves."""
    sites = result.advised.sites
    if sites is None:
        return []
    devices, batch = result.cluster.num_devices, result.workload.global_batch_size
    text = f"{counted(devices // sites.num_sites, 'device')}, {counted(batch // sites.num_sites, 'sequence')} a step"
    return [line(f"steps 1 to 3 are of one of the {sites.num_sites} sites by itself: {text}", style="dim")]


def _step(number: int, step: Step) -> Section:
    facts = " · ".join(f"{fact.name} {_value(fact)}" for fact in step.facts)
    shown = _shown(step)
    rows = tuple(styled("bold" if trial.taken else "dim", _cells(trial)) for trial in shown)
    rest = len(step.trials) - len(shown)
    contents: list[Content] = [
        line(facts, style="dim"),
        *([Table((), rows)] if rows else []),
        *([line(f"{rest} more tried (all with --json)", style="dim")] if rest else []),
        line("→ ", (step.finding, "cyan")),
    ]
    return Section(f"{number}. {step.name.capitalize()}. {step.question}", tuple(contents), 2)


def _value(fact: Fact) -> str:
    """Return a fact's number; what its name already says has no unit."""
    if fact.unit in ("parameter", "token"):
        return format_count(fact.value)
    if fact.unit == "share":
        return words.percent(fact.value)
    return f"{fact.value:.3g}" if fact.unit == "device" else format_quantity(fact.value, fact.unit)


def _shown(step: Step) -> list[Trial]:
    """Return the trials worth a line: all taken, and the nearest to them."""
    taken = [trial for trial in step.trials if trial.taken]
    if step.name == "throughput":
        return [*taken, *[trial for trial in step.trials if not trial.taken][: max(0, SHOWN - len(taken))]]
    return list(step.trials[-SHOWN:])


def _cells(trial: Trial) -> tuple[str, str, str, str]:
    time = "" if trial.step_time_s is None else format_seconds(trial.step_time_s)
    memory = "" if trial.peak_bytes is None else f"{words.gib(trial.peak_bytes)} GiB"
    at_risk = "at risk" if trial.fits and trial.verdict == "AT RISK" else ""
    taken = ", ".join(filter(None, ["taken" if trial.taken else "", at_risk]))
    return trial.move, time, memory, trial.problem or (taken if trial.fits else "does not fit")


def _outcome(result: Advice) -> list[TextLine]:
    """Return the advised layout, its ratios, and what the exact search says."""
    one = result.advised
    lines = [
        line(
            ("advice  ", "bold"),
            phrases.layout(one.strategy),
            f": {format_seconds(one.step_time_s)} per step, MFU {words.percent(one.mfu)}, "
            f"{words.gib(one.memory.peak_bytes)} GiB, ",
            *words.verdict(result.verdict).parts,
        ),
        *_risk(result),
    ]
    if one.training_days is not None:
        lines.append(line(f"the run  {one.training_days:,.1f} days without failures, {words.calendar(one)}"))
    if result.ratios:
        ratios = " · ".join(f"{ratio.name} {ratio.value:.2g}" for ratio in result.ratios)
        lines.append(line(f"communication to compute, hidden below 1: {ratios}", style="dim"))
    if result.best is None or result.comparison is None or result.excess is None:
        return lines
    if result.agrees:
        gain = f"its best is {words.percent(result.excess)} faster" if result.excess else "nothing is faster"
        return [*lines, line(f"the exact search agrees: {gain}")]
    changes = [
        f"{change.name.removeprefix('strategy.')} {words.plain(change.a)} → {words.plain(change.b)}"
        for change in result.comparison.layout[:MOST_CHANGES]
    ]
    return [
        *lines,
        line(
            ("the exact search does not agree: ", "yellow"),
            f"the advised step is {words.percent(result.excess)} longer than its best, "
            f"{format_seconds(result.best.step_time_s)} with {phrases.layout(result.best.strategy)}",
        ),
        line(f"  {' · '.join(changes)}", style="dim"),
    ]


def _risk(result: Advice) -> list[TextLine]:
    """Return what a layout that may run out of memory means, and what avoids it."""
    if result.verdict == "FITS":
        return []
    high = words.gib(result.advised.memory.peak_high_bytes)
    text = f"it may run out of memory: the upper end of its 80 % interval is {high} GiB; --safe requires that it fits"
    return [line(text, style=words.VERDICT_STYLE[result.verdict])]


def fit_view(result: Fit, *, most: int) -> View:
    """Return the layout as it is, what is proposed, and at most `most` changes."""
    memory = result.now.memory
    now = words.verdict(
        result.verdict,
        f": {words.gib(memory.peak_bytes)} GiB of {words.gib(result.question.memory_limit)} "
        f"({words.gib(memory.peak_low_bytes)} to {words.gib(memory.peak_high_bytes)})"
        f"{words.over(memory)}, {format_seconds(result.now.step_time_s)} per step",
    )
    remedies = result.remedies
    more = len(remedies) - most
    tried = f"{counted(result.num_tried, 'legal layout')} evaluated"
    if more > 0:
        tried += f"; {more} more (all with --json or a larger --top)"
    fixes = [listed(_FIXES, remedies[:most])] if remedies else []
    is_row = any(fix.text == f"--seq-len {result.shorter}" for fix in remedies[:most])
    cut = result.shorter is not None and not is_row
    shorter = [line(f"at seq_len {result.shorter:,} the layout fits as it is")] if cut else []
    return headed(result.now, [now, *fixes, _proposal(result), *shorter, line(tried, style="dim")])


def _proposal(result: Fit) -> TextLine:
    """Return what comes first in a sentence."""
    first = result.first
    if first is None and result.verdict == "FITS":
        return line("it fits, and no change of one or two things makes it faster and still fits with margin")
    if first is None:
        failed = "no one or two changes of the layout alone make it fit with margin; "
        run = next((fix for fix in result.remedies if fix.changes[0].kind == "run"), None)
        if run is None:
            return line(failed, "forescale search tries everything")
        return line(failed, (run.text, "bold"), f" does, at {words.tokens_per_s(run.projection)}")
    rate = words.tokens_per_s(first.projection)
    if result.verdict == "FITS":
        shorter = f" makes a step {format_seconds(-first.lost_s)} shorter ({rate})"
        return line("it fits; ", (first.text, "bold"), shorter)
    longer = "longer" if first.lost_s > 0.0 else "shorter"
    price = (
        f"makes a step {format_seconds(abs(first.lost_s))} {longer}" if first.lost_s else "costs no step time"
    )
    return line("with ", (first.text, "bold"), f" it fits with margin at {rate}, which {price}")


def _lost_per_gib(fix: Fix) -> Cell:
    per_gib = fix.lost_s_per_gib
    return "–" if per_gib is None or fix.lost_s <= 0.0 else f"{per_gib:.4f} s"


_FIXES: tuple[Column[Fix], ...] = (
    Column("<change", lambda fix: fix.text),
    Column("step", lambda fix: format_seconds(fix.projection.step_time_s)),
    Column("tokens/s", lambda fix: f"{fix.projection.tokens_per_s:,.0f}"),
    Column("lost", lambda fix: f"{fix.lost_s:+.3f} s"),
    Column("GiB", lambda fix: words.gib(fix.projection.memory.peak_bytes)),
    Column("freed", lambda fix: f"{fix.freed_bytes / GIB:.1f}"),
    Column("lost per GiB", _lost_per_gib),
    Column("|", lambda fix: words.verdict(fix.verdict)),
)
