"""Recipes that commands name: of torchtune, litgpt, LLM Foundry and others, changed by further arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from forescale import wording
from forescale.errors import ReaderError
from forescale.files import read_text
from forescale.frameworks.detect import detect
from forescale.frameworks.reading import Options, ParsedFile, flat, packaged
from forescale.frameworks.recipes.reader import composed, read_recipe
from forescale.frameworks.shell import is_unset
from forescale.frameworks.trainers.accelerated import content_of, required_file
from forescale.frameworks.trainers.commands import MODULE
from forescale.frameworks.trainers.run import found_by_end, neighbour_of

RECIPE: Final = "recipe"
"""Programs that take a recipe of torchtune or litgpt."""
POLICY: Final = "verl"
"""Programs of verl, whose configuration a command changes."""
OWN: Final = re.compile(r"\bverl\.(?:trainer|experimental)\.|(?:main_ppo|main_dapo|\w*async\w*)(?:\.py)?$")
"""Programs that train an actor as verl's own does."""
PACKAGED: Final = ("ppo_trainer", "ppo_megatron_trainer", "sft_trainer", "sft_trainer_engine")
"""Configurations of verl's package."""


def recipe_of(
    form: str,
    words: Sequence[str],
    files: Sequence[str],
    file: Path | None,
    values: Mapping[str, Any],
    path: Path,
    options: Options,
) -> ParsedFile | None:
    """Return what the recipe says that a command names first of `files`, with its changes; None if it names none."""
    if form == POLICY:
        inside = {} if file is None else flat(composed(content_of(file), file))
        parsed = policy_of({**dict(inside), **values}, path, options)
        program = next((word for word in words if word not in MODULE), "")
        text = f"{program} is not verl's own program: what else it trains is not in the figures"
        is_own = samples(values) and OWN.search(program) is None
        return replace(parsed, warnings=(*[text] * is_own, *parsed.warnings))
    named, *more = files
    recipe = _recipe(path, file, more, values, options)
    if recipe is None and form == RECIPE:
        recipe = _litgpt(words, named, values, path, options)
    return recipe


def usual_config(program: str) -> str:
    """Return the configuration that a program of NeMo RL loads if a command names none; "" of others."""
    return str(packaged("recipes", "nemo-rl")["programs"].get(Path(program).name, ""))


def samples(values: Mapping[str, Any]) -> bool:
    """Return whether a command of verl trains on what it samples, on the devices that it counts itself."""
    return any(key.startswith("actor_rollout_ref.") for key in values)


def policy_of(values: Mapping[str, Any], path: Path, options: Options) -> ParsedFile:
    """Return what a command of verl says, over the configuration that it names."""
    name, folder = str(values.get("config_name", "")), str(values.get("config_path", "."))
    if not name or (Path(name).stem in PACKAGED and Path(folder).name in ("", "config")):
        return read_recipe(POLICY, values, path, options, {})
    named = f"{name.removesuffix('.yaml')}.yaml"
    file = found_by_end(path.parent, f"{folder}/{named}") or neighbour_of(path.parent, named)
    if file is not None:
        content = dict(flat(composed(content_of(file), file)))
        return read_recipe(POLICY, {**content, **values}, path, options, {})
    parsed = read_recipe(POLICY, values, path, options, {})
    text = f"{named} is not found: what the command leaves out is as in verl's own configuration"
    return replace(parsed, warnings=(text, *parsed.warnings))


def closed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a recipe without those that are open and do not count."""
    return {key: value for key, value in values.items() if not is_unset(str(value))}


def _litgpt(
    words: Sequence[str], named: str, values: Mapping[str, Any], path: Path, options: Options
) -> ParsedFile:
    """Return what a command of litgpt says that gives the folder of a checkpoint, and no file."""
    if not words[0].endswith("litgpt") or len(words) < len(("litgpt", "finetune", "checkpoint")):
        raise ReaderError(
            path, wording.wrong_format("a command with a recipe", f"it gives {named or 'none'}")
        )
    usual = packaged("recipes", "litgpt")["commands"].get(words[1], {})
    return read_recipe("litgpt", {**usual, "checkpoint_dir": words[2], **values}, path, options, {})


def _recipe(
    path: Path, file: Path | None, more: Sequence[str], values: Mapping[str, Any], options: Options
) -> ParsedFile | None:
    """Return what a recipe says that a command names and changes, with further files; None if it is of no recipes."""
    kind = detect(read_text(file)) if file is not None else None
    if file is None or kind is None or kind.name not in packaged("recipes", "common")["trainers"]:
        return None
    inside = [
        composed(content_of(part), part) for part in (file, *(required_file(path, name) for name in more))
    ]
    known = packaged("recipes", kind.name)["keys"]
    recipe = _merged({key: value for part in inside for key, value in part.items()}, values, known)
    return read_recipe(kind.name, recipe, file, options, {})


def _merged(
    content: Mapping[str, Any], overrides: Mapping[str, Any], known: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the content of a recipe with what dotted arguments set: keys that it has, or that are `known`."""
    result = dict(content)
    for key, value in overrides.items():
        section, _, inner = key.partition(".")
        table = result.get(section)
        if inner and isinstance(table, Mapping):
            result[section] = {**table, **_merged(table, {inner: value}, {inner: True})}
        elif key in known or (not inner and key in result):
            result[key] = value
    return result
