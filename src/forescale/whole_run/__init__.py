"""The whole run: phases, failures and prices together; sites apart.

`run` puts projected phases, how they are operated (`goodput`) and prices together, and `sites` trains over links
between sites.
"""

from forescale.whole_run.run import Phase, Prices, RunProjection, project_run

__all__ = ["Phase", "Prices", "RunProjection", "project_run"]
