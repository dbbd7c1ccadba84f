"""The machine as the paper sees it: two rates, one memory, a fast domain and slow links, rings; and its space."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from forescale.errors import UnknownKeyError, no_effect, not_one_of, required_with
from forescale.files import shipped
from forescale.formula import formula
from forescale.graph.ops import CollectiveKind
from forescale.numeric import Numeric, divisors, indicator
from forescale.presets.subramanian2024.formulas import PAPER
from forescale.presets.subramanian2024.layers import Quirks, Shape
from forescale.question import TensorParallel
from forescale.spec.cluster import Cluster
from forescale.struct import Struct
from forescale.units import parse


@formula(unit="s", source=f"{PAPER}, section 3 and its code: ring over fast domains and slow links")
def two_level_ring(
    *,
    num_bytes: Numeric,
    num_ranks: Numeric,
    per_domain: Numeric,
    fast_bandwidth: Numeric,
    slow_bandwidth: Numeric,
    fast_latency: Numeric,
    slow_latency: Numeric,
    nics: float,
    share: Numeric,
    passes: float,
    single_level_passes: float,
) -> Numeric:
    """k·max(c·V/(nics·g·bs), c·V/bf) + ls·(d - 1) + lf·(n - d) with d = n // g domains of g ranks.

    One rank per domain: ls·(n - 1) + k'·c·V/bs. One domain: lf·(n - 1) + k'·c·V/bf.
    """
    domains = np.floor(num_ranks / per_domain)
    fast, slow = share * num_bytes / fast_bandwidth, share * num_bytes / slow_bandwidth
    both = (
        passes * np.maximum(slow / (nics * per_domain), fast)
        + slow_latency * (domains - 1.0)
        + fast_latency * (num_ranks - domains)
    )
    alone = slow_latency * (num_ranks - 1.0) + single_level_passes * slow
    inside = fast_latency * (num_ranks - 1.0) + single_level_passes * fast
    is_alone, is_inside = indicator(per_domain <= 1.0), indicator(domains <= 1.0)
    one = is_alone * alone + (1.0 - is_alone) * (is_inside * inside + (1.0 - is_inside) * both)
    return indicator(num_ranks > 1.0) * indicator(num_bytes > 0.0) * one


@formula(unit="s", source=f"{PAPER}, section 3 and its code: point to point, mean over the pipeline's hops")
def two_level_message(
    *,
    num_bytes: Numeric,
    num_ranks: Numeric,
    per_domain: Numeric,
    fast_bandwidth: Numeric,
    slow_bandwidth: Numeric,
    fast_latency: Numeric,
    slow_latency: Numeric,
    slow_share: float,
) -> Numeric:
    """Fast/links·(lf + V/bf) + slow/links·(ls + V/bs); slow = n // g - 1 of n - 1 links, all if g = 1."""
    links = np.maximum(num_ranks - 1.0, 1.0)
    is_alone = indicator(per_domain <= 1.0)
    slow_links = np.maximum(np.floor(num_ranks / per_domain - 1.0), 0.0)
    slow = slow_latency + num_bytes / slow_bandwidth
    fast = fast_latency + num_bytes / fast_bandwidth
    mixed = (links - slow_links) / links * fast + slow_links / links * slow_share * slow
    hop = is_alone * slow + (1.0 - is_alone) * mixed
    return indicator(num_ranks > 1.0) * indicator(num_bytes > 0.0) * hop


class Machine(Struct, frozen=True, kw_only=True):
    """Peak rates, their efficiencies, and the two networks; SI units."""

    matrix_rate: float
    """FLOP/s of the matrix units, before the efficiency."""
    vector_rate: float
    """FLOP/s of the vector units, before the efficiency."""
    compute_efficiency: float
    operation_latency: float
    """Seconds that every operation costs in each direction."""
    hbm_bandwidth: float
    hbm_bytes: float
    domain: int
    """Devices on the fast network."""
    links: Mapping[str, float]
    """Effective bandwidths and latencies of both networks, under the names of the two-level formulas."""
    nics: float
    """Network cards per device."""

    def collective(
        self, *, kind: CollectiveKind, num_bytes: Numeric, num_ranks: Numeric, near: Numeric, quirks: Quirks
    ) -> Numeric:
        """Return the seconds of one collective over `num_ranks` ranks, `near` of them in each fast domain."""
        passes = 2.0 if kind == "all_reduce" else 1.0
        return two_level_ring(
            num_bytes=num_bytes,
            num_ranks=num_ranks,
            per_domain=near,
            nics=self.nics,
            share=1.0 if kind in ("reduce", "broadcast") else (num_ranks - 1.0) / num_ranks,
            passes=passes,
            single_level_passes=1.0 if quirks.single_level_all_reduce else passes,
            **self.links,
        )

    def message(self, *, num_bytes: Numeric, pp: Numeric, near: Numeric, quirks: Quirks) -> Numeric:
        """Return the seconds of one message to the next stage, the mean over the pipeline's hops."""
        share = 0.0 if quirks.free_slow_hops else 1.0
        return two_level_message(
            num_bytes=num_bytes, num_ranks=pp, per_domain=near, slow_share=share, **self.links
        )


