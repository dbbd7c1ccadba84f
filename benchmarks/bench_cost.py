"""Time the compute cost models: seconds per candidate and operator, warm.

python benchmarks/bench_cost.py [--candidates 4096]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from forescale.catalogue.clusters import load_device
from forescale.cost.calibration import load_calibration
from forescale.cost.model import ComputeModel
from forescale.cost.roofline import Roofline
from forescale.cost.tile import TileModel
from forescale.graph.ops import AttentionCore, Compute, Elementwise, Gemm, GroupedGemm


def operators(count: int) -> dict[str, Compute]:
    """Return one operator of each family over `count` candidates."""
    rng = np.random.default_rng(0)
    m = rng.integers(1, 64, count) * 256.0
    n, k = rng.integers(4, 128, count) * 128.0, rng.integers(4, 128, count) * 128.0
    heads = rng.integers(1, 64, count) * 1.0
    attention = AttentionCore(
        batch=1.0, heads=heads, kv_heads=heads, q_len=m, kv_len=m, pairs=m * m / 2, qk_dim=128.0, v_dim=128.0
    )
    return {
        "gemm": Gemm(m=m, n=n, k=k),
        "grouped_gemm": GroupedGemm(groups=rng.integers(1, 32, count) * 1.0, m=m, n=n, k=k),
        "attention": attention,
        "elementwise": Elementwise(bytes_moved=m * n, family="norm"),
    }


def best_of(function: Callable[[], object], repeats: int = 20) -> float:
    """Return the shortest of `repeats` runs [s]."""
    durations = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        durations.append(time.perf_counter() - start)
    return min(durations)


def models() -> dict[str, ComputeModel]:
    device = load_device("h100-sxm")
    calibration = load_calibration(device)
    return {
        "roofline": Roofline(device=device, calibration=calibration),
        "tile": TileModel(device=device, calibration=calibration),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--candidates", type=int, default=4096)
    count = parser.parse_args().candidates
    for name, model in models().items():
        for family, op in operators(count).items():
            seconds = best_of(lambda op=op, model=model: model.seconds(op))
            print(
                f"{name:10s} {family:14s} {seconds / count * 1e9:8.1f} ns per candidate, {count} candidates"
            )
        for family, op in operators(1).items():
            seconds = best_of(lambda op=op, model=model: model.seconds(op))
            print(f"{name:10s} {family:14s} {seconds * 1e6:8.1f} µs for one")


if __name__ == "__main__":
    main()
