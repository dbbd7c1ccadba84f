"""Preset and study of Subramanian et al. 2024, arXiv:2410.00273: its performance model and exhaustive search."""

from forescale.presets.subramanian2024.layers import Quirks
from forescale.presets.subramanian2024.preset import (
    Configuration,
    Placement,
    Ranked,
    StudyResult,
    search_subramanian2024,
)
from forescale.question import TensorParallel

__all__ = [
    "Configuration",
    "Placement",
    "Quirks",
    "Ranked",
    "StudyResult",
    "TensorParallel",
    "search_subramanian2024",
]
