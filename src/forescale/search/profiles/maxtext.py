"""MaxText."""

from __future__ import annotations

import numpy as np

from forescale.search.profiles.profile import Profile
from forescale.spec.constraints import Constraint
from forescale.spec.strategy import Recompute, RematPolicy

POLICIES: tuple[RematPolicy, ...] = (
    "minimal_with_context",
    "minimal",
    "save_dot_with_context_except_mlp",
    "save_dot_except_mlpwi",
    "save_dot_except_mlp",
    "save_qkv_proj",
    "save_out_proj",
)

MAXTEXT = Profile(
    name="maxtext",
    source="MaxText e591f30cb (2026-08-22), src/maxtext/configs/base.yml",
    software="xla",
    values={
        "placement": ("orders",),
        "zero": (0, 1, 3),
        "etp": (1,),
        "tp_kind": ("1d",),
        "cp_kind": ("all_gather", "ring"),
        "recompute": (
            *(Recompute(granularity="policy", policy=policy) for policy in POLICIES),
            Recompute(granularity="full"),
        ),
        "schedule": (None,),
    },
    others={"cp_kind": ("ulysses",)},
    rules=(
        Constraint(
            name="maxtext: equal stages",
            holds=lambda q: np.remainder(q.model.num_layers, q.degrees.pp * q.degrees.vpp) == 0,
            message=lambda q: (
                f"stages × num_pipeline_repeats must divide the {q.model.num_layers} layers; pp × vpp is "
                f"{q.degrees.pp * q.degrees.vpp}"
            ),
        ),
    ),
)
"""Stage 3 is the fsdp axis, 1 is shard_optimizer_over_data, 0 the data axis alone; repeats of a circular pipeline are
`vpp`."""
