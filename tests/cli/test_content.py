"""Names travel into every output and are names there: no markup, no script, no formula, nothing that steers."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from scripts.accuracy import main as scoreboard

from forescale.view.page import text as script

RUNS = Path(__file__).parents[1] / "data" / "runs" / "excerpt_plans.csv"
TESTS = RUNS.parents[1] / "megatron_ci" / "excerpt_plans.csv"
MODEL = "[/]<script>alert(1)</script>|`x`\x1b[31m\u202e\x00=1 :smile: [bold]b[/bold]\n](http://evil)"
CLUSTER = "=cmd|'/C calc'!A0\x1b]0;t\x07<b>&"
PLAN = f"""
devices = 8
[model]
name = {json.dumps(MODEL)}
base = "llama-3.1-8b"
[cluster]
name = {json.dumps(CLUSTER)}
base = "h100-sxm"
[workload]
seq_len = 4096
global_batch_size = 8
""".replace("\x00", "\\u0000")
STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
FAST = ("--fix", "cp=1", "--fix", "micro_batch_size=1", "--fix", "pp=1")


@pytest.fixture
def plan(tmp_path):
    file = tmp_path / "plan.toml"
    file.write_text(PLAN, encoding="utf-8")
    return file


@pytest.mark.parametrize(
    "arguments",
    [
        ("project",),
        ("memory",),
        ("memory", "--timeline"),
        ("memory", "compare", "--across", "zero", "--values", "0,1"),
        ("search", *FAST),
        ("explain", "mfu"),
        ("advise",),
        ("report", *FAST, "--top", 1, "--details", 1, "--worst", 0),
    ],
    ids=lambda arguments: "-".join(map(str, arguments[:2])),
)
def test_no_name_steers_the_terminal(forescale, plan, arguments):
    ran = forescale(*arguments, "--plan", plan)
    assert ran.code == 0, ran.err
    assert not STEERS.search(ran.out)
    assert "alert(1)" in ran.out or arguments[0] == "explain"
    assert ":smile:" in ran.out or "smile" not in ran.out


@pytest.mark.parametrize(
    "bad", [("--cluster", CLUSTER), ("--fix", f"{CLUSTER}=1"), ("--space", f"{CLUSTER}.toml")]
)
def test_no_error_steers_the_terminal(forescale, plan, bad):
    ran = forescale("search", "--plan", plan, *(word.replace("\x00", "") for word in bad))
    assert ran.code == 2
    assert not STEERS.search(ran.err.removesuffix("\n"))


def xml_of(text):
    """Return a picture, or a page whose single tags are closed, as XML: names that broke out would break it."""
    text = text.replace(script("draw.js"), "")
    text = re.sub("<(!doctype html|meta [^>]*)>", "", text)
    return ElementTree.fromstring(re.sub("(?s)<style>.*?</style>", "", text))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("a.html", ("report", *FAST, "--top", 1, "--details", 1, "--worst", 0, "--output")),
        ("a.md", ("report", *FAST, "--top", 1, "--details", 1, "--worst", 0, "--output")),
        ("a.svg", ("memory", "compare", "--across", "zero", "--values", "0,1", "--plot")),
        ("b.html", ("memory", "compare", "--across", "zero", "--values", "0,1", "--plot")),
    ],
)
def test_names_stay_names_in_files(forescale, plan, tmp_path, name, arguments):
    file = tmp_path / name
    assert forescale(*arguments, file, "--plan", plan).code == 0
    text = file.read_text(encoding="utf-8")
    assert not STEERS.search(text)
    assert "alert(1)" in text
    if name.endswith(".md"):
        assert not re.search(r"(?<!\\)<script|(?<!\\)`|\]\(http", text)
    else:
        assert [part.text for part in xml_of(text).iter("script") if "alert" in (part.text or "")[:9]] == []
        assert "<script>alert" not in text


def test_names_stay_names_in_what_a_sweep_writes(forescale, tmp_path):
    file = tmp_path / "sweep.toml"
    file.write_text(
        f"name = {json.dumps(CLUSTER)}\n{PLAN}\n[space]\ncp = 1\npp = 1\n[vary]\ndevices = [8, 16]\n".replace(
            "devices = 8\n", ""
        ),
        encoding="utf-8",
    )
    ran = forescale("sweep", file, "--output", tmp_path / "out", "--format", "csv", "--jobs", 1)
    assert ran.code == 0, ran.err
    assert not STEERS.search(ran.out)
    for written in (tmp_path / "out").rglob("*.*"):
        text = written.read_text(encoding="utf-8")
        assert written.suffix == ".json" or not STEERS.search(text), written
        if written.suffix in {".svg", ".html"}:
            xml_of(text)
        if written.suffix == ".csv":
            cells = [cell for row in csv.reader(text.splitlines()) for cell in row]
            assert not [cell for cell in cells if re.match("[=+@]|-[^0-9]", cell)]


def test_names_stay_names_on_the_page_of_measured_runs(tmp_path):
    with RUNS.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))[:3]
    rows[0]["id"] = rows[1]["label"] = MODEL.replace("\x00", "")
    rows[2]["hardware"] = rows[2]["cluster"] = "<script>"
    runs, page = tmp_path / "`<b>`.csv", tmp_path / "page.md"
    with runs.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    scoreboard(runs, TESTS, page)
    assert not STEERS.search(page.read_text(encoding="utf-8"))
    assert not re.search(r"(?<!\\)<script", page.read_text(encoding="utf-8"))
    for picture in (tmp_path / "page").iterdir():
        xml_of(picture.read_text(encoding="utf-8"))
