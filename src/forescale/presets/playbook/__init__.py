"""The Ultra-Scale Playbook (Hugging Face, 2025): its memory, its ratios of communication to compute."""

from forescale.presets.playbook.preset import PLAYBOOK_2025

__all__ = ["PLAYBOOK_2025"]
