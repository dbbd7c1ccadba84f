"""Advice: the decision process of the Ultra-Scale Playbook on one's own case, checked by the exact search."""

from forescale.advise.advice import Advice, Fact, Step, Trial
from forescale.advise.changes import Change
from forescale.advise.check import Check, Checks, Finding, Limits, Solved, check, solve
from forescale.advise.decide import advise
from forescale.advise.fit import Fit, Fix, fit

__all__ = [
    "Advice",
    "Change",
    "Check",
    "Checks",
    "Fact",
    "Finding",
    "Fit",
    "Fix",
    "Limits",
    "Solved",
    "Step",
    "Trial",
    "advise",
    "check",
    "fit",
    "solve",
]
