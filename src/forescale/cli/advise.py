"""`forescale advise`: the playbook's decision process on one's own case; `forescale fit`: what makes a layout fit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from forescale.cli.console import show
from forescale.cli.formats import answer_of
from forescale.cli.inputs import limited, read_question, refuse_presets
from forescale.cli.options import Asked, CostOptions, OperationsOptions, Priced, bounded, grouped, option
from forescale.cli.output import OutputOptions
from forescale.cli.space import SpaceOptions, spaced
from forescale.limits import SHOWN


@grouped
def advise_command(
    *,
    asked: Asked,
    max_memory: str | None = option("Peak per device, such as 70GiB.", "SIZE"),
    safe: bool = option("Only layouts that fit by the upper estimate of memory.", default=False),
    exact: bool = option("Say how far the advice is from the exact best.", default=True),
    operated: OperationsOptions,
    cost: CostOptions,
    output: OutputOptions,
) -> None:
    """Find a layout step by step: what fits, then the batch, then throughput, with the numbers of each."""
    from forescale.advise import advise
    from forescale.cli.render.advise import advice_view

    question = read_question(replace(asked, cost=cost), operated=operated)
    refuse_presets(question, "advise")
    question = spaced(limited(question, max_memory), SpaceOptions(), sized=True, sets=asked.plan.sets)
    result = advise(replace(question, safe=safe or question.safe), exact=exact)
    show(answer_of(result, partial(advice_view, notes=question.notes)), output)


PANEL = "Changes"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeOptions:
    """Which changes are tried and shown."""

    max_memory: str | None = option("Peak per device, such as 70GiB.", "SIZE", panel=PANEL)
    keep: list[str] | None = option(
        "What stays as it is, such as micro_batch_size or tp. Repeatable.", "NAME", panel=PANEL
    )
    pairs: bool = option("Make changes also two at a time.", default=True, panel=PANEL)
    top: int = option("Changes to show.", "N", check=bounded(SHOWN), default=10, panel=PANEL)


@grouped
def fit_command(
    *,
    asked: Priced,
    change: ChangeOptions,
    output: OutputOptions,
) -> None:
    """Change a layout so that it fits or runs faster: single changes and pairs, ranked by the seconds they cost."""
    from forescale.advise import fit
    from forescale.cli.render.advise import fit_view
    from forescale.export import is_writable

    question = read_question(asked)
    refuse_presets(question, "fit")
    question = limited(question, change.max_memory)
    result = fit(question, keep=tuple(change.keep or ()), pairs=change.pairs, accepts=is_writable)
    show(answer_of(result, partial(fit_view, most=change.top), question=question), output)
