"""Why a row cannot be projected."""

from __future__ import annotations

from forescale.errors import ForescaleError


class InexpressibleError(ForescaleError):
    """A row that cannot be turned into a model, cluster, layout and workload; its text is the reason."""
