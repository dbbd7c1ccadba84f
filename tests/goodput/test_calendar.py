import math
from math import exp, log

import numpy as np
import pytest
from msgspec.structs import replace
from tests.errors import raises

import forescale as fs
from forescale.errors import SpecError
from forescale.goodput.expected import Case, expected
from forescale.goodput.operations import (
    Saving,
    best_interval,
    calendar,
    case_of,
    drawn,
    load_failures,
    published,
    sources_of,
    spread,
    stretched,
    walls,
)
from forescale.projection.result import Interval
from forescale.spec.operations import Checkpointing, Failures, Operations
from forescale.whole_run import Phase, project_run

ASKED = {"seq_len": 8192, "global_batch_size": 1024, "tokens": 15e12}


def projected(devices=1024, **more):
    return fs.project("llama-3.1-8b", "h100-sxm", devices=devices, **{**ASKED, **more})


def test_a_projection_says_calendar_days():
    result = projected()
    calendar_days = result.calendar.days
    assert result.training_days < calendar_days.expected
    assert calendar_days.low < calendar_days.expected < calendar_days.high
    assert sum(result.calendar.parts_days.values()) == pytest.approx(calendar_days.expected)
    assert result.calendar.parts_days["goodput"] == pytest.approx(result.training_days)
    assert result.to_json()["calendar"]["days"]["expected"] == calendar_days.expected


def test_no_tokens_no_calendar():
    assert projected(tokens=None).calendar is None


def test_the_calendar_agrees_with_the_whole_run():
    result = projected(devices=8192, global_batch_size=8192)
    operations = Operations(failures=load_failures("llama-3"))
    run = project_run([Phase(name="1", projection=result, tokens=15e12)], operations)
    calendar_days = result.calendar.days
    spread = log(calendar_days.high / calendar_days.low) / (2.0 * 1.2816)
    mean = calendar_days.expected * exp(spread**2 / 2.0)  # of steps that are spread evenly in their logarithm
    assert mean == pytest.approx(run.days.expected, rel=0.01)
    assert result.calendar.days.low == pytest.approx(run.days.low, rel=0.04)
    assert result.calendar.days.high == pytest.approx(run.days.high, rel=0.04)
    assert result.calendar.checkpoint_interval_s == run.interval_s


@pytest.mark.parametrize("rate", [1e6, 3.0])
def test_a_run_that_never_ends_has_no_calendar_but_a_reason(rate):
    failing = Operations(failures=Failures(per_device_day={"all": rate}))
    result = projected(operations=failing)
    assert result.calendar is None
    assert "never ends" in result.endless
    with pytest.raises(SpecError) as error:
        calendar(result.params.total, result.cluster, result.workload, result.step_time, failing)
    assert str(error.value) == result.endless


def test_what_is_given_is_counted():
    usual, often = projected(), projected(operations={"failure_factor": 20.0})
    assert often.calendar.days.expected > usual.calendar.days.expected
    assert usual.calendar.failures == "llama-3"
    assert often.calendar.failures == "llama-3 × 20"
    few = projected(operations={"failures": 0.001, "checkpointing": {"interval": "30 min"}})
    assert few.calendar.failures == "given"
    assert few.calendar.checkpoint_interval_s == 1800.0


def test_the_range_names_what_it_comes_from():
    counted = {"per_device_day": {"all": 0.03}, "observed": 7.0}
    usual, often = projected(), projected(operations={"failures": counted})
    assert next(iter(usual.calendar.spread)) == "step time"
    assert usual.calendar.spread["step time"] > 0.99
    assert often.calendar.spread["rate of failures"] > usual.calendar.spread["rate of failures"]
    assert sum(usual.calendar.spread.values()) == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(
    ("operations", "sentence"),
    [
        ({"failures": -1.0}, "out_of_range failures"),
        ({"failures": "lama-3"}, "unknown_name failure rates"),
        ({"failures": {"per_device_day": {"all": -1.0}}}, "out_of_range failures.per_device_day.all"),
        ({"repair": "2 weeks"}, "not_a_quantity second"),
        ({"checkpointing": {"mode": "tape"}}, "not_one_of checkpointing.mode"),
        ({"sparse": 1}, "unknown_key sparse"),
    ],
)
def test_what_operations_cannot_be(operations, sentence):
    with raises(SpecError, sentence):
        projected(operations=operations)


def test_more_devices_lose_more():
    few, many = projected(devices=256), projected(devices=8192, global_batch_size=8192)
    assert many.calendar.goodput < few.calendar.goodput


def test_restarts_are_published():
    assert load_failures("llama-3").restart == 1000.0
    assert load_failures("meta-rsc-1").restart is None
    seconds, source = published("restart_s")
    assert seconds == 600.0
    assert "arXiv:2402.15627" in source


