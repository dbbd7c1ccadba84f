from __future__ import annotations

import json

import pytest

from forescale.errors import ReaderError, SpecError
from forescale.io.bench import SCHEMA, Conditions, read_bench
from forescale.memory.anchored import LayerMeasurement, RankPeak

CONFIG = {
    "model": "llama-3.1-8b",
    "cluster": "h100-sxm",
    "devices": 8,
    "strategy": {"tp": 2, "pp": 2},
    "workload": {"seq_len": 4096, "global_batch_size": 16},
}
RANKS = [
    {"rank": 0, "stage": 0, "peak_allocated_bytes": 4.0e10, "peak_reserved_bytes": 4.4e10},
    {"rank": 4, "stage": 1, "peak_allocated_bytes": 3.8e10, "peak_reserved_bytes": 4.1e10, "peak_device_bytes": 4.3e10},
]  # fmt: skip
LAYERS = [{"kind": "attention+dense", "activation_bytes": 1.5e9, "forward_s": 0.004}]


def document(**changes):
    return {"schema": SCHEMA, "config": CONFIG, "ranks": RANKS, "layers": LAYERS} | changes


def read(tmp_path, content):
    path = tmp_path / "bench.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return read_bench(path)


def test_what_was_measured_and_of_what(tmp_path):
    artifact = read(tmp_path, document(conditions={"date": "2026-08-01", "software": "torch 2.8"}))
    assert artifact.config == CONFIG
    assert artifact.ranks[1].outside_bytes == pytest.approx(0.2e10)
    assert artifact.ranks[0].outside_bytes is None
    assert artifact.layers == (
        LayerMeasurement(kind="attention+dense", activation_bytes=1.5e9, forward_s=0.004),
    )
    assert artifact.conditions == Conditions(date="2026-08-01", software="torch 2.8")


def test_layers_may_be_missing_and_ranks_may_not(tmp_path):
    rest = {key: value for key, value in document().items() if key != "layers"}
    assert read(tmp_path, rest).layers == ()
    with pytest.raises(SpecError, match="at least one measured rank"):
        read(tmp_path, document(ranks=[]))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{ not json", "not whole JSON"),
        ("[1]", "must hold a table of keys"),
        ({"ranks": []}, f"its schema must be {SCHEMA}, got None"),
        ({"schema": "forescale.bench/9"}, f"its schema is forescale.bench/9; this version reads {SCHEMA}"),
    ],
)
def test_files_that_are_no_artifact(tmp_path, content, text):
    with pytest.raises(ReaderError, match=text):
        read(tmp_path, content)


def test_no_such_file(tmp_path):
    with pytest.raises(ReaderError, match="no such file"):
        read_bench(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"rank": []}, "unknown key 'rank'.*did you mean ranks"),
        ({"config": None}, "config must be a table"),
        ({"ranks": {}}, "ranks must be a list of tables"),
        ({"ranks": [{"peak_allocated_bytes": 1.0}]}, r"ranks\[0\].*peak_reserved_bytes"),
        ({"layers": [{"kind": "attention+dense", "activation_bytes": -1.0}]}, r"layers\[0\].*activation_bytes"),
    ],
)  # fmt: skip
def test_wrong_content_is_named(tmp_path, changes, text):
    with pytest.raises(SpecError, match=text):
        read(tmp_path, document(**changes))


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"peak_reserved_bytes": 1.0}, "peak_reserved_bytes 1 is below peak_allocated_bytes 10"),
        ({"peak_reserved_bytes": 12.0, "peak_device_bytes": 11.0}, "peak_device_bytes 11 is below"),
    ],
)
def test_peaks_that_cannot_be(more, text):
    with pytest.raises(SpecError, match=text):
        RankPeak(peak_allocated_bytes=10.0, **more)
