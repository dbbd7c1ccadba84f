"""Validation: measured runs as cases, their projections, and how far apart the two are."""

from forescale.validation.cases import Case, Measured, Prediction, Projector, express, load_cases
from forescale.validation.corpus import Corpus, Row, read_corpus
from forescale.validation.errors import InexpressibleError

__all__ = [
    "Case",
    "Corpus",
    "InexpressibleError",
    "Measured",
    "Prediction",
    "Projector",
    "Row",
    "express",
    "load_cases",
    "read_corpus",
]
