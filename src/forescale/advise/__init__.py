"""Advice: the decision process of the Ultra-Scale Playbook on one's own case, checked by the exact search."""

from importlib import import_module
from typing import TYPE_CHECKING

from forescale.advise.check import LIMIT_DIMENSIONS, Check, Checks, Finding, Limits, check
from forescale.advise.solve import Solved, solve

if TYPE_CHECKING:
    from forescale.advise.advice import Advice, Fact, Step, Trial
    from forescale.advise.changes import Change
    from forescale.advise.changing import Fit, Fix, fit
    from forescale.advise.decide import advise

_HOMES = {
    "advice": ("Advice", "Fact", "Step", "Trial"),
    "changes": ("Change",),
    "changing": ("Fit", "Fix", "fit"),
    "decide": ("advise",),
}
"""Modules of the names that are loaded when they are first used: they search."""


def _loaded(name: str) -> object:
    """Return what a name means, from its module."""
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(f"{__name__}.{home}"), name)
    return value


if not TYPE_CHECKING:
    __getattr__ = _loaded

__all__ = [
    "LIMIT_DIMENSIONS",
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
