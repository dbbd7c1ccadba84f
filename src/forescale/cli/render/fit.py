"""What makes a layout fit, as a table: what each change costs and frees."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table
from rich.text import Text

from forescale.advise import Fit, Fix
from forescale.cli.render import words
from forescale.cli.render.projection import VERDICT_STYLE, header
from forescale.units import GIB, counted, format_seconds


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
        *header(result.now), now, "", *_table(result.fixes[:most]), _proposal(result), Text(tried, style="dim"),
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


def _table(fixes: tuple[Fix, ...]) -> list[Table | str]:
    if not fixes:
        return []
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("change")
    for name in ("step", "lost", "GiB", "freed", "lost per GiB"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for each in fixes:
        table.add_row(*_cells(each), Text(each.verdict, style=VERDICT_STYLE[each.verdict]))
    return [table, ""]


def _cells(fix: Fix) -> list[str]:
    per_gib = fix.lost_s_per_gib
    return [
        fix.text,
        format_seconds(fix.projection.step_time_s),
        f"{fix.lost_s:+.3f} s",
        words.gib(fix.projection.memory.peak_bytes),
        f"{fix.freed_bytes / GIB:.1f}",
        "–" if per_gib is None or fix.lost_s <= 0.0 else f"{per_gib:.4f} s",
    ]
