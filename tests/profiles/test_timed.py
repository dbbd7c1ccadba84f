"""Traces of torch.profiler and snapshots of its allocator, with events as torch 2.13 writes them."""

from __future__ import annotations

import gzip
import json
import math
import os
import pickle
from dataclasses import replace

import pytest
from tests.errors import raises

from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.models import load_model
from forescale.errors import ReaderError, SpecError
from forescale.graph.ops import AttentionCore, Gemm
from forescale.io.measurements import read_measurements
from forescale.io.question import build_question
from forescale.io.step_memory import write_timeline
from forescale.profiles import is_profile, read_profile
from forescale.project import memory_timeline, project
from forescale.question import Question
from forescale.spec import Layout, Workload

MILLI = 1000.0
"""Microseconds, which events are in."""


def op(name, dims, types, place, concrete=(), dur=50.0):
    args = {"External id": place, "Input Dims": dims, "Input type": types, "Concrete Inputs": list(concrete)}
    return {"ph": "X", "cat": "cpu_op", "name": name, "ts": 1.0, "dur": dur, "args": args}


def kernel(place, dur, **args):
    return {
        "ph": "X",
        "cat": "kernel",
        "name": "k",
        "ts": 2.0,
        "dur": dur,
        "args": {"External id": place, **args},
    }


def step(number, dur, category="user_annotation", name="ProfilerStep#"):
    return {"ph": "X", "cat": category, "name": f"{name}{number}", "ts": 0.0, "dur": dur, "args": {}}


BF16 = ["c10::BFloat16"] * 4
QUERY, KEY = [1, 16, 4096, 128], [1, 4, 4096, 128]
FLASH = "aten::_scaled_dot_product_flash_attention"
ON_DEVICE = [
    op("aten::mm", [[4096, 4096], [4096, 14336]], BF16[:2], 1),
    kernel(1, 300.0), kernel(1, 20.0),
    op("aten::mm", [[4096, 4096], [4096, 14336]], BF16[:2], 2),
    kernel(2, 340.0),
    op("aten::addmm", [[64], [8, 32], [32, 64], [], []], ["float"] * 3, 3),
    kernel(3, 5.0),
    op("aten::bmm", [[16, 8, 32], [16, 32, 64]], ["c10::Half"] * 2, 4),
    kernel(4, 7.0),
    op(FLASH, [QUERY, KEY, KEY], BF16[:3], 5, ["", "", "", "0.", "True", "False"]),
    kernel(5, 900.0),
    op(f"{FLASH}_backward", [QUERY, QUERY, KEY, KEY], BF16, 6, ["", "", "", "", "0.", "False"]),
    kernel(6, 2000.0),
    op("aten::mm", [], [], 7),
    op("aten::mm", [[0, 4], [4, 4]], BF16[:2], 8),
    kernel(90, 700.0, **{"Collective name": "allreduce", "In msg nelems": 1000, "Group size": 16, "dtype": "BFloat16"}),
    kernel(91, 500.0, **{"Collective name": "allreduce", "In msg nelems": 1000, "Group size": 16, "dtype": "BFloat16"}),
    kernel(92, 80.0, **{"Collective name": "_allgather_base", "In msg nelems": 10, "Out msg nelems": 40, "Group size": 4,
                        "dtype": "Float"}),
    {"ph": "i", "name": "[memory]", "args": {"Device Type": 1, "Total Allocated": 20 << 30, "Total Reserved": 32 << 30}},
    {"ph": "i", "name": "[memory]", "args": {"Device Type": 1, "Total Allocated": 24 << 30, "Total Reserved": 32 << 30}},
    {"ph": "i", "name": "[memory]", "args": {"Device Type": 0, "Total Allocated": 90 << 30, "Total Reserved": 0}},
    step(1, 900 * MILLI), step(2, 800 * MILLI), step(3, 810 * MILLI),
    step("AdamW.step", 40 * MILLI, name="Optimizer.step#"),
    step("AdamW.step", 12 * MILLI, "gpu_user_annotation", "Optimizer.step#"),
]  # fmt: skip
QUESTION = Question(
    model=load_model("llama-3.1-8b"),
    cluster=load_cluster("h100-sxm", 8),
    workload=Workload(seq_len=4096, global_batch_size=32),
    strategy=Layout(tp=2, pp=2, dp_shard=2, zero=1),
)


