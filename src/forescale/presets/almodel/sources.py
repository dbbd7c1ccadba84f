"""What the preset cites."""

from __future__ import annotations

ANALYSIS = "ALModel parallelism strategy analysis"
