"""What other tools say of the same runs: as their authors published it, or as they answer here."""

from forescale.validation.peers.compare import PeerGroup, compare_peers
from forescale.validation.peers.llm_analysis import LLM_ANALYSIS, llm_analysis_step

__all__ = ["LLM_ANALYSIS", "PeerGroup", "compare_peers", "llm_analysis_step"]
