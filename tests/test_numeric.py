from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from forescale.formula import Term
from forescale.numeric import larger, smaller

NUMBERS = st.floats(allow_nan=False)


@given(NUMBERS, NUMBERS)
def test_extremes_of_numbers_are_those_of_arrays(first, second):
    assert larger(first, second) == np.maximum(np.array([first]), second)[0]
    assert smaller(first, second) == np.minimum(np.array([first]), second)[0]


def test_extremes_are_elementwise_and_recorded():
    assert larger(np.array([1.0, 5.0]), 3.0).tolist() == [3.0, 5.0]
    assert smaller(3.0, np.array([1.0, 5.0])).tolist() == [1.0, 3.0]
    term = larger(Term(2.0, name="size"), 3.0)
    assert isinstance(term, Term)
    assert (term.value, term.name) == (3.0, "max")
