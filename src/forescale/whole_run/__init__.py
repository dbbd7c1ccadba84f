"""The whole run: calendar days from step times, failures and checkpoints; money, energy, carbon; sites apart.

`operations` says how a run is operated (how often things fail, how states are saved and restored), `goodput` what is
left of the time (closed forms and a simulation of events), `run` puts phases, failures and prices together, and `sites`
trains over links between sites.
"""

from forescale.whole_run.operations import Checkpointing, Failures, Operations, load_failures
from forescale.whole_run.run import Phase, Prices, RunProjection, project_run

__all__ = [
    "Checkpointing",
    "Failures",
    "Operations",
    "Phase",
    "Prices",
    "RunProjection",
    "load_failures",
    "project_run",
]
