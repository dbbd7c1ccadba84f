"""Time of communication: one protocol, several models, one small file per algorithm."""

from forescale.cost.collectives.alpha_beta import AlphaBeta, Lines
from forescale.cost.collectives.bandwidth_table import BandwidthTable, load_bandwidth_table
from forescale.cost.collectives.calibration import (
    LinkCalibration,
    NetworkCalibration,
    WireProtocol,
    calibrate,
    link_calibrations,
)
from forescale.cost.collectives.catalogue import ALGORITHMS
from forescale.cost.collectives.expert_exchange import ExpertExchange
from forescale.cost.collectives.model import CollectiveModel, Priced, Prices
from forescale.cost.collectives.two_level import TwoLevel

__all__ = [
    "ALGORITHMS",
    "AlphaBeta",
    "BandwidthTable",
    "CollectiveModel",
    "ExpertExchange",
    "Lines",
    "LinkCalibration",
    "NetworkCalibration",
    "Priced",
    "Prices",
    "TwoLevel",
    "WireProtocol",
    "calibrate",
    "link_calibrations",
    "load_bandwidth_table",
]
