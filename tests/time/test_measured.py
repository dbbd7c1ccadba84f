"""Stages as a run took them, in a step's own schedule: an MI300X run of eight stages that Primus published."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.errors import raises

from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.models import load_model
from forescale.errors import ScheduleError
from forescale.project import project
from forescale.question import Question
from forescale.schedule import compile_schedule
from forescale.schedule.traces import read_run
from forescale.spec import Layout, Workload
from forescale.time.measured import measured_parts

DATA = Path(__file__).parents[1] / "data" / "schedules"
QUESTION = Question(
    model=load_model("llama-3.1-8b"),
    cluster=load_cluster("mi300x", 8),
    workload=Workload(seq_len=4096, global_batch_size=16),
    strategy=Layout(pp=8),
)
AROUND = ("pipeline_comm", "data_comm", "host_comm", "bubble", "optimizer", "overhead")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    mktemp = tmp_path_factory.mktemp("run")
    for file in DATA.glob("gpu8_layer64_gbs16__pp8__*.json"):
        shutil.copy(file, mktemp / file.name.removeprefix("gpu8_layer64_gbs16__pp8__"))
    return mktemp


@pytest.fixture(scope="module")
def step(folder):
    return read_run(folder).typical


def test_a_step_is_the_schedule_with_measured_stages_and_what_comes_once(step):
    alone, result = project(QUESTION), project(QUESTION, stages=step)
    run = result.time_s["bubble"] + result.time_s["pipeline_comm"] + sum(
        seconds for name, seconds in result.time_s.items() if name not in AROUND
    )  # fmt: skip
    assert run == pytest.approx(1e-3 * step.simulated().makespan, rel=1e-9)
    assert run == pytest.approx(step.makespan_s, rel=0.03)
    assert result.time_s["optimizer"] == alone.time_s["optimizer"]
    assert result.step_time_s == pytest.approx(sum(result.time_s.values()))
    assert result.mfu == pytest.approx(alone.mfu * alone.step_time_s / result.step_time_s)
    assert result.memory == alone.memory


def test_stages_take_what_they_took(step):
    result = project(QUESTION, stages=step)
    assert [stage.forward_s for stage in result.stage_times] == pytest.approx(1e-3 * step.times.forward)
    more = replace(QUESTION, workload=Workload(seq_len=4096, global_batch_size=32))
    assert project(more, stages=step).stage_times == result.stage_times
    assert project(more, stages=step).step_time_s < 2.0 * result.step_time_s


def test_a_run_of_other_stages_is_refused(step):
    four = replace(QUESTION, strategy=Layout(pp=4, dp_shard=2))
    with raises(ScheduleError, "wrong_count 1f1b"):
        project(four, stages=step)


def test_parts_of_a_measured_step(step):
    """The slowest stage's 16 passes each way are work, of which parts keep their shares; a quarter more lies behind."""
    value = {
        "ffn": 3.0,
        "attention": 1.0,
        "optimizer": 0.5,
        "data_comm": 0.25,
        "overhead": 9.0,
        "bubble": 7.0,
    }
    result, forward, backward = measured_parts(
        value, QUESTION.layout, step, num_microbatches=16, weight_part=0.5, behind=0.25
    )
    there, back = 1e-3 * np.asarray(step.times.forward), 1e-3 * np.asarray(step.times.input_grad)
    assert not np.any(step.times.weight_grad)  # whole passes were timed
    assert (forward.tolist(), backward.tolist()) == (pytest.approx(there), pytest.approx(back))
    work = 16 * (there + back).max()
    without = 1e-3 * float(compile_schedule(step.schedule).time(step.times).makespan)
    assert without > work
    expected = {
        "ffn": 3 / 4 * work,
        "attention": 1 / 4 * work,
        "optimizer": 0.5,
        "data_comm": 0.25,
        "bubble": without - work,
        "pipeline_comm": 1e-3 * step.simulated().makespan - without,
    }
    assert result == pytest.approx(expected | {"overhead": 0.25 * sum(expected.values())})
