"""Compute cost models by name."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from forescale.cost.calibration import Calibration, load_calibration
from forescale.cost.model import ComputeModel
from forescale.cost.roofline import Roofline
from forescale.cost.tile import TileModel
from forescale.errors import UnknownNameError
from forescale.spec import Device

ComputeKind: TypeAlias = Literal["auto", "roofline", "tile"]
COMPUTE_KINDS: tuple[ComputeKind, ...] = get_args(ComputeKind)


def select(
    kind: ComputeKind,
    device: Device,
    *,
    calibration: Calibration | None = None,
    clock_hz: float | None = None,
) -> ComputeModel:
    """Return the compute cost model `kind` of `device`.

    Parameters
    ----------
    kind
        "auto" takes the tile model where its parameters were fitted to this generation or where a clock is
        asked for, and the roofline elsewhere.
    calibration
        The device's packaged calibration unless given.
    clock_hz
        Clock to predict for [Hz]; only the tile model knows clocks.

    Raises
    ------
    UnknownNameError
        If there is no such model.
    """
    if kind not in COMPUTE_KINDS:
        what = "compute model"
        raise UnknownNameError(what, kind, COMPUTE_KINDS)
    chosen = calibration or load_calibration(device)
    fitted = any(entry.fit.kind == "fitted" for entry in chosen.tile.values())
    if kind == "tile" or (kind == "auto" and (fitted or clock_hz is not None)):
        return TileModel(device=device, calibration=chosen, clock_hz=clock_hz)
    return Roofline(device=device, calibration=chosen)
