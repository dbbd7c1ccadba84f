"""Fixtures for tests of published rows."""

from tests.published_rows import EXCERPT, cases, projector, row

__all__ = ["EXCERPT", "cases", "projector", "row"]
