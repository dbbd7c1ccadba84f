"""torchtitan."""

from __future__ import annotations

from forescale.search.profiles.profile import Profile
from forescale.spec.strategy import Recompute

TORCHTITAN = Profile(
    name="torchtitan",
    source="torchtitan b5bcd76c6 (2026-08-21), torchtitan/distributed/parallel_dims.py",
    software="torch-compile",
    values={
        "placement": ("orders",),
        "zero": (0, 2, 3),
        "sp": (True,),
        "etp": (1,),
        "tp_kind": ("1d",),
        "cp_kind": ("all_gather", "ring"),
        "axis_order": (("tp", "cp", "dp", "pp"),),
        "recompute": (
            Recompute(),
            Recompute(granularity="policy", policy="torch_per_op"),
            Recompute(granularity="full"),
        ),
        "schedule": (None,),
    },
    others={"schedule": ("gpipe", "looped-bfs", "interleaved-zb", "zbv", "dualpipev")},
)
"""Stage 3 is fully_shard that reshards after forward, 2 the same without; 0 is plain replication. Its mesh is
pp, dp_replicate, dp_shard, cp, tp from the outside in; experts borrow from dp_shard, cp and tp."""