def machine_of(cluster: Cluster) -> Machine:
    """Return the machine that a cluster is under the paper's assumptions.

    Raises
    ------
    SpecError
        If the cluster has one network tier, or no half-precision rate.
    """
    assumed, device = assumptions(), cluster.device
    rate = device.matrix_flops.fp16 or device.matrix_flops.bf16
    if rate is None:
        raise required_with("a rate for fp16", "preset subramanian2024", fix=f"{device.name} has none").at(
            f"cluster {cluster.name}"
        )
    if len(cluster.tiers) < 2:
        raise required_with("a fast and a slow network tier", "preset subramanian2024", fix="it has one").at(
            f"cluster {cluster.name}"
        )
    fast, slow = cluster.tiers[:2]
    efficiency = assumed["network_efficiency_by_device"].get(device.name, assumed["network_efficiency"])
    links = {
        "fast_bandwidth": fast.bandwidth * efficiency,
        "slow_bandwidth": slow.bandwidth * efficiency,
        "fast_latency": fast.latency,
        "slow_latency": slow.latency,
    }
    return Machine(
        matrix_rate=rate,
        vector_rate=device.vector_flops,
        compute_efficiency=assumed["compute_efficiency"],
        operation_latency=parse(assumed["operation_latency"], "second"),
        hbm_bandwidth=device.hbm_bandwidth,
        hbm_bytes=device.hbm_bytes,
        domain=fast.size,
        links=MappingProxyType(links),
        nics=slow.nics_per_device,
    )


def assumptions() -> Mapping[str, Any]:
    """Return what the paper assumed of efficiencies and limits, with source and residual."""
    return shipped("presets/subramanian2024/assumptions")  # type: ignore[no-any-return]


Integers: TypeAlias = NDArray[np.int64]
Columns: TypeAlias = dict[str, Integers]
KINDS: tuple[TensorParallel, ...] = get_args(TensorParallel)
DEGREES = ("tp1", "tp2", "pp", "dp")
NEAR = ("near_tp1", "near_tp2", "near_pp", "near_dp")
"""Ranks of each degree, in the same order, that share a fast domain."""
HELD = (*DEGREES, "micro_batch_size", "panels", *(f"placement_{degree}" for degree in DEGREES))
"""Dimensions that a search may hold at a value."""


class Space(Struct, frozen=True, kw_only=True):
    """Rows of degrees with micro-batch, each crossed with its panels and its placements."""

    rows: Columns
    """tp1, tp2, pp, dp, micro_batch_size, num_microbatches; and `group`, the row's (tp1, tp2, pp, dp)."""
    panels: Columns
    """tp1, tp2 of a row to its numbers of panels: `start` and `count` by group, `value`."""
    placements: Columns
    """`start` and `count` by group, and the ranks close together of each placement."""

    def num_candidates(self) -> Integers:
        """Return how many candidates each row stands for."""
        group = self.rows["group"]
        counts: Integers = self.panels["count"][group] * self.placements["count"][group]
        return counts

    def expand(self, rows: Integers) -> Columns:
        """Return the columns of every candidate of `rows`: degrees, panels, placement."""
        row, panel = _cross(rows, self.rows["group"][rows], self.panels)
        selected, placement = _cross(np.arange(len(row)), self.rows["group"][row], self.placements)
        row, panel = row[selected], panel[selected]
        columns = {name: values[row] for name, values in self.rows.items() if name != "group"}
        near = {name: self.placements[name][placement] for name in NEAR}
        return {**columns, "panels": self.panels["value"][panel], **near}


def enumerate_space(
    shape: Shape,
    *,
    num_devices: int,
    domain: int,
    kind: TensorParallel,
    global_batch_size: int,
    fixed: Mapping[str, int],
) -> Space:
    """Return every legal candidate, in a fixed order; `fixed` holds dimensions (`HELD`) at a value."""
    if kind not in KINDS:
        raise not_one_of("tensor parallel", kind, KINDS)
    for name in fixed:
        if name not in HELD:
            raise UnknownKeyError(name, "the space of subramanian2024", HELD)
    if "panels" in fixed and kind != "summa":
        raise no_effect("panels", f"tensor_parallel is {kind}; it belongs to summa")
    groups = _groups(shape, num_devices, kind, global_batch_size)
    keep = np.ones(len(groups["tp1"]), dtype=bool)
    for name in DEGREES:
        keep &= groups[name] == fixed.get(name, groups[name])
    groups = {name: values[keep] for name, values in groups.items()}
    rows = _rows(shape, groups, kind, global_batch_size, fixed)
    return Space(
        rows=rows,
        panels=_panels(shape, groups, kind, fixed.get("panels")),
        placements=_placements(groups, num_devices, domain, fixed),
    )


def divisors_of(number: int) -> Integers:
    """Return the divisors of `number` as an array, ascending."""
    return np.array(divisors(number), dtype=np.int64)