@pytest.mark.parametrize(
    ("name", "nodes", "used", "rate"),
    [("meta-rsc-1", 2000, 0.83, 6.5e-3), ("meta-rsc-2", 1000, 0.85, 2.34e-3)],
)
def test_rates_are_as_sure_as_what_they_were_counted_over(name, nodes, used, rate):
    """Kokolis et al. 2024: 11 months of 16,000 and 8,000 A100, used to 83 and 85 %, half by jobs that are counted."""
    failures = load_failures(name)
    assert failures.observed == pytest.approx(nodes * used * 334 / 2 * rate, rel=0.01)
    _, rates = drawn(failures, 4000, np.random.default_rng(0))
    assert rates.std() == pytest.approx(failures.observed**-0.5, rel=0.05)


def saved(blocking, written):
    return Saving(bytes=1.0, blocking=blocking, written=written, reload=0.0)


def test_the_best_interval_by_hand():
    daly = 1000 * (1 + 0.05 / 3 + 0.0025 / 9) - 50  # C/2M is 0.0025
    assert best_interval(saved(50.0, 70.0), 10_000.0) == pytest.approx(daly)
    assert best_interval(saved(50.0, 2000.0), 10_000.0) == 2000.0
    assert best_interval(saved(50.0, 70.0), np.inf) == 3600.0
    assert best_interval(saved(50.0, 5000.0), np.inf) == 5000.0


def test_what_explains_a_spread_by_hand():
    values = np.array([1.0, 2.0, 3.0, 4.0])
    causes = {"some": np.array([1.0, 3.0, 2.0, 4.0]), "none": np.ones(4), "all": -2.0 * values}
    result = spread(values, causes)
    assert list(result) == ["all", "some", "none"]
    assert result == pytest.approx({"all": 1.0, "some": 0.64, "none": 0.0})
    assert spread(np.ones(4), causes) == {}


STEP = Interval(low=8.0, expected=10.0, high=12.5)
TENTH = 1.2815515594
"""Above so many standard deviations lies a tenth of a normal distribution."""


def test_step_times_and_runs_that_are_drawn_by_hand():
    errors = TENTH * np.array([0.0, 1.0, -1.0, 2.0, -2.0])
    assert stretched(STEP, errors) == pytest.approx([1.0, 1.25, 0.8, 1.5625, 0.64])
    run = Case(work=100.0, interval=10.0, blocking=1.0, written=1.0, restart=5.0, mttf=50.0)
    halved = 12.5 * 25 * np.exp(5 / 25) * np.expm1(11 / 25)  # Daly's equation 20, failures twice as often
    usual = 10 * 50 * np.exp(5 / 50) * np.expm1(11 / 50)
    assert walls(run, STEP, errors[:2], np.array([1.0, 2.0])) == pytest.approx([usual, halved])


def operated(**more):
    """Two nodes of eight whose one failure comes in 1000 s, planned ones in 2000 s."""
    failures = Failures(
        per_device_day={"a": 4.4, "b": 1.0}, planned_per_device_day=2.7, **more.pop("counted", {})
    )
    return Operations(failures=failures, **more)


def cased(explicit, parameters=100 / 14, seconds=800.0):
    result = projected(devices=64)
    return case_of(
        explicit,
        parameters=parameters,
        precision=result.workload.precision,
        cluster=result.cluster.sized(16),
        seconds=seconds,
    )


def test_a_run_as_events_see_it_by_hand():
    case, _ = cased(operated(stragglers=0.05, evaluation=0.2, planned=7.0, spares=3, repair=9.0, fatal=0.25))
    slower = 0.05 * (2 * np.log(16)) ** 0.5
    assert case.work == pytest.approx(800 * (1 + slower) / 0.8)
    assert case.stragglers == pytest.approx(slower)
    assert (case.mttf, case.planned_mttf) == pytest.approx((1000.0, 2000.0))
    assert (case.planned, case.spares, case.repair, case.fatal) == (7.0, 3, 9.0, 0.25)
    assert case.replica_share is None
    assert case.restart == 600.0
    assert cased(operated(elastic=True))[0].replica_share == 0.5
    assert cased(operated(counted={"restart": 30.0}))[0].restart == 30.0
    assert cased(operated(restart=0.0, counted={"restart": 30.0}))[0].restart == 0.0
    twice, _ = cased(operated(failure_factor=2.0))
    assert (twice.mttf, twice.planned_mttf) == pytest.approx((500.0, 1000.0))
    never, _ = cased(Operations(failures=0.0))
    assert never.mttf == never.planned_mttf == np.inf


