from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.errors import raises

from forescale.cost.timings import BlockTiming, StepTiming
from forescale.errors import ForescaleError, ReaderError, SpecError
from forescale.io.bench import (
    NO_CHECKSUM,
    SCHEMA,
    AttentionTiming,
    BenchArtifact,
    CollectiveTiming,
    Conditions,
    ElementwiseTiming,
    GemmTiming,
    GivenUp,
    GroupedGemmTiming,
    bench_values,
    merged,
    read_bench,
    write_bench,
)
from forescale.io.measurements import of_artifact
from forescale.memory.anchored import LayerMeasurement, PhasePeak, RankPeak

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
    assert artifact.layers == (LayerMeasurement(kind="attention+dense", activation_bytes=1.5e9),)
    assert artifact.blocks == (BlockTiming(kind="attention+dense", part="forward", seconds=0.004),)
    assert artifact.conditions == Conditions(date="2026-08-01", software="torch 2.8")


def test_something_must_have_been_measured(tmp_path):
    rest = {key: value for key, value in document().items() if key != "layers"}
    assert read(tmp_path, rest).layers == ()
    with raises(SpecError, "not_measured it"):
        read(tmp_path, document(ranks=[], layers=[]))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{ not json", "cannot_parse JSON"),
        ("[1]", "wrong_type it"),
        ({"ranks": []}, "wrong_format a bench artifact | schema"),
        (
            {"schema": "forescale.bench/9"},
            "newer_version its schema",
        ),
        (
            {"schema": "forescale.bench/x"},
            "newer_version its schema",
        ),
        (json.dumps(document())[:-60], "cannot_parse JSON"),
    ],
)
def test_files_that_are_no_artifact(tmp_path, content, text):
    with raises(ReaderError, text):
        read(tmp_path, content)


def test_no_such_file(tmp_path):
    with raises(ReaderError, "not_found file"):
        read_bench(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"rank": []}, "unknown_key rank"),
        ({"config": None}, "wrong_type config"),
        ({"ranks": {}}, "wrong_type ranks"),
        ({"ranks": [{"peak_allocated_bytes": 1.0}]}, "missing peak_reserved_bytes"),
        ({"layers": [{"kind": "attention+dense", "activation_bytes": -1.0}]}, "out_of_range activation_bytes"),
        ({"blocks": [{"kind": "head", "part": "sideways", "seconds": 1.0}]}, "not_one_of part"),
        ({"steps": [{"num_microbatches": 1, "seconds": 2.0, "p90_s": 1.0}]}, "the median, 2 s, lies between"),
        ({"given_up": [{"dimension": "cp", "asked": 4, "measured": 2}]}, "not_one_of dimension"),
        ({"asked": 3}, "wrong_type asked"),
    ],
)  # fmt: skip
def test_wrong_content_is_named(tmp_path, changes, text):
    with raises(SpecError, text):
        read(tmp_path, document(**changes))


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"peak_reserved_bytes": 1.0}, "out_of_range peak_reserved_bytes"),
        ({"peak_reserved_bytes": 12.0, "peak_device_bytes": 11.0}, "out_of_range peak_device_bytes"),
    ],
)
def test_peaks_that_cannot_be(more, text):
    with raises(SpecError, text):
        RankPeak(peak_allocated_bytes=10.0, **more)


WHOLE = BenchArtifact(
    asked={**CONFIG, "devices": 64},
    config=CONFIG,
    given_up=(GivenUp(dimension="layers", asked=32, measured=2),),
    conditions=Conditions(device="h100-sxm", num_devices=8, clocks_mhz=(1980.0, 1755.0), throttled=("power",)),
    ranks=(
        RankPeak(
            peak_allocated_bytes=4e10,
            peak_reserved_bytes=4.4e10,
            phases=(PhasePeak(phase="idle", peak_allocated_bytes=1e10),),
        ),
    ),
    layers=(LayerMeasurement(kind="attention+dense", activation_bytes=1.5e9),),
    blocks=(BlockTiming(kind="head", part="weight_gradient", seconds=2e-3, p10_s=1e-3, p90_s=3e-3, repeats=64),),
    steps=(StepTiming(num_microbatches=4, seconds=0.3, repeats=5),),
    kernels=(
        GemmTiming(m=8.0, n=16.0, k=4.0, seconds=1e-5, repeats=3),
        GroupedGemmTiming(groups=4.0, m=8.0, n=16.0, k=4.0, contract="m", seconds=1e-5),
        AttentionTiming(
            batch=1.0, heads=8.0, kv_heads=2.0, q_len=64.0, kv_len=64.0, qk_dim=16.0, v_dim=16.0,
            causal=False, backward=True, dtype="fp32", seconds=1e-5,
        ),
        ElementwiseTiming(family="norm", bytes_moved=1e6, seconds=1e-5),
    ),
    collectives=(CollectiveTiming(kind="all_reduce", num_bytes=64.0, num_ranks=2, ranks_per_node=2, seconds=1e-4),),
)  # fmt: skip