def _groups(shape: Shape, num_devices: int, kind: TensorParallel, global_batch_size: int) -> Columns:
    """Return the legal (tp1, tp2, pp, dp)."""
    least, hidden = assumptions()["minimum_width"], shape.hidden_size
    possible = divisors_of(num_devices)
    first = possible[(shape.num_heads % possible == 0) & (hidden % possible == 0)]
    widest = 3 * hidden if kind == "1d" else hidden
    first = first[widest // first >= least]
    second = possible[:1] if kind == "1d" else possible[shape.seq_len // possible >= least]
    if kind == "summa":
        second = second[hidden % second == 0]
    stages = divisors_of(shape.num_layers)
    tp1, tp2, pp = (grid.reshape(-1) for grid in np.meshgrid(first, second, stages, indexing="ij"))
    keep = num_devices % (tp1 * tp2 * pp) == 0
    tp1, tp2, pp = tp1[keep], tp2[keep], pp[keep]
    dp = num_devices // (tp1 * tp2 * pp)
    keep = global_batch_size % dp == 0
    return {"tp1": tp1[keep], "tp2": tp2[keep], "pp": pp[keep], "dp": dp[keep]}


def _rows(
    shape: Shape, groups: Columns, kind: TensorParallel, global_batch_size: int, fixed: Mapping[str, int]
) -> Columns:
    """Cross groups with the micro-batches that divide a replica's share and whose tokens can be split."""
    sizes = divisors_of(global_batch_size)
    sizes = sizes[sizes == fixed.get("micro_batch_size", sizes)]
    group = np.repeat(np.arange(len(groups["tp1"])), len(sizes))
    micro = np.tile(sizes, len(groups["tp1"]))
    tp1, tp2 = groups["tp1"][group], groups["tp2"][group]
    share = global_batch_size // groups["dp"][group]
    parts = tp2 if kind == "summa" else tp1 * tp2
    keep = (share % micro == 0) & (micro * shape.seq_len % parts == 0)
    group, micro, share = group[keep], micro[keep], share[keep]
    degrees = {name: groups[name][group] for name in DEGREES}
    return {**degrees, "micro_batch_size": micro, "num_microbatches": share // micro, "group": group}


def _panels(shape: Shape, groups: Columns, kind: TensorParallel, held: int | None) -> Columns:
    """Return the numbers of panels of every group: the larger side times powers of two, panels not too thin."""
    largest = np.maximum(groups["tp1"], groups["tp2"])
    if kind != "summa":
        ones = np.ones_like(largest)
        return {"start": np.arange(len(largest)), "count": ones, "value": ones}
    by_side = {
        side: [count for count in _panel_counts(shape.hidden_size, side) if held in (None, count)]
        for side in set(largest.tolist())
    }
    counts = np.array([len(by_side[side]) for side in largest.tolist()], dtype=np.int64)
    values = [count for side in largest.tolist() for count in by_side[side]]
    return {"start": np.cumsum(counts) - counts, "count": counts, "value": np.array(values, dtype=np.int64)}


def _panel_counts(hidden: int, side: int) -> list[int]:
    thinnest = assumptions()["minimum_panel"]
    if hidden < thinnest * side:
        return [side]
    doublings = (hidden // side - 1).bit_length()
    counts = [side * 2**power for power in range(doublings)]
    return [count for count in counts if hidden % count == 0 and hidden // count >= thinnest]


def _placements(groups: Columns, num_devices: int, domain: int, fixed: Mapping[str, int]) -> Columns:
    """Return the ways to fill a fast domain exactly; all devices are in it where they fit."""
    fixed_near = {degree: fixed.get(f"placement_{degree}") for degree in DEGREES}
    if num_devices <= domain:
        counts = np.ones_like(groups["tp1"])
        for degree, value in fixed_near.items():
            counts *= 1 if value is None else groups[degree] == value
        near = {name: groups[degree] for name, degree in zip(NEAR, DEGREES, strict=True)}
        return {"start": np.arange(len(counts)), "count": counts, **near}
    options = divisors_of(domain)
    grids = [grid.reshape(-1) for grid in np.meshgrid(options, options, options, options, indexing="ij")]
    filled = np.flatnonzero(np.prod(grids, axis=0) == domain)
    ways = [grid[filled] for grid in grids]
    fits = np.ones((len(groups["tp1"]), len(filled)), dtype=bool)
    for way, degree in zip(ways, DEGREES, strict=True):
        fits &= groups[degree][:, None] % way == 0
        if fixed_near[degree] is not None:
            fits &= way == fixed_near[degree]
    selected = np.nonzero(fits)[1]
    counts = fits.sum(axis=1)
    near = {name: way[selected] for name, way in zip(NEAR, ways, strict=True)}
    return {"start": np.cumsum(counts) - counts, "count": counts, **near}


def _cross(items: Integers, groups: Integers, table: Columns) -> tuple[Integers, Integers]:
    """Return each item once per entry that `table` has for its group, and those entries."""
    counts = table["count"][groups]
    ends = np.cumsum(counts)
    shift = np.repeat(table["start"][groups] - (ends - counts), counts)
    return np.repeat(items, counts), shift + np.arange(len(shift))
