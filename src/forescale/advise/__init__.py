"""Advice: the decision process of the Ultra-Scale Playbook on one's own case, checked by the exact search."""

from forescale.advise.advice import Advice, Fact, Step, Trial
from forescale.advise.decide import advise

__all__ = ["Advice", "Fact", "Step", "Trial", "advise"]
