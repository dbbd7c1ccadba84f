"""Files of measurements that once ended in a traceback, or in figures that cannot be."""

from __future__ import annotations

import json
import math
import pickle

import pytest
from tests.fuzz import fuzz, hostile

from forescale.cli.formats.json import to_json
from forescale.errors import PhysicsError

FOUND = (
    ("snapshot.pickle", {"segments": [{"total_size": math.nan, "allocated_size": math.nan}]}, "segments[0].total_size"),
    ("snapshot.pickle", {**hostile.SNAPSHOT, "device_traces": 3}, "wrong_type device_traces"),
    ("snapshot.pickle", {"segments": [3]}, "wrong_type segments[0]"),
    ("bench.json", hostile.ARTIFACT | {"steps": [{"num_microbatches": 1, "seconds": 1e-9}]}, "implausible a step"),
    (
        "primus.json",
        hostile.PRIMUS | {"memory_results": {"global_peak_allocated_bytes": 1e6, "global_peak_reserved_bytes": 1e6}},
        "weights, gradients and optimizer states",
    ),
)  # fmt: skip


@pytest.mark.parametrize(("name", "content", "said"), FOUND, ids=lambda value: str(value)[:24])
def test_files_that_ended_wrongly_once(tmp_path, forescale, name, content, said):
    file = tmp_path / name
    file.write_bytes(pickle.dumps(content) if name.endswith(".pickle") else json.dumps(content).encode())
    ran = forescale(*hostile.PROJECT, "--load-benchmark", file)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.refused
    assert name in ran.refused


def test_a_step_of_no_length_is_refused(tmp_path, forescale):
    file = tmp_path / "runs.csv"
    file.write_text(fuzz.RUNS.replace(",5.2,", ",1e-300,"), encoding="utf-8")
    ran = forescale("validate", file, "--json")
    assert (ran.code, ran.out) == (2, "")
    assert "line 2, column measured_step_s" in ran.err


def test_no_number_of_an_answer_is_endless():
    with pytest.raises(PhysicsError, match=r"rows\[1\].error is nan"):
        to_json({"rows": [{"error": 1.0}, {"error": math.nan}]})


TIMES = [traceEvent for traceEvent in hostile.TRACE["traceEvents"] if traceEvent["name"] != "[memory]"]


@pytest.mark.parametrize(
    ("name", "content", "judged", "not_measured"),
    [
        (
            "trace.json",
            hostile.TRACE | {"traceEvents": TIMES},
            "step: models are",
            "peak memory: not measured",
        ),
        ("snapshot.pickle", hostile.SNAPSHOT, "peak memory: models are", "step: not measured"),
    ],
)
def test_what_was_not_measured_is_not_called_calibrated(
    tmp_path, forescale, name, content, judged, not_measured
):
    file = tmp_path / name
    file.write_bytes(pickle.dumps(content) if name.endswith(".pickle") else json.dumps(content).encode())
    ran = forescale(*hostile.PROJECT, "--load-benchmark", file, "--mode", "both")
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    assert not_measured in lines
    assert len([line for line in lines if line.startswith(judged) and "calibrated" in line]) == 1
