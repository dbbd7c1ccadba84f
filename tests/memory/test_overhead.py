"""Memory outside the allocator and beyond what it hands out."""

from __future__ import annotations

import pytest

from forescale.memory.overhead import fragmentation_bytes, load_overhead


def test_bounds_are_ordered():
    overhead = load_overhead()
    for bounds in (overhead.context, *overhead.fragmentation.values()):
        assert bounds.low <= bounds.expected <= bounds.high
    assert overhead.source


def test_segments_that_grow_fragment_less():
    ratios = load_overhead().fragmentation
    assert 1.0 <= ratios["expandable_segments"].expected < ratios["segments"].expected
    assert ratios["expandable_segments"].high < ratios["segments"].high


def test_fragmentation_is_what_is_held_beyond_what_is_handed_out():
    """SimuMax's Llama-3-70B proxy at tp 1, pp 2 on B200: 66.55 GiB allocated, 70.88 reserved."""
    assert fragmentation_bytes(allocated=66.55, ratio=70.88 / 66.55) == pytest.approx(70.88 - 66.55)
