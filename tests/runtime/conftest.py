"""Ranks start as those of a bench do, whose tests may follow in the same process."""

from tests.bench.conftest import ready

__all__ = ["ready"]
