"""What a search claims: which layouts it compared, what it held fixed, and what a margin of memory costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from forescale.errors import SpecError
from forescale.projection.result import Projection, Verdict
from forescale.question import Question
from forescale.schedule.legality import LEGALITY
from forescale.search.evaluate import score_layouts
from forescale.search.recorded import partly_recomputed
from forescale.search.relax import SPLIT_BACKWARD
from forescale.spec import phrases
from forescale.spec.framework import check_choice
from forescale.spec.layout import Layout
from forescale.spec.model import MoeFfn
from forescale.spec.proposal import Proposal, violated
from forescale.struct import Struct, attributes
from forescale.units import counted, format_seconds

WORTH_NAMING = 0.001
"""Fraction of a step below which a gain is not named."""


class Held(Struct, frozen=True, kw_only=True):
    """A dimension that a search held fixed although another value may be faster."""

    dimension: str
    value: str
    option: str
    """Option of `forescale search` that opens the dimension."""
    changes: tuple[Mapping[str, Any], ...] = ()
    """Fields of a layout with each of the other values."""
    gain: float | None = None
    """Fraction by which another value shortens the step of the best layout, all else equal; None where none does."""

    def __str__(self) -> str:
        """Return the dimension with its value, what opens it, and what it gains at least."""
        gain = "" if self.gain is None else f": at least {100.0 * self.gain:.1f} % faster"
        return f"{self.dimension} {self.value} ({self.option}{gain})"

    def to_json(self) -> dict[str, Any]:
        """Return the fields but for the layouts."""
        return attributes(self, "dimension", "value", "option", "gain")


def held_fixed(question: Question, best: Layout | None = None) -> tuple[Held, ...]:
    """Return what a search of this question holds fixed, each with the option that opens it.

    With its `best` layout, also what other values gain for that one.
    """
    if question.preset != "default":
        return ()
    held = tuple(item for item in _held(question) if _takes(question, item))
    if best is None:
        return held
    return tuple(replace(item, gain=_gain(question.site, best, item.changes)) for item in held)


def _gain(question: Question, best: Layout, changes: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the most that a change shortens the step of a layout, as a fraction; None where none that fits does."""
    several = [replace(best, **change) for change in changes]
    proposal = Proposal(
        model=question.model, cluster=question.cluster, workload=question.workload, degrees=best
    )
    rules = (*LEGALITY, *question.space.rules)
    legal = [item for item in several if not violated(replace(proposal, degrees=item), rules)]
    if not legal:
        return None
    scores = score_layouts(question, [best, *legal])
    shortest = min(scores.step_time[1:][scores.peak[1:] <= question.memory_limit], default=np.inf)
    gain = 1.0 - float(shortest) / float(scores.step_time[0])
    return gain if gain >= WORTH_NAMING else None


def _held(question: Question) -> Iterator[Held]:
    space, base, framework = question.space, question.space.base, question.framework
    yield _fixed("framework", "none" if framework is None else framework.name, "--framework NAME")
    if question.model.is_moe and space.dispatcher == (None,) and base.dispatcher == "all_to_all":
        yield _fixed("dispatcher", "all_to_all", "--allow dispatcher=deepep", {"dispatcher": "deepep"})
    if space.schedule == (None,) and space.pp != (1,):
        option = f"--allow schedule={','.join(SPLIT_BACKWARD)}"
        yield _fixed("schedule", "1f1b", option, *({"schedule": name} for name in SPLIT_BACKWARD))
    if partly_recomputed(question):
        yield _fixed("recompute of whole blocks", "none or full", "another --framework")
    recipes = [] if framework is None else [recipe.layout for recipe in framework.recipes]
    kinds, graphs = _overlaps(question), "full" if framework is None else "partial"
    if framework is not None:  # overlap is what some recipe of the release has, as graphs are
        kinds = tuple(kind for kind in kinds if any(item.get("overlap", {}).get(kind) for item in recipes))
    off = [kind for kind in kinds if not getattr(base.overlap, kind)]
    if off and space.overlap == (None,):
        more = {"overlap": replace(base.overlap, **dict.fromkeys(off, True))}
        yield _fixed("overlap", f"without {', '.join(off)}", f"--allow overlap={'+'.join(off)}", more)
    known = framework is None or any(item.get("graphs") == graphs for item in recipes)
    if base.graphs == "none" and space.graphs == (None,) and known:
        yield _fixed("graphs", "none", f"--allow graphs={graphs}", {"graphs": graphs})


def _fixed(dimension: str, value: str, option: str, *changes: Mapping[str, Any]) -> Held:
    return Held(dimension=dimension, value=value, option=option, changes=changes)


def _overlaps(question: Question) -> tuple[str, ...]:
    """Return the kinds of overlap that could hide communication of this model."""
    if not question.model.is_moe:
        return ("tensor",)
    shared = any(
        isinstance(kind.ffn, MoeFfn) and kind.ffn.shared_ffn_hidden_size
        for kind in question.model.layer_kinds
    )
    return ("tensor", "expert", *(("shared_experts",) if shared else ()))


def _takes(question: Question, kept: Held) -> bool:
    """Return whether the framework of the question, if there is one, is known to take the other values."""
    framework = question.framework
    if framework is None or kept.dimension in ("overlap", "graphs") or not kept.changes:
        return True
    if framework.limits is None or kept.dimension not in framework.limits.values:
        return False
    try:
        check_choice(framework, kept.dimension, tuple(kept.option.partition("=")[2].split(",")))
    except SpecError:
        return False
    return True


BEST = {"step_time": ("fastest", "faster"), "peak_memory": ("smallest", "smaller")}
"""What the best layout is by an objective, and what a better one would be."""


def claim(objective: str, *, num_legal: int, gap: float, held: Sequence[Held], verdict: Verdict) -> str:
    """Return what is proven of the first layout of a ranking, no more; `verdict` is that of its memory."""
    best, better = BEST[objective]
    fitting = "that fits" if verdict == "FITS" else "whose expected memory fits"
    scope = f"of {counted(num_legal, 'legal layout')} of this search space"
    scope += f" ({', '.join(item.dimension for item in held)} held fixed)" if held else ""
    if gap > 0.0:
        return (
            f"Search stopped early; the {best} layout {fitting}, {scope}, may be up to "
            f"{100.0 * gap:.1f} % {better} than #1"
        )
    risk = "" if verdict == "FITS" else "; it may run out of memory (AT RISK)"
    return f"#1 is the {best} layout {fitting}, {scope}{risk}"


def margin(best: Sequence[Projection], surest: Projection, cost: float) -> str:
    """Return which layout fits with margin where the first of a ranking may not, and what it costs in step time."""
    place = f" (#{best.index(surest) + 1})" if surest in best else ""
    return (
        f"The fastest layout that fits with margin{place} takes {format_seconds(surest.step_time_s)} per step, "
        f"{100.0 * cost:.1f} % more: {phrases.layout(surest.strategy)}"
    )
