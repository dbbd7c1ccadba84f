"""A phase whose batch grows, as Megatron-LM's `rampup_batch_size`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from forescale.errors import conflicts, missing, wrong_type
from forescale.io.named import build
from forescale.limits import TIME, within
from forescale.question import Question
from forescale.units import parse
from forescale.whole_run import Ramp

RAMP = "rampup_batch_size"
"""Key of a phase whose batch grows."""
ANY_LENGTH = 1e12
"""Tokens of a run before its length in days decides them."""
TOKENS = (
    "give --tokens 15T, 20x for 20 per active parameter, --days 30, or --phase 'tokens=15T …'; "
    "forescale check --solve tokens finds those of a budget"
)
"""How the tokens of a run are given, or found."""


def ramped(question: Question, ramp: object) -> list[Question]:
    """Return the question of each batch of a phase: one, or those of `ramp` (start, increment and samples).

    Raises
    ------
    SpecError
        If the question has no number of tokens, or the ramp is not three numbers.
    """
    if question.workload.tokens is None:
        raise missing("the number of training tokens", TOKENS)
    if ramp is None:
        return [question]
    raw = ramp.split(",") if isinstance(ramp, str) else ramp
    if not isinstance(raw, list | tuple) or len(raw) != 3:
        raise wrong_type(RAMP, ramp, "start, increment and samples, such as 256,256,2M")
    names = [item.name for item in fields(Ramp)]
    values = {name: parse(value, "token") for name, value in zip(names, raw, strict=True)}
    return build(Ramp, values, where=RAMP).parts(question)


def of_any_length(days: float | None, others: Mapping[str, object], name: str) -> dict[str, float]:
    """Return the words of a phase whose tokens follow from the days of the run, given as `name`; none without days.

    Raises
    ------
    SpecError
        If any of the `others` is given as well, which decide the tokens, or the days are not positive.
    """
    if days is None:
        return {}
    within(days, TIME, name)
    for other, value in others.items():
        if value:
            raise conflicts([name, other])
    return {"tokens": ANY_LENGTH}
