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
            "no_effect tensor_parallel",
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


def test_days_of_a_training(forescale):
    body = document(forescale(*STUDY, "1d", "--tokens", "1T", "--top", "1", "--json"))
    steps = 1e12 / (4096 * 2048)
    assert body["best"][0]["training_days"] == pytest.approx(steps * body["best"][0]["step_time_s"] / 86400)


def test_placements_and_panels_are_held(forescale):
    body = document(forescale(*STUDY, "summa", "--fix", "placement_tp1=4", "--fix", "panels=8", "--json"))
    assert {one["configuration"]["panels"] for one in body["best"]} == {8}
    assert {one["configuration"]["placement"]["tp1"] for one in body["best"]} == {4}


def test_fronts_and_scans(forescale):
    front = document(forescale(*STUDY, "1d", "--pareto", "--json"))
    assert front["front"][0]["step_time_s"] == pytest.approx(16.1887, abs=1e-4)
    question = ("gpt3-1t", "--cluster", "b200-nvs8", "--global-batch-size", "4096")
    words = ("--preset", "subramanian2024", "--tensor-parallel", "1d", "--device-counts", "512,2048")
    scan = document(forescale("search", *question, *words, "--json"))
    assert [point["step_time_s"] for point in scan["points"]] == pytest.approx([56.7876, 16.1887], abs=1e-4)


def test_the_length_is_the_model_s_everywhere(forescale):
    layout = ("--tp", "8", "--pp", "64", "--zero", "1", "--preset", "subramanian2024")
    body = document(forescale("project", *QUESTION, *layout, "--json"))
    assert body["workload"]["seq_len"] == 2048
    tree = document(forescale("explain", QUESTION[0], "step_time", *QUESTION[1:], *layout, "--json"))
    assert tree["tree"]["value"] == body["step_time_s"] == pytest.approx(17.9001, abs=1e-4)


def test_a_layer_as_a_table(forescale):
    layout = ("--tp", "8", "--pp", "64", "--zero", "1", "--preset", "subramanian2024")
    body = document(forescale("explain", *QUESTION, *layout, "--table", "--json"))
    assert body["schema"] == "forescale.operations/1"
    assert len(body["operations"]) == 28
    ran = forescale("explain", QUESTION[0], *QUESTION[1:], *layout, "--table")
    assert "(b,h/nt,l,eh)" in ran.out
    refused = forescale("explain", QUESTION[0], "step_time", *QUESTION[1:], *layout, "--table")
    assert (refused.code, refused.out) == (2, "")
    other = forescale("explain", *QUESTION, "--seq-len", "2048", "--table", "--preset", "playbook")
    assert "preset playbook does not support table of operations" in other.err


def test_the_report_of_the_search(forescale):
    words = ("--preset", "subramanian2024", "--tensor-parallel", "1d", "--top", "2", "--worst", "1")
    ran = forescale("report", *QUESTION, *words, "--details", "1")
    assert ran.code == 0, ran.err
    assert "The best 2 of 428 layouts that fit; 2,624 are legal." in ran.out
    assert "| 16.189 |" in ran.out


def test_figures_are_listed_and_computed(forescale):
    body = document(forescale("study", "subramanian2024", "--json"))
    names = [item["name"] for item in body["figures"]]
    assert {"fig1", "fig5a", "figA6b", "table1", "tableA3"} <= set(names)
    one = document(forescale("study", "--only", "1", "--json"))
    assert one["name"] == "fig1"
    assert [row["tp1"] for row in one["rows"]] == [1, 2, 4, 8, 16, 32]
    ran = forescale("study", "subramanian2024", "--only", "fig1")
    assert "fastest that fits" in ran.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(("--only", "fig9"), "unknown figure or table 'fig9'"), (("calculon",), "unknown study 'calculon'")],
)
def test_what_study_refuses(forescale, arguments, says):
    ran = forescale("study", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err
