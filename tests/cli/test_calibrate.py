from __future__ import annotations

import json
from pathlib import Path

from tests.cli.questions import DENSE, LAYOUT

RUNS = Path(__file__).parent.parent / "data" / "runs" / "excerpt_plans.csv"


def test_a_few_runs_move_the_calibration_towards_them(forescale, tmp_path):
    output = tmp_path / "own.json"
    ran = forescale("calibrate", RUNS, "--device", "b200", "--output", output, "--json")
    assert ran.code == 0, ran.err
    document = json.loads(ran.out)
    assert document["schema"] == "forescale.calibration/1"
    before, after = (sum(abs(run[when]) for run in document["runs"]) for when in ("before", "after"))
    assert after < before
    assert document["moves"]
    assert output.exists()


def test_a_projection_with_it_says_something_else(forescale, tmp_path):
    output = tmp_path / "own.json"
    assert forescale("calibrate", RUNS, "--device", "h100-sxm", "--output", output).code == 0
    plain = json.loads(forescale("project", *DENSE, *LAYOUT, "--json").out)
    local = json.loads(forescale("project", *DENSE, *LAYOUT, "--calibration", output, "--json").out)
    assert local["step_time_s"] != plain["step_time_s"]


def test_bad_input_is_one_sentence(forescale, tmp_path):
    missing = forescale("calibrate", tmp_path / "none.csv", "--output", tmp_path / "own.json")
    assert (missing.code, missing.out) == (2, "")
    (tmp_path / "half.json").write_text('{"name": ')
    broken = forescale("project", *DENSE, "--calibration", tmp_path / "half.json")
    assert broken.code == 2
    assert "half.json" in broken.err
    unwritable = forescale("calibrate", RUNS, "--device", "b200", "--output", tmp_path / "no" / "own.json")
    assert unwritable.code == 2
    nothing = forescale("calibrate", RUNS, "--device", "gaudi2", "--output", tmp_path / "own.json")
    assert nothing.code == 2


KERNELS = Path(__file__).parent.parent / "data" / "kernels" / "sample.csv"
LOG = Path(__file__).parent.parent / "data" / "collectives" / "h100_8_nodes_all_reduce.txt"
ON = ("--cluster", "h100-sxm", "--num-ranks", 64, "--ranks-per-node", 8)


def test_kernels_and_collectives_make_one_calibration(forescale, tmp_path):
    output = tmp_path / "own.json"
    ran = forescale("calibrate", "--kernels", KERNELS, "--collectives", LOG, *ON, "-o", output, "--json")
    assert ran.code == 0, ran.err
    entries = {entry["path"]: entry for entry in json.loads(ran.out)["entries"]}
    assert {"kernels.h100-sxm.gemm.bf16", "kernels.h100-sxm.tile.bf16", "links.h100-sxm.infiniband"} <= set(
        entries
    )
    network = entries["links.h100-sxm.infiniband"]
    assert network["after"]["median_abs"] < 0.03 < network["before"]["median_abs"]
    assert network["held_out"]["rows"] == network["rows"]
    question = (*DENSE, *LAYOUT)
    plain = json.loads(forescale("project", *question, "--json").out)
    local = json.loads(forescale("project", *question, "--calibration", output, "--json").out)
    assert local["step_time_s"] != plain["step_time_s"]
    notes = [note["text"] for note in local["notes"] if note["topic"] == "calibration"]
    assert notes == ["fits of one's own: h100-sxm (own), h100-sxm.infiniband"]
    other = ("llama-3.1-8b", "--cluster", "b200", "--devices", 16, *DENSE[5:], *LAYOUT)
    plain = json.loads(forescale("project", *other, "--json").out)
    local = json.loads(forescale("project", *other, "--calibration", output, "--json").out)
    assert local["step_time_s"] == plain["step_time_s"]
    assert local["notes"][-1]["text"] == "fits of one's own: none of b200"


