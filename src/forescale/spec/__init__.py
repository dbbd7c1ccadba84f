"""Frozen descriptions of the question: model, cluster, strategy or space, workload."""

from forescale.spec.cluster import Cluster, Device, LinkParameters, MatrixRates, Tier
from forescale.spec.model import (
    Attention,
    DenseFfn,
    Ffn,
    FullAttention,
    Indexer,
    LatentAttention,
    Layer,
    LinearAttention,
    Model,
    MoeFfn,
    Patches,
)
from forescale.spec.rope import Rope
from forescale.spec.space import Space
from forescale.spec.strategy import DEFAULT_AXIS_ORDER, Kernels, Overlap, Recompute, Routing, Share, Strategy
from forescale.spec.workload import Precision, Workload

__all__ = [
    "DEFAULT_AXIS_ORDER",
    "Attention",
    "Cluster",
    "DenseFfn",
    "Device",
    "Ffn",
    "FullAttention",
    "Indexer",
    "Kernels",
    "LatentAttention",
    "Layer",
    "LinearAttention",
    "LinkParameters",
    "MatrixRates",
    "Model",
    "MoeFfn",
    "Overlap",
    "Patches",
    "Precision",
    "Recompute",
    "Rope",
    "Routing",
    "Share",
    "Space",
    "Strategy",
    "Tier",
    "Workload",
]
