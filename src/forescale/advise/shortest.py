"""The one degree of a layout whose change shortens the step most."""

from __future__ import annotations

from collections.abc import Callable

from forescale.advise.changes import Change, changed, changes
from forescale.advise.changing import DEGREES
from forescale.advise.decide import LEAST_GAIN
from forescale.project import project
from forescale.projection.result import Projection
from forescale.question import Question


def shortest(question: Question, set_up: Callable[[Question], Question]) -> tuple[Change, Projection] | None:
    """Return the change of one degree that shortens the step most, of those that fit; None if none does.

    Parameters
    ----------
    set_up
        Returns a question with what its layout is run with where the question leaves it open, such as recompute that
        makes it fit. It does not shorten the step.
    """
    alone = {item: changed(question, (item,)) for item in changes(question) if item.kind in DEGREES}
    asked = [(item, question.with_layout(layout)) for item, layout in alone.items() if layout is not None]
    steps = sorted(((project(one).step_time_s, at) for at, (_, one) in enumerate(asked)))
    best, bar = None, project(question).step_time_s * (1.0 - LEAST_GAIN)
    for step, at in steps:
        if step >= bar:
            break
        change, one = asked[at]
        result = project(set_up(one))
        if result.memory.peak_bytes <= question.memory_limit and result.step_time_s < bar:
            best, bar = (change, result), result.step_time_s
    return best
