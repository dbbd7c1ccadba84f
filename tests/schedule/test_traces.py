"""The measured 8-device run, and its simulation."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.errors import raises

from forescale.errors import ReaderError
from forescale.schedule import Kind, Request, build_schedule, family, simulate
from forescale.schedule.actions import unpack
from forescale.schedule.difference import Difference
from forescale.schedule.draw import to_html
from forescale.schedule.measured import MeasuredStep, Pass
from forescale.schedule.traces import read_run, write_run

FOLDER = Path(__file__).parents[1] / "data/schedules"


@pytest.fixture(scope="module")
def run():
    return read_run(FOLDER)


def test_reads_all_iterations(run):
    assert [step.iteration for step in run.steps] == list(range(1, 21))
    step = run.step(7)
    assert step.schedule.num_microbatches == 16
    assert step.schedule.orders == build_schedule("1f1b", Request(pp=8, num_microbatches=16)).orders
    assert step.schedule.name == "1f1b"
    assert step.total_s == pytest.approx(3.2379, abs=5e-5)
    assert step.memory_gib[0] == pytest.approx(104.3, abs=0.05)


@pytest.mark.parametrize("iteration", [7, 10, 15])
def test_simulation_is_within_two_percent(run, iteration):
    step = run.step(iteration)
    assert abs(step.simulated().makespan / (1e3 * step.makespan_s) - 1.0) < 0.02


def test_an_interleaved_run_is_simulated_as_it_ran():
    """Gaps in which nobody waited are no time of messages: taken for one, they made this step 30 % too slow."""
    step = read_run(FOLDER / "interleaved").step(7)
    assert step.schedule.name == "interleaved-1f1b"
    assert abs(step.simulated().makespan / (1e3 * step.makespan_s) - 1.0) < 0.005
    assert 0 < step.links.transfer.min() <= step.links.transfer.max() < 2.0


def test_messages_take_less_than_two_milliseconds(run):
    links = run.step(7).links
    assert links.transfer.shape == links.backward_transfer.shape == (7,)
    assert 0 < links.transfer.min() <= links.transfer.max() < 2.0


def simulated_as_measured(name, pp=4, m=8):
    """Return a simulated step as if it had been measured."""
    schedule = build_schedule(name, Request(pp=pp, num_microbatches=m), vpp=family(name).fixed_vpp or 2)
    simulation = simulate(schedule, sends="early")
    flat = simulation.compiled.program.flat
    rows = [[] for _ in range(pp)]
    for i in range(flat.code.size):
        start, end = 1e-3 * float(simulation.start[i]), 1e-3 * float(simulation.end[i])
        rows[flat.rank[i]].append(Pass(unpack(int(flat.code[i])), start, end, 0.0, 0.5, 7))
    return MeasuredStep(schedule=schedule, ranks=tuple(map(tuple, rows)), sends="early", iteration=3)


@pytest.mark.parametrize(
    "name", ["zbv", "zb-h1", "dualpipev", "chimera", "seq1f1b", "pipeoffload", "interleaved-1f1b"]
)
def test_what_is_written_is_read_back(name, tmp_path):
    step = simulated_as_measured(name)
    write_run(tmp_path, [step])
    again = read_run(tmp_path).step(3)
    assert again.schedule.orders == step.schedule.orders or name == "dualpipev"
    assert again.schedule.placement == step.schedule.placement
    assert again.schedule.name == step.schedule.name
    assert again.makespan_s == pytest.approx(step.makespan_s, rel=1e-12)
    assert again.idle_share == pytest.approx(step.idle_share, rel=1e-9)
    assert {item.live for rank in again.ranks for item in rank} == {0.5}
    assert again.simulated().makespan == pytest.approx(step.simulated().makespan, rel=1e-9)


def primus_dump(folder, step):
    """Write what Primus' own simulator writes: no more keys than these, and the simulator's names in config.json."""
    write_run(folder, [step])
    keep = (
        "total",
        "memory",
        *(f"{n}_{p}" for n in ("fwd", "bwd", "wgrad") for p in ("start", "end", "minibatch", "chunk")),
    )
    for path in folder.glob("pp_rank_*.json"):
        records = json.loads(path.read_text())
        path.write_text(json.dumps({"0": {key: value for key, value in records["3"].items() if key in keep}}))
    placement = step.schedule.placement
    config = {"pp_size": placement.num_ranks, "vpp_size": int(placement.vpp), "micro_batches": 8}
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("name", ["zbv", "zb-h1", "v-half", "interleaved-zb"])
def test_weight_gradient_passes_and_placements_of_a_dump_are_found(name, tmp_path):
    step = simulated_as_measured(name)
    primus_dump(tmp_path, step)
    again = read_run(tmp_path).step(0)
    assert again.schedule.placement == step.schedule.placement
    assert again.schedule.orders == step.schedule.orders
    assert again.timeline.bubble(0) == pytest.approx(step.timeline.bubble(0))
    assert again.simulated().makespan == pytest.approx(1e3 * step.makespan_s, rel=1e-6)


def test_a_block_of_a_dump_is_one_block(tmp_path):
    """Primus gives forward and backward of a combined call the same start and end."""
    dump = {
        "total": 6.0, "memory": 1.0,
        "fwd_start": [0.0, 1.0], "fwd_end": [1.0, 4.0], "fwd_minibatch": [0, 1], "fwd_chunk": [0, 0],
        "bwd_start": [1.0, 4.0], "bwd_end": [4.0, 6.0], "bwd_minibatch": [0, 1], "bwd_chunk": [0, 0],
    }  # fmt: skip
    (tmp_path / "pp_rank_0.json").write_text(json.dumps({"1": dump}))
    step = read_run(tmp_path).step(1)
    assert [str(cell) for cell in step.schedule.actions[0]] == ["0F0", "(0F1;0B0)OVERLAP_F_B", "0B1"]
    assert step.idle_share == pytest.approx(0.0, abs=1e-12)


def test_what_explains_the_difference_is_found():
    """A late message, a long pass and a pause, each put into a step that else runs as simulated."""
    plain = simulated_as_measured("1f1b", 2, 4)
    base = plain.simulated()
    for cause, action, message in (
        ("message", "1F0", "messages"),
        ("host", "1B0", "pauses of the host"),
        ("pass", "1B1", "passes"),
    ):
        step = delayed(plain, action, within=cause == "pass")
        difference = Difference(step=step, simulation=base)
        worst = max(difference.parts, key=lambda part: part.excess)
        assert (worst.cause, worst.action, worst.rank) == (cause, action, 1)
        assert worst.excess == pytest.approx(5.0)
        assert sum(part.measured for part in difference.parts) == pytest.approx(1e3 * step.makespan_s)
        assert any(message in line and f"{action} +5.00" in line for line in difference.sentences)
        lost = {pass_.action: (pass_.lost_before, pass_.lost_within) for pass_ in difference.passes}
        assert lost[action] == pytest.approx((0.0, 5.0) if cause == "pass" else (5.0, 0.0))
    twice = delayed(delayed(plain, "1B0", within=False), "1B1", within=False)
    assert any(
        "most on rank 1 (+10.00)" in line for line in Difference(step=twice, simulation=base).sentences
    )


def delayed(step, action, *, within):
    """Return the step with 5 ms more before an action, or within it, and everything after it later."""
    at = next(item.start_s for rank in step.ranks for item in rank if str(item.action) == action)

    def moved(item):
        if item.start_s < at - 1e-9 and str(item.action) != action:
            return item
        mine = str(item.action) == action
        return replace(
            item, start_s=item.start_s + (0.0 if mine and within else 5e-3), end_s=item.end_s + 5e-3
        )

    return replace(step, ranks=tuple(tuple(map(moved, rank)) for rank in step.ranks))


def test_trace_and_simulation_are_drawn_together(run):
    step = run.step(7)
    difference = Difference(step=step, simulation=step.simulated())
    page = to_html([difference.timeline, difference.simulation.timeline], notes=difference.sentences)
    assert "measured, iteration 7" in page
    assert "1f1b, pp 8" in page
    assert difference.timeline.shades


def test_missing_files_are_named(tmp_path, run):
    with raises(ReaderError, "wrong_format a folder of the pp_rank_<rank>.json files of one run"):
        read_run(tmp_path)
    for rank in (0, 2):
        shutil.copy(
            FOLDER / f"gpu8_layer64_gbs16__pp8__pp_rank_{rank}.json", tmp_path / f"pp_rank_{rank}.json"
        )
    with raises(ReaderError, "wrong_type the ranks"):
        read_run(tmp_path)
    with pytest.raises(ReaderError, match="iteration 21 is not in it"):
        run.step(21)


WHOLE = {"total": 9.0, "fwd_start": [0.0], "fwd_end": [0.5], "bwd_start": [0.5], "bwd_end": [1.0]}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([1], "wrong_type it"),
        ({"3": {"total": 1.0, "fwd_start": [0.0]}}, "iteration 3 needs fwd_start, fwd_end"),
        ({"3": {**WHOLE, "bwd_end": [1.0, 2.0]}}, "iteration 3 needs bwd_start, bwd_end"),
        ({"3": {**WHOLE, "bwd_end": ["x"]}}, "bwd_end that are not numbers"),
        ({"3": {**WHOLE, "bwd_end": [0.25]}}, "bwd 0 end at 0.25 ms, before its start 0.5"),
        ({"3": {**WHOLE, "fwd_minibatch": [-1]}}, "fwd_minibatch that are not whole numbers"),
        ({"3": {**WHOLE, "fwd_chunk": [4]}}, "out_of_range the chunk of a pass"),
        ({"3": {**WHOLE, "bwd_start": [], "bwd_end": []}}, "needs bwd_start"),
        (
            {"3": {**WHOLE, "fwd_minibatch": [1], "bwd_minibatch": [1]}},
            "incomplete whole step of iteration 3",
        ),
        ({"3": 7}, "wrong_type iteration 3"),
        ({"x": WHOLE}, "incomplete iteration that all its files share"),
    ],
)
def test_malformed_files_are_refused(tmp_path, content, said):
    (tmp_path / "pp_rank_0.json").write_text(json.dumps(content))
    with raises(ReaderError, said):
        read_run(tmp_path)


def test_a_config_that_contradicts_is_refused(tmp_path):
    (tmp_path / "pp_rank_0.json").write_text(json.dumps({"3": WHOLE}))
    for config, message in (
        ({"pp_size": 2}, "differs pp_size"),
        ({"num_mbs": 0}, "out_of_range num_mbs"),
        ({"rank_of_stage": [0, 1]}, "wrong_type rank_of_stage"),
        ({"num_mbs": 2}, "incomplete whole step of iteration 3"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config))
        with raises(ReaderError, message):
            read_run(tmp_path)


def test_chunks_of_an_interleaved_run(tmp_path):
    """Two ranks, two chunks, two micro-batches: passes 0, 1 are chunk 0 forward and chunk 1 backward."""
    (tmp_path / "config.json").write_text(json.dumps({"pp_size": 2, "vp_size": 2, "num_mbs": 2}))
    for rank in range(2):
        times = {
            "fwd_start": [float(i) + 0.1 * rank for i in range(4)], "fwd_end": [i + 0.1 + 0.1 * rank for i in range(4)],
            "bwd_start": [8.2 + i - 0.1 * rank for i in range(4)], "bwd_end": [8.3 + i - 0.1 * rank for i in range(4)],
        }  # fmt: skip
        (tmp_path / f"pp_rank_{rank}.json").write_text(
            json.dumps({"1": {"total": 9.0, "memory": 1.0, **times}})
        )
    step = read_run(tmp_path).steps[0]
    forward = [str(item.action) for item in step.ranks[0] if item.action.kind is Kind.F]
    backward = [str(item.action) for item in step.ranks[1] if item.action.kind is Kind.B]
    assert forward == ["0F0", "0F1", "2F0", "2F1"]
    assert backward == ["3B0", "3B1", "1B0", "1B1"]
