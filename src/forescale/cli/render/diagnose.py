"""The answer of `forescale diagnose`."""

from __future__ import annotations

from collections.abc import Iterator

from forescale.cli.render.words import VERDICT_STYLE, asked
from forescale.diagnose import GROUPS, Diagnosis
from forescale.diagnose.diagnosis import mfu_at
from forescale.projection.result import Projection
from forescale.report.document import Content, View, line, table
from forescale.units import format_seconds

STYLES = {"as expected": "FITS", "slower": "OOM", "faster": "AT RISK"}


def diagnosis_view(result: Diagnosis) -> View:
    """Return the verdict, the groups of work measured next to expected, the causes, and remarks."""
    one = result.projection
    step = one.step_time
    verdict = (result.verdict, VERDICT_STYLE[STYLES[result.verdict]])
    change = result.measured_s / step.expected - 1.0
    headline = line(
        verdict,
        f"  {format_seconds(result.measured_s)} measured, {format_seconds(step.expected)} expected "
        f"({step.low:.4g} to {step.high:.4g}): {change:+.1%}; MFU {mfu_at(one, result.measured_s):.1%}, "
        f"{mfu_at(one, step.expected):.1%} expected; {_rate(one, result.measured_s)} tokens/s/device, "
        f"{_rate(one, step.expected)} expected",
    )
    return View(title=asked(one.model, one.cluster), contents=(headline, *_contents(result)), notes=one.notes)


def _rate(one: Projection, seconds: float) -> str:
    return f"{one.workload.tokens_per_step / seconds / one.cluster.num_devices:,.0f}"


def _contents(result: Diagnosis) -> Iterator[Content]:
    if result.measured:
        rows = [
            (
                name,
                f"{result.measured[name]:.4g}",
                f"{result.expected[name]:.4g}",
                f"{result.measured[name] - result.expected[name]:+.4g}",
            )
            for name in GROUPS
            if result.measured[name] or result.expected[name]
        ]
        yield table("|seconds per step", "measured", "expected", "difference", rows=rows)
    if result.explanations:
        causes = [
            (str(rank), item.text, f"{item.seconds:+.4g} s", f"{item.explained:.0%}", item.remedy)
            for rank, item in enumerate(result.explanations, 1)
        ]
        yield table("|#", "<cause", "explains", "of the difference", "<what to do", rows=causes)
        yield line(f"evidence for the first: {result.explanations[0].evidence}")
        if not result.measured:
            yield line(
                "only the time of a step was measured; a profiler trace tells causes apart: --measured trace.json"
            )
    elif result.verdict != "as expected":
        more = "" if result.traces else "; a profiler trace of a step tells more: --measured trace.json"
        yield line(f"no known cause explains the difference{more}")
    for item in result.inside_scatter:
        yield line(f"no cause: {item.text} ({item.seconds:+.4g} s); recorded steps and ranks scatter as much")
    for convention in result.conventions:
        note = "" if convention.usual else ", not the usual count (causal attention, dense peak)"
        yield line(f"the printed rate agrees with: {convention.text}{note}")
    for remark in result.remarks:
        yield line(remark)
