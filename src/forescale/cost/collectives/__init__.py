"""Time of communication: one protocol, several models, one small file per algorithm."""

from forescale.cost.collectives.alpha_beta import AlphaBeta, Lines
from forescale.cost.collectives.calibration import (
    LinkCalibration,
    NetworkCalibration,
    WireProtocol,
    calibrate,
    link_calibrations,
)
from forescale.cost.collectives.catalogue import ALGORITHMS
from forescale.cost.collectives.model import CollectiveModel

__all__ = [
    "ALGORITHMS",
    "AlphaBeta",
    "CollectiveModel",
    "Lines",
    "LinkCalibration",
    "NetworkCalibration",
    "WireProtocol",
    "calibrate",
    "link_calibrations",
]
