"""The roofline model: full tiles at a fitted fraction of the peak, or traffic at a fitted bandwidth.

Few parameters per generation, operator family and data type, each with a physical bound; see
`forescale.cost.calibration`. Arithmetic is limited to operations that IEEE 754 rounds exactly, so that a
candidate alone and inside an array give the same bits.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TypeVar

from forescale.cost.calibration import (
    UNMEASURED,
    AttentionParameters,
    Calibration,
    Fit,
    GemmParameters,
    drained_share,
    grouped_share,
)
from forescale.cost.model import Provenance
from forescale.errors import incomplete, not_one_of, unsupported_by
from forescale.formula import formula, value_of
from forescale.graph.ops import (
    EXTENTS,
    AttentionCore,
    Compute,
    EagerKernel,
    Elementwise,
    Gemm,
    GroupedGemm,
)
from forescale.numeric import Numeric, all_true, any_true, ceil, maximum, minimum, where
from forescale.spec import Device
from forescale.spec.workload import MATRIX_RATE
from forescale.struct import Struct

T = TypeVar("T")
OPERAND_BYTES = {
    "fp32": 4.0,
    "tf32": 4.0,
    "fp16": 2.0,
    "bf16": 2.0,
    "fp8": 1.0,
    "fp8_rowwise": 1.0,
    "fp8_blockwise": 1.0 + 4 / 128,
    "mxfp8": 1.0 + 1 / 32,
    "nvfp4": 0.5 + 1 / 16,
    "int8": 1.0,
}
"""Bytes per operand element with block scales (fp32 per 128; OCP MX v1.0: a byte per 32; NVFP4: per 16)."""
RATES = {**MATRIX_RATE, "fp8_rowwise": "fp8", "fp8_blockwise": "fp8"}
LIKE = {"fp8_rowwise": "fp8", "int8": "fp8"}
"""Compute types whose kernels were not timed alone, and those whose fit they use."""
VECTOR_LOAD_BYTES = 16.0
"""Alignment of rows that matrix units ask for (NVIDIA, Matrix Multiplication Background User's Guide)."""
ROOFLINE = "Williams et al. 2009, Roofline (doi:10.1145/1498765.1498785)"
TILING = "NVIDIA, Matrix Multiplication Background User's Guide, tile and wave quantization"
FLASH = "Dao 2023, FlashAttention-2, arXiv:2307.08691, sections 2.3 and 3"


@formula(unit="FLOP", source=TILING)
def gemm_tile_flops(
    *,
    m: Numeric,
    n: Numeric,
    batch: Numeric,
    tile_m: float,
    tile_n: float,
    edge: float,
    tail: float,
    num_cores: float,
) -> Numeric:
    """Cost of one step of k: 2·(max(tiles, cores) + tail·cores)·(tile + edge·its rows and columns)."""
    tiles = ceil(m / tile_m) * ceil(n / tile_n) * batch
    per_tile = 2.0 * (tile_m * tile_n + edge * (tile_m + tile_n))
    return (maximum(tiles, num_cores) + tail * num_cores) * per_tile


@formula(unit="byte", source=ROOFLINE)
def gemm_bytes(
    *, m: Numeric, n: Numeric, k: Numeric, batch: Numeric, operand_bytes: float, output_bytes: float
) -> Numeric:
    """Each operand read once and the output written once: batch·((m + n)·k·operand + m·n·output)."""
    return batch * ((m + n) * k * operand_bytes + m * n * output_bytes)


@formula(unit="s", source=ROOFLINE)
def gemm_seconds(
    *,
    step_flops: Numeric,
    k: Numeric,
    fill_k: float,
    rate: Numeric,
    num_bytes: Numeric,
    shown_bytes: Numeric,
    bandwidth: Numeric,
    launch_s: Numeric,
) -> Numeric:
    """Launch + max(cost per step of k · (k + fill) / rate + shown bytes / bandwidth, bytes / bandwidth)."""
    products = step_flops * (k + fill_k) / rate
    return launch_s + maximum(products + shown_bytes / bandwidth, num_bytes / bandwidth)


@formula(unit="1", source="definition: power controllers act on a mean over tens of milliseconds")
def sustained_share(*, loaded_s: Numeric, timed_s: Numeric, lasting: float, burst_s: float) -> Numeric:
    """Mean rate over `timed_s` after `loaded_s` of load: all until `burst_s` of load, `lasting` from then on."""
    slow_s = minimum(maximum(loaded_s + timed_s - burst_s, 0.0), timed_s)
    return 1.0 - slow_s / timed_s * (1.0 - lasting)


@formula(unit="1", source=FLASH)
def value_width(*, qk_dim: Numeric, v_dim: Numeric, padding: float) -> Numeric:
    """Width at which values are multiplied: v + padding·max(qk - v, 0)."""
    return v_dim + padding * maximum(qk_dim - v_dim, 0.0)


@formula(unit="FLOP", source=FLASH)
def attention_work(
    *,
    batch: Numeric,
    heads: Numeric,
    q_len: Numeric,
    pairs: Numeric,
    pair_flops: Numeric,
    fill: float,
    block_q: float,
    tail: float,
    num_cores: float,
) -> Numeric:
    """Pairs, with those computed in vain, times the cost of a pair, over the share of cores kept busy."""
    calls = batch * heads
    groups = calls * ceil(q_len / block_q)
    idle = (maximum(groups, num_cores) + tail * num_cores) / groups
    return calls * (pairs + fill * q_len) * pair_flops * idle


@formula(unit="s", source=ROOFLINE)
def attention_seconds(
    *, work: Numeric, rate: Numeric, num_bytes: Numeric, bandwidth: Numeric, launch_s: float
) -> Numeric:
    """Launch + max(work / rate, bytes / bandwidth)."""
    return launch_s + maximum(work / rate, num_bytes / bandwidth)


@formula(unit="s", source="calibration: rates of kernels of recurrences over those of attention and products")
def scan_seconds(*, seconds: Numeric, share: float) -> Numeric:
    """Seconds of attention or of a product of the same extents / share of its rate."""
    return seconds / share


@formula(unit="s", source=ROOFLINE)
def memory_bound_seconds(
    *, num_bytes: Numeric, bandwidth: Numeric, kernels: Numeric, launch_s: float
) -> Numeric:
    """Kernels · launch + bytes / bandwidth."""
    return kernels * launch_s + num_bytes / bandwidth


def output_bytes(op: Gemm) -> float:
    """Return bytes per number that a product writes: no fewer than 2, and what it reads of a sum that it adds to."""
    return max(2.0, OPERAND_BYTES[op.dtype]) + op.accumulate_bytes


def product_bytes(op: Gemm) -> Numeric:
    """Return the bytes of the operands and the output of a product."""
    extents = {name: getattr(op, name) for name in EXTENTS[Gemm]}
    return gemm_bytes(**extents, operand_bytes=OPERAND_BYTES[op.dtype], output_bytes=output_bytes(op))


def products_of(op: GroupedGemm) -> Gemm:
    """Return the products of experts as a batch of equal ones."""
    rows = op.m / op.groups
    m, n, k = (rows, op.n, op.k) if op.contract == "k" else (op.k, op.n, rows)
    return Gemm(m=m, n=n, k=k, batch=op.groups, dtype=op.dtype, accumulate_bytes=op.accumulate_bytes)


def _head_widths(op: AttentionCore) -> tuple[Numeric, ...]:
    """Return the contracted width of each product of unfused attention."""
    return (op.qk_dim, op.v_dim) if not op.backward else (op.qk_dim, op.qk_dim, op.v_dim, op.v_dim)


def _head_product(op: AttentionCore, width: Numeric, dtype: str) -> Gemm:
    return Gemm(m=op.q_len, n=op.kv_len, k=width, batch=op.batch * op.heads, dtype=dtype)


class Roofline(Struct, frozen=True, kw_only=True):
    """Fitted roofline of one device."""

    device: Device
    calibration: Calibration
    clock_hz: float | None = None
    """Clock to predict for; the device's own unless given. Rates of cores and caches follow it."""
    loop: tuple[Numeric, Numeric] | None = None
    """Seconds that the device was under load before kernels were timed, and that they were timed for."""

    def seconds(self, op: Compute) -> Numeric:
        """Return the duration of `op` [s]."""
        if isinstance(op, Gemm):
            return self._scanned(op, self._gemm(op))
        if isinstance(op, GroupedGemm):
            return self._grouped(op)
        if isinstance(op, AttentionCore):
            dtype = attention_dtype(self.device, op.dtype)
            return self._scanned(op, self._attention(op, dtype) if op.flash else self._unfused(op, dtype))
        assert isinstance(op, Elementwise)  # recorded kernels have a model of their own (cost/eager.py)
        return self._memory(op)

    def _scanned(self, op: Gemm | AttentionCore, seconds: Numeric) -> Numeric:
        """Return the seconds of `op` where the kernels of a recurrence multiply."""
        fitted = self.calibration.scan.get(op.kernel)
        return seconds if fitted is None else scan_seconds(seconds=seconds, share=fitted.share)

    def num_bytes(self, op: Compute) -> Numeric:
        """Return the bytes that `op` reads from and writes to device memory: operands once, outputs once."""
        if isinstance(op, EagerKernel):
            return op.kernels * op.bytes_moved
        if isinstance(op, Elementwise):
            return self._moved(op)
        if isinstance(op, GroupedGemm):
            return product_bytes(products_of(op))
        if isinstance(op, Gemm):
            return product_bytes(op)
        dtype = attention_dtype(self.device, op.dtype)
        if op.flash:
            return attention_bytes(op)
        products = (product_bytes(_head_product(op, width, dtype)) for width in _head_widths(op))
        return functools.reduce(lambda total, part: total + part, products, self._score_bytes(op))

    def provenance(self, op: Compute) -> Provenance:
        """Return the fit behind `op`'s family and data type, with the spread it had where it was checked.

        It is less certain for a device beside those that were fitted.
        """
        fit = self._fit(op)
        source = f"calibration {self.calibration.name} ({self.calibration.date}): {fit.source}"
        if not fit.machines or self.device.name in fit.machines:
            return Provenance(kind=fit.kind, source=source, low=fit.low, high=fit.high)
        source += f"; {self.device.name} itself was not measured"
        return Provenance(kind=fit.kind, source=source, low=fit.low**UNMEASURED, high=fit.high**UNMEASURED)

    def _fit(self, op: Compute) -> Fit:
        if isinstance(op, Gemm | AttentionCore) and op.kernel in self.calibration.scan:
            return self.calibration.scan[op.kernel].fit
        if isinstance(op, Gemm):
            return self._parameters(op.dtype).fit
        if isinstance(op, GroupedGemm):
            return self.calibration.grouped.fit
        if isinstance(op, AttentionCore):
            return self._flash(op).fit if op.flash else self.calibration.unfused.fit
        assert isinstance(op, Elementwise)
        return self.calibration.memory[op.family].fit

    def _gemm(self, op: Gemm) -> Numeric:
        return self._product(op)

    def _grouped(self, op: GroupedGemm) -> Numeric:
        one, share, extra_s = self._of_experts(op)
        return self._product(one, share=share, extra_s=extra_s)

    def _of_experts(self, op: GroupedGemm) -> tuple[Gemm, Numeric, Numeric]:
        """Return the products of experts as of one kind, their share of the dense rate, and seconds beside them."""
        grouped, products = self.calibration.grouped, products_of(op)
        several = grouped.fraction * (grouped.contract_m if op.contract == "m" else 1.0)
        tile_m, tile_n = self._parameters(op.dtype).tiles[0]
        lasting = drained_share(
            share=self.calibration.run.rate("grouped"),
            tiles=ceil(products.m / tile_m) * ceil(products.n / tile_n) * (op.groups if op.together else 1.0),
            num_cores=float(self.device.num_cores),
        )
        share = grouped_share(share=several * lasting, groups=op.groups)
        return products, share, op.groups * grouped.group_s

    def _product(self, op: Gemm, *, share: Numeric = 1.0, extra_s: Numeric = 0.0) -> Numeric:
        m, n, k, batch, dtype = op.m, op.n, op.k, op.batch, op.dtype
        rate, fitted = self._rate(dtype), self._parameters(dtype)
        cores = float(self.device.num_cores)
        costs = [
            gemm_tile_flops(
                m=m,
                n=n,
                batch=batch,
                tile_m=float(rows),
                tile_n=float(columns),
                edge=fitted.edge,
                tail=fitted.tail,
                num_cores=cores,
            )
            for rows, columns in fitted.tiles
        ]
        shown = output_bytes(op) * fitted.accumulation if op.accumulate_bytes else 0.0
        return gemm_seconds(
            step_flops=functools.reduce(minimum, costs),
            k=k,
            fill_k=fitted.fill_k,
            rate=self._sustained(op, rate * fitted.fraction * share),
            num_bytes=product_bytes(op),
            shown_bytes=shown * m * n * batch,
            bandwidth=self._bandwidth(fitted.bandwidth),
            launch_s=fitted.launch_s + extra_s,
        )

    def _sustained(self, op: Gemm, rate: Numeric) -> Numeric:
        """Return the rate of `op` that lasts: in a run, or else in the loop that it was timed in."""
        run, fitted = self.calibration.run, self._parameters(op.dtype)
        if op.dtype in run.sustained or self.loop is None:
            return rate * run.rate(op.dtype)
        more = max(1.0, self.calibration.power_share(self.device.power_w))  # `rate` knows of less
        lasting = min(1.0, fitted.lasting * more)
        loaded_s, timed_s = self.loop
        return rate * sustained_share(
            loaded_s=loaded_s, timed_s=timed_s, lasting=lasting, burst_s=fitted.burst_s
        )

    def _attention(self, op: AttentionCore, dtype: str) -> Numeric:
        fitted = self._flash(op)
        qk_products, v_products = (6.0, 4.0) if op.backward else (2.0, 2.0)
        usual = attention_dtype(self.device, "bf16")  # softmax is in fp32 whatever the products are in
        slower = self._rate(dtype) / self._rate(usual) if getattr(self.device.matrix_flops, usual) else 1.0
        work = attention_work(
            batch=op.batch,
            heads=op.heads,
            q_len=op.q_len,
            pairs=op.computed_pairs,
            pair_flops=qk_products * op.qk_dim
            + v_products * padded(op, fitted.padding)
            + fitted.softmax_flops * slower,
            fill=fitted.fill + (0.5 * fitted.block_q if op.causal else 0.0),
            block_q=fitted.block_q,
            tail=fitted.tail,
            num_cores=float(self.device.num_cores),
        )
        rate = self._rate(dtype) * fitted.fraction * self.calibration.run.rate("attention")
        return attention_seconds(
            work=work,
            rate=rate,
            num_bytes=attention_bytes(op),
            bandwidth=self._bandwidth(fitted.bandwidth),
            launch_s=fitted.launch_s,
        )

    def _unfused(self, op: AttentionCore, dtype: str) -> Numeric:
        unfused = self.calibration.unfused
        matmul = [self._head_seconds(op, width, dtype) for width in _head_widths(op)]
        scores = memory_bound_seconds(
            num_bytes=self._score_bytes(op),
            kernels=1.0,
            launch_s=unfused.launch_s,
            bandwidth=self._bandwidth(self.calibration.memory["softmax"].bandwidth)
            * self.calibration.run.rate("unfused"),
        )
        return functools.reduce(lambda total, part: total + part, matmul, scores)

    def _score_bytes(self, op: AttentionCore) -> Numeric:
        """Return the bytes of scores that the steps between the products of unfused attention move."""
        unfused = self.calibration.unfused
        per_score = op.score_bytes or (unfused.backward_bytes if op.backward else unfused.forward_bytes)
        return op.batch * op.heads * op.computed_pairs * per_score

    def _head_seconds(self, op: AttentionCore, width: Numeric, dtype: str) -> Numeric:
        """Price one product of unfused attention; heads whose rows are not aligned are left to the vector units."""

        def price(dtype: str) -> Numeric:
            return self._product(_head_product(op, width, dtype))

        unaligned = value_of(width) * OPERAND_BYTES[dtype] % VECTOR_LOAD_BYTES > 0.0
        if not any_true(unaligned):
            return price(dtype)
        if all_true(unaligned):
            return price("fp32")
        return where(unaligned, price("fp32"), price(dtype))

    def _memory(self, op: Elementwise) -> Numeric:
        fitted = self.calibration.memory[op.family]
        return memory_bound_seconds(
            num_bytes=self._moved(op),
            bandwidth=self._bandwidth(fitted.bandwidth) * self.calibration.run.rate(op.family),
            kernels=op.kernels,
            launch_s=fitted.launch_s,
        )

    def _moved(self, op: Elementwise) -> Numeric:
        return op.bytes_moved + (op.transposed_bytes if self.device.needs_transposes else 0.0)

    def _parameters(self, dtype: str) -> GemmParameters:
        return entry_of(self.calibration.gemm, dtype, "gemm", self.calibration.name)

    def _flash(self, op: AttentionCore) -> AttentionParameters:
        return self.calibration.attention[self.calibration.attention_key(op.kernel, backward=op.backward)]

    def _bandwidth(self, fraction: float) -> Numeric:
        return self.device.hbm_bandwidth * fraction * self.calibration.run.rate("memory")

    @property
    def _clock(self) -> float:
        return self.clock_hz or self.device.clock_hz

    def _rate(self, dtype: str) -> float:
        clock = self._clock / self.device.peak_clock_hz
        return peak_rate(self.device, dtype) * clock * self.calibration.power_factor(self.device.power_w)


def entry_of(table: Mapping[str, T], dtype: str, section: str, calibration: str) -> T:
    """Return the entry of `dtype`."""
    dtype = LIKE.get(dtype, dtype)
    if dtype not in table:
        fix = f"it has {', '.join(table)}"
        raise incomplete(f"entry {section}.{dtype}", f"calibration {calibration}", fix)
    return table[dtype]


def peak_rate(device: Device, dtype: str) -> float:
    """Return the dense peak rate of `device` for `dtype` [FLOP/s]; fp32 may run on its vector units."""
    if dtype not in OPERAND_BYTES:
        raise not_one_of("compute type", dtype, ", ".join(OPERAND_BYTES))
    rates = device.matrix_flops
    rate: float | None = getattr(rates, RATES[dtype])
    if rate is None and dtype == "tf32":  # PyTorch: what cannot narrow its operands multiplies in fp32
        rate = rates.fp32
    if rate is None and dtype in ("fp32", "tf32"):
        return device.vector_flops
    if rate is None:
        known = [
            name for name in ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8") if getattr(rates, name)
        ]
        fix = f"it has {', '.join(known)}: set the compute precision to one of these"
        raise unsupported_by(f"device {device.name}", f"{dtype}: it has no matrix rate for it", fix)
    if dtype == "mxfp8" and rates.fp4 is None:
        value = "mxfp8: block scales need matrix units that also have a 4-bit rate (Blackwell, CDNA 4)"
        key = f"device {device.name}"
        raise unsupported_by(key, value, "use fp8 with recipe delayed, current or blockwise")
    return rate


def attention_dtype(device: Device, dtype: str) -> str:
    """Return the type that attention runs in on `device`: where it lacks one of the 16-bit types, the other."""
    return "fp16" if dtype == "bf16" and device.matrix_flops.bf16 is None else dtype


def padded(op: AttentionCore, padding: float) -> Numeric:
    """Return the width, in elements, at which a kernel that pads multiplies values."""
    return value_width(qk_dim=op.qk_dim, v_dim=op.v_dim, padding=padding) if padding else op.v_dim


def attention_bytes(op: AttentionCore) -> Numeric:
    """Return the bytes of queries, outputs, keys and values, and of their gradients in backward."""
    passes = 4.0 if op.backward else 2.0
    queries = op.batch * op.heads * op.q_len * (op.qk_dim + op.v_dim)
    keys = op.batch * op.kv_heads * op.kv_len * (op.qk_dim + op.v_dim)
    return (queries + keys) * (passes * OPERAND_BYTES[op.dtype] / 2.0)
