"""A projection anchored on a measurement: what formulas miss is measured once, and added at the target.

A run at a small size is measured (peak allocated, peak reserved). What scales with the layout is computed at
the target; the gap between measurement and formulas at the small size is carried over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from forescale.formula import formula
from forescale.numeric import Numeric

DECOMPOSITION = "Primus projection documentation, The decomposition"
EXAMPLE = "Primus projection documentation, Benchmark-Based Memory Projection, example output"
Fit: TypeAlias = Literal["FITS", "AT RISK", "OOM"]


@formula(unit="byte", source=DECOMPOSITION)
def framework_overhead(
    *, reserved_bytes: Numeric, allocated_bytes: Numeric, comm_buffer_bytes: Numeric
) -> Numeric:
    """max(0, peak reserved − peak allocated − communication buffers that formulas count already)."""
    return np.maximum(reserved_bytes - allocated_bytes - comm_buffer_bytes, 0.0)


@formula(unit="byte", source=DECOMPOSITION)
def live_tensor_excess(*, allocated_bytes: Numeric, analytical_bytes: Numeric) -> Numeric:
    """max(0, peak allocated − what formulas say of the measured layout)."""
    return np.maximum(allocated_bytes - analytical_bytes, 0.0)


@formula(unit="1", source=f"{EXAMPLE}: Activation correction (measured / analytical at bench)")
def activation_correction(*, measured_bytes: Numeric, analytical_bytes: Numeric) -> Numeric:
    """Measured / analytical bytes that one layer keeps of one micro-batch."""
    return measured_bytes / analytical_bytes


@formula(unit="byte", source=f"{EXAMPLE}: Activation total after correction")
def corrected_bytes(*, uncorrected: Numeric, layer_bytes: Numeric, correction: Numeric) -> Numeric:
    """Uncorrected + bytes of one kind of layer × (correction − 1)."""
    return uncorrected + layer_bytes * (correction - 1.0)


@formula(unit="byte", source=f"{DECOMPOSITION}: point estimate")
def point_estimate(
    *, analytical_bytes: Numeric, framework_overhead_bytes: Numeric, live_tensor_excess_bytes: Numeric
) -> Numeric:
    """Analytical bytes at the target + framework overhead + live-tensor excess."""
    return analytical_bytes + framework_overhead_bytes + live_tensor_excess_bytes


@formula(unit="byte", source=f"{DECOMPOSITION}: upper bound")
def upper_bound(
    *,
    analytical_bytes: Numeric,
    framework_overhead_bytes: Numeric,
    live_tensor_excess_bytes: Numeric,
    safety_margin: Numeric,
) -> Numeric:
    """Analytical bytes + (1 + margin) × (framework overhead + live-tensor excess)."""
    return analytical_bytes + (1.0 + safety_margin) * (framework_overhead_bytes + live_tensor_excess_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """What a measurement has beyond the formulas, at the measured size [byte]."""

    framework_overhead_bytes: float
    """Reserved beyond allocated: pages of the allocator, fragmentation."""
    live_tensor_excess_bytes: float
    """Allocated beyond what formulas say; zero where they say more."""

    @property
    def total_bytes(self) -> float:
        """Both together."""
        return self.framework_overhead_bytes + self.live_tensor_excess_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """One device at the target: expected peak and upper bound against its capacity [byte]."""

    analytical_bytes: float
    residual: Residual
    safety_margin: float
    point_bytes: float
    upper_bytes: float
    capacity_bytes: float
    verdict: Fit

    @property
    def analytical_share(self) -> float:
        """Part of the point estimate that formulas give."""
        return self.analytical_bytes / self.point_bytes

    @property
    def residual_share(self) -> float:
        """Part of the point estimate that was measured."""
        return self.residual.total_bytes / self.point_bytes


def measured_residual(
    *,
    allocated_bytes: float,
    reserved_bytes: float,
    analytical_bytes: float,
    comm_buffer_bytes: float = 0.0,
) -> Residual:
    """Split a measured peak into what formulas explain and the two terms that they do not.

    Parameters
    ----------
    allocated_bytes, reserved_bytes
        Peaks of the allocator of one device [byte].
    analytical_bytes
        What formulas say is allocated on that device at the measured layout [byte].
    comm_buffer_bytes
        Communication buffers inside the reserved bytes that the target's formulas count again [byte].
    """
    return Residual(
        framework_overhead_bytes=float(
            framework_overhead(
                reserved_bytes=reserved_bytes,
                allocated_bytes=allocated_bytes,
                comm_buffer_bytes=comm_buffer_bytes,
            )
        ),
        live_tensor_excess_bytes=float(
            live_tensor_excess(allocated_bytes=allocated_bytes, analytical_bytes=analytical_bytes)
        ),
    )


def anchored_estimate(
    *, analytical_bytes: float, residual: Residual, safety_margin: float, capacity_bytes: float
) -> Estimate:
    """Return the peak of one device at the target: formulas there plus the residual measured elsewhere."""
    terms = {
        "analytical_bytes": analytical_bytes,
        "framework_overhead_bytes": residual.framework_overhead_bytes,
        "live_tensor_excess_bytes": residual.live_tensor_excess_bytes,
    }
    point = float(point_estimate(**terms))
    upper = float(upper_bound(**terms, safety_margin=safety_margin))
    return Estimate(
        analytical_bytes=analytical_bytes,
        residual=residual,
        safety_margin=safety_margin,
        point_bytes=point,
        upper_bytes=upper,
        capacity_bytes=capacity_bytes,
        verdict=fit(point_bytes=point, upper_bytes=upper, capacity_bytes=capacity_bytes),
    )


def fit(*, point_bytes: float, upper_bytes: float, capacity_bytes: float) -> Fit:
    """Return OOM if the point estimate does not fit, AT RISK if only the upper bound does not, else FITS."""
    if point_bytes > capacity_bytes:
        return "OOM"
    return "AT RISK" if upper_bytes > capacity_bytes else "FITS"
