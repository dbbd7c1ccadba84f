"""Predictions that a corpus cites in its notes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from forescale.units import GIB

_SIMUMAX = re.compile(r"SimuMax prediction: ([\d.]+) ms \([^)]*\), mem ([\d.]+) GiB")
_CALCULON = re.compile(r"Calculon prediction error on this cell: ([+-][\d.]+) ?%")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cited:
    """What a tool predicted of one run, by its authors."""

    peer: str
    step_time_s: float | None = None
    error: float | None = None
    """Relative error of the step, where that is what was published."""
    peak_bytes: float | None = None


def cited(remarks: str) -> Iterator[Cited]:
    """Yield the predictions that a row's notes cite."""
    if match := _SIMUMAX.search(remarks):
        step, peak = float(match[1]) / 1e3, float(match[2]) * GIB
        yield Cited(peer="SimuMax 1.2, as published", step_time_s=step, peak_bytes=peak)
    if match := _CALCULON.search(remarks):
        yield Cited(peer="Calculon, as published", error=float(match[1]) / 100.0)
