"""Notes on the performance recipe of a framework that fills what a question leaves open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forescale.question import Note
from forescale.spec import Cluster, Model
from forescale.spec.framework import Framework
from forescale.spec.recipes import settings_of


def recipe_notes(
    framework: Framework,
    layout: Mapping[str, Any],
    workload: Mapping[str, Any],
    model: Model,
    cluster: Cluster,
) -> tuple[Note, ...]:
    """Return the note that names the recipe, its settings and those that do not apply; none without a recipe.

    Parameters
    ----------
    layout, workload
        Fields that the question gives, before the framework completes them.
    """
    recipe = framework.recipe(layout, workload, model, cluster)
    if recipe is None:
        return ()
    settings, dropped = settings_of(recipe, model, layout)
    named = ", ".join(f"{name} {_short(value)}" for name, value in settings.items() if name not in layout)
    name = recipe.name(framework.compute_of(workload))
    text = f"open settings follow the recipe {name} of {framework.label}: {named}"
    left_out = [name for name in dropped if name.partition(".")[0] not in layout]
    if left_out:
        text += f"; not applicable to this layout: {', '.join(left_out)}"
    return (Note(topic="framework", text=text),)


def _short(value: object) -> str:
    """Return a setting in a few words."""
    if isinstance(value, Mapping):
        return " ".join(f"{name} {_short(part)}" for name, part in value.items())
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return (
            "+".join(map(str, value))
            if all(isinstance(part, str) for part in value)
            else f"of {len(value)} stages"
        )
    return str(value).replace("_", "-")
