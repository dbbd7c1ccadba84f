from __future__ import annotations

import csv
import json
import shlex
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from tests.errors import raises

import forescale as fs
from forescale.errors import SpecError

ONE = ("--cluster", "h100-sxm", "--devices", "8", "--seq-len", "8192", "--global-batch-size", "64")
FITS = ("llama-3.1-8b", *ONE, "--zero", "3")
ENDED = Path(__file__).parents[1] / "data" / "out_of_memory"
CASES = [*csv.DictReader((ENDED / "cases.csv").read_text(encoding="utf-8").splitlines())]


def document(forescale, *arguments):
    ran = forescale("check", *arguments, "--json")
    return ran.code, json.loads(ran.out)


@pytest.mark.parametrize(
    ("arguments", "code", "status", "findings"),
    [
        (FITS, 0, "passes", []),
        (("llama-3.1-8b", *ONE, "--zero", "1"), 3, "fails", ["memory"]),
        ((*FITS, "--max-step-time", "1s"), 3, "fails", ["step_time"]),
        ((*FITS, "--max-step-time", "7s"), 0, "passes", ["step_time"]),
        ((*FITS, "--max-step-time", "7s", "--strict"), 3, "fails", ["step_time"]),
        ((*FITS, "--min-mfu", "60%"), 3, "fails", ["mfu"]),
        ((*FITS, "--min-mfu", "0.2"), 0, "passes", []),
        ((*FITS, "--tokens", "1T", "--deadline", "10d"), 3, "fails", ["deadline"]),
        ((*FITS, "--tokens", "1T", "--max-cost", "$1K", "--price", "$2/hr"), 3, "fails", ["cost"]),
        ((*FITS, "--max-memory", "20GiB"), 3, "fails", ["memory"]),
        (("llama-3.1-8b", *ONE, "--tp", "3"), 4, "illegal", ["not_divisible"]),
        (
            ("llama-3.1-8b", *ONE, "--pp", "2", "--zero", "2", "--framework", "deepspeed"),
            4,
            "illegal",
            ["illegal_layout"],
        ),
        (("no-such-model", *ONE), 2, "unreadable", ["unknown_name"]),
        ((*FITS, "--deadline", "10d"), 2, "unreadable", ["missing"]),
    ],
)
def test_exit_code_status_and_findings(forescale, arguments, code, status, findings):
    returned, body = document(forescale, *arguments)
    assert (returned, body["status"]) == (code, status)
    assert [finding["code"] for finding in body["checks"][0]["findings"]] == findings


OPEN = ("llama-3.1-8b", "--cluster", "h100-sxm", "--seq-len", "2048", "--global-batch-size", "64")


def test_a_question_without_devices_is_checked_on_as_many_as_fit(forescale):
    code, answer = document(forescale, *OPEN, "--zero", "3")
    (one,) = answer["checks"]
    assert (code, one["status"], one["verdict"]) == (0, "passes", "FITS")
    (finding,) = one["findings"]
    assert (finding["code"], finding["level"], finding["value"]) == ("devices", "warning", 1.0)
    assert "--devices" in finding["fix"]
    stated = document(forescale, *OPEN, "--zero", "3", "--devices", "4")[1]["checks"][0]
    assert stated["peak_bytes"] == one["peak_bytes"]
    assert document(forescale, *OPEN, "--zero", "3", "--strict")[0] == 3


def test_a_question_without_devices_fails_if_more_do_not_help(forescale):
    code, answer = document(forescale, *OPEN, "--zero", "0")
    assert (code, [item["code"] for item in answer["checks"][0]["findings"]]) == (3, ["memory"])


def test_of_several_the_gravest_status_decides(forescale, tmp_path):
    broken = tmp_path / "broken.yaml"
    broken.write_text("nothing: here\n")
    code, body = document(forescale, "llama-3.1-8b", "mixtral-8x7b", broken, *ONE, "--zero", "3")
    assert code == 2
    assert [check["status"] for check in body["checks"]] == ["passes", "fails", "unreadable"]
    assert document(forescale, "llama-3.1-8b", "mixtral-8x7b", *ONE, "--zero", "3")[0] == 3


