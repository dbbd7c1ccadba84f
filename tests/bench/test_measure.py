"""Tiny models measured for real, on processes of this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from tests.bench.tiny import CPU, FP32, FULL, MOE, question
from tests.errors import raises
from torch._C._profiler import _EventType

from forescale.bench import here
from forescale.bench import measure as measuring
from forescale.bench.blocks import gradients_apart, parts_of, timed_step
from forescale.bench.groups import groups_of
from forescale.bench.huggingface import check
from forescale.bench.kernels import Watch, kernel_row, kernels_of, messages_of, runner
from forescale.bench.measure import Effort, Spool, check_projection, measure, measure_next, measure_suite
from forescale.bench.suite import (
    COLLECTIVES,
    LONGEST_S,
    kernels_among,
    messages_among,
    propose,
    suite_kernels,
    suite_messages,
)
from forescale.bench.training import MAIN, Training, as_run, check_states
from forescale.bench.weighing import _changes
from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.models import load_model
from forescale.cli.app import run
from forescale.errors import ForescaleError, SpecError
from forescale.graph.counts import count_parameters
from forescale.graph.ops import Elementwise, Gemm
from forescale.io.bench import SCHEMA, GivenUp, build_bench, read_bench, write_bench
from forescale.io.question import build_question
from forescale.io.question_values import question_values
from forescale.memory.timeline import block_loads, total_bytes
from forescale.profiles import RANK_PARTS
from forescale.project import project
from forescale.runtime import RunError, launch
from forescale.spec import Precision
from forescale.spec.layout import Recompute

BRIEFLY = {"seconds": 3600.0, "repeats": 3}
"""As much time as is wanted, so that nothing depends on it, for few samples."""
PARTS = {"forward", "backward", "input_gradient", "weight_gradient"}


def test_one_device_measures_every_part_of_a_cut_plan(tmp_path):
    request = question(layers=3)
    explicit = []
    result = measure(request, devices=1, **BRIEFLY, tell=explicit.append)
    assert result.given_up == (GivenUp(dimension="layers", asked=3, measured=2),)
    ran = build_question(result.config, where="config")
    assert ran.model.num_layers == 2
    (rank,) = result.ranks
    parameters = count_parameters(ran.model).total
    kept = {layer.kind: layer.activation_bytes for layer in result.layers}
    computed = {
        item.name: total_bytes(item.kept) for item in block_loads(ran.model, ran.layout, ran.workload).all()
    }
    assert 1.0 <= kept["attention+dense"] / computed["attention+dense"] <= 1.4  # no parameters among it
    idle = {phase.phase: phase.peak_allocated_bytes for phase in rank.phases}["idle"]
    assert idle == pytest.approx(16 * parameters, rel=0.05)
    assert idle < rank.peak_allocated_bytes == rank.peak_reserved_bytes
    assert {row.part for row in result.blocks if row.kind == "attention+dense"} == PARTS
    assert {row.kind for row in result.layers} == {"attention+dense", "embedding", "head"}
    assert {row.kind for row in result.blocks} == {"attention+dense", "embedding", "head", "model"}
    (step,) = result.steps
    assert step.num_microbatches == 2
    assert {type(row).__name__ for row in result.kernels} == {
        "GemmTiming",
        "AttentionTiming",
        "ElementwiseTiming",
    }
    assert {row.repeats for row in (*result.blocks, *result.kernels, *result.steps)} == {3}
    assert (result.conditions.left_out, result.conditions.failed) == ((), "")
    assert result.conditions.threads == 1
    ranks = {row.part: row.samples for row in result.profile if row.part.startswith("rank_")}
    assert set(ranks) == set(RANK_PARTS.values())
    assert min(ranks["rank_step"]) > min(ranks["rank_computing"]) > 0.0
    assert (explicit[0].what, explicit[0].started) == ("start-up", False)
    write_bench(result, tmp_path / "bench.json")
    assert read_bench(tmp_path / "bench.json") == result  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [{}, {"recompute": Recompute(granularity="full")}, {"tp": 2}],
    ids=["plain", "replayed", "split"],
)
def test_blocks_of_a_step_are_all_of_it(changes):
    request = question(microbatches=3, **changes)
    for sample in launch(_sampled, request.layout.num_devices, request):
        times = {"attention+dense": 6, "embedding": 3, "head": 3, "model": 1}
        assert {kind for kind, _ in sample} == {*times, "step"}
        parts = sum(seconds * times[kind] for (kind, _), seconds in sample.items() if kind != "step")
        assert parts == pytest.approx(sample["step", ""], rel=1e-9)
        assert min(sample.values()) > 0.0


def test_blocks_one_by_one_are_the_model_of_the_class():
    blocks = Training(question(FULL, MOE), torch.device("cpu")).blocks
    tokens = torch.arange(32).view(2, 16)
    blocks.learn(tokens)
    x = blocks.embed(tokens)
    for index in range(2):
        x = blocks.run_layer(index, x)
    whole = float(blocks.model(input_ids=tokens, labels=tokens).loss.detach())
    for loss in (blocks(tokens), blocks.loss_of(x, tokens)):
        assert float(loss.detach()) == pytest.approx(whole, rel=1e-6)


def _sampled(_rank, request):
    training = Training(request, torch.device("cpu"), groups_of(request))
    return timed_step(training, Watch(torch.device("cpu")))


def test_what_another_thread_gives_back_unseen_does_not_count():
    class Event:
        tag, children = _EventType.Allocation, ()

        def __init__(self, moment, size, address):
            self.start_time_ns, self.extra_fields = moment, self
            self.alloc_size, self.ptr = size, address

    class Ran:
        def __init__(self, *events):
            self.profiler = self.kineto_results = self
            self.events = events

        def experimental_event_tree(self):
            return self.events

    local, again = (
        [Event(1, 64, 7), Event(9, 16, 8), Event(13, -16, 8)],
        [Event(4, 32, 9), Event(6, 32, 9), Event(7, -32, 9)],
    )
    marks = [(3, "forward"), (8, "backward"), (12, "update")]
    assert [size for _, size, _ in _changes(Ran(*local, *again, Event(10, 128, 5)), marks)] == [
        64,
        32,
        -32,
        16,
        -16,
    ]
    assert [phase for *_, phase in _changes(Ran(*local), marks)] == ["idle", "backward", "update"]


def test_messages_of_a_plan_are_those_of_its_weights_too():
    request = as_run(question(FULL, MOE, dp_shard=2, ep=2))
    parameters = count_parameters(request.model)
    messages = messages_of(request, 2)
    assert [size for kind, size, _ in messages if kind == "reduce_scatter"] == [
        4.0 * (parameters.total - 2 * 4 * 3 * 32 * 16)  # those of experts are no two ranks'
    ]
    assert {kind for kind, *_ in messages} == {"all_to_all", "reduce_scatter", "all_gather"}
    assert {kind for kind, *_ in messages_of(question(dp_shard=2, zero=0), 2)} == {"all_reduce"}
    assert messages_of(question(dp_shard=4), 2) == []


def test_messages_of_sharded_weights_are_those_of_each_block():
    request = as_run(question(FULL, MOE, dp_shard=2, zero=3))
    blocks = request.model.hidden_size * request.model.vocab_size, count_parameters(request.model).total
    sizes = sorted(size for kind, size, _ in messages_of(request, 2) if kind == "all_gather")
    embedding, layer = 4.0 * blocks[0], 4.0 * (blocks[1] - 2 * blocks[0] - 32) / 2
    expert = 4.0 * 4 * 3 * 32 * 16
    assert sizes == pytest.approx(sorted({layer - expert, expert, embedding, embedding + 4.0 * 32}))


def test_what_goes_around_a_ring_is_timed_as_it_is_sent():
    around, gathered = (
        messages_of(as_run(question(cp=2, cp_kind=kind)), 2) for kind in ("ring", "all_gather")
    )
    sent = 4.0 * 2 * 2 * 8 * 8  # keys and values of two heads of half of the tokens
    assert ("p2p", sent, 2) in around
    assert not [item for item in gathered if item[0] == "p2p"]


def test_kernels_of_a_plan_are_distinct_and_do_something():
    ops = kernels_of(question(FULL, MOE))
    rows = [kernel_row(op, {"seconds": 1.0}) for op in ops]
    assert len({json.dumps(row, sort_keys=True) for row in rows}) == len(rows)
    build_bench({"schema": SCHEMA, "kernels": rows}, where="rows")
    assert {row["op"] for row in rows} == {"gemm", "grouped_gemm", "attention", "elementwise"}


@pytest.mark.parametrize("accumulate", [0.0, 8.0])
def test_products_in_eight_bits_are_run(accumulate):
    op = Gemm(m=32.0, n=48.0, k=64.0, dtype="fp8", accumulate_bytes=accumulate)
    result = runner(op, torch.device("cpu"))()
    assert (result.shape, result.dtype) == ((32, 48), torch.float32 if accumulate else torch.bfloat16)


def test_two_devices_measure_shards_and_their_messages():
    result = measure(question(FULL, MOE, tp=2), devices=2, **BRIEFLY)
    assert [rank.rank for rank in result.ranks] == [0, 1]
    assert result.given_up == ()
    assert (result.asked is None, result.config["strategy"]["kernels"]["cross_entropy"]) == (
        False,
        "loss_parallel",
    )
    assert {row.num_ranks for row in result.collectives} == {2}
    assert "all_reduce" in {row.kind for row in result.collectives}
    assert "GroupedGemmTiming" in {type(row).__name__ for row in result.kernels}
    assert [row.name for row in result.profile if row.part == "rank_computing"] == ["0", "1"]
    assert "broadcast" not in {row.part for row in result.profile}


def _exchanged(_rank, requested, path):
    measuring._exchange(0, requested, "cpu", Effort(**BRIEFLY), 1.0, path)


def test_messages_are_sent_among_as_many_ranks_as_they_take(tmp_path):
    requested = [
        ("all_gather", 4096.0, 2),
        ("p2p", 64.0, 2),
        ("all_to_all", 3000.0, 3),
        ("all_reduce", 64.0, 4),
    ]
    launch(_exchanged, 4, requested, str(tmp_path / "rows"))
    rows = measuring._rows(measuring._entries(tmp_path / "rows"))["collectives"]
    assert [(row["kind"], row["num_bytes"], row["num_ranks"]) for row in rows] == requested
    assert min(row["seconds"] for row in rows) > 0.0


@pytest.mark.parametrize("master", ["none", "fp32"])
def test_weights_in_16_bits_are_updated_from_wider_gradients(master):
    types = Precision(compute="bf16", parameters="bf16", activations="bf16", gradients="fp32", master=master)
    training = Training(question(types=types), torch.device("cpu"))
    before = [parameter.detach().clone() for parameter in training.blocks.parameters()]
    training.step()
    moved = [bool((old != new).any()) for old, new in zip(before, training.blocks.parameters(), strict=True)]
    assert sum(moved) > len(moved) / 2
    assert all(parameter.grad is None for parameter in training.blocks.parameters())


@pytest.mark.parametrize("parameters", ["bf16", "fp16"])
def test_gradients_apart_are_added_up_where_those_of_a_step_are(parameters):
    types = Precision(compute=parameters, parameters=parameters, activations=parameters)
    training, watch = Training(question(types=types), torch.device("cpu")), Watch(torch.device("cpu"))
    parts = [part for part in parts_of(training) if part.kind != "embedding"]
    sample = gradients_apart(training, parts, watch)
    assert {lap[1] for lap in sample()} == {"input_gradient", "weight_gradient"}
    sums = [getattr(parameter, MAIN) for parameter in training.blocks.layers[0].parameters()]
    assert {item.dtype for item in sums} == {torch.float32}
    assert all(bool(item.any()) for item in sums)
    assert all(parameter.grad is None for parameter in training.blocks.parameters())


@pytest.mark.parametrize(
    ("types", "key", "fix"),
    [
        ({"gradients": "bf16"}, "gradients", "fp32"),
        ({"gradients": "fp16", "parameters": "bf16"}, "gradients", "bf16"),
        ({"master": "fp16"}, "master", "none"),
        ({"parameters": "bf16", "master": "bf16"}, "moments", "bf16"),
        ({"moments": "fp8"}, "moments", "fp32"),
    ],
)
def test_states_in_types_that_a_bench_does_not_keep_are_refused_before_it_measures(types, key, fix):
    explicit = replace(FP32, **types)
    wanted = f"unsupported_by a benchmark | precision.{key} {getattr(explicit, key)} with weights in "
    with raises(SpecError, wanted) as caught:
        check_states(question(types=explicit))
    assert f'precision.{key} = "{fix}"' in caught.value.fix


def _experts_apart(_rank, request):
    training = Training(request, torch.device("cpu"), groups_of(request))
    training.check(training.step())
    return sorted(gradients_apart(training, list(parts_of(training)), Watch(torch.device("cpu")))())


def test_experts_spread_over_ranks_train_in_16_bits():
    request = as_run(question(FULL, MOE, types=Precision(), dp_shard=2, ep=2))
    laps = {("attention+moe", "input_gradient"), ("attention+moe", "weight_gradient")}
    assert all(laps <= set(item) for item in launch(_experts_apart, 2, request))


def test_a_check_runs_what_was_projected():
    projection = check_projection(question(layers=1, microbatches=1), seconds=0.1)
    assert projection.measured_s > 0.0
    assert projection.measured_bytes > 16 * count_parameters(question(layers=1).model).total
    with pytest.raises(SpecError, match="a check runs layouts without stages"):
        check_projection(question(pp=2))


STEP_ROW = {"num_microbatches": 2, "seconds": 0.5}
BEGUN = "gradients apart of head"


def _noted(path):
    """Note a step, and that something else began."""
    with Path(path).open("a", encoding="utf-8") as spool:
        for entry in ({"key": "steps", "rows": [STEP_ROW]}, {"begin": BEGUN, "left": 1.0}):
            spool.write(json.dumps(entry) + "\n")
        spool.write('{"key": "blocks", "ro')


def ending(fault):
    """Return what notes a step and then ends so, in the place of all that is measured."""

    def run(*given):
        _noted(given[-1])
        raise fault

    return run


def test_what_is_known_when_it_is_interrupted_is_kept(monkeypatch):
    monkeypatch.setattr(measuring, "_run", ending(KeyboardInterrupt()))
    result = measure(question(), devices=1, seconds=1.0)
    assert (result.conditions.interrupted, result.conditions.failed) == (True, "")
    assert [step.seconds for step in result.steps] == [0.5]
    assert result.blocks == ()


@pytest.mark.parametrize(
    "fault", [RunError("rank 0 died"), RuntimeError("no room"), OSError("disk full")], ids=repr
)
def test_what_is_known_when_something_fails_is_kept(monkeypatch, fault):
    monkeypatch.setattr(measuring, "_run", ending(fault))
    result = measure(question(), devices=1, seconds=1.0)
    assert (result.conditions.interrupted, result.conditions.failed) == (False, f"{BEGUN}: {fault}")
    assert [step.seconds for step in result.steps] == [0.5]


def test_what_fails_before_anything_is_known_is_raised(monkeypatch):
    def run(*_):
        raise RunError("rank 0: no model")

    monkeypatch.setattr(measuring, "_run", run)
    with pytest.raises(RunError, match="rank 0: no model"):
        measure(question(), devices=1, seconds=1.0)


def test_rows_that_are_no_measurements_are_left_out_and_the_rest_is_kept(monkeypatch):
    def run(*given):
        rows = [{"op": "gemm", "m": 8.0, "n": 8.0, "k": 8.0, "seconds": item} for item in (-1e-9, 1e-6)]
        _noted(given[-1])
        with Path(given[-1]).open("a", encoding="utf-8") as spool:
            spool.write("\n" + json.dumps({"key": "kernels", "rows": rows}) + "\n")
            spool.write(json.dumps({"skipped": "2 of 4 kernels"}) + "\n")

    monkeypatch.setattr(measuring, "_run", run)
    result = measure(question(), devices=1, seconds=1.0)
    assert [row.seconds for row in result.kernels] == [1e-6]
    skipped, wrong = result.conditions.left_out
    assert skipped == "2 of 4 kernels"
    assert "seconds" in wrong


def _failing(_rank, _cut, _asked, _kind, effort, _end, path, *, kill=False):
    """Find a step, and then fail as a rank may: by an error of its own, or killed."""
    spool = Spool(path, effort.budget())
    spool.begin("step")
    spool.put("steps", [STEP_ROW])
    spool.begin(BEGUN)
    if kill:
        os.kill(os.getpid(), signal.SIGKILL)
    raise RuntimeError("m1 and m2")


@pytest.mark.parametrize(
    ("kill", "why"),
    [(False, "rank 0: RuntimeError: m1 and m2 (_failing)"), (True, "rank 0 died (killed by SIGKILL)")],
)
def test_ranks_that_fail_leave_what_was_measured(monkeypatch, kill, why):
    def run(_question, cut, _copies, _here, _devices, effort, spool):
        launch(_failing if not kill else _killed, 1, cut.question, None, "cpu", effort, 1.0, spool)

    monkeypatch.setattr(measuring, "_run", run)
    result = measure(question(), devices=1, seconds=1.0)
    assert result.conditions.failed == f"{BEGUN}: {why}"
    assert [step.seconds for step in result.steps] == [0.5]


def _killed(*given):
    _failing(*given, kill=True)


EXAMPLE = ("bench", "--plan", "examples/bench.toml", "--devices-here", "1", "--seconds", "2")


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("named", [False, True])
def test_a_failed_bench_says_what_failed_and_where_the_rest_is(monkeypatch, tmp_path, capsys, named, as_json):
    monkeypatch.chdir(Path(__file__).parents[2])
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(measuring, "_run", ending(RunError("rank 0: no room")))
    more = (*(["--save", str(tmp_path / "named.json")] if named else []), *(["--json"] if as_json else []))
    assert run([*EXAMPLE, *more]) == 2
    shown = capsys.readouterr()
    (error,) = (line for line in shown.err.splitlines() if line.startswith("error: "))
    (file,) = tmp_path.glob("*.json")
    assert f"{BEGUN}: rank 0: no room" in error
    assert str(file) in error
    assert (file.name == "named.json") == named
    assert read_bench(file).steps[0].seconds == 0.5
    assert not as_json or json.loads(shown.out)["conditions"]["failed"] == f"{BEGUN}: rank 0: no room"


def test_measurements_outlive_a_place_that_cannot_be_written(monkeypatch, tmp_path, capsys):
    def run_and_fill(*given):
        _noted(given[-1])
        (tmp_path / "full").rmdir()

    monkeypatch.chdir(Path(__file__).parents[2])
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(measuring, "_run", run_and_fill)
    (tmp_path / "full").mkdir()
    assert run([*EXAMPLE, "--save", str(tmp_path / "full" / "bench.json")]) == 2
    (file,) = tmp_path.glob("*.json")
    assert f"the measurements are in {file}" in capsys.readouterr().err
    assert read_bench(file).steps[0].seconds == 0.5


def _waiting(_rank, _cut, _asked, _kind, _effort, _end, path):
    """Find a step, press Ctrl-C in the terminal of all, and never end."""
    Spool(path).put("steps", [STEP_ROW])
    os.killpg(os.getpgrp(), signal.SIGINT)
    threading.Event().wait()


def interrupted(file):
    """Run the command whose ranks wait for ever, as a process of its own."""
    measuring._work = _waiting
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # ignored where the tests run in the background of a script
    sys.exit(run(["bench", "--plan", "examples/bench.toml", "--devices-here", "1", "--save", file]))


def test_ctrl_c_ends_the_command_with_a_whole_file(tmp_path):
    code = f"from tests.bench.test_measure import interrupted; interrupted({str(tmp_path / 'bench.json')!r})"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2], start_new_session=True, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 130, ran.stderr
    assert "interrupted: only what is shown was measured" in ran.stdout
    assert ran.stderr.splitlines()[-1] == f"interrupted; measurements until then: {tmp_path / 'bench.json'}"
    assert "Traceback" not in ran.stdout + ran.stderr
    bench = read_bench(tmp_path / "bench.json")
    assert bench.conditions.interrupted
    assert [step.seconds for step in bench.steps] == [0.5]
    assert [file.name for file in tmp_path.iterdir()] == ["bench.json"]


def _losses(rank, *losses):
    training = Training(question(tp=2), torch.device("cpu"), groups_of(question(tp=2)))
    training.check(torch.tensor(losses[rank]))


@pytest.mark.parametrize(
    ("losses", "text"),
    [
        ((4.0, 5.0), "ranks of one model disagree: their losses are 4, 5"),
        ((float("nan"),) * 2, "the loss is nan"),
    ],
)
def test_a_run_that_says_nothing_is_refused(losses, text):
    with pytest.raises(RunError, match=text):
        launch(_losses, 2, *losses)


@pytest.mark.parametrize(
    ("model", "key", "value"),
    [
        ("grok-1", f"transformers {transformers.__version__}", "grok-1 (grok-1)"),
        ("gpt3-1t", "Hugging Face", "gpt3-1t by any architecture"),
    ],
)
def test_a_model_without_a_class_is_named(model, key, value):
    with raises(ForescaleError, f"unsupported_by {key}", value=value):
        check(replace(question(), model=load_model(model)))


def test_clocks_that_were_held_down_are_noted(monkeypatch):
    def driver(*_, **__):
        return subprocess.CompletedProcess([], 0, stdout="1200, 350.00, 0x0000000000000005")

    monkeypatch.setattr(here.shutil, "which", lambda _: "nvidia-smi")
    monkeypatch.setattr(here.subprocess, "run", driver)
    state = here.state_of(here.Here(kind="cuda", name="H100", num_devices=1))
    assert state == here.State(clock_mhz=1200.0, power_cap_w=350.0, throttled="reasons 0x4")
    assert here.state_of(here.Here(kind="cpu", name="x86", num_devices=1)) == here.State()


def test_an_interrupt_before_anything_is_known_is_one(monkeypatch):
    def run(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(measuring, "_run", run)
    with pytest.raises(KeyboardInterrupt):
        measure(question(), devices=1, seconds=1.0)


@pytest.mark.parametrize(
    ("asked", "devices", "wanted"),
    [
        (replace(question(), cluster=load_cluster("h100-sxm", 1)), 1,
         "other_run a benchmark of this machine | no accelerator"),
        (question(cp=2, zero=3), 2, "unsupported_by timing of a block by itself | zero 3 over 2 ranks"),
        (question(), 10_000, "not_enough_devices the benchmark | 10000"),
        (replace(question(), workload=replace(question().workload, optimizer="lion")), 1,
         "not_one_of the optimizer of a benchmark | lion"),
    ],
)  # fmt: skip
def test_what_cannot_be_measured_here_is_said(asked, devices, wanted):
    with raises(SpecError, wanted):
        measure(asked, devices=devices, seconds=0.1)


def test_a_suite_is_what_a_device_is_calibrated_with(tmp_path):
    small = replace(
        CPU, matrix_flops=replace(CPU.matrix_flops, fp32=2.5e10), hbm_bytes=3e6, hbm_bandwidth=1e6
    )
    request = question()
    request = replace(request, cluster=replace(request.cluster, device=small))
    suite = measure_suite(request, devices=2, **BRIEFLY)
    assert {row.op for row in suite.kernels} == {"gemm", "grouped_gemm", "attention", "elementwise"}
    assert {row.dtype for row in suite.kernels if row.op != "elementwise"} == {"fp32"}
    assert {row.kind for row in suite.collectives} == set(COLLECTIVES)
    assert {row.num_ranks for row in suite.collectives} == {2}
    assert (suite.config, suite.steps, suite.blocks) == (None, (), ())
    write_bench(suite, tmp_path / "suite.json")
    assert read_bench(tmp_path / "suite.json") == suite


def test_a_suite_holds_what_a_device_does_in_a_moment():
    device = load_cluster("h100-sxm", 8).device
    ops = suite_kernels(device, "bf16")
    assert len(ops) == len({json.dumps(kernel_row(op, {}), sort_keys=True) for op in ops}) > 50
    longest = LONGEST_S * device.matrix_flops.bf16
    assert max(op.flops for op in ops if not isinstance(op, Elementwise)) <= longest
    assert max(num_bytes for _, num_bytes, _ in suite_messages(device, 8)) <= device.hbm_bytes / 64


def test_what_is_proposed_is_timed_and_nothing_else():
    request = question(tp=2)
    result = measure_next(request, devices=2, **BRIEFLY)
    proposed = propose(request, devices=2, seconds=BRIEFLY["seconds"])
    assert (result.config, result.steps) == (None, ())
    assert [row.operator for row in result.kernels] == kernels_among(proposed)
    assert {(row.kind, row.num_bytes, row.num_ranks) for row in result.collectives} == set(
        messages_among(proposed, 2)
    )


MIXED = Precision(compute="bf16", parameters="fp32", master="none", activations="bf16")
NARROW = Precision(compute="fp8", recipe="current", parameters="bf16", gradients="bf16")


def in_8_bits(**layout):
    request = question(types=NARROW, **layout)
    rates = replace(CPU.matrix_flops, fp8=CPU.matrix_flops.bf16)
    return replace(request, cluster=replace(request.cluster, device=replace(CPU, matrix_flops=rates)))


def test_products_in_8_bits_are_those_of_torchao():
    request = as_run(in_8_bits())
    check(request)
    training = Training(request, torch.device("cpu"))
    kinds = Counter(type(module).__name__ for module in training.blocks.modules())
    assert kinds["Float8Linear"] == 7 * request.model.num_layers  # query to down; the head stays wide
    wide = Training(
        as_run(question(types=replace(NARROW, compute="bf16", recipe="none"))), torch.device("cpu")
    )
    loss, exact = float(training.step()), float(wide.step())
    assert loss != exact
    assert loss == pytest.approx(exact, rel=0.05)


def test_a_bench_in_8_bits_is_restored_to_itself(tmp_path):
    result = measure(in_8_bits(), devices=1, **BRIEFLY)
    assert {block.part for block in result.blocks} == {"forward", "backward", "update"}
    assert {"fp8", "bf16"} == {kernel.dtype for kernel in result.kernels if kernel.op == "gemm"}
    write_bench(result, file := tmp_path / "bench.json")
    values = {**question_values(as_run(in_8_bits())), "cost": {"benchmarks": [str(file)]}}
    restored = project(build_question(values, where="itself"))
    assert restored.step_time_s == pytest.approx(result.steps[0].seconds, rel=0.01)


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (lambda: question(types=replace(NARROW, recipe="delayed")), "ask with --fp8-recipe current"),
        (lambda: in_8_bits(tp=2), "ask with --tp 1"),
        (
            lambda: question(types=replace(NARROW, compute="bf16", recipe="none", parameters="fp8")),
            "hold weights in fp8",
        ),
        (
            lambda: question(types=replace(MIXED, activations="fp32")),
            r'weights lie in fp32: give precision.parameters = "bf16"',
        ),
        (
            lambda: question(types=replace(MIXED, compute="fp32")),
            r'weights lie in fp32: give precision.activations = "fp32"',
        ),
        (
            lambda: question(types=replace(MIXED, compute="fp32"), dp_shard=2, zero=3),
            "weights are gathered in bf16",
        ),
    ],
)
def test_types_that_nothing_runs_in_are_refused(asked, sentence):
    with pytest.raises(SpecError, match=sentence):
        check(asked())


def test_fused_updates_step_as_others_do():
    """On a device that has them: the layout's kernel, which a CPU has too."""
    request = as_run(question(types=replace(NARROW, compute="bf16", recipe="none")))
    fused = replace(request, cluster=replace(request.cluster, device=replace(CPU, vendor="NVIDIA")))
    result = []
    for item in (request, fused):
        training = Training(item, torch.device("cpu"))
        training.step()
        result.append([parameter.detach().clone() for parameter in training.blocks.parameters()])
    assert training.update.optimizer.defaults["fused"]
    torch.testing.assert_close(*result)
