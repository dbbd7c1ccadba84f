"""Search: every legal layout enumerated, evaluated and ranked."""

from forescale.search.compare import Comparison, compare
from forescale.search.pareto import ParetoResult, pareto_search
from forescale.search.rank import SearchResult, search
from forescale.search.relax import Relaxation, Remedy, remedies
from forescale.search.scan import ScanResult, Target, Terms, fewest_devices, scan_batches, scan_devices

__all__ = [
    "Comparison",
    "ParetoResult",
    "Relaxation",
    "Remedy",
    "ScanResult",
    "SearchResult",
    "Target",
    "Terms",
    "compare",
    "fewest_devices",
    "pareto_search",
    "remedies",
    "scan_batches",
    "scan_devices",
    "search",
]
