"""The cost models of a plan: names and files as they are written, and what they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Gt, Le

from forescale.cost.measured import Measurements
from forescale.cost.select import Calibrations, ComputeKind, Costs, read_calibrations
from forescale.errors import SpecError
from forescale.files import place_of
from forescale.io.validation import build
from forescale.spec import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPlan:
    """The section `[cost]` of a plan file."""

    compute: ComputeKind = "auto"
    """Model of kernels: roofline, tile, measured; auto looks up what was measured, and leaves the rest to the model
    that the calibration was fitted with."""
    device_clock_mhz: Annotated[float, Gt(0), Le(10_000)] | None = None
    """Clock to predict for; the device's own where it is not given."""
    calibration: str | None = None
    """What was fitted to one's own runs, kernels and collectives, as `calibrate` writes it; the packaged fits to
    published ones where it is not given."""
    measurements: tuple[str, ...] = ()
    """Files of timed kernels and collectives: bench artifacts, kernel tables, output of nccl-tests."""

    def read(self, cluster: Cluster) -> Costs:
        """Return the cost models that price a question on `cluster`.

        Raises
        ------
        ReaderError
            If a file cannot be read.
        SpecError
            If the measurements are of another device.
        """
        measurements: Measurements | None = None
        if self.measurements:
            from forescale.io.measurements import read_measurements  # artifacts hold plans, and plans costs

            measurements = Measurements.joined(
                read_measurements(path, cluster.device) for path in self.measurements
            )
            measurements.check(cluster)
        own = Calibrations() if self.calibration is None else read_calibrations(self.calibration)
        return Costs(
            compute=self.compute,
            clock_hz=None if self.device_clock_mhz is None else self.device_clock_mhz * 1e6,
            calibration=own.runs,
            measurements=measurements,
            kernels=own.kernels,
            links=own.links,
        )


def build_cost_plan(values: object, *, where: str, folder: Path | None) -> CostPlan:
    """Return the section that plain values describe; paths in it start from `folder`."""
    if not isinstance(values, Mapping):
        msg = f"{where}: cost must be a table ([cost]), got {values!r}"
        raise SpecError(msg)
    given: dict[str, Any] = dict(values)
    if isinstance(given.get("measurements"), str):
        given["measurements"] = [given["measurements"]]
    plan = build(CostPlan, given, where=f"{where}, cost")
    start = folder or Path()
    return CostPlan(
        compute=plan.compute,
        device_clock_mhz=plan.device_clock_mhz,
        calibration=None if plan.calibration is None else _path(plan.calibration, start),
        measurements=tuple(_path(text, start) for text in plan.measurements),
    )


def _path(text: str, folder: Path) -> str:
    return str(folder / place_of(text))
