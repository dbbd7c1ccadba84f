import numpy as np
import pytest

import forescale as fs
from forescale.errors import SpecError
from forescale.goodput.operations import calendar, drawn, load_failures, published
from forescale.spec.operations import Failures, Operations
from forescale.whole_run import Phase, project_run

ASKED = {"seq_len": 8192, "global_batch_size": 1024, "tokens": 15e12}


def projected(devices=1024, **more):
    return fs.project("llama-3.1-8b", "h100-sxm", devices=devices, **{**ASKED, **more})


def test_a_projection_says_calendar_days():
    found = projected()
    calendar_days = found.calendar.days
    assert found.training_days < calendar_days.expected
    assert calendar_days.low < calendar_days.expected < calendar_days.high
    assert sum(found.calendar.parts_days.values()) == pytest.approx(calendar_days.expected)
    assert found.calendar.parts_days["goodput"] == pytest.approx(found.training_days)
    assert found.to_json()["calendar"]["days"]["expected"] == calendar_days.expected


def test_no_tokens_no_calendar():
    assert projected(tokens=None).calendar is None


def test_the_calendar_agrees_with_the_whole_run():
    found = projected(devices=8192, global_batch_size=8192)
    operations = Operations(failures=load_failures("llama-3"))
    run = project_run([Phase(name="1", projection=found, tokens=15e12)], operations)
    assert found.calendar.days.expected == pytest.approx(run.days.expected, rel=0.02)
    assert found.calendar.days.low == pytest.approx(run.days.low, rel=0.04)
    assert found.calendar.days.high == pytest.approx(run.days.high, rel=0.04)
    assert found.calendar.checkpoint_interval_s == run.interval_s


@pytest.mark.parametrize("rate", [1e6, 3.0])
def test_a_run_that_never_ends_has_no_calendar_but_a_reason(rate):
    failing = Operations(failures=Failures(per_device_day={"all": rate}))
    found = projected(operations=failing)
    assert found.calendar is None
    assert "something fails every" in found.endless
    with pytest.raises(SpecError) as error:
        calendar(found.params.total, found.cluster, found.workload, found.step_time, failing)
    assert str(error.value) == found.endless


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
        ({"failures": -1.0}, "failures must be 0 or more, got -1.0"),
        ({"failures": "lama-3"}, "unknown failure rates 'lama-3'; did you mean llama-3?"),
        ({"failures": {"per_device_day": {"all": -1.0}}}, "failures.per_device_day.all must be 0 or more"),
        ({"repair": "2 weeks"}, "repair = '2 weeks' is not a quantity in second"),
        ({"checkpointing": {"mode": "tape"}}, "checkpointing.mode must be 'sync', 'async' or 'peer'"),
        ({"sparse": 1}, "did you mean spares"),
    ],
)
def test_what_operations_cannot_be(operations, sentence):
    with pytest.raises(SpecError, match=sentence):
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
    found = load_failures(name)
    assert found.observed == pytest.approx(nodes * used * 334 / 2 * rate, rel=0.01)
    _, rates = drawn(found, 4000, np.random.default_rng(0))
    assert rates.std() == pytest.approx(found.observed**-0.5, rel=0.05)
