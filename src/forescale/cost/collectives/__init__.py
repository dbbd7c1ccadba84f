"""Time of communication: one protocol, three models, one small file per algorithm."""

from forescale.cost.collectives.alpha_beta import AlphaBeta, Placed
from forescale.cost.collectives.calibration import (
    LinkCalibration,
    NetworkCalibration,
    WireProtocol,
    calibrate,
    link_calibrations,
)
from forescale.cost.collectives.catalogue import ALGORITHMS
from forescale.cost.collectives.model import CollectiveModel, Provenance

__all__ = [
    "ALGORITHMS",
    "AlphaBeta",
    "CollectiveModel",
    "LinkCalibration",
    "NetworkCalibration",
    "Placed",
    "Provenance",
    "WireProtocol",
    "calibrate",
    "link_calibrations",
]
