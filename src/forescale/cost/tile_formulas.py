"""Formulas of the tile model: what one tile, one wave and one block of attention take."""

from __future__ import annotations

import numpy as np

from forescale.formula import formula
from forescale.numeric import Numeric

ORIGAMI = "Primus projection documentation, GEMM simulation (Origami); Stream-K, arXiv:2301.03598, section 3"
FLASH = (
    "FlashAttention-2, arXiv:2307.08691, algorithms 1 and 2; FlashAttention-3, arXiv:2407.08608, section 3"
)
SYSTOLIC = "Jouppi et al. 2017, In-Datacenter Performance Analysis of a TPU, arXiv:1704.04760, section 2"


@formula(unit="1", source=ORIGAMI)
def tile_waves(
    *,
    m: Numeric,
    n: Numeric,
    batch: Numeric,
    tile_m: Numeric,
    tile_n: Numeric,
    split: Numeric,
    num_cores: float,
    tail: float,
) -> Numeric:
    """Waves = tiles · split / cores, a partial one counted up by `tail`; at least 1."""
    waves = np.ceil(m / tile_m) * np.ceil(n / tile_n) * batch * split / num_cores
    return np.maximum(waves + tail * (np.ceil(waves) - waves), 1.0)


@formula(unit="1", source=ORIGAMI)
def wave_extent(
    *,
    m: Numeric,
    n: Numeric,
    batch: Numeric,
    tile_m: Numeric,
    tile_n: Numeric,
    square: Numeric,
    num_cores: float,
) -> Numeric:
    """Rows and columns that one wave reads from memory: its tiles lie near a square of `square` columns."""
    columns = np.minimum(np.ceil(n / tile_n), square)
    rows = np.minimum(np.ceil(m / tile_m) * batch, num_cores / columns)
    return rows * tile_m + columns * tile_n


@formula(unit="s", source=ORIGAMI)
def tile_step_seconds(
    *,
    tile_m: Numeric,
    tile_n: Numeric,
    extent: Numeric,
    operand_bytes: float,
    core_rate: Numeric,
    l2_rate: float,
    bandwidth: Numeric,
) -> Numeric:
    """One step of k of a wave: the slowest of matrix units, cache to core and memory to cache."""
    products = 2.0 * tile_m * tile_n / core_rate
    loads = (tile_m + tile_n) * operand_bytes / l2_rate
    return np.maximum(np.maximum(products, loads), extent * operand_bytes / bandwidth)


@formula(unit="s", source=ORIGAMI)
def tile_epilogue_seconds(
    *, m: Numeric, n: Numeric, batch: Numeric, split: Numeric, output_bytes: float, bandwidth: Numeric
) -> Numeric:
    """Write the output; with split k each part also writes and reads fp32 sums."""
    partial = np.minimum(split - 1.0, 1.0) * split * 8.0
    return m * n * batch * (output_bytes + partial) / bandwidth


@formula(unit="s", source=ORIGAMI)
def tile_gemm_seconds(
    *,
    waves: Numeric,
    step_s: Numeric,
    k: Numeric,
    split: Numeric,
    fill_s: float,
    epilogue_s: Numeric,
    launch_s: Numeric,
) -> Numeric:
    """Launch + waves · (steps of k + pipeline fill) + what the epilogue leaves exposed."""
    return launch_s + waves * (step_s * (k / split) + fill_s) + epilogue_s


@formula(unit="s", source=SYSTOLIC)
def systolic_seconds(
    *,
    m: Numeric,
    n: Numeric,
    k: Numeric,
    batch: Numeric,
    array: float,
    rate: Numeric,
    num_bytes: Numeric,
    bandwidth: Numeric,
    launch_s: Numeric,
) -> Numeric:
    """Launch + max(rows and the array's fill through weights padded to the array, traffic)."""
    weights = np.ceil(n / array) * np.ceil(k / array) * (array * array)
    return launch_s + np.maximum(2.0 * batch * (m + array) * weights / rate, num_bytes / bandwidth)


@formula(unit="s", source=FLASH)
def attention_block_seconds(
    *, products_s: Numeric, softmax_s: Numeric, loads_s: Numeric, overlap: float
) -> Numeric:
    """One block of queries against one of keys: products and softmax overlap in part, loads in full."""
    serial = (1.0 - overlap) * np.minimum(products_s, softmax_s)
    return np.maximum(np.maximum(products_s, softmax_s), loads_s) + serial


@formula(unit="1", source=FLASH)
def attention_blocks(
    *,
    calls: Numeric,
    q_len: Numeric,
    kv_len: Numeric,
    keys: Numeric,
    longest: Numeric,
    block_q: float,
    block_kv: float,
    fill: float,
    tail: float,
    num_cores: float,
) -> Numeric:
    """Blocks that the busiest core goes through: its share of all, or the longest workgroup, and the tail."""
    mean = np.minimum(keys, kv_len) / block_kv + fill
    share = calls * np.ceil(q_len / block_q) * mean / num_cores
    return np.maximum(share, np.minimum(longest, kv_len) / block_kv + fill) + tail * mean


@formula(unit="s", source=FLASH)
def attention_tile_seconds(
    *, blocks: Numeric, block_s: Numeric, num_bytes: Numeric, bandwidth: Numeric, launch_s: float
) -> Numeric:
    """Launch + max(blocks of the busiest core, traffic)."""
    return launch_s + np.maximum(blocks * block_s, num_bytes / bandwidth)
