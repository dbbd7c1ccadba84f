import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forescale.goodput.events import best_interval_by_events, simulate
from forescale.goodput.expected import (
    PARTS,
    Case,
    daly_goodput,
    daly_interval,
    enough_spares,
    erlang_b,
    expected,
    kokolis_goodput,
    slowest_share,
    young_interval,
)

CASE = Case(work=4e5, interval=1000.0, blocking=10.0, written=10.0, restart=100.0, mttf=5000.0)


def simulated(case, runs=30):
    outcomes = [simulate(case, np.random.default_rng(seed)) for seed in range(runs)]
    return sum(outcome.parts["goodput"] for outcome in outcomes) / sum(outcome.wall for outcome in outcomes)


def test_intervals_by_hand():
    assert young_interval(blocking=50.0, mttf=10_000.0) == 1000.0
    share = 50.0 / 20_000.0
    assert daly_interval(blocking=50.0, mttf=10_000.0) == pytest.approx(
        1000 * (1 + share**0.5 / 3 + share / 9) - 50
    )
    assert daly_interval(blocking=3.0, mttf=1.0) == 1.0


@pytest.mark.parametrize("mttf", [600.0, 6480.0, 100_000.0])
@pytest.mark.parametrize("blocking", [1.0, 60.0])
@pytest.mark.parametrize("restart", [30.0, 300.0])
def test_events_agree_with_daly(mttf, blocking, restart):
    interval = float(daly_interval(blocking=blocking, mttf=mttf))
    case = Case(
        work=500 * mttf, interval=interval, blocking=blocking, written=blocking, restart=restart, mttf=mttf
    )
    closed = float(daly_goodput(interval=interval, blocking=blocking, restart=restart, mttf=mttf))
    assert abs(simulated(case) - closed) < 0.005


@pytest.mark.parametrize(("mttf", "restart", "interval"), [(6480.0, 300.0, 600.0), (30_000.0, 600.0, 3600.0)])
def test_events_agree_with_kokolis_where_little_is_lost(mttf, restart, interval):
    assert (restart + interval / 2) / mttf <= 0.1
    case = Case(work=500 * mttf, interval=interval, blocking=0.0, written=0.0, restart=restart, mttf=mttf)
    assert abs(simulated(case) - kokolis_goodput(mttf=mttf, restart=restart, interval=interval)) < 0.01


@pytest.mark.parametrize("more", [{}, {"spares": 3, "repair": 20_000.0, "fatal": 0.02}])
def test_of_runs_that_nearly_never_end_a_part_is_simulated_and_stands_for_all(more):
    class FailureCounts:
        def __init__(self):
            self.rng, self.asked = np.random.default_rng(0), 0

        def exponential(self, mean):
            self.asked += 1
            return self.rng.exponential(mean)

        def random(self):
            return self.rng.random()

    case = Case(work=4e8, interval=30.0, blocking=1.0, written=5.0, restart=300.0, mttf=400.0, **more)
    rng = FailureCounts()
    result, explicit = simulate(case, rng), expected(case)
    assert rng.asked < 20_000
    assert result.wall == pytest.approx(float(sum(explicit.values())), rel=0.1)
    assert result.parts["goodput"] == pytest.approx(case.work)
    assert result.failures > 500_000


def test_dalys_interval_loses_least():
    best = float(daly_interval(blocking=60.0, mttf=6480.0))
    explicit = {"blocking": 60.0, "restart": 300.0, "mttf": 6480.0}
    assert daly_goodput(interval=best, **explicit) > daly_goodput(interval=0.8 * best, **explicit)
    assert daly_goodput(interval=best, **explicit) > daly_goodput(interval=1.25 * best, **explicit)


@pytest.mark.parametrize(("blocking", "mttf"), [(0.6, 11_000.0), (10.0, 5000.0), (60.0, 6480.0)])
def test_the_interval_that_events_find_best_is_dalys(blocking, mttf):
    best = float(daly_interval(blocking=blocking, mttf=mttf))
    case = Case(work=1e9, interval=best, blocking=blocking, written=blocking, restart=300.0, mttf=mttf)
    assert best / 1.5 < best_interval_by_events(case) < best * 1.5
    slow = replace(case, written=2.0 * best)
    assert best_interval_by_events(slow) == 2.0 * best


def test_nothing_fails():
    outcome = simulate(replace(CASE, mttf=np.inf), np.random.default_rng(0))
    assert outcome.failures == 0
    assert outcome.wall == pytest.approx(4e5 + 399 * 10.0)
    begun = simulate(replace(CASE, mttf=np.inf, work=4.005e5), np.random.default_rng(0))
    assert begun.wall == pytest.approx(4.005e5 + 400 * 10.0)


