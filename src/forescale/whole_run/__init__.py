"""The whole run: phases, failures and prices together.

`run` puts projected phases, how they are operated (`goodput`) and prices together; `plans` searches for the best of
them within a deadline or a budget; `layouts` finds the layout of a phase that gives none.
"""

from forescale.whole_run.layouts import projected_phases, searched_layout
from forescale.whole_run.run import Phase, Prices, Ramp, RunProjection, project_days, project_run

__all__ = [
    "Phase",
    "Prices",
    "Ramp",
    "RunProjection",
    "project_days",
    "project_run",
    "projected_phases",
    "searched_layout",
]