H100_DEVICE = QUESTION.cluster.device


def written(path, events=ON_DEVICE, devices=None):
    named = {} if devices is None else {"deviceProperties": devices}
    text = json.dumps({"schemaVersion": 1, **named, "traceEvents": events})
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def values(file, **more):
    return {
        "model": QUESTION.model, "cluster": QUESTION.cluster, "workload": QUESTION.workload,
        "strategy": QUESTION.strategy, "cost": {"benchmarks": [str(file)]},
    } | more  # fmt: skip


@pytest.mark.parametrize("name", ["trace.json", "run.pt.trace.json.gz"])
def test_a_trace_has_shapes_messages_steps_and_peaks(tmp_path, name):
    file = written(tmp_path / name)
    assert is_profile(file)
    profile = read_profile(file, devices_per_node=8)
    assert dict(profile.kernels) == {
        Gemm(m=4096.0, n=14336.0, k=4096.0, dtype="bf16"): pytest.approx(330e-6),
        Gemm(m=8.0, n=64.0, k=32.0, dtype="fp32"): pytest.approx(5e-6),
        Gemm(m=8.0, n=64.0, k=32.0, batch=16.0, dtype="fp16"): pytest.approx(7e-6),
        AttentionCore(
            batch=1.0, heads=16.0, kv_heads=4.0, q_len=4096.0, kv_len=4096.0, pairs=4096.0**2 / 2, qk_dim=128.0,
            v_dim=128.0, causal=True,
        ): pytest.approx(900e-6),
        AttentionCore(
            batch=1.0, heads=16.0, kv_heads=4.0, q_len=4096.0, kv_len=4096.0, pairs=4096.0**2, qk_dim=128.0,
            v_dim=128.0, causal=False, backward=True,
        ): pytest.approx(2000e-6),
    }  # fmt: skip
    reduce, gather = profile.collectives
    assert (reduce.kind, reduce.num_bytes, reduce.num_ranks, reduce.ranks_per_node) == (
        "all_reduce",
        2000.0,
        16,
        8,
    )
    assert reduce.seconds == pytest.approx(500e-6)
    assert (gather.kind, gather.num_bytes, gather.ranks_per_node) == ("all_gather", 160.0, 4)
    assert (profile.step_s, profile.update_s) == (pytest.approx(0.81), pytest.approx(0.012))
    (peak,) = profile.ranks
    assert (peak.peak_allocated_bytes, peak.peak_reserved_bytes) == (24 << 30, 32 << 30)


def test_without_kernels_of_a_device_the_call_is_what_took_time(tmp_path):
    events = [op("aten::mm", [[4, 8], [8, 16]], ["float", "float"], 1, dur=70.0)]
    profile = read_profile(written(tmp_path / "cpu.json", events), devices_per_node=1)
    assert profile.kernels == ((Gemm(m=4.0, n=16.0, k=8.0, dtype="fp32"), pytest.approx(70e-6)),)


def test_a_trace_is_looked_up_as_measurements_are(tmp_path):
    measurements = read_measurements(written(tmp_path / "trace.json"), QUESTION.cluster.device)
    assert len(measurements.kernels) == 5
    assert len(measurements.collectives) == 2


def test_a_run_is_restored_to_what_its_trace_says(tmp_path):
    question = build_question(values(written(tmp_path / "trace.json")), where="test")
    result = project(question)
    assert result.step_time_s == pytest.approx(0.81)
    assert {row.block for row in result.costs.restored} == {"update", "step"}
    stage = result.memory.stages[0]
    assert stage.reserved_bytes == pytest.approx(32 << 30)


H100 = [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85029158912}]
ON_HOST = [op("aten::mm", [[4096, 4096], [4096, 7168]], BF16[:2], 1), step(1, 900 * MILLI)]


