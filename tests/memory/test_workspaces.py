"""Workspaces of matrix libraries, as PyTorch and Transformer Engine size them."""

from __future__ import annotations

import pytest

from forescale.catalogue.clusters import load_cluster
from forescale.memory.buffers import library_workspace_bytes, workspace_bytes
from forescale.spec.layout import Kernels

MIB = 2**20


def test_formula():
    assert workspace_bytes(handle_bytes=8.0, handles=2, stream_bytes=4.0, streams=5) == 36.0


@pytest.mark.parametrize(
    ("cluster", "kernels", "grouped", "mebibytes"),
    [
        ("a100-sxm-80gb", Kernels(), False, 2 * 8.125 + 4),
        ("a100-sxm-80gb", Kernels(deterministic=True), False, 2 * 32 + 4),
        ("h100-sxm", Kernels(), False, 2 * 32 + 32),
        ("h100-sxm", Kernels(), True, 2 * 32 + 5 * 32),
        ("h100-sxm", Kernels(fused=False), True, 2 * 32),
        ("h100-sxm", Kernels(grouped_experts=False), True, 2 * 32 + 32),
        ("mi355x", Kernels(), False, 2 * 128 + 64),
        ("tpu-v5p", Kernels(), True, 0),
    ],
)
def test_by_device_and_kernels(cluster, kernels, grouped, mebibytes):
    device = load_cluster(cluster, 1).device
    assert library_workspace_bytes(device, kernels, grouped=grouped) == mebibytes * MIB


def test_deterministic_tests_differ_by_transformer_engine_alone():
    """Megatron-LM golden values of one test: 4 672 MB on A100, 4 702 MB on H100, a difference of 29 MB."""
    deterministic = Kernels(deterministic=True)
    a100, h100 = (
        library_workspace_bytes(load_cluster(name, 1).device, deterministic, grouped=False)
        for name in ("a100-sxm-80gb", "h100-sxm")
    )
    assert h100 - a100 == pytest.approx(4702.43e6 - 4673.07e6, rel=0.01)
