import pytest

import forescale as fs
from forescale.goodput.calendar import calendar
from forescale.goodput.operations import Failures, Operations, load_failures, published
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
def test_a_run_that_never_ends_has_no_calendar(rate):
    found = projected()
    failing = Operations(failures=Failures(name="", source="", per_device_day={"all": rate}))
    assert calendar(found.params.total, found.cluster, found.workload, found.step_time, failing) is None


def test_more_devices_lose_more():
    few, many = projected(devices=256), projected(devices=8192, global_batch_size=8192)
    assert many.calendar.goodput < few.calendar.goodput


def test_restarts_are_published():
    assert load_failures("llama-3").restart == 1000.0
    assert load_failures("meta-rsc-1").restart is None
    seconds, source = published("restart_s")
    assert seconds == 600.0
    assert "arXiv:2402.15627" in source
