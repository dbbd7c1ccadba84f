"""Two profiles of one job, of which the second has more calls, slower calls or other shapes."""

from __future__ import annotations

import json

import pytest
from tests.errors import raises

from forescale.diagnose import compare_profiles
from forescale.errors import ReaderError


def event(name, start, length, **args):
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": 0,
        "tid": 7,
        "ts": start,
        "dur": length,
        "args": args,
    }


REDUCE = {"In msg nelems": 1000, "Group size": 8, "dtype": "BFloat16", "Collective name": "allreduce"}
A = [
    event("gemm", 0.0, 100.0),
    event("gelu", 100.0, 50.0),
    event("ncclDevKernel_AllReduce", 150.0, 40.0, **REDUCE),
]
B = [event("gemm", 0.0, 100.0), event("gemm", 100.0, 100.0), event("gelu", 200.0, 80.0),
     event("ncclDevKernel_AllReduce", 280.0, 40.0, **{**REDUCE, "In msg nelems": 500}), event("memset", 320.0, 10.0)]  # fmt: skip


def trace(path, events):
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def test_calls_times_and_shapes_of_each_kernel(tmp_path):
    a, b = trace(tmp_path / "a.json", A), trace(tmp_path / "b.json", B)
    result = compare_profiles(a, b)
    assert (result.step.a, result.step.b) == (pytest.approx(190e-6), pytest.approx(330e-6))
    rows = {row.name: row for row in result.kernels}
    assert [row.name for row in result.kernels[:3]] == ["gemm", "gelu", "memset"]
    assert (rows["gemm"].difference_s, rows["gemm"].by_calls_s) == (pytest.approx(1e-4), pytest.approx(1e-4))
    assert (rows["gelu"].difference_s, rows["gelu"].by_calls_s) == (pytest.approx(3e-5), 0.0)
    assert (rows["memset"].calls_a, rows["memset"].by_calls_s) == (0.0, pytest.approx(1e-5))
    assert {item.name: (item.a, item.b) for item in result.shapes} == {
        "all_reduce of 2000 bytes": (1.0, 0.0),
        "all_reduce of 1000 bytes": (0.0, 1.0),
    }
    assert {item.name: item.difference for item in result.parts}["gemm"] == pytest.approx(1e-4)


def test_a_folder_is_the_mean_of_its_ranks(tmp_path):
    folder = tmp_path / "ranks"
    folder.mkdir()
    for name, events in (("0.json", A), ("1.json", B)):
        trace(folder / name, events)
    (folder / "notes.txt").write_text("not a trace")
    result = compare_profiles(folder / "0.json", folder)
    assert result.ranks == (1, 2)
    assert {row.name: row.calls_b for row in result.kernels}["gemm"] == 1.5
    with raises(ReaderError, "wrong_format a folder with profiler traces"):
        (folder / "empty").mkdir()
        compare_profiles(folder / "empty", folder)
