"""Processes that answer side by side."""

from __future__ import annotations

import os

import pytest
from tests.errors import raises

import forescale.workers
from forescale.errors import ForescaleError, out_of_range
from forescale.workers import in_order


def squared(number: int) -> tuple[int, int]:
    if number < 0:
        raise out_of_range("number", number, "0 or more")
    return number * number, os.getpid()


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(forescale.workers, "PATIENCE_S", 0.0)


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_come_in_order_however_many_processes_there_are(jobs):
    pairs = [*in_order(squared, [3, 1, 2], jobs=jobs)]
    assert [(item, result[0]) for item, result in pairs] == [(3, 9), (1, 1), (2, 4)]
    assert all((result[1] == os.getpid()) == (jobs == 1) for _, result in pairs)


def test_what_is_no_longer_wanted_is_not_asked_for():
    seen: list[int] = []
    for item, _ in in_order(squared, range(6), wanted=lambda item: item % 2 == 0 or not seen):
        seen.append(item)
    assert seen == [0, 2, 4]


def test_an_error_is_the_one_that_the_function_raises():
    with raises(ForescaleError, "out_of_range number | -1"):
        list(in_order(squared, [1, -1, 2], jobs=2))