def test_every_configuration_of_a_folder(forescale, tmp_path):
    (tmp_path / "runs").mkdir()
    script = "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 16 --hidden-size 2048 --ffn-hidden-size 8192 "
    script += (
        "--num-attention-heads 16 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 "
    )
    script += "--global-batch-size 64 --vocab-size 32000 --swiglu --bf16 --use-distributed-optimizer\n"
    (tmp_path / "runs" / "train.sh").write_text(script)
    (tmp_path / "notes.yaml").write_text("a: 1\n")
    code, body = document(forescale, "--all", tmp_path, "--cluster", "h100-sxm")
    assert code == 0
    assert [check["subject"] for check in body["checks"]] == [str(tmp_path / "runs" / "train.sh")]
    assert body["skipped"] == [str(tmp_path / "notes.yaml")]


def test_junit_and_annotations(forescale, tmp_path):
    ran = forescale(
        "check",
        "mixtral-8x7b",
        "llama-3.1-8b",
        *ONE,
        "--zero",
        "3",
        "--junit",
        tmp_path / "out.xml",
        "--github",
    )
    suite = ElementTree.parse(tmp_path / "out.xml").getroot()
    assert suite.attrib["tests"] == "2"
    assert [case.attrib["name"] for case in suite] == ["mixtral-8x7b", "llama-3.1-8b"]
    assert [[item.attrib["type"] for item in case.findall("failure")] for case in suite] == [["memory"], []]
    lines = ran.out.splitlines()
    assert lines[0].startswith("::error file=mixtral-8x7b,title=forescale memory::")
    assert lines[1].startswith("::notice ")
    assert ran.code == 3


@pytest.mark.parametrize("quantity", ["micro_batch_size", "seq_len", "devices"])
def test_what_is_solved_passes_and_the_next_does_not(forescale, quantity):
    ran = forescale("check", *FITS, "--max-memory", "75GiB", "--strict", "--solve", quantity, "--json")
    body = json.loads(ran.out)
    flag = f"--{quantity.replace('_', '-')}"
    values = dict(zip(FITS[1::2], FITS[2::2], strict=True))
    for value, status in ((body["value"], "passes"), (body["next"] and body["next"]["value"], "fails")):
        if value is not None:
            line = [item for pair in {**values, flag: str(value)}.items() for item in pair]
            asked = ("llama-3.1-8b", *line, "--max-memory", "75GiB", "--strict")
            assert document(forescale, *asked)[1]["status"] == status


def test_tokens_of_a_budget_cost_it(forescale):
    """The best layout is searched where none is given; the tokens are those whose run costs the budget (`run` adds its spread)."""
    limits = ("--price", "2", "--max-cost", "10K", "--solve", "tokens", "--json")
    body = json.loads(forescale("check", "llama-3.1-8b", *ONE, *limits).out)
    assert body["next"]["value"] <= 1.002 * body["value"]
    given = json.loads(forescale("check", *FITS, *limits).out)
    assert given["value"] <= body["value"]
    line = ("--tokens", str(given["value"]), "--price", "2", "--json")
    assert json.loads(forescale("run", *FITS, *line).out)["money"]["expected"] == pytest.approx(1e4, rel=0.03)


def test_tokens_without_a_limit_are_refused(forescale):
    ran = forescale("check", *FITS, "--solve", "tokens")
    assert ran.refused.startswith("required_with --deadline or --max-cost")


def test_in_python():
    keywords = {"devices": 8, "seq_len": 8192, "global_batch_size": 64, "zero": 3}
    result = fs.check("llama-3.1-8b", "h100-sxm", limits={"min_mfu": 0.9}, **keywords)
    assert (result.status, [finding.code for finding in result.findings]) == ("fails", ["mfu"])
    assert result.findings[0].value == result.projection.mfu
    with raises(fs.ForescaleError, "unknown_key min_mfuu"):
        fs.check("llama-3.1-8b", "h100-sxm", limits={"min_mfuu": 0.9}, **keywords)


def test_no_value_passes(forescale):
    ran = forescale("check", *FITS, "--max-memory", "1GiB", "--solve", "micro_batch_size")
    assert ran.code == 2
    assert ran.refused.startswith("no_value_passes micro_batch_size")
    assert issubclass(SpecError, fs.ForescaleError)


