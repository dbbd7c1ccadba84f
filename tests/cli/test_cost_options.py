"""The options that choose cost models do the same in every command."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
from tests.cli.questions import DENSE, LAYOUT, SEARCH

from forescale.cost.run_calibration import load_run_calibration
from forescale.validation.fit import rounded

KERNEL = {"op": "elementwise", "family": "norm", "bytes_moved": 4096 * 4096 / 4 * 2 * 2, "seconds": 1.0}


@pytest.fixture
def bench(tmp_path):
    path = tmp_path / "bench.json"
    document = {
        "schema": "forescale.bench/1",
        "kernels": [KERNEL],
        "conditions": {"device": "h100-sxm"},
    }
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def step(forescale, *options):
    ran = forescale("project", *DENSE, *LAYOUT, *options, "--json")
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def test_the_model_is_named_with_its_reason(forescale):
    usual, tile = step(forescale), step(forescale, "--compute", "tile")
    assert (usual["costs"]["compute"], tile["costs"]["compute"]) == ("roofline", "tile")
    assert usual["costs"]["reason"] == "run calibration published was fitted with it"
    assert usual["step_time_s"] != tile["step_time_s"]
    assert sum(usual["costs"]["time_sources"].values()) == pytest.approx(1.0)


def test_a_lower_clock_takes_longer(forescale):
    large = ("--micro-batch-size", 4)  # so that launches hide behind the kernels
    slow = step(forescale, *large, "--device-clock-mhz", 1000)
    assert slow["costs"]["device_clock_hz"] == 1e9
    assert slow["step_time_s"] > 1.2 * step(forescale, *large)["step_time_s"]
    assert forescale("project", *DENSE, *LAYOUT, "--device-clock-mhz", 0).code == 2


def test_timed_kernels_count_and_the_rest_is_named(forescale, bench):
    timed = step(forescale, "--measurements", bench)
    assert timed["time_s"]["norm"] > 1.0
    (note,) = [note["text"] for note in timed["notes"] if note["topic"] == "measured"]
    assert "of kernel time was measured (bench.json)" in note
    assert "by the roofline model: " in note
    assert timed["costs"]["time_sources"]["measured"] > 0.5


def test_timed_kernels_of_another_device_are_refused(forescale, bench):
    ran = forescale("project", *("llama-3.1-8b", "--cluster", "b200", "--devices", 16, *DENSE[5:]), "--measurements", bench)  # fmt: skip
    assert ran.code == 2
    assert "other_run bench.json" in ran.refused


def test_an_own_calibration_counts_in_every_command(forescale, tmp_path):
    base = load_run_calibration()
    slow = replace(base, name="slow", shared=replace(base.shared, memory=base.shared.memory / 2))
    path = tmp_path / "slow.json"
    path.write_text(json.dumps(rounded(asdict(slow))), encoding="utf-8")
    question = ("--calibration", path)
    expected = step(forescale, *question)["step_time_s"]
    assert expected > step(forescale)["step_time_s"]
    explained = forescale("explain", DENSE[0], "step_time", *DENSE[1:], *LAYOUT, *question, "--json")
    assert json.loads(explained.out)["tree"]["value"] == pytest.approx(expected, rel=1e-12)


def test_a_search_ranks_with_the_models_asked_for(forescale):
    ran = forescale("search", *SEARCH, "--compute", "tile", "--json")
    best = json.loads(ran.out)["best"][0]
    assert best["costs"]["compute"] == "tile"
    degrees = [f"--{name.replace('_', '-')}={best['strategy'][name]}" for name in ("tp", "pp", "vpp", "dp_shard", "dp_replicate", "zero")]  # fmt: skip
    sp = "--sp" if best["strategy"]["sp"] else "--no-sp"
    again = forescale("project", *DENSE, *degrees, sp, "--compute", "tile", "--json")
    if best["strategy"]["recompute"]["granularity"] == "none":
        assert json.loads(again.out)["step_time_s"] == pytest.approx(best["step_time_s"], rel=1e-12)


def test_a_plan_says_it_and_flags_go_over_it(forescale, tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text(
        'model = "llama-3.1-8b"\ncluster = "h100-sxm"\ndevices = 16\n[strategy]\ntp = 4\npp = 2\n'
        '[workload]\nseq_len = 4096\nglobal_batch_size = 64\n[cost]\ncompute = "tile"\n',
        encoding="utf-8",
    )
    tile = step(forescale, "--compute", "tile")["step_time_s"]
    question = json.loads(forescale("project", "--plan", plan, "--json").out)
    assert question["step_time_s"] == tile
    over = json.loads(forescale("project", "--plan", plan, "--compute", "roofline", "--json").out)
    assert over["costs"]["compute"] == "roofline"
    swept = json.loads(forescale("project", "--plan", plan, "--set", "cost.compute=roofline", "--json").out)
    assert swept["step_time_s"] == over["step_time_s"]
    compared = json.loads(forescale("compare", plan, plan, "--compute", "roofline", "--json").out)
    assert compared["figures"][0]["a"] == over["step_time_s"]
    remembered = json.loads(forescale("memory", "--plan", plan, "--json").out)
    assert remembered["step_time_s"] == tile


def test_validation_is_of_many_devices(forescale, bench, tmp_path):
    runs = tmp_path / "runs.csv"
    runs.write_text("id\n", encoding="utf-8")
    ran = forescale("validate", runs, "--measurements", bench)
    assert ran.code == 2
    assert "no_effect --measurements" in ran.refused
