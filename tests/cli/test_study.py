"""`forescale search --preset subramanian2024`."""

from __future__ import annotations

import csv
import json

import pytest

QUESTION = ("gpt3-1t", "--cluster", "b200-nvs8", "--devices", "2048", "--global-batch-size", "4096")
STUDY = ("search", *QUESTION, "--preset", "subramanian2024", "--tensor-parallel")


def document(ran):
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


@pytest.mark.parametrize(
    ("kind", "step", "candidates"), [("1d", 16.1887, 2624), ("2d", 15.6847, 20920), ("summa", 15.3126, 57264)]
)
def test_the_published_best(forescale, kind, step, candidates):
    body = document(forescale(*STUDY, kind, "--json"))
    assert body["schema"] == "forescale.subramanian2024/1"
    assert body["best"][0]["step_time_s"] == pytest.approx(step, abs=1e-4)
    assert (body["num_candidates"], len(body["best"])) == (candidates, 10)
    assert (body["tensor_parallel"], body["seq_len"]) == (kind, 2048)


def test_one_screen(forescale):
    ran = forescale(*STUDY, "summa", "--without-quirk", "free-slow-hops")
    assert ran.code == 0, ran.err
    for text in ("57,264 configurations", "21,203 fit", "preset subramanian2024, summa", "tp1:4", "panels"):
        assert text in " ".join(ran.out.split())
    lines = ran.out.splitlines()
    assert lines[-1] == "without free_slow_hops"
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 110


def test_dimensions_memory_and_rows_are_as_asked(forescale, tmp_path):
    path = tmp_path / "best.csv"
    names = ("--fix", "pp=64", "--fix", "micro_batch_size=1", "--max-memory", "100GB", "--top", "3")
    body = document(forescale(*STUDY, "1d", *names, "--csv", path, "--json"))
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    assert len(rows) == len(body["best"]) == 3
    assert {row["pp"] for row in rows} == {"64"}
    assert float(rows[0]["step_time_s"]) == body["best"][0]["step_time_s"]
    assert float(rows[0]["time_s_bubble"]) == body["best"][0]["time_s"]["bubble"]
    assert int(rows[0]["placement_tp1"]) == body["best"][0]["configuration"]["placement"]["tp1"]
    assert all(sum(one["memory_bytes"].values()) <= 100e9 for one in body["best"])


def test_all_quirks_can_be_left_out(forescale):
    body = document(forescale(*STUDY, "1d", "--without-quirk", "all", "--json"))
    assert set(body["quirks"].values()) == {False}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((*STUDY[:-1],), "missing --tensor-parallel"),
        ((*STUDY, "1d", "--without-quirk", "slow"), "unknown_name quirk"),
        ((*STUDY, "1d", "--fix", "tp=4"), "unknown_key tp"),
        ((*STUDY, "1d", "--fix", "recompute=full"), "wrong_type --fix"),
        ((*STUDY, "1d", "--objective", "peak_memory"), "not_one_of --objective of --preset subramanian2024"),
        (
            ("search", *QUESTION, "--seq-len", "2048", "--tensor-parallel", "1d"),
            "no_effect --tensor-parallel",
        ),
        ((*STUDY, "1d", "--max-memory", "1GiB"), "none of the 2,624 configurations of gpt3-1t fits 1.00 GiB"),
    ],
)
def test_what_cannot_be_asked(forescale, arguments, says):
    ran = forescale(*arguments)
    assert ran.code == 2
    assert says in ran.refused


def test_a_plan_file_can_ask(forescale, tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text(
        'model = "vit-era5"\ncluster = "a100-nvs4"\ndevices = 512\npreset = "subramanian2024"\n'
        "[workload]\nseq_len = 64800\nglobal_batch_size = 4096\n",
        encoding="utf-8",
    )
    body = document(forescale("search", "--plan", plan, "--tensor-parallel", "summa", "--json"))
    assert (body["model"], body["cluster"], body["num_devices"]) == ("vit-era5", "a100-nvs4", 512)
