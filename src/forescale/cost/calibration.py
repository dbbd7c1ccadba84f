"""Fitted parameters of the compute cost models: data with sources and residuals, one file per generation.

A file is looked up by device name, then by architecture, then by vendor, then `generic`; what a file does
not state it inherits from its `base`. Nothing is inherited silently: an inherited entry keeps its own fit,
whose kind says "roofline" where it is a prior.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, Self

from msgspec import field
from msgspec.structs import replace

from forescale.errors import not_one_of
from forescale.files import packaged, packaged_names
from forescale.formula import formula
from forescale.limits import Amount, Measure, Seconds, Share
from forescale.numeric import Numeric, minimum
from forescale.prepared import prepared
from forescale.records import record
from forescale.spec import Device
from forescale.struct import Struct

NARROW_TYPES = ("fp8", "fp8_rowwise", "fp8_blockwise", "mxfp8", "nvfp4", "int8")
TABLES = ("gemm", "attention", "memory", "tile", "tile_attention")
"""Sections that are inherited entry by entry."""


UNMEASURED = 1.5
"""Logarithmic interval of what was not measured itself, over that of its like that was: a choice."""


class Spread(Struct, frozen=True, kw_only=True):
    """Logarithmic errors over some measured rows."""

    rows: int
    median_abs: float
    bias: float
    """Median."""
    p10: float
    p90: float

    def low(self, seconds: float) -> float:
        """Return the 10th percentile of measured values for a projected one, in its unit."""
        return seconds * math.exp(min(self.p10, 0.0))

    def high(self, seconds: float) -> float:
        """Return the 90th percentile of measured values for a projected one, in its unit."""
        return seconds * math.exp(max(self.p90, 0.0))

    def widened(self, by: float = UNMEASURED) -> Self:
        """Return the spread times a factor, by default that of what was not measured."""
        absolute, low, high = (item * by for item in (self.median_abs, self.p10, self.p90))
        return replace(self, median_abs=absolute, p10=low, p90=high)

    def beside(self, other: float) -> Self:
        """Return the spread where what errs by itself by up to `other` (logarithm) is added to each end of it."""
        return replace(self, p10=-math.hypot(self.p10, other), p90=math.hypot(self.p90, other))


class Residual(Spread, frozen=True, kw_only=True):
    """Errors ln(predicted / measured) of a fit."""

    source: str = ""
    """Which rows these are."""


class Fit(Struct, frozen=True, kw_only=True):
    """Where an entry's parameters come from."""

    kind: Literal["fitted", "roofline"] = "roofline"
    """"roofline" is a prior: reasoned from the data sheet and other devices, not fitted to this one."""
    source: str = ""
    in_sample: Residual | None = None
    held_out: tuple[Residual, ...] = ()
    """Rows that were not used for the fit: other machines, other sources."""
    low: float = 0.75
    """10th percentile of measured / predicted to expect."""
    high: float = 1.5
    """90th percentile of measured / predicted to expect."""
    machines: tuple[str, ...] = ()
    """Devices whose rows were fitted."""


class GemmParameters(Struct, frozen=True, kw_only=True):
    """A tiled matrix product of one data type."""

    fraction: Share
    """Of the peak rate that full tiles reach in short kernels; at most 1."""
    fill_k: Measure
    """Products along k that fill and drain the pipeline would have allowed."""
    edge: Measure
    """Cost of a tile's operands: rows + columns loaded per step, in products each."""
    tail: Measure
    """Share of a wave lost at the end."""
    launch_s: Seconds
    bandwidth: Share
    """Fraction of the memory bandwidth."""
    accumulation: Share = 0.0
    """Of the traffic of sums that a product adds to, what other tiles' products do not hide; SimuMax's tables of B200
    and A100, dense and grouped, agree with those of products that add to nothing at 0.4."""
    tiles: tuple[tuple[int, int], ...]
    """Macro tiles to choose from, rows x columns of the output."""
    lasting: Share = 1.0
    """Of its rate, what the board's power leaves once the device has been under load for `burst_s`, in kernels that are
    timed in loops; what runs sustain (`RunFactors`) counts instead where it is given."""
    burst_s: Seconds = 0.0
    """How long a device that idled before multiplies at its full clock: some 30 ms on Hopper and on Blackwell."""
    fit: Fit = field(default_factory=Fit)


