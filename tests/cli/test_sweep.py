from __future__ import annotations

import json

import pytest
from tests.sweep.questions import TEXT

from forescale.units import format_count


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text(TEXT + "[vary]\ndevices = [8, 16]\nnic_bandwidth = ['x1', 'x2']\n", encoding="utf-8")
    return path


def test_every_point_is_shown_and_the_best_is_marked(forescale, file):
    ran = forescale("sweep", file, "--jobs", "1")
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    assert lines[0].startswith("sweep · llama-3.1-8b · h100-sxm · seq_len 4,096")
    assert sum("tp" in line or "shard" in line for line in lines[3:7]) == 4
    assert sum("▶" in line for line in lines) == 1
    assert "4 points, 4 with a layout" in ran.out
    assert "∝" in ran.out or len(lines) < 12


def test_days_and_money_are_shown_where_they_are_known(forescale, file):
    assert "days" not in forescale("sweep", file, "--jobs", "1").out
    explicit = ("sweep", file, "--jobs", "1", "--set", "workload.tokens=1e12")
    rows = json.loads(forescale(*explicit, "--json").out)["rows"]
    lines = forescale(*explicit).out.splitlines()
    assert "step days cost tok/s/dev" in " ".join(lines[2].split())
    for line, row in zip(lines[3:], rows, strict=False):
        assert f" {row['calendar_days']:,.1f} " in line
        assert f" {format_count(row['calendar_cost'])} " in line


def test_many_points_are_shown_by_what_is_varied(forescale, file):
    steps = "vary.nic_bandwidth={ from = 'x1', to = 'x16', steps = 15 }"
    ran = forescale("sweep", file, "--jobs", "1", "--set", steps)
    assert ran.code == 0, ran.err
    assert "30 points" in ran.out
    assert "values not shown" in ran.out
    assert ran.out.count("▶") == 2
    assert len(ran.out.splitlines()) <= 26


def test_samples_are_shown_best_first_with_what_matters(forescale, file):
    ran = forescale(
        "sweep", file, "--jobs", "1", "--set", "vary={ flops = { from = 'x1', to = 'x4' } }",
        "--set", "sample={ points = 12, seed = 2 }",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert "step time ∝ flops^-0." in ran.out
    assert [line[:1] for line in ran.out.splitlines()[3:8]] == list("12345")


def test_an_output_folder_has_table_pictures_and_page_and_is_gone_on_with(forescale, file, tmp_path):
    out = tmp_path / "out"
    command = (
        "sweep",
        file,
        "--jobs",
        "1",
        "--output",
        out,
        "--plot",
        "line:x=nic_bandwidth,y=mfu,by=devices",
    )
    ran = forescale(*command)
    assert ran.code == 0, ran.err
    assert sorted(item.name for item in out.iterdir()) == [
        "plots",
        "points.jsonl",
        "report.html",
        "results.parquet",
        "sweep.json",
    ]
    assert [item.name for item in sorted((out / "plots").iterdir())] == [
        "01-mfu-over-nic_bandwidth.vl.json",
    ]
    assert "4 known before" in forescale(*command).out
    ran = forescale(*command, "--set", "vary.devices=[8, 32]")
    assert ran.code == 2
    assert "file_exists" in ran.refused


def test_a_dry_run_says_what_would_be_asked(forescale, file, tmp_path):
    ran = forescale("sweep", file, "--dry-run", "--output", tmp_path / "out")
    assert "nic_bandwidth  ×1, ×2" in ran.out
    assert "4 points" in ran.out
    assert not (tmp_path / "out").exists()


def test_the_metric_chooses_the_best(forescale, file):
    fastest = json.loads(forescale("sweep", file, "--jobs", "1", "--metric", "step_time_s", "--json").out)
    assert fastest["rows"][fastest["best"]]["num_devices"] == 16
    assert fastest["rows"][fastest["best"]]["step_time_s"] == min(
        row["step_time_s"] for row in fastest["rows"]
    )


def test_the_page_says_what_points_are_compared_by(forescale, file, tmp_path):
    for metric, message in (("mfu", "Best by MFU."), ("peak_bytes", "Best by peak memory.")):
        out = tmp_path / metric
        assert forescale("sweep", file, "--jobs", "1", "--metric", metric, "--output", out).code == 0
        page = (out / "report.html").read_text(encoding="utf-8")
        assert message in page
        assert f">forescale sweep {file} --jobs 1 --metric {metric} --output {out}</pre>" in page


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--metric", "mfuu"), "unknown_name metric"),
        (("--jobs", "0"), "out_of_range --jobs"),
        (("--restart",), "required_with --output"),
        (("--plot", "scaling"), "required_with --output"),
        (("--format", "parquet"), "required_with --output"),
        (("--ray-address", "auto"), "required_with --executor ray"),
        (("--dry-run", "--json"), "no_effect --json"),
        (("--set", "vary.devises=[8]"), "unknown_key devises"),
        (("--executor", "slurm"), "local"),
    ],
)
def test_what_cannot_be_asked_is_one_sentence(forescale, file, options, said):
    ran = forescale("sweep", file, *options)
    assert ran.code == 2
    assert said in ran.refused
    assert len(ran.err.strip().splitlines()) == 1


def test_a_sweep_in_which_nothing_fits_says_so(forescale, file):
    ran = forescale("sweep", file, "--jobs", "1", "--set", "vary={ hbm_capacity = ['1 GiB', '2 GiB'] }")
    assert ran.code == 0
    assert "nothing fits at any point" in ran.out
    assert "2 infeasible" in ran.out


def test_examples_can_be_read():
    from pathlib import Path

    from forescale.sweep import read_sweep

    folder = Path(__file__).parents[2] / "examples"
    names = ("hbm-doubled", "nvlink-domain", "strong-scaling", "design-space")
    counts = [read_sweep(folder / f"{name}.toml").axes.num_points for name in names]
    assert counts == [4, 6, 12, 64]