def test_parts_are_kept_when_others_are_fitted(forescale, tmp_path):
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    assert forescale("calibrate", "--kernels", KERNELS, "--device", "h100-sxm", "-o", first).code == 0
    ran = forescale("calibrate", RUNS, "--device", "h100-sxm", "--base", first, "-o", second)
    assert ran.code == 0, ran.err
    assert "what moved most" in ran.out
    document = json.loads(second.read_text())
    assert set(document) == {"schema", "runs", "kernels"}
    assert document["kernels"] == json.loads(first.read_text())["kernels"]


def test_what_is_missing_is_one_sentence(forescale, tmp_path):
    output = ("-o", tmp_path / "own.json")
    bad = tmp_path / "bad.csv"
    bad.write_text("hardware,kind,dtype,m,n,k,time_us\nh100-sxm,gemm,bf16,-4,8,8,1\n")
    for arguments, problem in (
        ((), "missing a table to fit to"),
        (("--kernels", KERNELS), "required_with the --device that they were timed on"),
        (("--collectives", LOG), "required_with the --cluster that they were timed on"),
        (("--collectives", LOG, "--cluster", "h100-sxm"), "incomplete num_ranks"),
        (("--kernels", KERNELS, "--device", "b200", "--cluster", "h100-sxm"), "differs --device"),
        (("--kernels", bad, "--device", "h100-sxm"), "out_of_range it"),
        (("--kernels", tmp_path / "none.csv", "--device", "h100-sxm"), "not_found file"),
        (("--kernels", KERNELS, "--device", "mi300x"), "no kind of kernel on mi300x was timed 3 times"),
        (("--kernels", KERNELS, "--device", "v100-sxm3-32gb"), "incomplete rows of v100-sxm3-32gb"),
    ):
        ran = forescale("calibrate", *arguments, *output)
        assert (ran.code, ran.out) == (2, ""), arguments
        assert problem in ran.refused
        assert len(ran.err.strip().splitlines()) == 1
    assert not (tmp_path / "own.json").exists()


def test_runs_that_were_not_used_are_named_with_the_reason(forescale, tmp_path):
    header, *rows = RUNS.read_text().splitlines()
    kept = [line for line in rows if ",b200," in line][:3]
    output = tmp_path / "own.json"
    local = tmp_path / "runs.csv"
    local.write_text("\n".join([header, *kept[:2], kept[2].replace(",b200,", ",Q100,")]))
    ran = forescale("calibrate", local, "--output", output, "--json")
    assert ran.code == 0, ran.err
    document = json.loads(ran.out)
    assert len(document["runs"]) == 2
    assert document["left"] == [
        {"path": kept[2].split(",")[0], "rows": 1, "reason": document["left"][0]["reason"]}
    ]
    assert "'Q100'" in document["left"][0]["reason"]
    local.write_text("\n".join([header, kept[2].replace(",b200,", ",Q100,")]))
    none = forescale("calibrate", local, "--output", output)
    assert none.code == 2
    assert "Q100" in none.err
    assert "--cluster" in none.err


def test_runs_are_of_the_cluster_that_is_given(forescale, tmp_path):
    header, *rows = RUNS.read_text().splitlines()
    local = tmp_path / "runs.csv"
    local.write_text(
        "\n".join([header, *[line.replace(",b200,", ",ours,") for line in rows if ",b200," in line][:3]])
    )
    machine = tmp_path / "ours.toml"
    machine.write_text('base = "b200"\nname = "ours"\n')
    output = tmp_path / "own.json"
    ran = forescale("calibrate", local, "--cluster", machine, "--output", output, "--json")
    assert ran.code == 0, ran.err
    assert len(json.loads(ran.out)["runs"]) == 3
    board = forescale("validate", local, "--cluster", machine, "--json")
    assert board.code == 0, board.err
    assert json.loads(board.out)["summary"]["num_skipped"] == 0
