"""The measured model: timed kernels where there are any, another model where there are none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np

from forescale.cost.calibration import RunFactors
from forescale.cost.collectives.masks import Condition
from forescale.cost.measured.kernel_table import Found, KernelTable, extents_of, is_recorded
from forescale.cost.model import ComputeModel, Provenance
from forescale.formula import Term, as_term, formula
from forescale.graph.ops import AttentionCore, Compute, Elementwise, GroupedGemm
from forescale.numeric import Numeric

REPEATED = (0.97, 1.03)
"""What 8 of 10 repeats of a timed kernel are expected to lie between, over the time given; a choice."""
INTERPOLATED = (0.9, 1.1)
"""The same for a kernel between two timed ones: tiles and waves make steps that a line misses; a choice."""


@formula(
    unit="s", source="timed kernels: a straight line over the work of the nearest smaller and larger shape"
)
def measured_seconds(*, below_s: Numeric, above_s: Numeric, share: Numeric, sustained: Numeric) -> Numeric:
    """(below + share·(above − below)) / rate that whole runs sustain over kernels timed alone."""
    return (below_s + share * (above_s - below_s)) / sustained


@formula(unit="s", source="definition: shapes that were not timed are left to another model")
def where_timed(*, timed: Condition, measured: Numeric, otherwise: Numeric) -> Numeric:
    """Measured where there are neighbours, else the other model's."""
    return cast("Numeric", np.where(timed, measured, otherwise)[()])


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCompute:
    """Looks kernels up; what the table does not cover goes to `fallback`, whose provenance says so."""

    table: KernelTable
    fallback: ComputeModel
    run: RunFactors
    """What whole runs lose against kernels timed alone; `fallback` knows it by itself."""
    source: str
    """Files and devices that the table is made of."""

    def seconds(self, op: Compute) -> Numeric:
        """Return the duration of `op` [s]."""
        found = self.table.find(op)
        if found is None:
            return self.fallback.seconds(op)
        share: Numeric = found.share[()]
        if is_recorded(op):
            share = cast("Numeric", _recorded(share, op))
        seconds = measured_seconds(
            below_s=found.below_s[()], above_s=found.above_s[()], share=share, sustained=self._sustained(op)
        )
        if found.covered.all():
            return seconds
        return where_timed(timed=found.covered, measured=seconds, otherwise=self.fallback.seconds(op))

    def provenance(self, op: Compute) -> Provenance:
        """Return that of the least certain candidate of `op`."""
        found = self.table.find(op)
        if found is None or not found.covered.all():
            origin = self.fallback.provenance(op)
            source = f"not measured in {self.source}; {origin.source}"
            return Provenance(kind=origin.kind, source=source, low=origin.low, high=origin.high)
        return self._measured(found)

    def _measured(self, found: Found) -> Provenance:
        exact = bool(found.exact.all())
        low, high = REPEATED if exact else INTERPOLATED
        return Provenance(
            kind="measured" if exact else "interpolated", source=self.source, low=low, high=high
        )

    def _sustained(self, op: Compute) -> Numeric:
        match op:
            case Elementwise():
                return self.run.rate("memory") * self.run.rate(op.family)
            case AttentionCore():
                return self.run.rate("attention" if op.flash else "unfused")
            case GroupedGemm():
                return self.run.rate(op.dtype) * self.run.rate("grouped")
            case _:
                return self.run.rate(op.dtype)


def _recorded(share: Numeric, op: Compute) -> Term:
    """Return the share as a term that remembers the extents it follows from."""
    inputs = {str(index): as_term(extent) for index, extent in enumerate(extents_of(op)[0])}
    return Term(
        share, name="share of the way", unit="1", text="from the smaller to the larger", inputs=inputs
    )
