"""`forescale report`."""

from __future__ import annotations

import json

import pytest

SMALL = (
    "llama-3.1-8b",
    "--cluster",
    "h100-sxm",
    "--devices",
    "8",
    "--seq-len",
    "4096",
    "--global-batch-size",
    "8",
)
HELD = ("--fix", "cp=1", "--fix", "micro_batch_size=1", "--fix", "zero=1")


def test_the_analysis_needs_no_more_than_its_name(forescale):
    ran = forescale("report", "--preset", "almodel")
    assert ran.code == 0, ran.err
    for text in (
        "# Parallelism strategies of almodel on 128 devices (preset almodel)",
        "## Layouts on the terms of the analysis's first table",
        "### #5: TP=1 DP=2 PP=1 EP=1 FSDP=32 CP=2 remat=save_out_proj",
        "- Best step time: 4.402s, MFU: 31.5%",
    ):
        assert text in ran.out


def test_the_analysis_of_another_question(forescale):
    ran = forescale(
        "report", "--preset", "almodel", "--devices", "64", "--global-batch-size", "2560", "--top", "1"
    )
    assert ran.code == 0, ran.err
    assert "on 64 devices" in ran.out
    assert "| Global batch size | 2,560 |" in ran.out
    other = forescale("report", *SMALL, "--preset", "almodel", "--details", "0", "--worst", "0")
    assert other.code == 0, other.err
    assert "of llama-3.1-8b on 8 devices" in other.out


@pytest.mark.parametrize(
    ("suffix", "starts"), [(".md", "# Layouts of"), (".html", "<!doctype html>"), (".json", "{")]
)
def test_files(forescale, tmp_path, suffix, starts):
    path = tmp_path / f"report{suffix}"
    ran = forescale("report", *SMALL, *HELD, "--top", "3", "--details", "1", "--worst", "2", "--output", path)
    assert ran.code == 0, ran.err
    text = path.read_text(encoding="utf-8")
    assert text.startswith(starts)
    assert (">forescale report llama-3.1-8b " in text) == (suffix == ".html")
    lines = ran.out.splitlines()
    assert lines[0] == "Layouts of llama-3.1-8b on 8 devices of h100-sxm"
    assert lines[1].startswith("Best layout: ")
    assert "written to" in ran.out


def test_one_report_in_three_forms(forescale, tmp_path):
    arguments = ("report", *SMALL, *HELD, "--top", "2", "--details", "0", "--worst", "0")
    page, same = tmp_path / "page.html", tmp_path / "same.html"
    forescale(*arguments, "--html", str(page))
    forescale(*arguments, "--output", str(same))
    assert page.read_text() == same.read_text().replace(f" --output {same}", "")
    body = json.loads(forescale(*arguments, "--json").out)
    text = forescale(*arguments).out
    assert body["schema"] == "forescale.report/1"
    for section in body["sections"]:
        assert f"# {section['title']}\n" in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--preset", "almodel", "--output", "r.pdf"), "wrong_suffix --output"),
        (("--preset", "almodel", "--top", "0"), "out_of_range --top"),
        (("--preset", "almodel", "--worst", "-1"), "out_of_range --worst"),
        (
            ("--preset", "almodel", "--fix", "cp=1"),
            "no_effect fix",
        ),
        (
            (*SMALL, "--preset", "primus"),
            "unsupported_by preset primus",
        ),
        (
            ("llama-3.1-8b",),
            "missing --cluster, --devices, --global-batch-size",
        ),
        (("--preset", "almodel", "--devices", "3"), "no legal layout of almodel on 3 devices"),
    ],
)
def test_refusals(forescale, arguments, says):
    ran = forescale("report", *arguments)
    assert ran.code == 2
    assert says in ran.refused


def test_a_slip_of_the_analysis_is_left_out(forescale):
    arguments = ("report", "--preset", "almodel", "--details", "0", "--worst", "0", "--top", "1")
    ran = forescale(*arguments, "--without-quirk", "gathers-fp32")
    assert ran.code == 0, ran.err
    assert "Best step time: 3.043s" in ran.out
