"""Fit what whole runs lose against kernels alone to measured step times, and say how well it holds elsewhere."""
