"""Options that say what a search may choose: `--space`, `--to`, `--fix`, `--allow`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from forescale.cli.declare import Group, option
from forescale.cli.options import complete_frameworks
from forescale.errors import conflicts, given_twice, no_effect, not_a_factor, wrong_type

if TYPE_CHECKING:
    from forescale.question import Question
    from forescale.spec.space import Space

_space = partial(option, panel="Space")
PLACED = ("tp", "cp", "pp", "dp_replicate", "dp_shard")
"""Degrees that must divide the devices."""


class SpaceOptions(Group, frozen=True, kw_only=True):
    """What may be chosen, from the widest to the narrowest."""

    space: Path | None = _space("Space file; the options below go over it.", "FILE.toml")
    limits: str | None = _space(
        "Train with this framework, within its options.",
        "NAME",
        flag="--to --for",
        complete=complete_frameworks,
    )
    fix: list[str] | None = _space("Hold it, such as tp=8 or zero=1,2. Repeatable.", "NAME=VALUE")
    allow: list[str] | None = _space("Let it be chosen, such as schedule=zbv. Repeatable.", "NAME=VALUE")


def spaced(
    question: Question, options: SpaceOptions, *, sized: bool, sets: Sequence[str] | None = None
) -> Question:
    """Return the question with a space instead of a layout; its number of devices is known where it is `sized`.

    What `--set` says of a layout, `sets`, is refused where it is searched.
    """
    from forescale.catalogue.frameworks import load_framework
    from forescale.cli.unused import idle_notes, refuse_chosen, told_fields
    from forescale.io.recipes import notes_of_search
    from forescale.io.space import held_space, read_space, wider_space
    from forescale.spec.framework import searched, with_recipes

    refuse_chosen(sets)
    space = question.space if question.strategy is None else replace(question.space, base=question.strategy)
    limits = None if options.limits is None else load_framework(options.limits)
    if question.framework is not None:
        space = searched(question.framework, space, limited=False)
    if options.space is not None:
        space, limits = read_space(options.space, question.model, base=space, framework=limits)
    elif limits is not None:
        space = searched(limits, space, limited=True)
    kept = words("--fix", options.fix or ())
    for name in () if question.model.is_moe else ("ep", "etp"):
        if "1" not in kept.get(name, "1"):
            raise no_effect(f"--fix {name}", f"{question.model.name} has no experts")
    space = held_space(space, kept, question.model, where="--fix", framework=limits)
    allowed = words("--allow", options.allow or ())
    space = wider_space(space, allowed, question.model, where="--allow", framework=limits)
    if space.base.offload.parameters:
        space = held_space(
            space, {"zero": ["3"]}, question.model, where="offload.parameters", framework=limits
        )
    if sized:
        _refuse_idle_devices(space, kept, question.cluster.num_devices)
    if question.framework is not None:
        space = with_recipes(question.framework, space, question.model, question.cluster, question.assumed)
    flags = {name: f"--allow {name}" for name in allowed} | {name: f"--fix {name}" for name in kept}
    notes = (*notes_of_search(question, space), *idle_notes(told_fields(sets) | flags, space, question.model))
    return replace(question, strategy=None, space=space, notes=notes)


def asked_space(
    question: Question, options: SpaceOptions, *, sized: bool, sets: Sequence[str] | None = None
) -> Question:
    """Return the question with the space of its preset: our own engine's as `spaced` has it, or a published one."""
    if question.preset == "default":
        return spaced(question, options, sized=sized, sets=sets)
    return held_by_preset(question, options)


def held_by_preset(question: Question, options: SpaceOptions) -> Question:
    """Return the question of a published analysis with the dimensions of its own search that --fix holds."""
    if replace(options, fix=None) != SpaceOptions():
        reason = "the preset has its own space"
        raise conflicts(["--space", "--to", "--allow", f"--preset {question.preset}"], reason=reason)
    options_of_preset = replace(
        question.preset_options, fix=(*question.preset_options.fix, *(options.fix or ()))
    )
    return replace(question, preset_options=options_of_preset)


def framework_of(options: SpaceOptions) -> str | None:
    """Return the framework that --to, or the space file, limits the space to."""
    from forescale.io.space import space_framework

    if options.limits is None and options.space is not None:
        return space_framework(options.space)
    return options.limits


def words(option: str, texts: Sequence[str]) -> dict[str, list[str]]:
    """Return the values of every `name=value,value`.

    Raises
    ------
    SpecError
        If a text is none, or gives other values to what another one has named: only one of them could hold.
    """
    names: dict[str, list[str]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not values.strip():
            raise wrong_type(option, text, "NAME=VALUE, such as tp=8")
        comma = ";" if name == "placement" else ","
        parts = [value.strip() for value in values.split(comma)]
        if names.get(name, parts) != parts:
            both = comma.join((*names[name], *parts))
            raise given_twice(f"{option} {name}", fix=f"give its values at once, as {name}={both}")
        names[name] = parts
    return names


def _refuse_idle_devices(space: Space, names: dict[str, list[str]], num_devices: int) -> None:
    """Refuse degrees, held by --fix or elsewhere, none of which divides the devices."""
    for name in PLACED:
        degrees = getattr(space, name)
        if degrees and all(num_devices % degree for degree in degrees):
            values = ",".join(map(str, degrees))
            key = f"{'--fix ' if name in names else 'the space has '}{name}"
            raise not_a_factor(key, values, num_devices, "the number of devices")
