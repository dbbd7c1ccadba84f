"""The tile model: matrix products and attention workgroup by workgroup, each resource with its own limit.

After Origami, the analytical model behind hipBLASLt's kernel selection: every macro tile is priced (matrix
units, shared cache, memory, waves over the cores, pipeline fill, split k) and the fastest one is taken.
Attention follows the loop of FlashAttention: products, softmax and loads of one block of keys at a time.
"""

from __future__ import annotations

import functools
import math
from functools import cache

from msgspec.structs import replace

from forescale.arrays import np
from forescale.cost.calibration import Fit, TileAttentionParameters, TileParameters
from forescale.cost.roofline import (
    OPERAND_BYTES,
    Roofline,
    attention_bytes,
    entry_of,
    output_bytes,
    padded,
    product_bytes,
)
from forescale.formula import Term, formula, value_of
from forescale.graph.ops import EXTENTS, AttentionCore, Compute, Gemm, GroupedGemm
from forescale.numeric import Numeric, ceil, maximum, minimum
from forescale.struct import Struct

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
    waves = ceil(m / tile_m) * ceil(n / tile_n) * batch * split / num_cores
    return maximum(waves + tail * (ceil(waves) - waves), 1.0)


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
    columns = minimum(ceil(n / tile_n), square)
    rows = minimum(ceil(m / tile_m) * batch, num_cores / columns)
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
    return maximum(maximum(products, loads), extent * operand_bytes / bandwidth)


@formula(unit="s", source=ORIGAMI)
def tile_epilogue_seconds(
    *, m: Numeric, n: Numeric, batch: Numeric, split: Numeric, output_bytes: float, bandwidth: Numeric
) -> Numeric:
    """Write the output; with split k each part also writes and reads fp32 sums."""
    partial = minimum(split - 1.0, 1.0) * split * 8.0
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
    weights = ceil(n / array) * ceil(k / array) * (array * array)
    return launch_s + maximum(2.0 * batch * (m + array) * weights / rate, num_bytes / bandwidth)


@formula(unit="s", source=FLASH)
def attention_block_seconds(
    *, products_s: Numeric, softmax_s: Numeric, loads_s: Numeric, overlap: float
) -> Numeric:
    """One block of queries against one of keys: products and softmax overlap in part, loads in full."""
    serial = (1.0 - overlap) * minimum(products_s, softmax_s)
    return maximum(maximum(products_s, softmax_s), loads_s) + serial


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
    mean = minimum(keys, kv_len) / block_kv + fill
    share = calls * ceil(q_len / block_q) * mean / num_cores
    return maximum(share, minimum(longest, kv_len) / block_kv + fill) + tail * mean


@formula(unit="s", source=FLASH)
def attention_tile_seconds(
    *, blocks: Numeric, block_s: Numeric, num_bytes: Numeric, bandwidth: Numeric, launch_s: float
) -> Numeric:
    """Launch + max(blocks of the busiest core, traffic)."""
    return launch_s + maximum(blocks * block_s, num_bytes / bandwidth)


class _Limits(Struct, frozen=True, kw_only=True):
    """What one device can do for products of one data type."""

    fitted: TileParameters
    cores: float
    rate: Numeric
    """FLOP/s of all cores."""
    l2_rate: float
    """byte/s into one core."""
    bandwidth: Numeric
    operand_bytes: float
    output_bytes: float

    def seconds(self, op: Gemm, extra_s: Numeric = 0.0) -> Numeric:
        """Return the duration with the fastest tile; recorded extents are priced once more with that tile."""
        if self.fitted.systolic:
            return self._systolic(op, extra_s)
        extents = {name: getattr(op, name) for name in EXTENTS[Gemm]}
        plain = replace(op, **{name: value_of(value) for name, value in extents.items()})
        tiles = tiles_of(self.fitted.tiles, self.cores)
        costs = [self._tiled(plain, value_of(extra_s), value_of(self.rate), *tile) for tile in tiles]
        fastest = functools.reduce(minimum, costs)
        if Term not in map(type, (*extents.values(), extra_s)):
            return fastest
        first = np.argmin(np.stack(np.broadcast_arrays(*costs)), axis=0)
        return self._tiled(op, extra_s, self.rate, *np.array(tiles).T[:, first])

    def _tiled(
        self,
        op: Gemm,
        extra_s: Numeric,
        rate: Numeric,
        tile_m: Numeric,
        tile_n: Numeric,
        split: Numeric,
        square: Numeric,
    ) -> Numeric:
        shape = {"m": op.m, "n": op.n, "batch": op.batch, "tile_m": tile_m, "tile_n": tile_n}
        fitted = self.fitted
        step_s = tile_step_seconds(
            tile_m=tile_m, tile_n=tile_n, operand_bytes=self.operand_bytes, core_rate=rate / self.cores,
            extent=wave_extent(**shape, square=square, num_cores=self.cores), l2_rate=self.l2_rate,
            bandwidth=self.bandwidth,
        )  # fmt: skip
        epilogue_s = tile_epilogue_seconds(
            m=op.m,
            n=op.n,
            batch=op.batch,
            split=split,
            output_bytes=self.output_bytes,
            bandwidth=self.bandwidth,
        )
        return tile_gemm_seconds(
            waves=tile_waves(**shape, split=split, num_cores=self.cores, tail=fitted.tail), step_s=step_s,
            k=op.k, split=split, fill_s=fitted.fill_s, epilogue_s=fitted.epilogue * epilogue_s,
            launch_s=fitted.launch_s + extra_s,
        )  # fmt: skip

    def _systolic(self, op: Gemm, extra_s: Numeric) -> Numeric:
        extents = {name: getattr(op, name) for name in EXTENTS[Gemm]}
        return systolic_seconds(
            **extents, array=float(self.fitted.systolic), rate=self.rate, num_bytes=product_bytes(op),
            bandwidth=self.bandwidth, launch_s=self.fitted.launch_s + extra_s,
        )  # fmt: skip


