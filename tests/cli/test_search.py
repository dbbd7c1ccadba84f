from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec.structs import replace as replace_fields
from tests.cli.questions import DENSE, SEARCH
from tests.small import cluster, dense, workload

from forescale.cli.emit import EmitOptions
from forescale.cli.search import FileOptions, _answer
from forescale.search import search
from forescale.spec import Layout
from forescale.spec.phrases import replicas
from forescale.spec.space import Space

SURE = (
    "--cluster",
    "h100-sxm",
    "--devices",
    "8",
    "--seq-len",
    "8192",
    "--global-batch-size",
    "64",
    "--top",
    "1",
)


def document(ran):
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def test_one_screen_ranks_and_counts(forescale):
    ran = forescale("search", *SEARCH)
    assert ran.code == 0, ran.err
    for text in ("legal layouts", "tok/s/dev", "dominant"):
        assert text in " ".join(ran.out.split())
    assert len(ran.out.splitlines()) <= 25
    counts = re.compile(r"fit; [\d,]+ evaluated, .* ranked by step time")
    assert counts.search(ran.out) is None and counts.search(forescale("search", *SEARCH, "--verbose").out)


def test_json_is_best_first(forescale):
    body = document(forescale("search", *SEARCH, "--json"))
    assert body["schema"] == "forescale.search/1"
    times = [one["step_time_s"] for one in body["best"]]
    assert times == sorted(times)
    assert len(times) == 5
    assert body["num_legal"] >= body["num_feasible"] >= 5