@pytest.mark.parametrize(
    ("devices", "noted"),
    [(None, ["trace.json does not name its device; it is taken to be h100-sxm"]), (H100, [])],
)
def test_a_trace_is_of_the_device_that_it_names(tmp_path, devices, noted):
    file = written(tmp_path / "trace.json", devices=devices)
    question = build_question(values(file), where="test")
    looked_up = read_measurements(file, QUESTION.cluster.device)
    assert [*question.costs.anchor.notes] == [*looked_up.notes] == noted
    notes = [note.text for note in project(question).notes]
    assert [text for text in notes if "name its device" in text] == noted


@pytest.mark.parametrize(
    ("events", "devices", "names"),
    [
        (ON_HOST, None, "other_run trace.json"),
        (ON_HOST, H100, "other_run trace.json"),
        (ON_DEVICE, [{"name": "NVIDIA A100-SXM4-80GB"}], "other_run trace.json"),
        (ON_DEVICE, [{"name": "Some Card"}], "other_run trace.json"),
    ],
)
def test_a_trace_of_another_device_is_refused(tmp_path, events, devices, names):
    file = written(tmp_path / "trace.json", events, devices=devices)
    for read in (
        lambda: build_question(values(file), where="test"),
        lambda: read_measurements(file, H100_DEVICE),
    ):
        with raises(SpecError, names) as caught:
            read()
        assert "the question is about h100-sxm; record it on h100-sxm" in str(caught.value)


@pytest.mark.parametrize(
    ("model", "layout", "fields"),
    [
        ("llama-3.2-1b", {}, ("head_dim (recorded 128; the question has 64)", "hidden_size (recorded ")),
        ("llama-3.1-70b", {}, ("num_heads / tp (recorded 16; the question has 32)",)),
        ("llama-3.1-8b", {"tp": 4, "pp": 1}, ("num_heads / tp (recorded 16; the question has 8)",)),
        ("llama-3.1-8b", {"micro_batch_size": 2}, ("micro_batch_size (recorded 1; the question has 2)",)),
    ],
)
def test_a_trace_of_another_run_is_refused_with_what_differs(tmp_path, model, layout, fields):
    file = written(tmp_path / "trace.json", devices=H100)
    strategy = replace(QUESTION.strategy, **layout)
    with pytest.raises(SpecError) as caught:
        build_question(values(file, model=load_model(model), strategy=strategy), where="test")
    assert all(field in str(caught.value) for field in fields)


def test_a_step_that_no_device_can_do_so_fast_is_refused(tmp_path):
    file = written(tmp_path / "trace.json", [step(1, 10.0), kernel(1, 5.0)], devices=H100)
    with raises(SpecError, "implausible a step"):
        build_question(values(file), where="test")


def test_a_trace_is_of_one_layout(tmp_path):
    explicit = values(written(tmp_path / "trace.json"))
    del explicit["strategy"]
    with raises(SpecError, "incomplete layout"):
        build_question(explicit, where="test")


def test_a_snapshot_has_the_peak_of_every_device(tmp_path):
    timeline = memory_timeline(replace(QUESTION, workload=Workload(seq_len=4096, global_batch_size=8)))
    file = tmp_path / "snapshot.pickle"
    write_timeline(timeline, file)
    peaks = [rank.peak_allocated_bytes for rank in read_profile(file, devices_per_node=8).ranks]
    assert peaks == [pytest.approx(rank.peak.allocated_bytes, rel=1e-6) for rank in timeline.ranks]


def test_what_was_reserved_and_freed_counts(tmp_path):
    trace = [
        {"action": "segment_alloc", "addr": 0, "size": 100}, {"action": "alloc", "addr": 0, "size": 60},
        {"action": "alloc", "addr": 60, "size": 30}, {"action": "free_requested", "addr": 60, "size": 30},
        {"action": "free_completed", "addr": 60, "size": 30}, {"action": "snapshot", "addr": 0, "size": 0},
    ]  # fmt: skip
    segment = {"device": 0, "total_size": 150, "allocated_size": 80}
    file = tmp_path / "snapshot.pkl"
    file.write_bytes(pickle.dumps({"segments": [segment], "device_traces": [trace]}))
    (peak,) = read_profile(file, devices_per_node=1).ranks
    assert (peak.peak_allocated_bytes, peak.peak_reserved_bytes) == (110, 150)


