"""DeepSpeed."""

from __future__ import annotations

import numpy as np

from forescale.search.profiles.profile import Profile
from forescale.spec.constraints import Constraint
from forescale.spec.strategy import Recompute

DEEPSPEED = Profile(
    name="deepspeed",
    source="DeepSpeed edaa72212 (2026-08-22), configuration JSON",
    software="torch-eager",
    values={
        "placement": ("orders",),
        "sp": (False,),
        "etp": (1,),
        "vpp": (1,),
        "tp_kind": ("1d",),
        "cp_kind": ("ulysses",),
        "recompute": (Recompute(), Recompute(granularity="full")),
        "schedule": (None,),
    },
    rules=(
        Constraint(
            name="deepspeed: stages 2 and 3 have no pipeline",
            holds=lambda q: (np.asarray(q.degrees.zero) < 2) | (np.asarray(q.degrees.pp) == 1),
            message=lambda q: f"PipelineEngine takes zero below 2; it is {q.degrees.zero}",
        ),
        Constraint(
            name="deepspeed: stage 3 has no tensor parallelism",
            holds=lambda q: (np.asarray(q.degrees.zero) < 3) | (np.asarray(q.degrees.tp) == 1),
            message=lambda q: f"AutoTP training takes zero below 3; tp is {q.degrees.tp}",
        ),
        Constraint(
            name="deepspeed: replicas of shards are of stage 3",
            holds=lambda q: (
                (np.asarray(q.degrees.zero) == 3)
                | (np.asarray(q.degrees.dp_replicate) == 1)
                | (np.asarray(q.degrees.dp_shard) == 1)
            ),
            message=lambda q: (
                f"mics_shard_size shards stage 3 in groups; zero is {q.degrees.zero} with dp_replicate "
                f"{q.degrees.dp_replicate} × dp_shard {q.degrees.dp_shard}"
            ),
        ),
    ),
)
"""Context parallelism is Ulysses (sequence_parallel_size)."""
