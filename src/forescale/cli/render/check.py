"""The answer of `forescale check` as text, JUnit XML, and annotations of GitHub Actions."""

from __future__ import annotations

from collections.abc import Iterator

from forescale.advise.check import Check, Checks, Finding
from forescale.advise.solve import Solved
from forescale.cli.render import words
from forescale.cli.render.words import VERDICT_STYLE
from forescale.escaping import xml
from forescale.projection.result import Projection
from forescale.question import Note
from forescale.report.document import Code, Content, TextLine, View, line
from forescale.spec.phrases import layout
from forescale.units import GIB, format_count, format_seconds

STYLES = {"passes": VERDICT_STYLE["FITS"], "warning": VERDICT_STYLE["AT RISK"]}
FAILED_STYLE = VERDICT_STYLE["OOM"]


def check_view(result: Checks) -> View:
    """Return one line per question, and below it one per finding."""
    is_alone = len(result.checks) == 1
    contents: list[Content] = [
        item for check in result.checks for item in _contents(check, is_alone=is_alone)
    ]
    if result.skipped:
        contents.append(line(f"skipped {len(result.skipped)} files that configure no training run"))
    if len(result.checks) > 1:
        counts = {status: sum(one.status == status for one in result.checks) for status in _statuses(result)}
        contents.append(line(", ".join(f"{count} {status}" for status, count in counts.items())))
    return View(title="", contents=tuple(contents), notes=_assumed(result))


def _assumed(result: Checks) -> tuple[Note, ...]:
    """Return which framework was assumed where none is named."""
    notes = (note for check in result.checks if check.projection for note in check.projection.notes)
    return tuple(dict.fromkeys(note for note in notes if note.topic == "framework"))


def _statuses(result: Checks) -> list[str]:
    return list(dict.fromkeys(check.status for check in result.checks))


def _contents(check: Check, *, is_alone: bool) -> Iterator[Content]:
    yield _headline(check)
    if check.projection is not None and is_alone:
        yield line(f"  layout: {layout(check.projection.strategy)}")
    for finding in check.findings:
        style = STYLES["warning"] if finding.level == "warning" else FAILED_STYLE
        fix = f"; {finding.fix}" if finding.fix and finding.fix not in finding.text else ""
        yield line("  ", (finding.level, style), f": {finding.text}{fix}")


def _headline(check: Check) -> TextLine:
    status = (check.status, STYLES.get(check.status, FAILED_STYLE))
    if (one := check.projection) is None:
        return line(status, f"  {check.subject}")
    memory = one.memory
    figures = (
        f"{format_seconds(one.step_time_s)} per step",
        f"MFU {one.mfu:.1%}",
        f"{memory.peak_low_bytes / GIB:.1f} to {memory.peak_high_bytes / GIB:.1f} of "
        f"{memory.capacity_bytes / GIB:.1f} GiB",
        f"{one.cluster.num_devices:,} × {one.cluster.name}",
    )
    return line(status, f"  {check.subject}  {' · '.join(figures)}")


def solved_view(result: Solved, again: str = "") -> View:
    """Return the value that passes, its figures, why the next one does not, and the command that projects it."""
    most = "smallest" if result.quantity == "devices" else "largest"
    short = f" ({format_count(result.value)})" if result.quantity == "tokens" else ""
    contents: list[Content] = [line(f"{most} {result.quantity} that passes: {result.value:,}{short}")]
    contents += _contents(result.check, is_alone=False)
    if (one := result.check.projection) is not None:
        contents += _run(one) if result.quantity == "tokens" else ()
        contents.append(line(f"layout: {layout(one.strategy)}; forescale search ranks others"))
    if result.next_check is not None:
        contents.append(line(f"{result.next_value:,} {_why_not(result.next_check)}"))
    if result.replayed is not None and result.replayed.value != result.value:
        other, one = result.replayed, result.replayed.check.projection
        step = "" if one is None else f", {format_seconds(one.step_time_s)} per step"
        contents.append(line(f"with full recompute the {most} is {other.value:,}{step}; --recompute full"))
    if (sure := result.with_margin) is not None:
        contents.append(
            line(f"{most} that fits at the upper end of its memory range: {sure.value:,}; --strict")
        )
    if again:
        contents.append(Code("to reproduce", again))
    return View(title="", contents=tuple(contents))


def _why_not(tried: Check) -> str:
    """Return why a value is none that passes: what fails, or that the expected peak is more than there is."""
    if tried.status != "passes" or tried.projection is None:
        return f"{tried.status}: {'; '.join(finding.text for finding in tried.findings)}"
    memory = tried.projection.memory
    return f"is expected to need {memory.peak_bytes / GIB:.2f} of {memory.capacity_bytes / GIB:.2f} GiB"


def _run(one: Projection) -> Iterator[Content]:
    """Yield the days of a run with its failures."""
    if (calendar := one.calendar) is not None:
        days = calendar.days
        yield line(f"{words.days(days.expected)} days ({words.days(days.low)} to {words.days(days.high)})")


def junit_xml(result: Checks) -> str:
    """Return the findings as JUnit XML: a test case per question, a failure per error."""
    failed = sum(check.status != "passes" for check in result.checks)
    cases = "".join(_case(check) for check in result.checks)
    head = f'<testsuite name="forescale check" tests="{len(result.checks)}" failures="{failed}" errors="0">'
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{head}\n{cases}</testsuite>\n'


def _case(check: Check) -> str:
    shown = list(map(_element, check.findings if check.status != "passes" else ()))
    warnings = [finding.text for finding in check.findings if check.status == "passes"]
    out = f"<system-out>{xml('; '.join(warnings))}</system-out>" if warnings else ""
    return f'<testcase classname="forescale" name="{xml(check.subject)}">{"".join(shown)}{out}</testcase>\n'


def _element(finding: Finding) -> str:
    return f'<failure type="{xml(finding.code)}" message="{xml(finding.text)}">{xml(finding.fix)}</failure>'


def workflow_commands(result: Checks) -> Iterator[str]:
    """Yield a workflow command of GitHub Actions per finding, and a notice for each question that passes without."""
    for check in result.checks:
        if not check.findings:
            yield f"::notice title=forescale check::{_escaped(_headline(check).text)}"
        for finding in check.findings:
            place = _property("file", finding.file or check.subject) + _property("line", finding.line or "")
            level = "error" if check.status != "passes" else finding.level
            yield f"::{level} {place}title=forescale {finding.code}::{_escaped(finding.text)}"


def _property(name: str, value: object) -> str:
    escaped = _escaped(str(value)).replace(":", "%3A").replace(",", "%2C")
    return f"{name}={escaped}," if value else ""


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
