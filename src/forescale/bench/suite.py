"""The calibration of a device in one sitting: kernels of every family by extent, and messages by size."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from forescale.bench.proposal import Message
from forescale.cost.roofline import peak_rate
from forescale.graph.ops import AttentionCore, CollectiveKind, Compute, Elementwise, Gemm, GroupedGemm
from forescale.io.bench import TrafficFamily
from forescale.spec import Device

LONGEST_S = 0.05
"""What one kernel takes at most at the device's peak rates."""
SHARE = 1.0 / 64.0
"""Of a device's memory, what one message or pass moves at most."""
WIDTHS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
NARROW, HEADS, HEAD_DIM = 512, 8, 128
GROUPS = (4, 8)
LENGTHS, BATCHES = (64, 128, 256, 512, 1024, 2048, 4096, 8192), (1, 2, 4)
PASSES: tuple[TrafficFamily, ...] = (
    "elementwise", "norm", "softmax", "permute", "embedding", "loss", "cast", "optimizer",
)  # fmt: skip
COLLECTIVES: tuple[CollectiveKind, ...] = (
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "p2p",
)  # fmt: skip
STEP = 4


def suite_kernels(device: Device, dtype: str) -> list[Compute]:
    """Return kernels of a type that a device runs within a moment at its peak, shortest first.

    Products are square, or short in one extent; experts take half as many rows each.
    """
    rate = peak_rate(device, dtype)
    longest = LONGEST_S * rate
    products = [op for op in _products(dtype) if float(op.flops) <= longest]
    passes = [
        Elementwise(bytes_moved=float(size), family=family)
        for family in PASSES
        for size in sizes(device)
        if size <= LONGEST_S * device.hbm_bandwidth
    ]
    return [*sorted(products, key=lambda op: float(op.flops)), *passes]


def _products(dtype: str) -> Iterator[Gemm | GroupedGemm | AttentionCore]:
    for width in map(float, WIDTHS):
        yield Gemm(m=width, n=width, k=width, dtype=dtype)
        for short in ("m", "n", "k"):
            if width > NARROW:
                extents = {"m": width, "n": width, "k": width, short: float(NARROW)}
                yield Gemm(**extents, dtype=dtype)
        for groups in map(float, GROUPS):
            rows = groups * width / 2.0
            yield GroupedGemm(groups=groups, m=rows, n=width, k=width, dtype=dtype)
            yield GroupedGemm(groups=groups, m=rows, n=width, k=width, dtype=dtype, contract="m")
    for length, batch, backward in product(map(float, LENGTHS), map(float, BATCHES), (False, True)):
        yield AttentionCore(
            batch=batch, heads=float(HEADS), kv_heads=float(HEADS), q_len=length, kv_len=length,
            pairs=length * (length + 1.0) / 2.0, qk_dim=float(HEAD_DIM), v_dim=float(HEAD_DIM),
            causal=True, backward=backward, dtype=dtype,
        )  # fmt: skip


def suite_messages(device: Device, num_ranks: int) -> list[Message]:
    """Return every collective among so many ranks by size, smallest first; point to point is between two."""
    return [
        (kind, float(size), 2 if kind == "p2p" else num_ranks)
        for size in sizes(device)
        for kind in COLLECTIVES
    ]


def sizes(device: Device) -> list[int]:
    """Return bytes from 16 KiB up, each four times the one before."""
    found = [1 << 14]
    while found[-1] * STEP <= SHARE * device.hbm_bytes:
        found.append(found[-1] * STEP)
    return found
