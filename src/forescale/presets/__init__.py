"""Published accounts of memory and time, each reproduced on its own terms."""

from __future__ import annotations

from msgspec.structs import replace

from forescale.errors import UnknownNameError, no_effect, unsupported_by
from forescale.presets.almodel import ALMODEL
from forescale.presets.korthikanti2022 import KORTHIKANTI_2022
from forescale.presets.playbook import PLAYBOOK_2025
from forescale.presets.preset import MemoryPreset, Preset, TimePreset
from forescale.presets.primus import PRIMUS, PRIMUS_2026
from forescale.presets.subramanian2024.preset import SUBRAMANIAN_2024
from forescale.project import project
from forescale.projection.result import Projection, left_out
from forescale.question import Question
from forescale.spec.constraints import check, picks_keys
from forescale.struct import Struct


class DefaultPreset(Struct, frozen=True, kw_only=True):
    """Forescale's own operator list, cost models and schedules."""

    name: str = "default"
    source: str = "Forescale's own engine"

    def project(self, question: Question) -> Projection:
        """Project one layout as `forescale.project.project` does."""
        return project(question)


DEFAULT = DefaultPreset()
TIMED: tuple[TimePreset, ...] = (ALMODEL, SUBRAMANIAN_2024)
"""Accounts that state the time of a step as well as memory."""
ACCOUNTS: tuple[MemoryPreset, ...] = (
    PRIMUS,
    PRIMUS_2026,
    KORTHIKANTI_2022,
    PLAYBOOK_2025,
    *TIMED,
)
PRESETS: tuple[Preset, ...] = (DEFAULT, *ACCOUNTS)
"""All presets; `default` is our own engine."""

__all__ = ["ACCOUNTS", "PRESETS", "TIMED", "Preset", "load_preset", "preset_names", "project_as"]


def preset_names() -> tuple[str, ...]:
    """Return the names of all presets, our own first."""
    return tuple(preset.name for preset in PRESETS)


def load_preset(name: str) -> Preset:
    """Return the preset `name`.

    Raises
    ------
    UnknownNameError
        If there is none; it names the nearest ones.
    """
    for preset in PRESETS:
        if preset.name == name:
            return preset
    raise UnknownNameError("preset", name, preset_names())


def project_as(question: Question) -> Projection:
    """Project one layout as the preset of the question does: by our own engine, or by a published account.

    Raises
    ------
    SpecError
        If the layout is illegal, or something that the account does not know; also if there is no such preset.
    """
    preset = load_preset(question.preset)
    if preset is DEFAULT:
        return project(question)
    question.check_together(f"preset {preset.name}")
    model, cluster, layout, workload = question.parts
    check(model, cluster, layout, workload)
    if layout.recompute.layer_ids or layout.recompute.unit > 1:
        raise unsupported_by(
            f"preset {preset.name}",
            "other recompute than of all layers or a stage's first",
            "use recompute.num_layers",
        )
    if not workload.trainable.is_all:
        raise no_effect("trainable", f"preset {preset.name} trains all of a model")
    if question.model.vision is not None:
        raise unsupported_by(f"preset {preset.name}", "vision towers", "images 0 leaves it out (--images 0)")
    if picks_keys(model):
        raise unsupported_by(f"preset {preset.name}", f"attention to selected keys, as in {model.name}")
    account = preset.project(question)
    return replace(account, notes=(*left_out(model), *account.notes, *question.notes))