@formula(unit="1", source="definition: a rank with one expert multiplies as dense layers do")
def grouped_share(*, share: Numeric, groups: Numeric) -> Numeric:
    """1 − (1 − share) · 1 where there are several groups."""
    return 1.0 - (1.0 - share) * minimum(groups - 1.0, 1.0)


@formula(
    unit="1",
    source="definition: cores that wait while the last tiles of a product are done wait once per product, however long "
    "it was",
)
def drained_share(*, share: Numeric, tiles: Numeric, num_cores: float) -> Numeric:
    """1 / (1 + (1 / share − 1) · cores / tiles): `share` is that of a product of one tile for each core."""
    return 1.0 / (1.0 + (1.0 / share - 1.0) * num_cores / tiles)


class GroupedParameters(Struct, frozen=True, kw_only=True):
    """What a grouped product (experts) loses against a dense one of the same tiles."""

    fraction: Share
    """Of the dense rate where there are several groups; at most 1."""
    group_s: Seconds
    """Seconds per group beyond the tiles: pointer set-up, or a launch where groups are separate kernels."""
    contract_m: Share
    """Of that rate again for the weight gradient; at most 1."""
    fit: Fit = field(default_factory=Fit)


class AttentionParameters(Struct, frozen=True, kw_only=True):
    """Fused attention, forward or backward."""

    fraction: Share
    """Of the peak rate that the matrix products alone would reach; at most 1."""
    softmax_flops: Measure
    """Cost of one query-key pair outside the matrix products, in FLOP at that rate."""
    fill: Measure
    """Keys per query computed in vain (the diagonal's half tiles) or lost to filling the pipeline."""
    block_q: Amount
    """Queries per workgroup."""
    tail: Measure
    """Share of a wave lost at the end."""
    launch_s: Seconds
    bandwidth: Share
    padding: Measure = 0.0
    """Of the width that values lack of keys, what the kernel multiplies all the same (latent attention)."""
    fit: Fit = field(default_factory=Fit)


class TileParameters(Struct, frozen=True, kw_only=True):
    """A tiled matrix product of one data type, resource by resource."""

    fraction: Share
    """Of the peak rate at which a core multiplies while its operands are at hand; at most 1."""
    l2_bytes_per_clock: Amount
    """Operand bytes a core takes from the shared cache per clock."""
    fill_s: Seconds
    """Seconds to fill and drain one tile's pipeline."""
    tail: Measure
    """Share of a partial last wave that is lost: 1 with static waves, 0 when work is split evenly."""
    epilogue: Measure
    """Share of the output's traffic that nothing hides."""
    bandwidth: Share
    """Fraction of the memory bandwidth; at most 1."""
    launch_s: Seconds
    tiles: tuple[tuple[int, int, int], ...]
    """Rows x columns of the output, and the parts k is split into."""
    systolic: int = 0
    """Rows and columns of a systolic array; 0 where cores hold tiles of the output."""
    fit: Fit = field(default_factory=Fit)


class TileAttentionParameters(Struct, frozen=True, kw_only=True):
    """Fused attention, forward or backward, tile by tile."""

    fraction: Share
    """Of the peak rate at which a core multiplies; at most 1."""
    exp_per_clock: Amount
    """Pairs a core takes through the softmax per clock."""
    overlap: Measure
    """Share of the shorter of products and softmax that runs behind the longer."""
    fill: Measure
    """Tiles lost to filling and draining a workgroup's pipeline."""
    tail: Measure
    """Share of a workgroup by which the last ones run alone."""
    l2_bytes_per_clock: Amount
    block_q: Amount
    block_kv: Amount
    launch_s: Seconds
    bandwidth: Share
    padding: Measure = 0.0
    """As in `AttentionParameters`."""
    fit: Fit = field(default_factory=Fit)