def test_an_artifact_written_is_read_back_equal(tmp_path):
    path = tmp_path / "bench.json"
    write_bench(WHOLE, path)
    assert read_bench(path) == WHOLE
    assert "interrupted" not in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("bit", range(7))
def test_no_flipped_bit_of_an_artifact_changes_a_number_unnoticed(tmp_path, bit):
    path = tmp_path / "bench.json"
    write_bench(WHOLE, path)
    content = path.read_bytes()
    for place in range(bit, len(content), 7):
        path.write_bytes(content[:place] + bytes([content[place] ^ (1 << bit)]) + content[place + 1 :])
        try:
            bench = read_bench(path)
        except ForescaleError:
            continue
        assert replace(bench, unchecked=False) == WHOLE


def test_an_artifact_without_a_checksum_is_read_and_says_so(tmp_path):
    path = tmp_path / "bench.json"
    write_bench(WHOLE, path)
    values = json.loads(path.read_text(encoding="utf-8"))
    changed = values | {"steps": [{"num_microbatches": 4, "seconds": 0.2}]}
    path.write_text(json.dumps(changed), encoding="utf-8")
    with raises(ReaderError, "corrupted it"):
        read_bench(path)
    del changed["checksum"]
    path.write_text(json.dumps(changed), encoding="utf-8")
    bench = read_bench(path)
    assert (bench.unchecked, bench.steps[0].seconds) == (True, 0.2)
    assert of_artifact(bench, path).notes == (f"bench.json: {NO_CHECKSUM}",)
    assert "unchecked" not in bench_values(bench)


def test_nothing_measured_is_not_written(tmp_path):
    with raises(SpecError, "not_measured it"):
        write_bench(BenchArtifact(config=CONFIG), tmp_path / "bench.json")
    assert not list(tmp_path.iterdir())


def test_blocks_and_steps_need_their_run(tmp_path):
    with raises(SpecError, "required_with config, the run that they were measured in"):
        write_bench(BenchArtifact(blocks=WHOLE.blocks, steps=WHOLE.steps), tmp_path / "bench.json")


def test_equal_rows_of_several_files_become_one_and_others_stay():
    slow = replace(WHOLE.steps[0], seconds=0.5, p90_s=0.6, repeats=7)
    other = replace(
        WHOLE,
        conditions=Conditions(
            device="h100-sxm", date="2026-09-01", num_devices=4, clocks_mhz=(1980.0, 1700.0)
        ),
        ranks=(replace(WHOLE.ranks[0], peak_reserved_bytes=5e10),),
        layers=(LayerMeasurement(kind="attention+dense", activation_bytes=2.5e9),),
        steps=(slow, replace(slow, num_microbatches=8)),
        kernels=(replace(WHOLE.kernels[0], m=4.0),),
    )
    result = merged({"a.json": WHOLE, "b.json": other})
    assert result.steps == (
        StepTiming(num_microbatches=4, seconds=0.4, p10_s=0.3, p90_s=0.6, repeats=12),
        replace(slow, num_microbatches=8),
    )
    assert result.kernels == (*WHOLE.kernels, *other.kernels)
    assert result.blocks[0].seconds == 2e-3
    assert result.blocks[0].repeats == 128
    assert result.ranks == other.ranks
    assert result.layers == (LayerMeasurement(kind="attention+dense", activation_bytes=2e9),)
    assert result.conditions.clocks_mhz == (1980.0, 1755.0, 1700.0)
    assert (result.conditions.date, result.conditions.num_devices) == ("2026-09-01", 8)
    assert (result.config, result.given_up) == (CONFIG, WHOLE.given_up)


def test_timed_kernels_go_with_a_run_of_their_device():
    suite = BenchArtifact(kernels=WHOLE.kernels[1:], conditions=Conditions(device="h100-sxm"))
    result = merged({"suite.json": suite, "run.json": replace(WHOLE, kernels=WHOLE.kernels[:1])})
    assert result.config == CONFIG
    assert set(result.kernels) == set(WHOLE.kernels)


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (replace(WHOLE, config=CONFIG | {"model": "llama-3.1-70b"}), "model"),
        (replace(WHOLE, config=CONFIG | {"precision": {"compute": "fp8"}}), "precision"),
        (replace(WHOLE, config=CONFIG | {"strategy": {"tp": 4}}), "strategy"),
        (replace(WHOLE, conditions=Conditions(device="b200")), "device"),
    ],
)
def test_files_that_contradict_each_other_are_kept_apart(other, what):
    with raises(SpecError, "conflicts a.json, b.json") as refused:
        merged({"a.json": WHOLE, "b.json": other})
    assert what in str(refused.value)
