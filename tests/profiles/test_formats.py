"""Traces of Nsight Systems and JAX in the forms that their tools write, with times set by hand."""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path

import pytest
from tests.errors import raises

from forescale.errors import ReaderError
from forescale.profiles import is_trace, read_profile, summarise

TABLES = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
    correlationId INTEGER, demangledName INTEGER, shortName INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER, bytes INTEGER, copyKind INTEGER);
CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, textId INTEGER);
INSERT INTO StringIds VALUES (1, 'sm90_xmma_gemm_bf16'), (2, 'ncclDevKernel_AllReduce_Sum_bf16_RING_LL'), (3, 'iteration 2');
INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H100 80GB HBM3');
"""


def export(path: Path, tables: str = TABLES) -> Path:
    base = sqlite3.connect(path)
    base.executescript(tables)
    kernels = [
        (0, 600_000, 0, 1),
        (500_000, 900_000, 0, 2),
        (1_000_000, 1_600_000, 0, 1),
        (0, 9_000_000, 1, 1),
    ]
    base.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, 7, 0, ?, 1)", kernels)
    base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (1600000, 1700000, 0, 4096, 1)")
    ranges = [(0, 1_000_000, "iteration 1", None), (1_000_000, 2_000_000, None, 3), (0, None, "mark", None)]
    base.executemany("INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, ?, ?)", ranges)
    base.commit()
    base.close()
    return path


def test_nsight_systems(tmp_path):
    path = export(tmp_path / "report")
    result = summarise(path)
    assert is_trace(path)
    assert (result.steps, result.step_s, result.on_device) == (2, 1e-3, True)
    assert result.parts_s == pytest.approx({"gemm": 6e-4, "all_reduce": 2e-4, "copy": 5e-5})
    assert result.exposed_s == pytest.approx({"all_reduce": 1.5e-4})
    profile = read_profile(path, devices_per_node=8)
    assert (profile.step_s, profile.devices) == (1e-3, ("NVIDIA H100 80GB HBM3",))


def test_other_databases(tmp_path):
    base = sqlite3.connect(tmp_path / "other.sqlite")
    base.execute("CREATE TABLE notes (text TEXT)")
    base.close()
    with raises(ReaderError, "wrong_format an export of Nsight Systems | CUPTI_ACTIVITY_KIND_KERNEL"):
        summarise(tmp_path / "other.sqlite")
    content = export(tmp_path / "report.sqlite").read_bytes()
    (tmp_path / "cut.sqlite").write_bytes(content[:5000])
    with raises(ReaderError, "cannot_read"):
        summarise(tmp_path / "cut.sqlite")


def meta(kind: str, name: str, pid: int, tid: int | None = None) -> dict:
    return {"ph": "M", "pid": pid, "name": f"{kind}_name", "args": {"name": name}, **({} if tid is None else {"tid": tid})}  # fmt: skip


def span(name: str, start: float, length: float, pid: int, tid: int, **args: str) -> dict:
    return {"ph": "X", "pid": pid, "tid": tid, "ts": start, "dur": length, "name": name, "args": args}


HOST = [
    meta("process", "/host:CPU", 701),
    meta("thread", "python", 701, 1),
    span("train", 0.0, 100.0, 701, 1, step_num="0"),
    span("train", 100.0, 100.0, 701, 1, step_num="1"),
    span("PjitFunction(f)", 0.0, 90.0, 701, 1),
]
ON_HOST = [*HOST, span("dot.5", 10.0, 50.0, 701, 2, hlo_op="dot.5"), span("end: dot.5", 60.0, 0.5, 701, 2)]
ON_DEVICES = [
    meta("process", "/device:GPU:1", 2), meta("process", "/device:GPU:0", 1), *HOST,
    meta("thread", "Stream #20(Compute)", 1, 20), meta("thread", "XLA Ops", 1, 21), meta("thread", "Stream #20", 2, 20),
    *(span("gemm_fusion_dot", start, 40.0, pid, 20, hlo_op="dot") for pid in (1, 2) for start in (10.0, 110.0)),
    span("all-reduce.1", 150.0, 30.0, 1, 20),
    span("dot", 10.0, 40.0, 1, 21, hlo_op="dot"),
]  # fmt: skip


def jax(path: Path, events: list[dict]) -> Path:
    document = {
        "displayTimeUnit": "ns",
        "metadata": {"highres-ticks": True},
        "traceEvents": [*sorted(events, key=lambda event: event["ph"]), {}],
    }
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    return path


def test_jax(tmp_path):
    result = summarise(jax(tmp_path / "host.trace.json.gz", ON_HOST))
    assert (result.steps, result.step_s, result.on_device) == (2, pytest.approx(1e-4), False)
    assert {row.name: row.seconds for row in result.kernels} == {"dot.5": pytest.approx(2.5e-5)}
    result = summarise(jax(tmp_path / "host.trace.json.gz", ON_DEVICES))
    assert (result.steps, result.on_device, result.launches) == (2, True, 2)
    assert result.parts_s == pytest.approx({"gemm": 4e-5, "all_reduce": 1.5e-5})


@pytest.mark.parametrize(
    ("name", "fix"), [("vm.xplane.pb", ".trace.json.gz"), ("run.nsys-rep", "nsys export --type sqlite")]
)
def test_files_that_another_one_has_the_events_of(tmp_path, name, fix):
    (tmp_path / name).write_bytes(b"\n\x05")
    assert is_trace(tmp_path / name)
    with raises(ReaderError, "wrong_format a trace that can be read") as caught:
        summarise(tmp_path / name)
    assert fix in caught.value.fix
