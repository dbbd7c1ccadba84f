"""Primus's projection (AMD), as documented and as its source has it today."""

from forescale.presets.primus.preset import PRIMUS, PRIMUS_2026, PrimusPreset

__all__ = ["PRIMUS", "PRIMUS_2026", "PrimusPreset"]
