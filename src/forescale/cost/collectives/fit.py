"""Fit the parameters of a link to measured collectives, within physical bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from forescale.cost.collectives.alpha_beta import AlphaBeta
from forescale.cost.collectives.calibration import LinkCalibration, NetworkCalibration, WireProtocol
from forescale.cost.collectives.measured import CollectiveBatch, errors
from forescale.cost.least_squares import robust_least_squares
from forescale.numeric import Array

BOUNDS: Mapping[str, tuple[float, float]] = {
    "launch": (5e-7, 5e-4),
    "hop_factor": (1e-3, 20.0),
    "efficiency": (0.01, 1.0),
    "member_half": (1e-3, 2.0),
    "tree_efficiency": (0.3, 1.0),
    "tree_hop_factor": (0.2, 10.0),
    "reduction_efficiency": (0.2, 1.0),
    "reduction_launch": (5e-7, 3e-4),
    "exchange_efficiency": (0.1, 1.0),
    "exchange_launch": (5e-7, 3e-4),
    "peer_latency": (1e-9, 2e-5),
    "copy_bandwidth": (5e10, 1e13),
    "exchange_copy_bandwidth": (5e10, 1e13),
}
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
    own = {
        name.removeprefix(f"{wire.name}."): v
        for name, v in values.items()
        if name.startswith(f"{wire.name}.")
    }
    return replace(wire, **own)  # type: ignore[arg-type]


def with_parameters(link: LinkCalibration, values: Mapping[str, float]) -> LinkCalibration:
    """Return `link` with the values of some parameters replaced."""
    plain = {name: value for name, value in values.items() if "." not in name}
    wires = tuple(_changed(wire, values) for wire in link.protocols)
    return replace(link, protocols=wires, **plain)  # type: ignore[arg-type]


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

    def misfit(position: Array) -> Array:
        trial = with_parameters(start, dict(zip(names, np.exp(position).tolist(), strict=True)))
        models = (AlphaBeta(cluster=b.cluster, calibration=calibration_of(b, trial)) for b in batches)
        rows = [errors(b, model) for b, model in zip(batches, models, strict=True)]
        return np.concatenate([*rows, pull * (position - first)])

    found = robust_least_squares(misfit, first, low, high, scale=scale)
    return with_parameters(start, {n: float(f"{v:.4g}") for n, v in zip(names, np.exp(found), strict=True)})
