"""Options that a command takes and that change nothing in the layout asked for: each is said in a note."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from forescale.question import Note

if TYPE_CHECKING:
    from forescale.cli.options import LayoutOptions, RunOptions
    from forescale.question import Question
    from forescale.spec import Strategy


def _pieces(layout: Strategy) -> str:
    from forescale.schedule import families
    from forescale.schedule.library import cuts_sequences

    if cuts_sequences(layout.schedule):
        return ""
    return f"schedules that cut sequences ({', '.join(each.name for each in families() if each.splits_sequences)})"


WORKS_UNDER: Mapping[str, Callable[[Strategy], str]] = {
    "cp_balanced": lambda layout: "" if layout.cp > 1 else "cp of 2 or more",
    "cp_inner": lambda layout: "" if layout.cp_kind == "hierarchical" else "--cp-kind hierarchical",
    "reshard": lambda layout: "" if layout.zero >= 2 else "--zero 2 or 3",
    "sequence_pieces": _pieces,
    "summa_panels": lambda layout: "" if layout.tp_kind == "summa" else "--tp-kind summa",
}
"""What an option of the layout works under, where a layout is not so; empty where it is."""


def unused_notes(run: RunOptions, layout: LayoutOptions | None, question: Question) -> tuple[Note, ...]:
    """Return what was given on the command line and changes nothing, with what it would work under."""
    found: dict[str, str] = {}
    types = asdict(question.workload.precision).values()
    if run.fp8_recipe not in (None, "none") and not {"fp8", "mxfp8"}.intersection(types):
        found["fp8_recipe"] = "--precision fp8"
    if layout is not None and question.strategy is not None:
        strategy = question.strategy
        found |= {
            name: works(strategy) for name, works in WORKS_UNDER.items() if getattr(layout, name) is not None
        }
    return tuple(
        Note(topic="layout", text=f"--{name.replace('_', '-')} changes nothing here: it goes with {under}")
        for name, under in found.items()
        if under
    )