def test_fewest_devices_of_a_layout_that_never_fits_name_the_search(forescale):
    ran = forescale("check", *FITS, "--max-memory", "1GiB", "--solve", "devices")
    assert ran.refused.startswith("no_value_passes devices")
    assert "forescale search --device-counts" in ran.err


def test_the_action_and_the_hook_run_the_command(pytestconfig):
    action = yaml.safe_load((pytestconfig.rootpath / "action.yml").read_text())
    hook = yaml.safe_load((pytestconfig.rootpath / ".pre-commit-hooks.yaml").read_text())[0]
    run = " ".join(step.get("run", "") for step in action["runs"]["steps"])
    assert action["runs"]["using"] == "composite"
    assert "forescale check" in run and "--github" in run
    assert hook["entry"] == "forescale check"


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if not case["missed"]],
    ids=lambda case: f"{case['source']} {case['expected']}",
)
@pytest.mark.usefixtures("usual_frameworks")
def test_published_runs_end_as_check_says(forescale, monkeypatch, case):
    monkeypatch.chdir(ENDED)
    _, said = document(forescale, *shlex.split(case["arguments"]))
    (one,) = said["checks"]
    if case["expected"] == "passes":
        assert one["status"] == "passes"
    else:
        assert one["status"] == "fails" or one["verdict"] == "AT RISK"


def test_a_model_whose_configurations_are_not_written_is_not_illegal(forescale):
    hybrid = ("nemotron-3-nano-30b-a3b", "--ep", 8, "--framework", "megatron-bridge")
    _, said = document(forescale, *hybrid, *ONE)
    assert [finding["code"] for finding in said["checks"][0]["findings"]] != ["illegal_layout"]
    assert said["checks"][0]["status"] != "illegal"


def test_an_older_release_whose_files_are_not_written_is_not_illegal(forescale):
    _, said = document(forescale, *FITS, "--framework", "torchtitan@0.2")
    assert said["checks"][0]["status"] == "passes"


TUNED = (
    "llama-2-13b",
    "--cluster",
    "3090",
    "--devices",
    "1",
    "--seq-len",
    "4096",
    "--global-batch-size",
    "1",
)


@pytest.mark.usefixtures("usual_frameworks")
def test_the_recompute_that_lets_a_layout_fit_is_named(forescale):
    tuned = (*TUNED, "--lora-rank", "16", "--frozen-dtype", "nf4")
    code, said = document(forescale, *tuned)
    (finding,) = said["checks"][0]["findings"]
    assert code == 3
    assert "with full recompute the layout fits" in finding["fix"]
    code, said = document(forescale, *tuned, "--recompute", "full")
    assert (code, said["checks"][0]["status"]) == (0, "passes")
    _, said = document(forescale, *tuned, "--recompute", "none")
    assert "recompute" not in said["checks"][0]["findings"][0]["fix"]


def test_the_longest_sequence_is_expected_to_fit(forescale):
    question = ("llama-3.1-8b", "--cluster", "h200", "--devices", "8", "--global-batch-size", "1")
    ran = forescale("check", *question, "--solve", "seq_len", "--json")
    answer = json.loads(ran.out)
    room = answer["next"]["findings"][0]["limit"]
    assert answer["checks"][0]["peak_bytes"] < room < answer["next"]["peak_bytes"]


def test_what_is_solved_is_projected_again_by_the_command_below_it(forescale):
    question = ("llama-3.1-8b", "--cluster", "h200", "--devices", "8", "--global-batch-size", "1")
    solved = forescale("check", *question, "--solve", "seq_len")
    again = solved.out.partition("to reproduce: forescale ")[2].splitlines()[0]
    answer = json.loads(forescale("check", *question, "--solve", "seq_len", "--json").out)
    projected = json.loads(forescale(*shlex.split(again), "--json").out)
    assert projected["step_time_s"] == answer["checks"][0]["step_time_s"]


def test_devices_for_a_deadline_start_at_what_the_peak_rate_requires(forescale):
    question = ("llama-3.1-8b", "--cluster", "h100", "--seq-len", "8192", "--global-batch-size", "8192")
    run = ("--tokens", "15T", "--deadline", "4d", "--solve", "devices", "--json")
    answer = json.loads(forescale("check", *question, *run).out)
    assert (answer["value"], answer["next"]["value"]) == (8192, 7168)


