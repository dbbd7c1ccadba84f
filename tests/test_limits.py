from __future__ import annotations

import math

import pytest
from tests.errors import raises

from forescale.errors import SpecError
from forescale.limits import AMOUNT, DEVICES, SECONDS, whole_of, within


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


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("64", 64),
        ("1,024", 1024),
        ("8,192", 8192),
        ("12,288", 12288),
        ("16,384", 16384),
        ("131,072", 131072),
        ("1,048,576", 1048576),
        ("64,128", None),
        ("64,128,256", None),
        ("64,512", None),
        ("128,64", None),
        ("1.5", None),
    ],
)
def test_groups_of_three_digits_are_one_number_unless_they_are_a_list(text, number):
    assert whole_of(text) == number
