"""Exit codes; 0 is an answer."""

USAGE_ERROR = 2
"""The question has no answer, and a sentence says why."""
INTERRUPTED = 130
"""Ctrl-C, as shells count it."""
