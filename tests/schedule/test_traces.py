"""The measured 8-device run, and its simulation."""

import json
import shutil
from pathlib import Path

import pytest

from forescale.errors import ReaderError
from forescale.schedule import Kind, LinkTimes, Request, StageTimes, family, simulate
from forescale.schedule.draw import to_html
from forescale.schedule.traces import calibrated_links, median_times, read_run

FOLDER = Path(__file__).parents[1] / "data/schedules"


@pytest.fixture(scope="module")
def run():
    return read_run(FOLDER)


def simulated(step):
    forward, backward = median_times(step)
    sends, returns = calibrated_links(step)
    schedule = family("1f1b").build(Request(pp=8, num_microbatches=16))
    times = StageTimes(forward=forward, input_grad=backward, weight_grad=0.0)
    return simulate(schedule, times, LinkTimes(transfer=sends, backward_transfer=returns), comm="blocking")


def test_reads_all_iterations(run):
    assert [step.iteration for step in run.steps] == list(range(1, 21))
    step = run.step(7)
    assert (step.num_microbatches, step.vpp, len(step.passes)) == (16, 1, 8)
    assert step.total_ms == pytest.approx(3237.9, abs=0.05)
    assert step.memory_gib[0] == pytest.approx(104.3, abs=0.05)


def test_order_of_the_run_is_1f1b(run):
    schedule = family("1f1b").build(Request(pp=8, num_microbatches=16))
    for rank, row in enumerate(run.step(7).passes):
        assert [f"{rank}{kind.name}{unit}" for kind, unit, *_ in row] == [
            str(a) for a in schedule.actions[rank]
        ]


@pytest.mark.parametrize("iteration", [7, 10, 15])
def test_simulation_is_within_two_and_a_half_percent(run, iteration):
    step = run.step(iteration)
    assert abs(simulated(step).makespan / step.total_ms - 1.0) < 0.025


@pytest.mark.parametrize("iteration", [7, 10, 15])
def test_medians_are_the_published_ones(run, iteration):
    forward, backward = median_times(run.step(iteration))
    first = {7: (57.73, 69.68), 10: (57.77, 69.98), 15: (57.58, 70.35)}[iteration]
    assert (forward[0], backward[0]) == pytest.approx(first, abs=0.01)


def test_messages_take_less_than_two_milliseconds(run):
    sends, returns = calibrated_links(run.step(7))
    assert sends.shape == returns.shape == (7,)
    assert 0 < sends.min() <= sends.max() < 2.0


def test_trace_and_simulation_are_drawn_together(run):
    step = run.step(7)
    page = to_html([step.timeline, simulated(step).timeline])
    assert "measured, iteration 7" in page
    assert "1f1b, pp 8" in page


def test_missing_files_are_named(tmp_path, run):
    with pytest.raises(ReaderError, match="found those of 0"):
        read_run(tmp_path)
    for rank in (0, 2):
        shutil.copy(
            FOLDER / f"gpu8_layer64_gbs16__pp8__pp_rank_{rank}.json", tmp_path / f"pp_rank_{rank}.json"
        )
    with pytest.raises(ReaderError, match=r"ranks must be 0 to n - 1; found \[0, 2\]"):
        read_run(tmp_path)
    with pytest.raises(ReaderError, match="iteration 21 is not in it"):
        run.step(21)


def test_malformed_files_are_refused(tmp_path):
    (tmp_path / "pp_rank_0.json").write_text("[1]")
    with pytest.raises(ReaderError, match="JSON object"):
        read_run(tmp_path)
    record = {"total": 1.0, "fwd_start": [0.0], "fwd_end": [0.5], "bwd_start": [0.5]}
    (tmp_path / "pp_rank_0.json").write_text(json.dumps({"3": record}))
    with pytest.raises(ReaderError, match="iteration 3 needs"):
        read_run(tmp_path)


def test_chunks_of_an_interleaved_run(tmp_path):
    """Two ranks, two chunks, two micro-batches: passes 0, 1 are chunk 0 forward and chunk 1 backward."""
    (tmp_path / "config.json").write_text(json.dumps({"pp_size": 2, "vp_size": 2, "num_mbs": 2}))
    for rank in range(2):
        times = {
            name: [float(i) for i in range(4)] for name in ("fwd_start", "fwd_end", "bwd_start", "bwd_end")
        }
        (tmp_path / f"pp_rank_{rank}.json").write_text(
            json.dumps({"1": {"total": 9.0, "memory": 1.0, **times}})
        )
    row = read_run(tmp_path).steps[0].passes[0]
    assert sorted(p[:3] for p in row if p[0] is Kind.F) == [
        (Kind.F, 0, 0),
        (Kind.F, 0, 1),
        (Kind.F, 1, 0),
        (Kind.F, 1, 1),
    ]
    assert sorted((p[3], p[2]) for p in row if p[0] is Kind.B) == [(0.0, 1), (1.0, 1), (2.0, 0), (3.0, 0)]
