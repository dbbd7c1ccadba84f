"""Primus' table of schedules: what is read, and what is said where it cannot be."""

from pathlib import Path

import pytest
from tests.errors import raises

from forescale.errors import ForescaleError
from forescale.io.schedule_table import limit_of, read_schedule_table
from forescale.schedule import Request

HEAD = "fwd_time: 10\nbwd_time: 12.5\nwgrad_time: 8\nprint_simulation_result: true\n"
ENTRY = "schedulers:\n  - {{name: {name}, class: a.b.{kind}, pp_size: 8, vpp_size: {vpp}, micro_batches: 32{more}}}\n"


def read(tmp_path, text):
    path = tmp_path / "pp_simulation.yaml"
    path.write_text(text)
    return read_schedule_table(path).schedules


def entry(name="x", kind="Schedule1F1B", vpp=1, more=""):
    return ENTRY.format(name=name, kind=kind, vpp=vpp, more=more)


@pytest.mark.parametrize(
    ("kind", "vpp", "more", "schedule", "limit"),
    [
        ("Schedule1F1B", 1, "", "1f1b", None), ("ScheduleZeroBubble", 1, "", "zb-h1", None),
        ("ScheduleInterleaved1F1B", 2, "", "interleaved-1f1b", None),
        ("ScheduleZBVFormatted", 2, "", "zbv", None),
        ("ScheduleZBVGreedy", 2, ", memory_config: half", "v-half", None),
        ("ScheduleZBVGreedy", 2, ", memory_config: min", "v-min", None),
        ("ScheduleZBVGreedy", 2, ", cached_fwd_chunks_limit: 12", "v-zb", 6.0),
    ],
)  # fmt: skip
def test_schedules_by_their_class(kind, vpp, more, schedule, limit, tmp_path):
    (result,) = read(tmp_path, HEAD + entry("mine", kind, vpp, more))
    assert (result.label, result.schedule) == ("mine", schedule)
    assert result.request == Request(
        pp=8, num_microbatches=32, vpp=vpp, forward=10.0, input_grad=12.5, weight_grad=8.0, memory_limit=limit
    )


def test_a_heuristic_orders_by_its_costs_and_takes_the_durations_of_the_table(tmp_path):
    more = ", cost_f: 1000, cost_b: 900, cost_w: 800, cost_comm: 10, max_mem: 10"
    (result,) = read(tmp_path, HEAD + entry("mine", "ScheduleZeroBubbleHeuristic", 1, more))
    assert result.schedule == "zb-unlimited"
    assert result.durations == (10.0, 12.5, 8.0)
    assert result.request == Request(
        pp=8,
        num_microbatches=32,
        forward=1e3,
        input_grad=900.0,
        weight_grad=800.0,
        comm=10.0,
        memory_limit=10.0,
    )


def test_the_folder_of_simulated_steps(tmp_path):
    path = tmp_path / "t.yaml"
    path.write_text(HEAD + "output_dir: ./out\n" + entry())
    assert read_schedule_table(path).output_dir == Path("out")
    path.write_text(HEAD + entry())
    assert read_schedule_table(path).output_dir is None


def test_an_entry_without_a_class_goes_by_its_name(tmp_path):
    text = HEAD + "schedulers:\n  - {name: basic_1f1b, pp_size: 4, vpp_size: 1, micro_batches: 8}\n"
    assert read(tmp_path, text)[0].schedule == "1f1b"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("fwd_tme: 1\n", "unknown_key fwd_tme"),
        (HEAD, "empty schedulers"),
        (HEAD + "schedulers: 3\n", "empty schedulers"),
        (HEAD + "schedulers: [3]\n", "wrong_type schedulers[0]"),
        (HEAD.replace("12.5", ".nan") + entry(), "wrong_type bwd_time"),
        (HEAD.replace("12.5", ".inf") + entry(), "wrong_type bwd_time"),
        (HEAD.replace("12.5", "-1") + entry(), "wrong_type bwd_time"),
        (HEAD.replace("12.5", "yes") + entry(), "wrong_type bwd_time"),
        (entry(), "wrong_type fwd_time"),
        (HEAD + entry(vpp=0), "out_of_range schedulers[0].vpp_size"),
        (HEAD + entry(vpp=1.5), "out_of_range schedulers[0].vpp_size"),
        (HEAD + entry(more=", micro_batch: 3"), "unknown_key micro_batch"),
        (HEAD + entry(kind="ScheduleZBVFormat"), r"schedulers\[0\]: unknown schedule.*ScheduleZBVFormatted"),
        (HEAD + entry(more=", memory_config: tiny"), "not_one_of schedulers[0].memory_config"),
        (HEAD + entry(more=", memory_config: [1]"), "not_one_of schedulers[0].memory_config"),
        (HEAD + entry(more=", cost_f: long"), "wrong_type schedulers[0].cost_f"),
        (
            HEAD + entry(more=", max_mem: 0"),
            "out_of_range schedulers[0].max_mem",
        ),
        (
            HEAD + entry(more=", max_mem: 8, cached_fwd_chunks_limit: 8"),
            "max_mem and cached_fwd_chunks_limit",
        ),
        (HEAD + "output_dir: [a]\n" + entry(), "wrong_type output_dir"),
    ],
)
def test_what_cannot_be_is_said_with_its_place(text, says, tmp_path):
    with raises(ForescaleError, says):
        read(tmp_path, text)


def test_the_limit_of_a_table_is_that_of_its_entry(tmp_path):
    path = tmp_path / "t.yaml"
    path.write_text(HEAD + entry("mine", "ScheduleInterleaved1F1B", 2, ", cached_fwd_chunks_limit: 3"))
    assert limit_of(path) == 1.5
    assert limit_of(tmp_path / "actions.csv") is None
