"""Scratch memory of the libraries that multiply matrices: allocated at first use, kept for good."""

from __future__ import annotations

from forescale.formula import formula
from forescale.graph.layout import Choices
from forescale.memory.overhead import read_table
from forescale.spec.cluster import Device
from forescale.spec.strategy import Kernels


def library_workspace_bytes(device: Device, kernels: Kernels, *, grouped: bool) -> float:
    """Return the workspaces of one process [byte]; with experts, its `grouped` products have streams.

    Devices whose software allocates none through PyTorch (TPUs, Gaudi, Trainium) have none.
    """
    table = read_table("workspaces")
    if device.vendor not in table["vendors"]:
        return 0.0
    torch, engine = table["pytorch"], table["transformer_engine"]
    usual = torch["bytes"].get(device.architecture, torch["other"])
    fused = engine["bytes"].get(device.architecture, engine["other"])
    return workspace_bytes(
        handle_bytes=max(usual, torch["deterministic"]) if kernels.deterministic else usual,
        handles=torch["handles"],
        stream_bytes=fused if kernels.fused else 0.0,
        streams=1 + (engine["streams"] if grouped and kernels.grouped_experts else 0),
    )


def overlap_workspace_bytes(device: Device, choices: Choices) -> float:
    """Return the workspaces of products that run in chunks beside their tensor-parallel collective [byte]."""
    table = read_table("workspaces")
    if device.vendor not in table["vendors"] or not (choices.overlap.tensor and choices.kernels.fused):
        return 0.0
    engine = table["transformer_engine"]
    return workspace_bytes(
        handle_bytes=0.0,
        handles=0.0,
        stream_bytes=engine["bytes"].get(device.architecture, engine["other"]),
        streams=engine["overlap_streams"],
    )


@formula(
    unit="byte",
    source="PyTorch CublasHandlePool.cpp; Transformer Engine module/base.py get_multi_stream_cublas_workspace",
)
def workspace_bytes(*, handle_bytes: float, handles: float, stream_bytes: float, streams: float) -> float:
    """Bytes per handle × handles + bytes per stream × streams."""
    return handle_bytes * handles + stream_bytes * streams
