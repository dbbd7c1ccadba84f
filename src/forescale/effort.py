"""What a search is told in addition to its question, as `forescale.search` takes it."""

from __future__ import annotations

from typing import Annotated

from forescale.limits import JOBS, MEMORY, SHOWN, TIME
from forescale.struct import Struct


class Effort(Struct, frozen=True, kw_only=True):
    """How much of the answer is shown, and what the search may take."""

    top: Annotated[int, SHOWN]
    all_variants: bool
    relax: bool
    surest: bool
    time_limit: Annotated[float, TIME] | None
    jobs: Annotated[int, JOBS] | None
    max_host_memory: Annotated[float, MEMORY] | None
