"""Frozen descriptions of the question: model, cluster, strategy or space, workload."""

from forescale.spec.attention import Attention, FullAttention, Indexer, LatentAttention, LinearAttention
from forescale.spec.cluster import Cluster, Device, LinkParameters, MatrixRates, Tier
from forescale.spec.layout import DEFAULT_AXIS_ORDER, Kernels, Layout, Overlap, Recompute, Routing, Share
from forescale.spec.model import DenseFfn, Ffn, Layer, Model, MoeFfn, Patches
from forescale.spec.rope import Rope
from forescale.spec.space import Space
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
    "Layout",
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
    "Tier",
    "Workload",
]
