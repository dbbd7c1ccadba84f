"""Forescale: project memory and step time of a training run, and find its best layout, before running it."""

__version__ = "0.1.0"
