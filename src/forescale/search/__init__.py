"""Search: every legal layout enumerated, evaluated and ranked."""

from forescale.search.rank import search
from forescale.search.result import Relaxation, SearchResult
from forescale.search.space import Space

__all__ = ["Relaxation", "SearchResult", "Space", "search"]
