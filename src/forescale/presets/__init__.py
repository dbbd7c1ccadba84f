"""Published accounts of memory and time, each reproduced on its own terms."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import cast

from msgspec.structs import replace

from forescale.errors import UnknownNameError, no_effect, unsupported_by
from forescale.presets.preset import Preset, PresetScores
from forescale.project import estimate, project
from forescale.projection.estimate import Estimate
from forescale.projection.result import Projection, left_out
from forescale.question import Note, Question
from forescale.spec.constraints import check, picks_keys
from forescale.spec.space import Space


class DefaultPreset(Preset, frozen=True, kw_only=True):
    """Forescale's own operator list, cost models and schedules."""

    name: str = "default"
    source: str = "Forescale's own engine"

    def project(self, question: Question) -> Projection:
        """Project one layout as `forescale.project.project` does."""
        return project(question)


DEFAULT = DefaultPreset()
PRESETS: Mapping[str, tuple[str, str]] = {
    "default": ("", "DEFAULT"),
    "primus": (".primus", "PRIMUS"),
    "primus-2026": (".primus", "PRIMUS_2026"),
    "korthikanti2022": (".korthikanti2022", "KORTHIKANTI_2022"),
    "playbook": (".playbook", "PLAYBOOK_2025"),
    "almodel": (".almodel", "ALMODEL"),
    "subramanian2024": (".subramanian2024.preset", "SUBRAMANIAN_2024"),
}
"""Module and name in it of every preset, which is loaded when it is asked for; `default` is our own engine."""

__all__ = [
    "PRESETS",
    "Preset",
    "capable",
    "estimate_as",
    "load_preset",
    "preset_names",
    "preset_of",
    "project_as",
    "scores_of",
]


def preset_names() -> tuple[str, ...]:
    """Return the names of all presets, our own first."""
    return tuple(PRESETS)


def load_preset(name: str) -> Preset:
    """Return the preset `name`.

    Raises
    ------
    UnknownNameError
        If there is none; it names the nearest ones.
    """
    if name not in PRESETS:
        raise UnknownNameError("preset", name, preset_names())
    return _loaded(*PRESETS[name])


@cache
def _loaded(module: str, attribute: str) -> Preset:
    return cast("Preset", getattr(import_module(f"{__name__}{module}"), attribute))


CAPABILITIES = {
    "scores": "search",
    "operations": "table of operations",
    "collective": "formula of collectives",
}
"""What the methods of a preset are in errors."""


def capable(name: str, capability: str) -> Preset:
    """Return the preset `name`, which defines a quantity or a search: a method of `Preset`.

    Raises
    ------
    SpecError
        If it does not; the message names those that do. Also if there is no such preset.
    """
    preset = load_preset(name)
    if not preset.defines(capability):
        others = ", ".join(item for item in PRESETS if load_preset(item).defines(capability))
        what = CAPABILITIES.get(capability, capability)
        raise unsupported_by(f"preset {preset.name}", what, f"presets that do: {others}")
    return preset


def preset_of(question: Question, capability: str = "project") -> Preset:
    """Return the preset of a question under its options.

    Raises
    ------
    SpecError
        If it does not define the `capability`, or has no such option; also if there is no such preset.
    """
    return capable(question.preset, capability).with_options(question.preset_options)


def project_as(question: Question) -> Projection:
    """Project one layout as the preset of the question does: by our own engine, or by a published account.

    Raises
    ------
    SpecError
        If the layout is illegal, or something that the account does not know; also if there is no such preset.
    """
    preset = preset_of(question)
    if load_preset(question.preset) is DEFAULT:
        return project(question)
    _check(question)
    model, cluster, layout, workload = question.parts
    check(model, cluster, layout, workload)
    if layout.recompute.layer_ids or layout.recompute.unit > 1:
        value = "other recompute than of all layers or a stage's first"
        raise unsupported_by(f"preset {preset.name}", value, "use recompute.num_layers")
    return _with_notes(preset.project(question), question)


def estimate_as(question: Question) -> Estimate:
    """Return step time, interval, peak memory and verdict as `project_as` does, and raise as it does."""
    if load_preset(question.preset) is DEFAULT:
        preset_of(question)
        return estimate(question)
    result = project_as(question)
    return Estimate.from_parts(result.step_time, result.memory, result.notes)


def scores_of(question: Question) -> PresetScores:
    """Return step time and memory of all layouts of a preset's own search that fit; projections are complete.

    Raises
    ------
    InfeasibleError
        If no layout is legal, or none fits.
    SpecError
        If the preset defines no search, or does not know something of the question.
    """
    preset = preset_of(question, "scores")
    _check(question)
    if question.space != Space():
        key = "the search space"
        raise no_effect(key, f"preset {preset.name} has its own; hold its dimensions with preset_options.fix")
    scores = preset.scores(question)
    return replace(scores, project=lambda index: _with_notes(scores.project(index), question))


def _check(question: Question) -> None:
    """Refuse what no published analysis knows."""
    name, model = question.preset, question.model
    question.check_together(f"preset {name}")
    if not question.workload.trainable.is_all:
        raise no_effect("trainable", f"preset {name} trains all of a model")
    if model.vision is not None:
        raise unsupported_by(f"preset {name}", "vision towers", "images 0 leaves it out (--images 0)")
    if picks_keys(model):
        raise unsupported_by(f"preset {name}", f"attention to selected keys, as in {model.name}")


def _with_notes(projection: Projection, question: Question) -> Projection:
    names = question.preset_options.without_quirks
    quirks = (Note(topic="preset", text=f"without the quirks {', '.join(names)}"),) if names else ()
    notes = (*left_out(question.model), *quirks, *projection.notes, *question.notes)
    return replace(projection, notes=notes)
