"""Memory that is neither state nor saved activation: gathered parameters, dummy gradients."""

from __future__ import annotations

import numpy as np

from forescale.formula import formula
from forescale.numeric import Numeric, smaller


@formula(
    unit="byte",
    source="Transformer Engine, module/base.py get_dummy_wgrad: one cached tensor per shape of a weight "
    "whose gradient is accumulated elsewhere",
)
def dummy_gradient_bytes(
    *, elements: Numeric, element_bytes: float, layers: Numeric, zero: Numeric
) -> Numeric:
    """Elements × bytes, where a layer on the stage has the shape and gradients accumulate (stage < 3)."""
    return smaller(layers, 1.0) * np.where(np.asarray(zero) < 3, elements * element_bytes, 0.0)


@formula(
    unit="byte",
    source="PyTorch FSDP2, torch/distributed/fsdp/_fully_shard: parameters of this block and the one prefetched; "
    "its gradients in the compute type, copied to the type and order of the reduction",
)
def gathered_parameter_bytes(
    *, parameters: Numeric, copies: float, reduced_bytes: float, shards: Numeric, zero: Numeric
) -> Numeric:
    """Parameters × (2·copies at stage 3, and 2 + bytes of the reduction from 2) with several shards, else 0."""
    gathered = np.where(np.asarray(zero) >= 3, 2.0 * copies, 0.0)
    needed = (np.asarray(zero) >= 2) & (np.asarray(shards) > 1)
    return np.where(needed, parameters * (gathered + 2.0 + reduced_bytes), 0.0)


@formula(
    unit="byte",
    source="PyTorch 2.13, distributed/pipelining/stage.py: FSDP2 neither reduces nor reshards before a stage's last "
    "backward (set_requires_gradient_sync, set_reshard_after_backward); gradients add up in the reduction's type",
)
def whole_parameter_bytes(
    *, parameters: Numeric, reduced_bytes: float, shards: Numeric, zero: Numeric
) -> Numeric:
    """Parameters × (2 at stage 3, and bytes of accumulated gradients from 2) with several shards, else 0.

    Of gradients what is beyond their shards, which come to be as the whole ones go.
    """
    gathered = np.where(np.asarray(zero) >= 3, 2.0, 0.0)
    needed = (np.asarray(zero) >= 2) & (np.asarray(shards) > 1)
    return np.where(needed, parameters * (gathered + reduced_bytes * (1.0 - 1.0 / shards)), 0.0)


@formula(
    unit="byte", source="PyTorch FSDP2: reshard_after_forward as a number of ranks; ZeRO++, arXiv:2306.10209"
)
def resharded_copy_bytes(*, parameters: Numeric, ranks: float, shards: Numeric, zero: Numeric) -> Numeric:
    """2 bytes × parameters / min(ranks, shards): what stays of a stage's parameters between forward and backward."""
    needed = (np.asarray(zero) >= 3) & (np.asarray(shards) > 1)
    return np.where(needed, 2.0 * parameters / smaller(ranks, shards), 0.0)


@formula(unit="byte", source="torchtitan: parallelism.fsdp_reshard_after_forward")
def resharded_bytes(*, always: Numeric, never: Numeric, whole: Numeric) -> Numeric:
    """`never` where gathered parameters stay whole through the step, else `always`."""
    return np.where(np.asarray(whole) > 0, never, always)


@formula(
    unit="byte",
    source="PyTorch FSDP2, torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py: gathers are received in memory "
    "of their own stream and copied out; the allocator keeps streams apart",
)
def gather_stream_bytes(*, parameters: Numeric, shards: Numeric, zero: Numeric) -> Numeric:
    """2 bytes × parameters of the largest group at stage 3 with several shards, else 0."""
    needed = (np.asarray(zero) >= 3) & (np.asarray(shards) > 1)
    return np.where(needed, 2.0 * parameters, 0.0)
