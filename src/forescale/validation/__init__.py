"""Validation: measured runs as cases, their projections, and how far apart the two are."""

from forescale.files import Row
from forescale.validation.cases import Case, Measured, Prediction, Projector, express, load_cases
from forescale.validation.corpus import read_corpus
from forescale.validation.errors import InexpressibleError

__all__ = [
    "Case",
    "InexpressibleError",
    "Measured",
    "Prediction",
    "Projector",
    "Row",
    "express",
    "load_cases",
    "read_corpus",
]