@settings(max_examples=60, deadline=None)
@given(
    st.builds(
        Case,
        work=st.floats(1e3, 1e5),
        interval=st.floats(10.0, 5e3),
        blocking=st.floats(0.0, 50.0),
        written=st.floats(50.0, 500.0),
        restart=st.floats(0.0, 500.0),
        mttf=st.floats(2e3, 1e6),
        planned_mttf=st.floats(1e4, 1e6),
        planned=st.floats(0.0, 1e3),
        spares=st.one_of(st.none(), st.integers(0, 3)),
        repair=st.floats(0.0, 1e4),
        fatal=st.floats(0.0, 1.0),
        reload=st.floats(0.0, 100.0),
        replica_share=st.one_of(st.none(), st.floats(0.0, 0.2)),
        evaluation=st.floats(0.0, 0.5),
        stragglers=st.floats(0.0, 0.5),
    ),
    st.integers(0, 2**31),
)
def test_every_second_is_accounted_for(case, seed):
    outcome = simulate(case, np.random.default_rng(seed))
    assert set(outcome.parts) == set(PARTS)
    assert all(seconds >= -1e-6 for seconds in outcome.parts.values())
    trained = sum(case.divided(case.work).values())
    assert trained == pytest.approx(case.work)
    assert outcome.parts["goodput"] == pytest.approx(case.divided(case.work)["goodput"])
    assert 0.0 < outcome.goodput <= 1.0


class Scripted:
    """What a generator would draw: times in the order in which they are asked for; each failure takes a node."""

    def __init__(self, *times):
        self.times = list(times)

    def exponential(self, mean):
        del mean
        return self.times.pop(0)

    def random(self):
        return 0.0


SHORT = Case(
    work=100.0, interval=10.0, blocking=1.0, written=1.0, restart=5.0, reload=2.0, mttf=50.0, fatal=1.0
)
LATER = 1e9


@pytest.mark.parametrize(
    ("more", "times", "save", "wasted", "recovery", "restore", "beside", "wall"),
    [
        # 25 s: two intervals saved, 3 s of the third kept by a checkpoint; then 77 s with seven.
        ({"planned_mttf": 60.0, "planned": 7.0}, (25.0, LATER, LATER, LATER), 10.0, 0.0, 0.0, 0.0, 7.0, 117.0),
        # 2.5 s after a checkpoint that takes 3 s more to write: it and what followed are lost; a restart is cut
        # short after 6 s.
        ({"written": 4.0}, (13.5, 6.0, 100.0, LATER), 10.0, 12.5, 10.0, 3.0, 0.0, 135.5),
        # Written in time.
        ({"written": 4.0}, (14.0, 7.0, LATER), 9.0, 3.0, 5.0, 2.0, 0.0, 119.0),
        # One node away for good: half the speed from then on.
        ({"spares": 0, "replica_share": 0.5}, (16.5, LATER, LATER, LATER), 9.0, 5.5, 5.0, 2.0, 98.0, 219.5),
        # Back 20 s after the restart: saved, and on at full speed.
        ({"spares": 0, "replica_share": 0.5}, (16.5, 27.0, LATER, LATER, LATER), 9.0, 5.5, 5.0, 2.0, 10.0, 131.5),
        # Waited for.
        ({"spares": 0}, (16.5, 27.0, LATER, LATER), 9.0, 5.5, 25.0, 2.0, 0.0, 141.5),
        ({"spares": 1}, (16.5, 27.0, LATER, LATER), 9.0, 5.5, 5.0, 2.0, 0.0, 121.5),
        # Two away with one spare: the one that is back first is waited for.
        ({"spares": 1}, (16.5, 1000.0, LATER, 5.5, 27.0, LATER, LATER), 9.0, 11.0, 30.0, 4.0, 0.0, 154.0),
    ],
)  # fmt: skip
def test_a_run_by_hand(more, times, save, wasted, recovery, restore, beside, wall):
    outcome = simulate(replace(SHORT, **more), Scripted(*times))
    parts = outcome.parts
    assert parts["goodput"] == 100.0
    assert parts["unproductive_checkpoint_save_time"] == pytest.approx(save)
    assert parts["wasted_progress_from_disruption"] == pytest.approx(wasted)
    assert parts["infrastructure_recovery_from_disruption"] == pytest.approx(recovery)
    assert parts["unproductive_checkpoint_restore_time"] == pytest.approx(restore)
    assert parts["custom_badput_events"] + parts["other"] == pytest.approx(beside)
    assert outcome.wall == pytest.approx(wall)
    assert outcome.goodput == pytest.approx(100.0 / wall)
    assert outcome.planned == (1 if "planned" in more else 0)


def test_what_trains_is_divided_and_slowed_by_hand():
    assert replace(SHORT, evaluation=0.1, stragglers=0.25).divided(100.0) == pytest.approx(
        {"goodput": 72.0, "custom_badput_events": 10.0, "other": 18.0}
    )
    halves = replace(SHORT, replica_share=0.25, replica_nodes=2)
    assert [float(halves.speed(missing)) for missing in (0, 1, 2, 3, 9)] == [1.0, 0.75, 0.75, 0.5, 0.0]


