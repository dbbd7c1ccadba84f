"""What can go wrong while a schedule runs."""

from __future__ import annotations

from forescale.errors import ForescaleError


class RunError(ForescaleError):
    """A rank that raised, died or disagreed; the message says which, at which action, and why."""
