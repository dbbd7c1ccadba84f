"""Where the efficiencies of a device come from: measured kernels, measured runs, or priors."""

from __future__ import annotations

from typing import Literal, TypeAlias

from forescale.cost.calibration import Calibration
from forescale.cost.run_calibration import RunCalibration
from forescale.spec import Device
from forescale.struct import Struct

Origin: TypeAlias = Literal["kernels", "generation", "runs", "priors"]
"""Fitted to kernels of the device, to kernels of another one of its generation, to whole runs only, or not at all."""


class Provenance(Struct, frozen=True, kw_only=True):
    """What the efficiencies of one device were fitted to."""

    origin: Origin
    devices: tuple[str, ...] = ()
    """Catalogue devices whose kernels were measured."""


def provenance(device: Device, calibration: Calibration, runs: RunCalibration) -> Provenance:
    """Return what the efficiencies of the 16-bit products of `device` were fitted to.

    Whole runs count where the kernels' priors are those of the generation that was run, not of this device alone.
    """
    rates = device.matrix_flops
    dtype = next((name for name in ("bf16", "fp16", "tf32") if getattr(rates, name)), "fp32")
    fitted = calibration.gemm[dtype].fit.machines
    if fitted:
        return Provenance(origin="kernels" if device.name in fitted else "generation", devices=fitted)
    ran = device.architecture in runs.seen.architectures and calibration.name == device.architecture
    return Provenance(origin="runs" if ran else "priors")
