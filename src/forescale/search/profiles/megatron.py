"""Megatron-LM."""

from __future__ import annotations

import numpy as np

from forescale.search.profiles.profile import Profile
from forescale.spec.constraints import Constraint

MEGATRON = Profile(
    name="megatron",
    source="Megatron-LM d98e8a64dd (2026-08-22), megatron/training/arguments.py",
    software="megatron-core",
    values={
        "placement": ("orders",),
        "schedule": (None,),
        "tp_kind": ("1d",),
        "cp_kind": ("all_gather", "ring"),
    },
    others={"cp_kind": ("ulysses",)},
    rules=(
        Constraint(
            name="megatron: experts under tp need sp",
            holds=lambda q: (np.asarray(q.degrees.tp) == 1) | np.asarray(q.degrees.sp).astype(bool),
            message=lambda q: (
                f"core/transformer/moe/moe_layer.py refuses tp {q.degrees.tp} without sp in training"
            ),
            applies=lambda q: q.model.is_moe,
        ),
        Constraint(
            name="megatron: stages 2 and 3 have no pipeline",
            holds=lambda q: (np.asarray(q.degrees.zero) < 2) | (np.asarray(q.degrees.pp) == 1),
            message=lambda q: (
                f"zero {q.degrees.zero} is Megatron-FSDP, documented beside tp, cp and ep; pp is {q.degrees.pp}"
            ),
        ),
    ),
)
"""Stage 1 is --use-distributed-optimizer; 2 and 3 are --use-megatron-fsdp with --data-parallel-sharding-strategy
optim_grads and optim_grads_params; replicas are --num-distributed-optimizer-instances."""