def test_expected_parts_by_hand():
    calm = expected(replace(SHORT, mttf=np.inf, work=1000.0, planned_mttf=500.0, planned=7.0))
    assert float(calm["unproductive_checkpoint_save_time"]) == pytest.approx(100 + 1100 / 500)
    assert float(calm["custom_badput_events"]) == pytest.approx(7 * 1100 / 500)
    rough = expected(replace(SHORT, mttf=100.0, written=4.0))
    failures = 10 * math.expm1(11 / 100)  # Daly's equation 20, of ten intervals
    away = failures * 100 * math.expm1(7 / 100)
    assert float(rough["wasted_progress_from_disruption"]) == pytest.approx(
        failures * (100 + 10 * 3 / 11) - 110
    )
    assert float(rough["unproductive_checkpoint_restore_time"]) == pytest.approx(away * 2 / 7)
    assert float(rough["infrastructure_recovery_from_disruption"]) == pytest.approx(away * 5 / 7)


def test_spares_spare_the_wait_and_elastic_runs_shorten_it():
    broken = replace(CASE, fatal=1.0, repair=20_000.0, spares=0)
    waits, spared = simulated(broken), simulated(replace(broken, spares=12))
    assert waits < simulated(replace(broken, replica_share=1 / 16)) < spared
    assert spared == pytest.approx(simulated(replace(broken, spares=None)), abs=0.01)


@pytest.mark.parametrize(("spares", "repair"), [(0, 4000.0), (1, 15_000.0)])
def test_without_a_replica_everything_takes_as_much_longer_as_the_mean_speed_is_less(spares, repair):
    """Nodes away at a time are Poisson distributed about fatal x repair / mttf."""
    explicit = {"fatal": 0.5, "repair": repair, "replica_share": 0.25, "replica_nodes": 1}
    load = 0.5 * repair / CASE.mttf
    chance = [math.exp(-load) * load**away / math.factorial(away) for away in range(60)]
    speed = sum(item * max(0.0, 1.0 - 0.25 * max(0, away - spares)) for away, item in enumerate(chance))
    plain = sum(expected(CASE).values())
    assert sum(expected(replace(CASE, spares=spares, **explicit)).values()) == pytest.approx(plain / speed)


def test_a_checkpoint_counts_when_it_is_written():
    late = replace(CASE, written=900.0)
    assert simulated(late) < simulated(CASE) - 0.01


def test_the_slowest_of_many():
    assert slowest_share(spread=0.01, num_devices=1.0) == 0.0
    assert slowest_share(spread=0.01, num_devices=16384.0) == pytest.approx(0.01 * (2 * np.log(16384)) ** 0.5)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"written": 400.0},
        {"reload": 200.0},
        {"planned_mttf": 20_000.0, "planned": 1800.0},
        {"fatal": 0.5, "repair": 20_000.0, "spares": 2},
        {"fatal": 0.5, "repair": 20_000.0, "spares": 0},
        {"fatal": 0.5, "repair": 20_000.0, "spares": 1, "replica_share": 1 / 16},
        {"fatal": 0.5, "repair": 20_000.0, "spares": 1, "replica_share": 1 / 8, "replica_nodes": 2},
        {"evaluation": 0.05, "stragglers": 0.1},
    ],
)
def test_the_closed_form_agrees_with_events(more):
    case = replace(CASE, work=8e6 if "repair" in more else 4e5, **more)
    parts = [
        simulate(case, np.random.default_rng(seed)).parts for seed in range(10 if "repair" in more else 60)
    ]
    wall = sum(sum(item.values()) for item in parts)
    total = sum(expected(case).values())
    for name in PARTS:
        share = sum(item[name] for item in parts) / wall
        assert expected(case)[name] / total == pytest.approx(share, abs=0.012), name


def test_many_runs_at_once_are_each_alone():
    work, mttf = np.array([4e5, 2e5]), np.array([5e3, 8e4])
    many = expected(replace(CASE, work=work, mttf=mttf, spares=1, fatal=0.5, repair=1e4))
    for at in range(2):
        alone = expected(replace(CASE, work=work[at], mttf=mttf[at], spares=1, fatal=0.5, repair=1e4))
        assert {name: float(item) for name, item in alone.items()} == {
            name: float(np.broadcast_to(item, 2)[at]) for name, item in many.items()
        }


@pytest.mark.parametrize(("load", "spares"), [(0.005, 0), (0.05, 1), (3.9, 9), (1000.0, 1028)])
def test_enough_spares_wait_less_than_one_part_in_a_hundred(load, spares):
    assert enough_spares(load) == spares
    assert erlang_b(load=load, servers=spares + 1) < 0.01
    assert spares == 0 or erlang_b(load=load, servers=spares) >= 0.01


def test_erlangs_table():
    # Erlang 1917: 5 lines at 3 erlang are all busy 11.0 % of the time.
    assert erlang_b(load=3.0, servers=5) == pytest.approx(0.1101, abs=1e-4)
