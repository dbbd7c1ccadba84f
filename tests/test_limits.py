from __future__ import annotations

import math

import pytest

from forescale.errors import SpecError
from forescale.limits import AMOUNT, DEVICES, SECONDS, within


@pytest.mark.parametrize(
    ("value", "allowed", "whole", "problem"),
    [
        (0, DEVICES, True, "must be a whole number of 1 or more, got 0"),
        (10**18, DEVICES, True, "must be 16,777,216 or less, got 1000000000000000000"),
        (1.5, DEVICES, True, "must be a whole number of 1 or more, got 1.5"),
        (True, DEVICES, True, "must be a whole number of 1 or more, got True"),
        ("8", AMOUNT, False, "must be a number, got '8'"),
        (math.nan, AMOUNT, False, "must be a number, got nan"),
        (math.inf, AMOUNT, False, "must be a number, got inf"),
        (1e30, AMOUNT, False, "must be 1e+24 or less"),
        (-1e-9, SECONDS, False, "must be 0 or more"),
        (1e-300, AMOUNT, False, "must be 0 or at least 1e-24 in size"),
    ],
)
def test_numbers_that_cannot_be(value, allowed, whole, problem):
    with pytest.raises(SpecError) as caught:
        within(value, allowed, "x", whole=whole)
    assert str(caught.value).startswith("x ")
    assert problem in str(caught.value)


def test_endless_digits_are_counted_not_written():
    with pytest.raises(SpecError, match="got a number of more than 60 digits"):
        within(10**5000, DEVICES, "x", whole=True)


def test_whole_numbers_are_whole():
    assert within(8.0, DEVICES, "x", whole=True) == 8
    assert type(within(8.0, DEVICES, "x", whole=True)) is int
