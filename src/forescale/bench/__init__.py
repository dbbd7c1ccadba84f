"""Measure here, project there: a question is cut to the devices at hand, and what fits is timed and weighed.

`reduce` cuts, `measure` runs what is left and returns an artifact (`io/bench.py`). Needs the extra `bench` (torch,
transformers), but for `reduce`.
"""