def test_where_restarts_are_from():
    assert "arXiv:2402.15627" in sources_of(operated(), 8)["restart"]
    assert sources_of(operated(counted={"restart": 30.0, "source": "a log"}), 8)["restart"] == "a log"
    assert sources_of(operated(restart=0.0), 8)["restart"] == "given"


@pytest.mark.parametrize(
    ("mttf", "restart", "sentence"),
    [
        # 100 bytes at 10 byte/s behind a stall of 0.5 s: what is left of 5 s would be 4.5.
        (
            5.0,
            2.0,
            "cannot_finish the run",
        ),
        (
            5.0,
            5.0,
            "cannot_finish the run",
        ),
        (0.4, 0.1, "cannot_finish the run"),
    ],
)
def test_checkpoints_that_are_never_written(mttf, restart, sentence):
    often = Failures(per_device_day={"all": 86_400.0 / 16 / mttf})
    slow = Checkpointing(mode="sync", stall=0.5, storage_bandwidth=10.0)
    with raises(SpecError, sentence):
        cased(Operations(failures=often, restart=restart, checkpointing=slow))
    with raises(SpecError, "out_of_range the time to write a checkpoint"):
        cased(Operations(failures=often, checkpointing=replace(slow, interval=10.0)))


def test_a_run_that_takes_a_hundred_times_as_long_never_ends():
    """Intervals as long as the time to failure: e^(restart / 1000 s) × (e - 1) times as long, 98.9 and 101.0."""
    result = projected(devices=64)
    checkpointing = Checkpointing(interval=1000.0, stall=0.0, storage_bandwidth=1e18)

    def days(restart):
        counted = Operations(
            failures=Failures(per_device_day={"all": 5.4}), restart=restart, checkpointing=checkpointing
        )
        return calendar(1.0, result.cluster.sized(16), result.workload, STEP, counted)

    ideal = 10.0 * result.workload.tokens / result.workload.tokens_per_step / 86400
    assert days(4053.0).days.expected == pytest.approx(ideal * np.exp(4.053) * np.expm1(1.0), rel=1e-4)
    with raises(SpecError, "cannot_finish the run"):
        days(4074.0)


def test_a_run_that_evaluates_most_of_its_time_ends():
    result = projected(devices=64)

    def days(share):
        operations = Operations(failures=0.0, evaluation=share)
        return calendar(1.0, result.cluster, result.workload, STEP, operations).days.expected

    assert days(0.99) == pytest.approx(50 * days(0.5), rel=1e-6)


def test_a_calendar_by_hand():
    """86,400 steps of 10 s, saved every 100 s for 1 s: ten days and a tenth; nothing fails."""
    result = projected(devices=64)
    work = replace(result.workload, tokens=86_400.0 * result.workload.tokens_per_step)
    saving = Checkpointing(interval=100.0, stall=1.0, storage_bandwidth=1e18)
    operations = Operations(failures=0.0, checkpointing=saving)
    got = calendar(1.0, result.cluster, work, STEP, operations)
    assert got.days.expected == pytest.approx(10.1)
    assert got.parts_days["goodput"] == pytest.approx(10.0)
    assert got.parts_days["unproductive_checkpoint_save_time"] == pytest.approx(0.1)
    assert got.goodput == pytest.approx(10.0 / 10.1)
    assert (got.days.low, got.days.high) == pytest.approx((10.1 * 0.8, 10.1 * 1.25), rel=0.05)
    assert got.checkpoint_interval_s == 100.0


def test_waits_for_nodes_by_hand():
    """Half a node is away on average; without spares, a third of the time one is: Erlang's 0.5 / 1.5."""
    calm = Case(
        work=1e6, interval=100.0, blocking=0.0, written=0.0, restart=0.0, mttf=1e6, fatal=0.5, repair=1e6
    )
    busy = sum(expected(calm).values())
    waits = expected(replace(calm, spares=0))["infrastructure_recovery_from_disruption"]
    assert waits == pytest.approx(busy * 0.5)  # a third of all, over two thirds that train
    spared = expected(replace(calm, spares=1))["infrastructure_recovery_from_disruption"]
    assert spared == pytest.approx(busy * (1 / 13) / (12 / 13))  # 0.5 × 1/3 / (2 + 0.5 × 1/3)
    slow = expected(replace(calm, spares=1, replica_share=0.25))["other"]
    chances = [np.exp(-0.5) * 0.5**away / math.factorial(away) for away in range(5)]
    speed = chances[0] + sum(one * (1 - 0.25 * (away - 1)) for away, one in enumerate(chances) if away)
    assert slow == pytest.approx(busy * (1 - speed) / speed)
    always = expected(replace(calm, fatal=0.0, spares=0))
    assert sum(always.values()) == pytest.approx(busy)
