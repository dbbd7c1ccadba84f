"""Advice as text, and what makes a layout fit, as a table: what each change costs and frees."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from forescale.advise import Advice, Fact, Fit, Fix, Step, Trial
from forescale.cli.render import words
from forescale.cli.render.projection import VERDICT_STYLE, header
from forescale.cli.render.words import asked
from forescale.question import Note
from forescale.spec import phrases
from forescale.units import GIB, counted, format_count, format_seconds

SHOWN = 6
"""Trials of a step shown: the last ones, among which is the one taken; the rest are counted."""
MOST_CHANGES = 6


def advice_view(result: Advice, *, notes: Sequence[Note] = ()) -> Group:
    """Return every step with its numbers, then the outcome."""
    header = asked(result.model, result.cluster, words.workload(result.workload))
    parts: list[RenderableType] = [header, *words.left_out(result.model), *_sites(result)]
    for number, step in enumerate(result.steps, start=1):
        parts += ["", *_step(number, step)]
    message = words.notes([*(note for note in result.advised.notes if note.topic == "sites"), *notes])
    return Group(*parts, "", *_outcome(result), *message)


def _sites(result: Advice) -> list[Text]:
    """Return what the steps are of where sites train by themselves."""
    sites = result.advised.sites
    if sites is None:
        return []
    devices, batch = result.cluster.num_devices, result.workload.global_batch_size
    text = f"{counted(devices // sites.num_sites, 'device')}, {counted(batch // sites.num_sites, 'sequence')} a step"
    return [Text(f"steps 1 to 3 are of one of the {sites.num_sites} sites by itself: {text}", style="dim")]


def _step(number: int, step: Step) -> list[RenderableType]:
    facts = " · ".join(f"{fact.name} {_value(fact)}" for fact in step.facts)
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=False)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    shown = _shown(step)
    for trial in shown:
        table.add_row(*_cells(trial), style="bold" if trial.taken else "dim")
    rest = len(step.trials) - len(shown)
    more = [Text(f"  {rest} more tried (all with --json)", style="dim")] if rest else []
    return [
        Text.assemble((f"{number}. {step.name.capitalize()}. ", "bold"), step.question),
        Text(f"  {facts}", style="dim"),
        table,
        *more,
        Text.assemble("  → ", (step.finding, "cyan")),
    ]


def _value(fact: Fact) -> str:
    """Return a fact's number; what its name already says has no unit."""
    if fact.unit in ("parameter", "token"):
        return format_count(fact.value)
    if fact.unit == "share":
        return words.percent(fact.value)
    return f"{fact.value:.3g}" if fact.unit == "device" else words.quantity(fact.value, fact.unit)


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
    message = (
        ", ".join(filter(None, ["taken" if trial.taken else "", at_risk])) if trial.fits else "does not fit"
    )
    return f"  {trial.move}", time, memory, trial.problem or message


def _outcome(result: Advice) -> list[Text]:
    """Return the advised layout, its ratios, and what the exact search says."""
    one = result.advised
    lines = [
        Text.assemble(
            ("advice  ", "bold"),
            phrases.layout(one.strategy),
            f": {format_seconds(one.step_time_s)} per step, MFU {words.percent(one.mfu)}, "
            f"{words.gib(one.memory.peak_bytes)} GiB, ",
            (result.verdict, VERDICT_STYLE[result.verdict]),
        ),
        *_risk(result),
    ]
    if one.training_days is not None:
        days = f"the run  {one.training_days:,.1f} days if nothing failed, {words.calendar(one)}"
        lines.append(Text(days))
    if result.ratios:
        ratios = " · ".join(f"{ratio.name} {ratio.value:.2g}" for ratio in result.ratios)
        lines.append(Text(f"communication to compute, hidden below 1: {ratios}", style="dim"))
    if result.best is None or result.comparison is None or result.excess is None:
        return lines
    if result.agrees:
        gain = f"its best is {words.percent(result.excess)} faster" if result.excess else "nothing is faster"
        lines.append(Text(f"the exact search agrees: {gain}"))
        return lines
    changes = [
        f"{change.name.removeprefix('strategy.')} {_plain(change.a)} → {_plain(change.b)}"
        for change in result.comparison.layout[:MOST_CHANGES]
    ]
    lines.append(
        Text.assemble(
            ("the exact search does not agree: ", "yellow"),
            f"the advised step is {words.percent(result.excess)} longer than its best, "
            f"{format_seconds(result.best.step_time_s)} with {phrases.layout(result.best.strategy)}",
        )
    )
    lines.append(Text(f"  {' · '.join(changes)}", style="dim"))
    return lines


