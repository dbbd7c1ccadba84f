"""Fit the latency and bandwidth of a cluster's links to its timed collectives, held near what is known of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from msgspec.structs import replace

from forescale.cost.collectives.alpha_beta import AlphaBeta
from forescale.cost.collectives.calibration import (
    LinkCalibration,
    NetworkCalibration,
    WireProtocol,
    calibrate,
)
from forescale.cost.measured import Measurements
from forescale.cost.timings import CollectiveBatch, MeasuredCollective, errors, stack
from forescale.errors import SpecError, differs, not_measured
from forescale.files import packaged
from forescale.graph.ops import CollectiveKind
from forescale.numeric import Array
from forescale.spec import Cluster
from forescale.struct import Struct
from forescale.units import counted
from forescale.validation.entries import FEWEST, CheckedFit, EntryFit, Left, fit_and_check, moves_of
from forescale.validation.least_squares import robust_least_squares

BOUNDS: Mapping[str, tuple[float, float]] = packaged("fit_bounds")["links"]
"""Physical bounds: no efficiency above 1, no time below what a launch or a hop takes."""


def parameters_of(link: LinkCalibration, names: Sequence[str]) -> dict[str, float]:
    """Return the values of `names`; "LL.launch" is a field of the wire protocol LL."""
    values = {}
    for name in names:
        wire, _, key = name.rpartition(".")
        owner = next(item for item in link.protocols if item.name == wire) if wire else link
        values[name] = float(getattr(owner, key))
    return values


def _changed(wire: WireProtocol, values: Mapping[str, float]) -> WireProtocol:
    local = {
        name.removeprefix(f"{wire.name}."): v
        for name, v in values.items()
        if name.startswith(f"{wire.name}.")
    }
    return replace(wire, **local)


def with_parameters(link: LinkCalibration, values: Mapping[str, float]) -> LinkCalibration:
    """Return `link` with the values of some parameters replaced."""
    plain = {name: value for name, value in values.items() if "." not in name}
    wires = tuple(_changed(wire, values) for wire in link.protocols)
    return replace(link, protocols=wires, **plain)


def fit_link(
    batches: Sequence[CollectiveBatch],
    calibration_of: Callable[[CollectiveBatch, LinkCalibration], NetworkCalibration],
    start: LinkCalibration,
    names: Sequence[str],
    *,
    scale: float = 0.1,
    pull: float = 0.0,
) -> LinkCalibration:
    """Return `start` with the parameters `names` that make ln(predicted / measured) smallest.

    Parameters
    ----------
    batches
        Measured collectives.
    calibration_of
        Places the link under trial among the tiers of a batch's cluster.
    start
        Where the search begins; it runs over logarithms.
    names
        Parameters to fit, as in `parameters_of`.
    scale
        Error from which rows count linearly: outliers do not decide.
    pull
        Weight of staying at `start`, in errors per factor e; it holds what the rows do not tell.
    """
    low, high = (np.log([BOUNDS[name.rpartition(".")[2]][side] for name in names]) for side in (0, 1))
    values = list(parameters_of(start, names).values())
    first = np.clip(np.log(np.maximum(values, 1e-300)), low + 1e-6, high - 1e-6)

    def violation(position: Array) -> Array:
        trial = with_parameters(start, dict(zip(names, np.exp(position).tolist(), strict=True)))
        models = (AlphaBeta(cluster=b.cluster, calibration=calibration_of(b, trial)) for b in batches)
        rows = [errors(b, model) for b, model in zip(batches, models, strict=True)]
        return np.concatenate([*rows, pull * (position - first)])

    result = robust_least_squares(violation, first, low, high, scale=scale)
    return with_parameters(start, {n: float(f"{v:.4g}") for n, v in zip(names, np.exp(result), strict=True)})


SHORTEST = 32768.0
"""Bytes below which a message is all launch; training sends few of them, and their times would outweigh the rest."""
PULL = 0.1
"""Error per factor e by which a parameter moves; a choice."""
EXCHANGES: tuple[CollectiveKind, ...] = ("all_to_all", "p2p")
SHARES = (1.0, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.2, 1.4)
DELAYS = (1.0, 0.5, 2.0, 4.0)
"""Common factors on efficiencies and on launches from which a fit starts: the one that comes closest."""
Place: TypeAlias = Callable[[CollectiveBatch, LinkCalibration], NetworkCalibration]
Timed: TypeAlias = tuple[str, MeasuredCollective]
"""File and row."""


class NetworkFits(Struct, frozen=True, kw_only=True):
    """Links of one cluster, and what it took to get there."""

    links: tuple[LinkCalibration, ...]
    entries: tuple[EntryFit, ...]
    left: tuple[Left, ...]


def timed_of(measurements: Sequence[Measurements]) -> list[Timed]:
    """Return the timed collectives of several files, each with its file."""
    return [(one.source, row) for one in measurements for row in one.collectives]


def fit_network(
    timed: Sequence[Timed], cluster: Cluster, *, own: tuple[LinkCalibration, ...] = (), date: str
) -> NetworkFits:
    """Return the links of `cluster` that `timed` cross, fitted from the innermost tier out.

    A row fits the outermost tier that it crosses; inner tiers are then known.

    Raises
    ------
    SpecError
        If there is no timed collective, or one has more ranks in a node than the cluster's nodes have devices.
    """
    _check(timed, cluster)
    links = list(calibrate(cluster, own=own).links)
    entries: list[EntryFit] = []
    left: list[Left] = []
    fitted: list[LinkCalibration] = []
    for index, tier in enumerate(cluster.tiers):
        path = f"links.{cluster.name}.{tier.name}"
        crossing = [item for item in timed if _tier_of(item[1], cluster) == index]
        rows = [item for item in crossing if item[1].num_bytes >= SHORTEST]
        if len(rows) < FEWEST:
            if crossing:
                reason = f"fewer than {FEWEST} rows of at least {SHORTEST:.0f} bytes"
                left.append(Left(path=path, rows=len(crossing), reason=reason))
            continue
        if short := len(crossing) - len(rows):
            left.append(Left(path=path, rows=short, reason=f"shorter than {SHORTEST:.0f} bytes"))
        links[index], entry = _fit_tier(rows, cluster, index, tuple(links), path, date=date)
        fitted.append(links[index])
        entries.append(entry)
    if not fitted:
        msg = f"no tier of {cluster.name} has {FEWEST} timed collectives of at least {SHORTEST:.0f} bytes"
        raise SpecError(msg)
    return NetworkFits(links=tuple(fitted), entries=tuple(entries), left=tuple(left))


def _check(timed: Sequence[Timed], cluster: Cluster) -> None:
    if not timed:
        raise not_measured("the table", f"collectives of {cluster.name}")
    for file, row in timed:
        if row.ranks_per_node > cluster.devices_per_node:
            allowed = counted(cluster.devices_per_node, "device")
            key = f"the ranks per node of {file}"
            raise differs(key, counted(row.ranks_per_node, "rank"), f"a node of {cluster.name}", allowed)


def _tier_of(row: MeasuredCollective, cluster: Cluster) -> int:
    """Return the outermost tier that a row crosses, placed as `stack` does: nodes side by side."""
    nodes = -(-row.num_ranks // row.ranks_per_node)
    span = cluster.devices_per_node * (nodes - 1) + row.ranks_per_node
    fitting = (index for index, tier in enumerate(cluster.tiers) if not tier.size or tier.size >= span)
    return next(fitting, len(cluster.tiers) - 1)


def _fit_tier(
    rows: Sequence[Timed],
    cluster: Cluster,
    index: int,
    known: tuple[LinkCalibration, ...],
    path: str,
    *,
    date: str,
) -> tuple[LinkCalibration, EntryFit]:
    def place(_: CollectiveBatch, link: LinkCalibration) -> NetworkCalibration:
        return NetworkCalibration(links=(*known[:index], link, *known[index + 1 :]))

    def fitted_to(train: Sequence[Timed]) -> LinkCalibration:
        link = known[index]
        for exchanges in (False, True):
            subset = [item for item in train if (item[1].kind in EXCHANGES) is exchanges]
            if subset:
                names = _names(link, cluster, index, exchanges=exchanges)
                batches = _stacked(subset, cluster)
                link = fit_link(batches, place, _nearest(batches, place, link, names), names, pull=PULL)
        return link

    def misses(test: Sequence[Timed], link: LinkCalibration) -> Array:
        result = [
            errors(batch, AlphaBeta(cluster=batch.cluster, calibration=place(batch, link)))
            for batch in _stacked(test, cluster)
        ]
        return np.concatenate(result)

    and_check = fit_and_check(rows, known[index], fitted_to, misses, lambda item: item[0])
    names = [
        name
        for across in (False, True)
        for name in _names(and_check.fitted, cluster, index, exchanges=across)
    ]
    moves = moves_of(path, parameters_of(known[index], names), parameters_of(and_check.fitted, names))
    return _named(and_check, cluster, index, date=date), and_check.entry(path, moves)


def _nearest(
    batches: Sequence[CollectiveBatch], place: Place, link: LinkCalibration, names: Sequence[str]
) -> LinkCalibration:
    """Return the link with all efficiencies and all launches scaled alike, where that comes closest.

    Of several protocols the fastest counts: a fit that starts far off would leave a protocol out instead of
    slowing it down.
    """
    values = parameters_of(link, names)

    def scaled(share: float, delay: float) -> LinkCalibration:
        factors = {
            name: share if name.endswith("efficiency") else delay if name.endswith("launch") else 1.0
            for name in names
        }
        most = {name: BOUNDS[name.rpartition(".")[2]][1] for name in names}
        return with_parameters(link, {name: min(values[name] * factors[name], most[name]) for name in names})

    def miss(trial: LinkCalibration) -> float:
        result = [
            errors(batch, AlphaBeta(cluster=batch.cluster, calibration=place(batch, trial)))
            for batch in batches
        ]
        return float(np.mean(np.abs(np.concatenate(result))))

    return min((scaled(share, delay) for share in SHARES for delay in DELAYS), key=miss)


def _named(
    checked_fit: CheckedFit[LinkCalibration], cluster: Cluster, index: int, *, date: str
) -> LinkCalibration:
    """Return the link with where it was measured, and how well it was fitted."""
    tier = cluster.tiers[index]
    return replace(
        checked_fit.fitted,
        name=f"{cluster.name}.{tier.name}",
        tiers=(tier.name.casefold(),),
        architectures=(cluster.device.architecture.casefold(),),
        date=date,
        fit=checked_fit.record(cluster.device.name),
    )


def _names(link: LinkCalibration, cluster: Cluster, index: int, *, exchanges: bool) -> list[str]:
    """Return the parameters to fit: of exchanges between all pairs, or of the other collectives."""
    tier = cluster.tiers[index]
    if exchanges:
        names = ["exchange_efficiency", "exchange_launch"]
        names += ["exchange_short_launch"] if link.exchange_chunk else []
        copies = ["exchange_copy_bandwidth", "exchange_out_bandwidth"]
    else:
        names = [
            f"{wire.name}.{key}" for wire in link.protocols for key in ("launch", "hop_factor", "efficiency")
        ]
        names += ["reduction_efficiency", "reduction_launch"] if tier.in_network_reduction else []
        copies = ["copy_bandwidth", "sum_bandwidth"]
    # Only the innermost tier's copies count, and one without a limit has none to fit.
    return names + [item for item in copies if index == 0 and np.isfinite(getattr(link, item))]


def _stacked(timed: Sequence[Timed], cluster: Cluster) -> list[CollectiveBatch]:
    return stack(cluster, (row for _, row in timed))
