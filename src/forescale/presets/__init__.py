"""Published accounts of memory and time, each reproduced on its own terms."""

from __future__ import annotations

from forescale.errors import UnknownNameError
from forescale.presets.almodel import ALMODEL
from forescale.presets.default import DEFAULT
from forescale.presets.korthikanti2022 import KORTHIKANTI_2022
from forescale.presets.playbook import PLAYBOOK_2025
from forescale.presets.preset import Preset
from forescale.presets.primus import PRIMUS, PRIMUS_2026
from forescale.presets.subramanian2024.preset import SUBRAMANIAN_2024

PRESETS: tuple[Preset, ...] = (
    DEFAULT,
    PRIMUS,
    PRIMUS_2026,
    KORTHIKANTI_2022,
    PLAYBOOK_2025,
    ALMODEL,
    SUBRAMANIAN_2024,
)
"""All presets; `default` is our own engine."""

__all__ = ["PRESETS", "Preset", "load_preset", "preset_names"]


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
    kind = "preset"
    raise UnknownNameError(kind, name, preset_names())