def _risk(result: Advice) -> list[Text]:
    """Return what a layout that may run out of memory means, and what avoids it."""
    if result.verdict == "FITS":
        return []
    high = words.gib(result.advised.memory.peak_high_bytes)
    text = f"it may run out of memory: the upper end of its 80 % interval is {high} GiB; --safe requires that it fits"
    return [Text(text, style=VERDICT_STYLE[result.verdict])]


def _plain(value: object) -> str:
    return ("-".join(map(str, value)) or "none") if isinstance(value, list) else words.number(value)


def fit_view(result: Fit, *, most: int) -> Group:
    """Return the layout as it is, what is proposed, and at most `most` changes."""
    memory = result.now.memory
    now = Text.assemble(
        (result.verdict, VERDICT_STYLE[result.verdict]),
        f": {words.gib(memory.peak_bytes)} GiB of {words.gib(result.question.memory_limit)} "
        f"({words.gib(memory.peak_low_bytes)} to {words.gib(memory.peak_high_bytes)}), "
        f"{format_seconds(result.now.step_time_s)} per step",
    )
    more = len(result.fixes) - most
    tried = f"{counted(result.num_tried, 'legal layout')} evaluated"
    if more > 0:
        tried += f"; {more} more (all with --json or a larger --top)"
    return Group(
        *header(result.now), now, "", *_fix_table(result.fixes[:most]), _proposal(result), Text(tried, style="dim"),
        *words.notes(result.now.notes),
    )  # fmt: skip


def _proposal(result: Fit) -> Text:
    """Return what comes first in a sentence."""
    first = result.first
    if first is None and result.verdict == "FITS":
        return Text("it fits, and no change of one or two things makes it faster and still fits for sure")
    if first is None:
        return Text("no change of one or two things makes it fit for sure; forescale search tries everything")
    if result.verdict == "FITS":
        return Text.assemble(
            "it fits; ", (first.text, "bold"), f" makes a step {format_seconds(-first.lost_s)} shorter"
        )
    longer = "longer" if first.lost_s > 0.0 else "shorter"
    price = f"makes a step {format_seconds(abs(first.lost_s))} {longer}" if first.lost_s else "takes no time"
    return Text.assemble("with ", (first.text, "bold"), f" it fits for sure, which {price}")


def _fix_table(fixes: tuple[Fix, ...]) -> list[Table | str]:
    if not fixes:
        return []
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("change")
    for name in ("step", "lost", "GiB", "freed", "lost per GiB"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for fix in fixes:
        table.add_row(*_fix_cells(fix), Text(fix.verdict, style=VERDICT_STYLE[fix.verdict]))
    return [table, ""]


def _fix_cells(fix: Fix) -> list[str]:
    per_gib = fix.lost_s_per_gib
    return [
        fix.text,
        format_seconds(fix.projection.step_time_s),
        f"{fix.lost_s:+.3f} s",
        words.gib(fix.projection.memory.peak_bytes),
        f"{fix.freed_bytes / GIB:.1f}",
        "–" if per_gib is None or fix.lost_s <= 0.0 else f"{per_gib:.4f} s",
    ]