class UnfusedParameters(Struct, frozen=True, kw_only=True):
    """Attention that materialises its scores: batched products and passes over the scores."""

    forward_bytes: Measure
    """HBM bytes per score beyond those of the products."""
    backward_bytes: Measure
    launch_s: Seconds
    """All kernels of one direction."""
    fit: Fit = field(default_factory=Fit)


class ScanParameters(Struct, frozen=True, kw_only=True):
    """Kernels of a recurrence in chunks, such as Mamba-2's."""

    share: Share
    """Of the rates of flash attention and of matrix products that their products reach."""
    fit: Fit = field(default_factory=Fit)


class MemoryParameters(Struct, frozen=True, kw_only=True):
    """Kernels bound by memory traffic."""

    bandwidth: Share
    """Fraction of the memory bandwidth reached by large tensors; at most 1."""
    launch_s: Seconds
    fit: Fit = field(default_factory=Fit)


class RunFactors(Struct, frozen=True, kw_only=True):
    """What whole runs lose against kernels measured alone; neutral until fitted from measured runs.

    A fit prices many sets of factors at once: each number may be an array over sets.
    """

    sustained: Mapping[str, Numeric] = field(default_factory=dict)
    """Rate that lasts (power, clocks, software) over the rate of short kernels, by compute type ("bf16", "fp8",
    ...) or by family: "attention", "unfused", "grouped", "memory" (all traffic), "elementwise" (unfused passes),
    "network", "dispatch"; 1 where it is not given."""
    attention_kernel: str = ""
    """Older attention kernels than the calibration's current ones; ignored where those were not measured."""
    contention: Numeric = 0.0
    """Share of the time of hidden communication by which it slows the compute that hides it."""
    data_contention: Numeric = 0.0
    """The same of what data-parallel ranks send."""
    interleaving: Numeric = 1.0
    """What the next grows by where exchanges of experts run beside another micro-batch's compute."""
    looping: Numeric = 1.0
    """Time of the host for an expert's launch in a compiled loop, over that of a launch alone."""
    crossing: Numeric = 0.0
    """Calls of the host for a chunk's forward beside another's backward, apart from those of their operators."""
    kernel_interval_s: Numeric = 0.0
    """Seconds from one launch to the next: the host sets the pace of kernels shorter than this."""
    step_overhead_s: Numeric = 0.0
    """Host work per step that nothing hides."""
    microbatch_overhead_s: Numeric = 0.0
    """Host work per micro-batch and chunk that nothing hides."""
    straggler: Numeric = 0.0
    """Relative standard deviation of one device's step; the slowest of many sets the pace."""
    eager: bool = False
    """Whether kernels are those of eager PyTorch, recorded one by one."""
    slice_straggler: Numeric = 0.0
    """The same of one slice: a torus among several that a data centre's network joins."""
    fit: Fit = field(default_factory=Fit)

    @property
    def is_single(self) -> bool:
        """Whether kernels and messages have one set of factors."""
        return not any(getattr(value, "ndim", 0) for value in self.sustained.values())

    def rate(self, key: str) -> Numeric:
        """Return the sustained fraction of `key`, 1 where nothing was fitted."""
        return self.sustained.get(key, 1.0)