class TileModel(Roofline, frozen=True):
    """Analytical tile model of one device; whatever is bound by traffic alone is left to the roofline."""

    def _fit(self, op: Compute) -> Fit:
        if isinstance(op, Gemm) and op.kernel not in self.calibration.scan:
            return self._tile(op.dtype).fit
        if (
            isinstance(op, AttentionCore)
            and op.flash
            and not self._systolic
            and op.kernel not in self.calibration.scan
        ):
            return self._blocks(op).fit
        return super()._fit(op)

    def _gemm(self, op: Gemm) -> Numeric:
        return self._limits(op).seconds(op)

    def _grouped(self, op: GroupedGemm) -> Numeric:
        products, share, extra_s = self._of_experts(op)
        return self._limits(products, share).seconds(products, extra_s)

    @property
    def _systolic(self) -> bool:
        """Whether the matrix units are systolic arrays, whose attention is not that of workgroups."""
        return any(entry.systolic for entry in self.calibration.tile.values())

    def _limits(self, op: Gemm, share: Numeric = 1.0) -> _Limits:
        fitted = self._tile(op.dtype)
        return _Limits(
            fitted=fitted,
            cores=float(self.device.num_cores),
            rate=self._sustained(op, self._rate(op.dtype) * fitted.fraction * share),
            l2_rate=fitted.l2_bytes_per_clock * self._clock,
            bandwidth=self._bandwidth(fitted.bandwidth),
            operand_bytes=OPERAND_BYTES[op.dtype],
            output_bytes=output_bytes(op),
        )

    def _attention(self, op: AttentionCore, dtype: str) -> Numeric:
        if self._systolic:
            return super()._attention(op, dtype)
        fitted, cores = self._blocks(op), float(self.device.num_cores)
        sustained = self.calibration.run.rate("attention")
        core_rate = self._rate(dtype) * fitted.fraction * sustained / cores
        power = self.calibration.power_factor(self.device.power_w)
        square = fitted.block_q * fitted.block_kv
        qk_products, v_products = (6.0, 4.0) if op.backward else (2.0, 2.0)
        block_s = attention_block_seconds(
            products_s=square
            * (qk_products * op.qk_dim + v_products * padded(op, fitted.padding))
            / core_rate,
            softmax_s=square / (fitted.exp_per_clock * self._clock * sustained * power),
            loads_s=_block_loads(op, fitted, OPERAND_BYTES[dtype])
            / (fitted.l2_bytes_per_clock * self._clock),
            overlap=fitted.overlap,
        )
        keys = op.computed_pairs / op.q_len + (0.5 * fitted.block_q if op.causal else 0.0)
        blocks = attention_blocks(
            calls=op.batch * op.heads,
            q_len=op.q_len,
            kv_len=op.kv_len,
            keys=keys,
            longest=2.0 * keys if op.causal else keys,
            block_q=fitted.block_q,
            block_kv=fitted.block_kv,
            fill=fitted.fill,
            tail=fitted.tail,
            num_cores=cores,
        )
        return attention_tile_seconds(
            blocks=blocks,
            block_s=block_s,
            num_bytes=attention_bytes(op),
            launch_s=fitted.launch_s,
            bandwidth=self._bandwidth(fitted.bandwidth),
        )

    def _tile(self, dtype: str) -> TileParameters:
        return entry_of(self.calibration.tile, dtype, "tile", self.calibration.name)

    def _blocks(self, op: AttentionCore) -> TileAttentionParameters:
        return self.calibration.tile_attention[
            self.calibration.attention_key(op.kernel, backward=op.backward)
        ]


@cache
def tiles_of(tiles: tuple[tuple[int, int, int], ...], num_cores: float) -> tuple[tuple[float, ...], ...]:
    """Return the candidate tiles: tile_m, tile_n (elements), split of k, columns of a square wave."""
    return tuple(
        (float(rows), float(columns), float(split), float(math.ceil(math.sqrt(num_cores * rows / columns))))
        for rows, columns, split in tiles
    )


def _block_loads(op: AttentionCore, fitted: TileAttentionParameters, element: float) -> Numeric:
    """Return the bytes a workgroup loads per block.

    Keys and values; in backward queries, output gradients and the fp32 gradient of the queries, which is
    added atomically (read and written).
    """
    if not op.backward:
        return fitted.block_kv * (op.qk_dim + op.v_dim) * element
    return fitted.block_q * ((op.qk_dim + op.v_dim) * element + op.qk_dim * 8.0)
