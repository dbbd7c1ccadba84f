"""Search: every legal layout enumerated, evaluated and ranked."""

from forescale.search.pareto import ParetoResult, pareto_search
from forescale.search.rank import search
from forescale.search.result import Relaxation, SearchResult
from forescale.search.space import Space

__all__ = ["ParetoResult", "Relaxation", "SearchResult", "Space", "pareto_search", "search"]
