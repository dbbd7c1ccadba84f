from __future__ import annotations

import math

import pytest
from tests.errors import raises

from forescale.errors import SpecError
from forescale.limits import AMOUNT, DEVICES, SECONDS, within


@pytest.mark.parametrize(
    ("value", "interval", "whole", "allowed"),
    [
        (0, DEVICES, True, "a whole number of 1 or more"),
        (10**18, DEVICES, True, "16,777,216 or less"),
        (1.5, DEVICES, True, "a whole number of 1 or more"),
        (True, DEVICES, True, "a whole number of 1 or more"),
        ("8", AMOUNT, False, "a number"),
        (math.nan, AMOUNT, False, "a number"),
        (math.inf, AMOUNT, False, "a number"),
        (1e30, AMOUNT, False, "1e+24 or less"),
        (-1e-9, SECONDS, False, "0 or more"),
        (1e-300, AMOUNT, False, "0 or at least 1e-24 in size"),
    ],
)
def test_numbers_that_cannot_be(value, interval, whole, allowed):
    with pytest.raises(SpecError) as caught:
        within(value, interval, "x", whole=whole)
    assert (caught.value.key, caught.value.value is value, caught.value.allowed) == ("x", True, allowed)


def test_endless_digits_are_counted_not_written():
    with raises(SpecError, "out_of_range x"):
        within(10**5000, DEVICES, "x", whole=True)


def test_whole_numbers_are_whole():
    assert within(8.0, DEVICES, "x", whole=True) == 8
    assert type(within(8.0, DEVICES, "x", whole=True)) is int