SEGMENT = {"device": 0, "total_size": 150, "allocated_size": 80}


@pytest.mark.parametrize(
    ("content", "where"),
    [
        (
            {"segments": [{**SEGMENT, "total_size": math.nan}]},
            "wrong_type segments[0].total_size",
        ),
        ({"segments": [{**SEGMENT, "total_size": -1}]}, "out_of_range segments[0].total_size"),
        ({"segments": [{**SEGMENT, "total_size": 2**70}]}, "out_of_range segments[0].total_size"),
        ({"segments": [{**SEGMENT, "device": "a"}]}, "wrong_type segments[0].device"),
        ({"segments": [SEGMENT, 3]}, "wrong_type segments[1]"),
        ({"segments": [SEGMENT], "device_traces": 3}, "wrong_type device_traces"),
        (
            {"segments": [SEGMENT], "device_traces": [3]},
            "wrong_type device_traces[0]",
        ),
        ({"segments": [SEGMENT], "device_traces": [[3]]}, "wrong_type device_traces[0][0]"),
        (
            {"segments": [SEGMENT], "device_traces": [[{"action": 1}]]},
            "wrong_type device_traces[0][0].action",
        ),
        (
            {"segments": [SEGMENT], "device_traces": [[{"action": "alloc", "size": math.inf}]]},
            "wrong_type device_traces[0][0].size",
        ),
        (
            {"segments": [SEGMENT], "device_traces": [[{"action": "alloc"}]]},
            "wrong_format a snapshot of torch.cuda.memory | device_traces[0][0] has no size",
        ),
    ],
)
def test_snapshots_that_are_damaged_name_the_place(tmp_path, content, where):
    file = tmp_path / "snapshot.pickle"
    file.write_bytes(pickle.dumps(content))
    with raises(ReaderError, where):
        read_profile(file, devices_per_node=8)


def test_less_than_its_states_take_was_not_measured_of_a_layout(tmp_path):
    file = tmp_path / "snapshot.pickle"
    file.write_bytes(
        pickle.dumps({"segments": [{**SEGMENT, "total_size": 4 << 30, "allocated_size": 4 << 30}]})
    )
    with raises(SpecError, "implausible rank 0", value="4 GiB"):
        build_question(values(file), where="test")


def test_more_than_a_device_holds_was_not_measured_on_it(tmp_path):
    file = tmp_path / "snapshot.pickle"
    file.write_bytes(pickle.dumps({"segments": [{**SEGMENT, "total_size": 100 << 30}]}))
    with raises(SpecError, "out_of_memory rank 0", value="100 GiB"):
        build_question(values(file), where="test")


class Harm:
    def __reduce__(self):
        return os.system, ("echo harm > harm.txt",)


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("s.pickle", pickle.dumps(Harm()), "cannot_parse pickle"),
        (
            "s.pickle",
            pickle.dumps({"segments": [{"device": 0}]}),
            "wrong_format a snapshot of torch.cuda.memory | segments[0]",
        ),
        ("s.pickle", pickle.dumps([1]), "wrong_format a snapshot of torch.cuda.memory | segments"),
        ("s.pickle", pickle.dumps({"segments": []}), "not_measured it"),
        ("s.pickle", pickle.dumps({"segments": []})[:9], "cannot_parse pickle"),
        ("t.json", b'{"traceEvents": 1}', "wrong_format a chrome trace | traceEvents"),
        ("t.json", b'{"traceEvents": []}', "not_measured it"),
        ("t.json.gz", b"no gzip", "wrong_format"),
        ("none.pickle", None, "not_found file"),
    ],
)
def test_files_that_are_neither(tmp_path, monkeypatch, name, content, text):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content)
    with raises(ReaderError, text):
        read_profile(file, devices_per_node=8)
    assert not (tmp_path / "harm.txt").exists()