def test_devices_between_powers_of_two_are_tried(forescale):
    question = ("llama-3.1-70b", "--cluster", "h100", "--seq-len", "8192", "--global-batch-size", "480")
    answer = json.loads(forescale("check", *question, "--solve", "devices", "--json").out)
    assert (answer["value"], answer["next"]["value"]) == (24, 16)


def test_a_micro_batch_is_solved_without_a_global_batch(forescale):
    """Every rank runs one micro-batch, or one for each pipeline stage."""
    question = ("llama-3.2-1b", "--cluster", "h100", "--devices", "4", "--pp", "2", "--seq-len", "4096")
    _, said = document(forescale, *question, "--solve", "batch_size")
    size = said["value"]
    assert (said["quantity"], said["next"]["value"]) == ("micro_batch_size", size + 1)
    of_batch = ("--global-batch-size", str(4 * size), "--micro-batch-size", str(size))
    _, given = document(forescale, *question, *of_batch)
    assert given["checks"][0]["step_time_s"] == said["checks"][0]["step_time_s"]


def test_a_solved_value_has_one_under_full_recompute_too(forescale):
    question = ("llama-3.2-1b", "--cluster", "h100", "--devices", "1", "--seq-len", "4096")
    _, said = document(forescale, *question, "--global-batch-size", "64", "--solve", "micro_batch_size")
    full = said["with_full_recompute"]
    assert full["value"] > said["value"]
    assert full["checks"][0]["step_time_s"] > 0


def test_the_longest_sequence_is_that_of_the_layout_of_least_memory(forescale):
    question = ("llama-3.2-1b", "--cluster", "h100", "--devices", "4", "--global-batch-size", "4")
    _, said = document(forescale, *question, "--solve", "seq_len")
    _, given = document(forescale, *question, "--zero", "3", "--solve", "seq_len")
    assert said["value"] > 2 * given["value"]


@pytest.mark.usefixtures("usual_frameworks")
def test_the_fewest_devices_are_those_of_the_best_layout(forescale):
    question = ("llama-3.1-8b", "--cluster", "h100", "--global-batch-size", "64", "--solve", "devices")
    _, said = document(forescale, *question)
    assert said["value"] == 4  # 128 GB of states and more
    assert said["next"]["value"] == 2
    searched = forescale("search", *question[:3], "--devices", "2", "--global-batch-size", "64")
    assert searched.code == 2


def test_a_sequence_shorter_than_asked_is_found_where_none_fits_as_asked(forescale):
    question = ("qwen2.5-14b", "--cluster", "rtx-4080", "--devices", "1", "--global-batch-size", "16")
    _, said = document(
        forescale,
        *question,
        "--seq-len",
        "4k",
        "--lora-rank",
        "16",
        "--frozen-dtype",
        "nf4",
        "--solve",
        "seq_len",
    )
    assert 0 < said["value"] < 4096


@pytest.mark.usefixtures("usual_frameworks")
def test_a_framework_that_nobody_named_forbids_no_devices(forescale):
    question = ("qwen2.5-14b", "--cluster", "l40s", "--seq-len", "4k", "--global-batch-size", "32")
    _, said = document(forescale, *question, "--solve", "devices")
    assert said["value"] == 8
    _, named = document(forescale, *question, "--framework", "transformers", "--solve", "devices")
    assert named["value"] == 32  # its trainer splits no matrices, and FSDP holds whole gradients


def test_a_solved_length_at_risk_has_one_that_fits_with_margin(forescale):
    asked = ("phi-4", "--cluster", "h100-pcie", "--devices", 1, "--global-batch-size", 1, "--lora-rank", 64)
    words = ("check", *asked, "--recompute", "full", "--solve", "seq_len")
    answer = json.loads(forescale(*words, "--json").out)
    sure = answer["with_margin"]
    assert answer["checks"][0]["verdict"] == "AT RISK" and sure["checks"][0]["verdict"] == "FITS"
    assert sure["value"] < answer["value"]
    strict = json.loads(forescale(*words, "--strict", "--json").out)
    assert (strict["value"], strict["with_margin"]) == (sure["value"], None)
