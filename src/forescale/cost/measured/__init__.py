"""Measured kernels and collectives as cost models: what was timed is looked up, the rest is left to others."""

from forescale.cost.measured.compute import MeasuredCompute
from forescale.cost.measured.kernel_table import KernelTable
from forescale.cost.measured.measurements import Measurements
from forescale.cost.measured.messages import MeasuredMessages

__all__ = ["KernelTable", "MeasuredCompute", "MeasuredMessages", "Measurements"]
