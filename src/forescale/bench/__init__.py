"""Benchmarks of a question scaled down to the available devices, for projections of the target.

`reduce` cuts, `measure` runs what is left and returns an artifact (`io/bench.py`). Needs the extra `bench` (torch,
transformers), but for `reduce`.
"""
