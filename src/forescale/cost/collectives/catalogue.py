"""All algorithms."""

from __future__ import annotations

from forescale.cost.collectives.algorithm import Algorithm
from forescale.cost.collectives.all_to_all import DirectExchange, HierarchicalExchange, PairwiseExchange
from forescale.cost.collectives.bruck import Bruck
from forescale.cost.collectives.halving_doubling import HalvingDoubling
from forescale.cost.collectives.hierarchical import Hierarchical
from forescale.cost.collectives.in_network import InNetwork
from forescale.cost.collectives.point_to_point import PointToPoint
from forescale.cost.collectives.ring import Ring
from forescale.cost.collectives.single_shot import SingleShot
from forescale.cost.collectives.tree import Tree

ALGORITHMS: tuple[Algorithm, ...] = (
    Ring(), Tree(), HalvingDoubling(), Bruck(), SingleShot(), Hierarchical(), InNetwork(),
    DirectExchange(), PairwiseExchange(), HierarchicalExchange(), PointToPoint(),
)  # fmt: skip
"""Every algorithm the package knows; a calibration names those that its library has."""
ALGORITHM_NAMES: tuple[str, ...] = tuple(algorithm.name for algorithm in ALGORITHMS)
"""Their names, as calibrations and cluster files write them."""