class Calibration(Struct, frozen=True, kw_only=True):
    """All parameters of one device or generation."""

    name: str
    date: str
    source: str
    gemm: Mapping[str, GemmParameters]
    """By data type."""
    grouped: GroupedParameters
    attention: Mapping[str, AttentionParameters]
    """"forward" and "backward", and of older software such as "forward flash-1"."""
    unfused: UnfusedParameters
    scan: Mapping[str, ScanParameters] = field(default_factory=dict)
    """By kind of recurrence (`LinearAttention.scan`)."""
    memory: Mapping[str, MemoryParameters]
    """By family of `Elementwise`."""
    tile: Mapping[str, TileParameters]
    """By data type."""
    tile_attention: Mapping[str, TileAttentionParameters]
    """As `attention`."""
    run: RunFactors = field(default_factory=RunFactors)
    reference_power_w: float = 0.0
    """Board power of the devices that were fitted; 0 is unknown and scales nothing."""
    power_exponent: float = 0.5
    """Matrix rate over power below the reference: dynamic power grows as clock times voltage squared."""
    doubt: Measure = 0.0
    """Logarithm by which a step may take more or less because no device like this was measured, in addition to what
    runs on measured devices vary by: a choice."""

    def power_share(self, power_w: float) -> float:
        """Return the matrix rate that a board of `power_w` sustains over that of the boards that were fitted."""
        if not (power_w and self.reference_power_w):
            return 1.0
        return float((power_w / self.reference_power_w) ** self.power_exponent)

    def power_factor(self, power_w: float) -> float:
        """Return the share of the fitted matrix rates that a board of `power_w` sustains."""
        return min(1.0, self.power_share(power_w))

    @property
    def attention_kinds(self) -> tuple[str, ...]:
        """Return the names of the older attention kernels that were measured."""
        return tuple(key.removeprefix("forward ") for key in self.attention if key.startswith("forward "))

    def attention_key(self, kernel: str, *, backward: bool) -> str:
        """Return the entry of flash attention of a version, "" or one that was not measured being the current one."""
        key = "backward" if backward else "forward"
        return f"{key} {kernel}" if kernel and f"{key} {kernel}" in self.attention else key

    def with_attention(self, kind: str) -> Calibration:
        """Return the calibration with the attention kernels `kind` instead of the current ones.

        Raises
        ------
        SpecError
            If they were not measured on this generation.
        """
        if kind not in self.attention_kinds:
            known = ", ".join(self.attention_kinds) or "none"
            raise not_one_of(f"older attention kernels of calibration {self.name}", kind, known)
        tables = {
            name: {**table, **{key: table[f"{key} {kind}"] for key in ("forward", "backward")}}
            for name, table in (("attention", self.attention), ("tile_attention", self.tile_attention))
        }
        return replace(self, **tables)

    def with_run(self, run: RunFactors) -> Calibration:
        """Return the same calibration with other run-level factors, and the attention kernels they name."""
        kernels = (
            self.with_attention(run.attention_kernel)
            if run.attention_kernel in self.attention_kinds
            else self
        )
        return replace(kernels, run=run)


def load_calibration(device: Device) -> Calibration:
    """Return the calibration of `device`: its own, its architecture's, its vendor's or the generic one."""
    names = [device.name, device.architecture, device.vendor, "generic"]
    available = calibration_names()
    slugs = (name.lower().replace(" ", "-") for name in names)
    return read_calibration(next(slug for slug in slugs if slug in available))


@functools.cache
def calibration_names() -> frozenset[str]:
    """Return the names of the calibrations that come with the package."""
    return frozenset(packaged_names("calibrations"))


@prepared("calibration")
def read_calibration(name: str) -> Calibration:
    """Return the packaged calibration `name`."""
    return calibration_of(inherited(packaged(f"calibrations/{name}")), where=f"calibration {name}")


def calibration_of(content: Mapping[str, Any], *, where: str | Path, key: str = "") -> Calibration:
    """Return the calibration that a JSON object (at `key` of its file) describes; others are refused."""
    local = {name: value for name, value in content.items() if name != "base"}
    return record(Calibration, local, key, where)


def inherited(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a calibration with what it leaves to the packaged one that it names as `base`."""
    base = inherited(packaged(f"calibrations/{values['base']}")) if values.get("base") else {}
    tables = {key: {**base.get(key, {}), **values.get(key, {})} for key in TABLES}
    return {**base, **values, **tables}


def differing(calibration: Calibration, base: str = "generic") -> dict[str, Any]:
    """Return the JSON object of what `calibration` does not share with the packaged one `base`."""
    content, prior = asdict(calibration), asdict(read_calibration(base))
    tables = {
        section: {key: value for key, value in content[section].items() if value != prior[section].get(key)}
        for section in TABLES
    }
    single = {key: content[key] for key in content if key not in TABLES and content[key] != prior[key]}
    return {"base": base, **single, **{section: table for section, table in tables.items() if table}}
