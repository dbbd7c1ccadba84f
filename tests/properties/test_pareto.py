"""The front holds exactly the rows that no other row dominates."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from forescale.search.rank import pareto_front


def dominated(rows, index):
    """By the definition, one pair at a time: another row is nowhere above and somewhere below, or equal and earlier."""
    return any(
        all(a <= b for a, b in zip(other, rows[index], strict=True))
        and (other != rows[index] or place < index)
        for place, other in enumerate(rows)
        if place != index
    )


@settings(max_examples=200, deadline=None)
@given(st.integers(2, 4).flatmap(lambda n: st.lists(st.tuples(*[st.integers(0, 6)] * n), max_size=40).map(lambda rows: (n, rows))))  # fmt: skip
def test_the_front_is_what_nothing_dominates(given_rows):
    width, rows = given_rows
    columns = np.array(rows, dtype=float).reshape(-1, width).T
    expected = [index for index in range(len(rows)) if not dominated(rows, index)]
    assert pareto_front(*columns).tolist() == sorted(expected, key=lambda index: rows[index])
