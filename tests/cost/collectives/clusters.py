"""Clusters built by hand, so that these tests do not depend on the catalogue."""

from __future__ import annotations

from forescale.spec.cluster import Cluster, Device, MatrixRates, Tier


def device(architecture: str = "test") -> Device:
    return Device(
        name="test",
        vendor="test",
        architecture=architecture,
        matrix_flops=MatrixRates(bf16=1e15),
        vector_flops=1e14,
        hbm_bytes=8e10,
        hbm_bandwidth=2e12,
        num_cores=100,
        clock_hz=1e9,
    )


def cluster(*tiers: Tier, num_devices: int = 64, per_node: int = 8, architecture: str = "test") -> Cluster:
    return Cluster(
        name="test",
        device=device(architecture),
        num_devices=num_devices,
        devices_per_node=per_node,
        tiers=tiers,
    )


def fast(size: int = 8, **changes: object) -> Tier:
    return Tier(**{"name": "fast", "size": size, "bandwidth": 400e9, "latency": 1e-6, **changes})


def slow(**changes: object) -> Tier:
    return Tier(**{"name": "slow", "size": 0, "bandwidth": 50e9, "latency": 5e-6, **changes})


def two_level(num_devices: int = 64, per_node: int = 8) -> Cluster:
    return cluster(fast(per_node), slow(), num_devices=num_devices, per_node=per_node)
