"""What a search claims: which layouts it compared, what it held fixed, and what a margin of memory costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from forescale.errors import SpecError
from forescale.projection.result import Projection
from forescale.question import Question
from forescale.search.recorded import partly_recomputed
from forescale.search.relax import SPLIT_BACKWARD
from forescale.spec import phrases
from forescale.spec.framework import check_choice
from forescale.spec.model import MoeFfn
from forescale.struct import Struct
from forescale.units import counted, format_seconds


class Held(Struct, frozen=True, kw_only=True):
    """A dimension that a search held fixed although another value may be faster."""

    dimension: str
    value: str
    option: str
    """Option of `forescale search` that opens the dimension."""

    def __str__(self) -> str:
        """Return the dimension with its value and what opens it."""
        return f"{self.dimension} {self.value} ({self.option})"


def held_fixed(question: Question) -> tuple[Held, ...]:
    """Return what a search of this question holds fixed, each with the option that opens it."""
    if question.preset != "default":
        return ()
    return tuple(item for item in _held(question) if _takes(question, item))


def _held(question: Question) -> Iterator[Held]:
    space, base, framework = question.space, question.space.base, question.framework
    name = "none" if framework is None else framework.name
    yield Held(dimension="framework", value=name, option="--framework NAME")
    if question.model.is_moe and space.dispatcher == (None,) and base.dispatcher == "all_to_all":
        yield Held(dimension="dispatcher", value="all_to_all", option="--allow dispatcher=deepep")
    if space.schedule == (None,) and space.pp != (1,):
        yield Held(dimension="schedule", value="1f1b", option=f"--allow schedule={','.join(SPLIT_BACKWARD)}")
    if partly_recomputed(question):
        yield Held(dimension="recompute of whole blocks", value="none or full", option="another --framework")
    if framework is not None:  # overlap and graphs are those of the framework
        return
    off = [kind for kind in _overlaps(question) if not getattr(base.overlap, kind)]
    if off and space.overlap == (None,):
        yield Held(
            dimension="overlap",
            value=f"without {', '.join(off)}",
            option=f"--allow overlap={'+'.join(off)}",
        )
    if base.graphs == "none":
        yield Held(dimension="graphs", value="none", option="--set strategy.graphs=full")


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
    if framework is None or not kept.option.startswith("--allow"):
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


def claim(objective: str, *, num_legal: int, gap: float, held: Sequence[Held]) -> str:
    """Return what is proven of the first layout of a ranking, no more."""
    best, better = BEST[objective]
    scope = f"of {counted(num_legal, 'legal layout')} of this search space"
    scope += f" ({', '.join(item.dimension for item in held)} held fixed)" if held else ""
    if gap > 0.0:
        return (
            f"Search stopped early; the {best} layout that fits, {scope}, may be up to "
            f"{100.0 * gap:.1f} % {better} than the first"
        )
    return f"The first is the {best} layout that fits, {scope}"


def margin(best: Sequence[Projection], surest: Projection, cost: float) -> str:
    """Return which layout fits with margin where the first of a ranking may not, and what it costs in step time."""
    place = f" (#{best.index(surest) + 1})" if surest in best else ""
    return (
        f"The fastest layout that fits with margin{place} takes {format_seconds(surest.step_time_s)} per step, "
        f"{100.0 * cost:.1f} % more: {phrases.layout(surest.strategy)}"
    )
