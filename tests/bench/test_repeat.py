"""How often something is timed within its time, on a clock that moves only when something runs."""

from __future__ import annotations

import pytest

from forescale.bench.repeat import FEWEST, Budget, repeated


class Clock:
    """Seconds that pass in what runs."""

    def __init__(self):
        self.now, self.runs = 0.0, 0

    def __call__(self):
        return self.now

    def sample(self, *seconds):
        """Return a sample that takes these seconds in turn, the last of them for ever."""

        def run():
            taken = seconds[min(self.runs, len(seconds) - 1)]
            self.runs += 1
            self.now += taken
            return {"part": taken}

        return run


@pytest.fixture
def clock():
    return Clock()


def timed(clock, seconds, *samples, **more):
    budget = Budget(seconds, repeats=more.pop("repeats", 200), clock=clock)
    return repeated(clock.sample(*samples), budget, **more)["part"]


@pytest.mark.parametrize("took", [0.7, 1.0, 3.0])
def test_nothing_begins_that_would_end_too_late(clock, took):
    result = timed(clock, 10.0, took, took * 1.1, warmed=True)
    assert clock.now <= 10.0
    assert result["repeats"] >= 1


def test_what_takes_longer_than_its_time_is_timed_once(clock):
    assert timed(clock, 2.0, 93.0, warmed=True)["repeats"] == 1
    assert clock.runs == 1
    assert timed(clock, 2.0, 93.0, 50.0) == {"seconds": 50.0, "p10_s": 50.0, "p90_s": 50.0, "repeats": 1}
    assert clock.runs == 3  # one of them to warm up


def test_a_median_that_stands_still_ends_it_early(clock):
    assert timed(clock, 1000.0, 1.0)["repeats"] == 2 * FEWEST
    assert timed(clock, 1000.0, 1.0, repeats=3)["repeats"] == 3


def test_shares_of_a_budget_end_where_the_whole_has_passed_them(clock):
    budget = Budget(10.0, repeats=7, clock=clock)
    clock.now = 3.0
    assert (budget.left, budget.until(0.6).left, budget.until(0.2).left) == pytest.approx((7.0, 3.0, -1.0))
    assert (budget.shared(2).seconds, budget.until(0.2).shared(2).seconds) == pytest.approx((3.5, 0.0))
    assert budget.until(0.6).repeats == budget.shared(2).repeats == 7
    assert (budget.is_spent(), budget.until(0.2).is_spent()) == (False, True)
