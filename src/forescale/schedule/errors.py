"""Errors of schedules: one that cannot be built, or one that is not valid."""

from __future__ import annotations

from forescale.errors import SpecError


class ScheduleError(SpecError):
    """A schedule that cannot be built, parsed or run."""
