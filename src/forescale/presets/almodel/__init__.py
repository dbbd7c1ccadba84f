"""The ALModel parallelism strategy analysis: memory, times and ranking of layouts of MaxText on 128 devices."""

from forescale.presets.almodel.preset import ALMODEL, Almodel, AlmodelResult, Ranked, search_almodel
from forescale.presets.almodel.step import QUESTION, Quirks, Terms, first_table_terms, measured_terms

__all__ = [
    "ALMODEL",
    "QUESTION",
    "Almodel",
    "AlmodelResult",
    "Quirks",
    "Ranked",
    "Terms",
    "first_table_terms",
    "measured_terms",
    "search_almodel",
]