def test_limits_of_a_plan_hold_until_a_flag_says_otherwise(forescale, tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text('objective = "peak_memory"\nmax_memory = "60 GiB"\n')
    question = (*SEARCH, "--plan", plan)
    local = document(forescale("search", *question, "--json"))
    over = document(
        forescale("search", *question, "--objective", "step_time", "--max-memory", "50GiB", "--json")
    )
    usual = document(forescale("search", *SEARCH, "--max-memory", "50GiB", "--json"))
    assert local["objective"] == "peak_memory"
    assert over["objective"] == "step_time"
    assert over["best"] == usual["best"]
    assert over["best"][0]["step_time_s"] < local["best"][0]["step_time_s"]
    refused = forescale("search", *question, "--pareto")
    assert "no_effect --pareto" in refused.refused


def test_a_batch_need_not_divide_by_the_devices_under_a_framework(forescale):
    question = (
        "search llama-3.1-8b --cluster h100-sxm --devices 16 --seq-len 2048 --global-batch-size 24 --fix tp=2"
    )
    result = document(forescale(*question.split(), "--framework", "nanotron", "--json"))
    layouts = [one["strategy"] for one in result["best"]]
    assert {24 % (layout["dp_replicate"] * layout["dp_shard"]) for layout in layouts} == {0}


def test_what_the_framework_cannot_be_told_of_a_layout_stands_with_it(forescale):
    question = "search llama-3.1-8b --cluster h100-sxm --devices 16 --seq-len 2048 --global-batch-size 24 --fix tp=2 --json"
    for option, explicit in (("--framework", True), ("--for", False)):
        for item in document(forescale(*question.split(), option, "nanotron"))["best"]:
            beyond = item["strategy"]["vpp"] > 1
            text = f"nanotron cannot run this: vpp {item['strategy']['vpp']} (it takes 1)"
            assert any(note["text"].startswith(text) for note in item["notes"]) is beyond
            assert explicit or not beyond


def test_objective_is_what_is_ranked_by(forescale):
    body = document(forescale("search", *SEARCH, "--objective", "peak_memory", "--json"))
    peaks = [one["memory"]["peak_bytes"] for one in body["best"]]
    assert peaks == sorted(peaks)


@pytest.mark.parametrize(
    ("fix", "holds"),
    [
        ("tp=4", lambda one: one["tp"] == 4),
        ("zero=1,2", lambda one: one["zero"] in {1, 2}),
        ("recompute=full", lambda one: one["recompute"]["granularity"] == "full"),
        ("sp=true", lambda one: one["sp"] is True),
        ("placement=tp=2,dp=4;tp=4,pp=2", lambda one: one["placement"] is not None),
        ("axis-order=tp-cp-pp-dp", lambda one: one["axis_order"] == ["tp", "cp", "pp", "dp"]),
    ],
)
def test_fixed_dimensions_hold(forescale, fix, holds):
    body = document(forescale("search", *SEARCH, "--fix", "pp=2", "--fix", fix, "--json"))
    assert body["best"]
    assert all(holds(one["strategy"]) for one in body["best"])


def test_memory_is_kept_below_the_limit(forescale):
    body = document(forescale("search", *SEARCH, "--max-memory", "30GiB", "--json"))
    assert all(one["memory"]["peak_bytes"] <= 30 * 2**30 for one in body["best"])


def test_layouts_go_to_csv_and_parquet(forescale, tmp_path):
    table, columns = tmp_path / "best.csv", tmp_path / "best.parquet"
    assert forescale("search", *SEARCH, "--csv", table, "--parquet", columns).code == 0
    rows = list(csv.DictReader(table.read_text(encoding="utf-8").splitlines()))
    assert [row["rank"] for row in rows] == ["1", "2", "3", "4", "5"]
    assert float(rows[0]["step_time_s"]) <= float(rows[-1]["step_time_s"])
    parquet = pytest.importorskip("pyarrow.parquet")
    assert parquet.read_table(columns).num_rows == 5


def test_parquet_without_pyarrow_names_the_extra(forescale, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    ran = forescale("search", *SEARCH, "--parquet", tmp_path / "best.parquet")
    assert ran.code == 2
    assert "extra_missing --parquet" in ran.refused


def test_a_plan_without_a_layout_is_searched(forescale, tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text(
        'model = "llama-3.1-8b"\ncluster = "h100-sxm"\ndevices = 8\n'
        "[workload]\nseq_len = 4096\nglobal_batch_size = 64\n",
        encoding="utf-8",
    )
    body = document(forescale("search", "--plan", plan, "--fix", "cp=1", "--fix", "micro_batch_size=1", "--top", 1, "--json"))  # fmt: skip
    assert body["best"][0]["cluster"]["num_devices"] == 8


def test_what_fits_nowhere_gets_a_table(forescale):
    ran = forescale("search", "llama-3.1-405b", *SEARCH[1:], "--fix", "recompute=full")
    assert ran.code == 2
    assert ran.out == ""
    assert "fits" in ran.err
    assert "layouts refused" in ran.err
    assert "memory" in ran.err


def test_a_checkpoint_and_a_time_limit_go_with_one_ranking(forescale, tmp_path):
    file = tmp_path / "search.npz"
    first = document(forescale("search", *SEARCH, "--json", "--checkpoint", str(file), "--time-limit", "600"))
    again = document(forescale("search", *SEARCH, "--json", "--checkpoint", str(file)))
    for name in ("elapsed_s",):
        del first[name], again[name]
    assert again == first
    assert first["gap"] == 0.0
    assert first["num_evaluated"] + first["num_over_memory"] + first["num_beaten"] == first["num_legal"]
    ran = forescale("search", *SEARCH, "--pareto", "--checkpoint", str(file))
    assert ran.code != 0
    assert "--checkpoint" in ran.err
    assert forescale("search", *SEARCH, "--time-limit", "0").code != 0


def test_dispatcher_and_offload_can_be_chosen_and_are_named(forescale):
    wide = forescale(
        "search",
        *SEARCH,
        "--allow",
        "activation_offload=all",
        "--fix",
        "optimizer_offload=0.5",
        "--top",
        "10",
    )
    assert wide.code == 0, wide.err
    assert "50 % of optimizer on host" in " ".join(wide.out.split())
    wrong = forescale("search", *SEARCH, "--allow", "zzz=1")
    assert wrong.code == 2
    assert (wrong.error.code, wrong.error.allowed[:3]) == ("unknown_key", ("tp", "cp", "ep"))


def test_the_fastest_that_fits_for_sure_is_named(forescale):
    ran = forescale("search", "llama-3.1-8b", *SURE)
    body = document(forescale("search", "llama-3.1-8b", *SURE, "--json"))
    verdicts = {one["memory"]["verdict"] for one in body["best"]}
    assert verdicts == {"AT RISK"}
    assert body["surest"]["memory"]["verdict"] == "FITS"
    cost = body["surest"]["step_time_s"] / body["best"][0]["step_time_s"] - 1.0
    assert body["margin_cost"] == cost
    text = " ".join(ran.out.split())
    assert (
        f"fits with margin takes {body['surest']['step_time_s']:.3f} s per step, {100 * cost:.1f} % more"
        in text
    )
    assert "AT RISK: may run out of memory" in text
    assert (
        "#1 is the fastest layout whose expected memory fits" in text and "layout that fits, of" not in text
    )
    assert "✓: The fastest layout that fits with margin" in text
    safe = document(forescale("search", "llama-3.1-8b", *SURE, "--safe", "--json"))
    assert safe["best"][0]["strategy"] == body["surest"]["strategy"]
    assert {one["memory"]["verdict"] for one in safe["best"]} == {"FITS"}


@pytest.mark.parametrize("number", range(4))
def test_what_is_held_fixed_is_opened_by_its_option(forescale, number):
    small = (*DENSE[:-2], "--global-batch-size", "64", "--fix", "tp=8", "--top", "1", "--json")
    held_fixed = document(forescale("search", *small))["held_fixed"]
    assert [item["dimension"] for item in held_fixed] == ["framework", "schedule", "overlap", "graphs"]
    option = held_fixed[number]["option"].replace("NAME", "megatron-core").split()
    opened = document(forescale("search", *small, *option))
    assert held_fixed[number] not in opened["held_fixed"]


def test_relaxed_constraints_are_a_table_and_one_binds(forescale):
    ran = forescale("search", *SEARCH, "--fix", "tp=8", "--relax")
    assert ran.code == 0, ran.err
    assert "binds most: tp free" in " ".join(ran.out.split())
    body = document(forescale("search", *SEARCH, "--fix", "tp=8", "--relax", "--json"))
    assert body["binding"] == "tp"
    assert body["relaxations"][0]["strategy"]["tp"] != 8
    assert {"network", "memory", "schedule"} <= {item["constraint"] for item in body["relaxations"]}


def test_where_nothing_fits_the_changes_that_help_are_listed(forescale):
    names = ("llama-3.1-70b", "--cluster", "h100-sxm", "--devices", "8", "--seq-len", "4096")
    ran = forescale("search", *names, "--global-batch-size", "16", "--fix", "cp=1", "--fix", "vpp=1")
    assert ran.code == 2
    text = " ".join(ran.err.split())
    assert "more per device fits" in text
    assert "optimizer on the host fits" in text
    assert "devices fits" in text
    assert "For example: forescale search llama-3.1-70b" in text and "--offload-optimizer 1" in text


@pytest.mark.parametrize("option", ["--relax", "--safe"])
def test_what_is_of_one_ranking_is_refused_elsewhere(forescale, option):
    ran = forescale("search", *SEARCH, "--pareto", option)
    assert ran.code == 2
    assert f"no_effect {option}" in ran.refused


def test_the_safest_layout_is_shown_once_whatever_file_the_question_came_from(forescale):
    folder = Path(__file__).parents[1] / "data" / "huggingface" / "llama-like"
    ran = forescale("search", folder, *SEARCH[1:])
    assert ran.code == 0, ran.err
    assert "note (ignored)" in ran.out
    assert "✓" not in ran.out  # the best layout is the safest, too
    assert document(forescale("search", folder, *SEARCH[1:], "--json"))["surest"]["notes"]


def test_replicas_and_shards_are_told_apart():
    assert replicas(Layout(dp_replicate=2, dp_shard=1)) == "2×1"
    assert replicas(Layout(dp_replicate=2, dp_shard=1, zero=0)) == "2"
    assert replicas(Layout(dp_replicate=1, dp_shard=2)) == "2"
    assert replicas(Layout(dp_replicate=2, dp_shard=8)) == "2×8"


def test_a_space_file_with_degrees_that_leave_devices_idle_is_refused(forescale, tmp_path):
    (tmp_path / "space.toml").write_text("[fix]\ntp = [3]\n")
    ran = forescale("search", *SEARCH, "--space", tmp_path / "space.toml")
    assert (ran.code, ran.out) == (2, "")
    assert "not_a_factor the space has tp" in ran.refused


def test_a_dimension_that_is_held_twice_is_refused(forescale):
    """The last one counted, and --allow of two schedules one after the other tried one of them."""
    ran = forescale("search", *DENSE, "--allow", "schedule=zbv", "--allow", "schedule=dualpipe")
    assert (ran.code, ran.out) == (2, "")
    assert "given_twice --allow schedule" in ran.refused


def test_a_limit_of_host_memory_changes_no_result(forescale):
    whole = document(forescale("search", *SEARCH, "--json"))
    limited = document(forescale("search", *SEARCH, "--json", "--max-host-memory", "80MiB"))
    assert limited.pop("host_memory_bytes") <= 80 * 2**20 < whole.pop("host_memory_bytes")
    del limited["elapsed_s"], whole["elapsed_s"]
    assert limited == whole


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (("--max-host-memory", "20MiB"), "out_of_range max_host_memory"),
        (("--max-host-memory", "4"), "out_of_range --max-host-memory"),
        (("--max-host-memory", "4GiB", "--pareto"), "no_effect --max-host-memory"),
    ],
)
def test_a_limit_of_host_memory_that_cannot_hold_is_refused(forescale, more, expected):
    ran = forescale("search", *SEARCH, *more)
    assert ran.code == 2
    assert expected in ran.refused


def test_the_line_to_reproduce_names_the_row_that_fits_with_margin(capsys):
    """A search in several processes returns that row as an object of its own."""
    space = Space(cp=(1,), zero=(1,), micro_batch_size=(1,))
    found = search(dense(), cluster(4), workload(global_batch_size=16), space=space, top=2)
    surest = replace_fields(found.best[1])
    assert surest is not found.best[1] and surest == found.best[1]
    _answer(found.question, replace(found, surest=surest), EmitOptions(), FileOptions())
    assert "best.json#2" in capsys.readouterr().out


def test_the_note_on_the_recipe_does_not_settle_what_the_search_chooses(forescale):
    """The row shown has another dispatcher and overlap than the recipe of the framework."""
    asks = ("--cluster", "h200", "--devices", 64, "--seq-len", 4096, "--global-batch-size", 256)
    asks = (*asks, "--framework", "megatron-bridge@26.08")
    fixed = ("--fix", "tp=1", "--fix", "cp=1", "--fix", "pp=4", "--fix", "ep=16", "--fix", "vpp=1")
    answer = " ".join(forescale("search", "qwen3-235b-a22b", *asks, *fixed, "--top", 1).out.split())
    assert "except those that the search chooses (dispatcher, graphs, overlap)" in answer
    assert "not applicable to this layout" not in answer
    assert "overlap expert off" not in answer
