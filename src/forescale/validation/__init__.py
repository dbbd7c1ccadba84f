"""Measured runs and kernels as evidence: projections against them, and calibrations fitted to them."""
