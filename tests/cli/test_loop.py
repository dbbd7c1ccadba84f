"""The loop closes: what one command prints the others read, and the line it names gives the same figures."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from tests.cli.questions import DENSE, LAYOUT, SEARCH

EXPERTS = (
    "qwen3-30b-a3b",
    "--cluster",
    "b200",
    "--devices",
    16,
    "--seq-len",
    4096,
    "--global-batch-size",
    64,
)
QUESTIONS = {
    "dense": SEARCH,
    "framework": (*EXPERTS, "--for", "megatron", "--fix", "cp=1", "--tokens", "15T", "--safe"),
    "cost models": (*SEARCH, "--compute", "tile", "--device-clock-mhz", 1400, "--precision", "fp8"),
    "schedules": (*SEARCH, "--fix", "pp=4", "--allow", "schedule=zb-h1", "--fix", "recompute=full:2"),
    "a cluster of one's own": (*SEARCH, "--set", "cluster.device.hbm_bytes=64 GiB", "--set", "workload.optimizer=muon"),
    "offload": (*SEARCH, "--fix", "optimizer_offload=0.5", "--max-memory", "30GiB"),
    "a bench": (*SEARCH, "--load-benchmark", Path(__file__).parents[2] / "examples" / "bench.json"),
    "placement": (*SEARCH, "--fix", "placement=tp=2,dp=4"),
}  # fmt: skip


@pytest.fixture(scope="module")
def known():
    """What searches printed: each is asked once."""
    return {}


@pytest.fixture
def asked(forescale, tmp_path, known):
    """Return what a search prints, as text and as the file of its document."""

    def ask(*question):
        if question not in known:
            text = forescale("search", *question)
            assert text.code == 0, text.err
            known[question] = text.out, forescale("search", *question, "--json").out
        text, document = known[question]
        path = tmp_path / "best.json"
        path.write_text(document, encoding="utf-8")
        return text, path

    return ask


def figures(document):
    memory = document["memory"]
    return document["step_time_s"], memory["peak_bytes"], memory["peak_high_bytes"], document["mfu"]


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_row_of_a_search_is_projected_as_it_was_ranked(forescale, asked, name):
    _, path = asked(*QUESTIONS[name])
    for place, row in enumerate(json.loads(path.read_text())["best"], start=1):
        again = json.loads(forescale("project", f"{path}#{place}", "--json").out)
        assert figures(again) == figures(row)
        assert again["strategy"] == row["strategy"]
        assert again["workload"] == row["workload"]


def pasted(forescale, line, *more):
    """Return what a printed line answers, run as a shell runs it; `more` goes to its last command."""
    *before, last = line.split(" && ")
    for item in before:
        command, _, file = item.partition(" > ")
        ran = forescale(*shlex.split(command)[1:])
        assert ran.code == 0, ran.err
        Path(file).write_text(ran.out, encoding="utf-8")
    assert shlex.split(last)[0] == "forescale"
    ran = forescale(*shlex.split(last)[1:], *more)
    assert ran.code == 0, ran.err
    return ran


def said_after(out, start):
    (line,) = [line.removeprefix(start) for line in out.splitlines() if line.startswith(start)]
    return line


REPRODUCE, FIT = "to reproduce: ", "to find changes that make it fit: "


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_line_of_a_search_gives_its_best(forescale, asked, name, tmp_path, monkeypatch):
    out, path = asked(*QUESTIONS[name])
    monkeypatch.chdir(tmp_path)
    again = json.loads(pasted(forescale, said_after(out, REPRODUCE), "--json").out)
    assert figures(again) == figures(json.loads(path.read_text())["best"][0])


MODEL = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "vocab_size": 32000,
}
OWN = ("my model.json", "--cluster", "h100-sxm", "--devices", 2, "--seq-len", 1024, "--global-batch-size", 16)


@pytest.fixture
def own_model(tmp_path, monkeypatch):
    (tmp_path / "my model.json").write_text(json.dumps(MODEL), encoding="utf-8")
    monkeypatch.chdir(tmp_path)


def test_the_line_of_a_search_of_ones_own_model(forescale, own_model):
    files = ("--emit", "megatron", "--output", "run.sh", "--html=page.html", "--csv", "best.csv", "--top", 1)
    ran = forescale("search", *OWN, *files)
    assert ran.code == 0, ran.err
    line = said_after(ran.out, REPRODUCE)
    assert line.endswith(" --json > best.json && forescale project 'best.json#1'")
    again = json.loads(pasted(forescale, line, "--json").out)
    best = json.loads(forescale("search", *OWN, "--for", "megatron", "--top", 1, "--json").out)["best"][0]
    assert figures(again) == figures(best)


def test_the_line_of_a_projection_of_ones_own_model_that_runs_out_of_memory(forescale, own_model):
    large = (*OWN, "--set", "cluster.device.hbm_bytes=2GiB", "--zero", 0)
    line = said_after(forescale("project", *large).out, FIT)
    again = json.loads(pasted(forescale, line, "--no-pairs", "--json").out)
    assert figures(again["now"]) == figures(json.loads(forescale("project", *large, "--json").out))


@pytest.mark.parametrize("name", ["question", "this file"])
def test_the_lines_of_an_export_give_its_figures(forescale, own_model, name):
    laid = (*DENSE, *LAYOUT, "--framework", "megatron-core")
    assert forescale("export", *laid, "--to", "megatron", "--output", "run.sh").code == 0
    head = [line for line in Path("run.sh").read_text().splitlines() if line.startswith("#")]
    line = said_after("\n".join(head), f"# {name}:{' ' * (13 - len(name))}")
    again = json.loads(pasted(forescale, line, "--json").out)
    assert figures(again) == figures(json.loads(forescale("project", *laid, "--json").out))


@pytest.mark.parametrize(
    "command",
    [
        ("project",),
        ("memory",),
        ("fit", "--no-pairs"),
        ("compare",),
        ("export", "--to", "megatron"),
        ("explain",),
    ],
)
def test_commands_read_a_row(forescale, asked, command):
    _, path = asked(*SEARCH)
    row = f"{path}#2"
    more = {"compare": [path], "explain": ["step_time"]}.get(command[0], [])
    ran = forescale(command[0], row, *more, *command[1:])
    assert ran.code == 0, ran.err
    assert ran.out


def test_a_plan_file_is_a_question_too(forescale, asked, tmp_path):
    from forescale import read_question, write_question

    _, path = asked(*SEARCH)
    plan = tmp_path / "plan.toml"
    write_question(read_question(f"{path}#3"), plan)
    texts = [forescale("project", *item).out for item in ((plan,), ("--plan", plan), (f"{path}#3",))]
    assert len(set(texts)) == 1


def test_flags_go_over_a_row_and_data_parallel_follows(forescale, asked):
    _, path = asked(*SEARCH)
    body = json.loads(forescale("project", path, "--tp", 4, "--pp", 1, "--devices", 32, "--json").out)
    layout = body["strategy"]
    assert (layout["tp"], layout["dp_replicate"] * layout["dp_shard"]) == (4, 8)


def test_fronts_scans_and_changes_have_rows_as_well(forescale, tmp_path):
    kept = (*SEARCH, "--fix", "zero=1", "--fix", "recompute=none", "--fix", "sp=true")
    scan = (*(word for word in kept if word not in ("--devices", 16)), "--device-counts", "8,16")
    for name, parts in (("front", (*kept, "--pareto")), ("scan", scan)):
        path = tmp_path / f"{name}.json"
        path.write_text(forescale("search", *parts, "--json").out, encoding="utf-8")
        body = json.loads(path.read_text())
        rows = body.get("front") or [point["best"] for point in body["points"]]
        again = json.loads(forescale("project", f"{path}#2", "--json").out)
        assert figures(again) == figures(rows[1])
        assert again["cluster"]["num_devices"] == rows[1]["cluster"]["num_devices"]
    path = tmp_path / "fit.json"
    path.write_text(
        forescale("fit", *DENSE, *LAYOUT, "--max-memory", "20GiB", "--json").out, encoding="utf-8"
    )
    again = json.loads(forescale("project", path, "--json").out)
    assert figures(again) == figures(json.loads(path.read_text())["fixes"][0]["projection"])


def test_a_projection_that_runs_out_of_memory_names_what_to_ask(forescale):
    large = (
        "llama-3.1-70b",
        "--cluster",
        "h100-sxm",
        "--devices",
        16,
        "--tp",
        8,
        "--seq-len",
        4096,
        "--global-batch-size",
        64,
    )
    ran = forescale("project", *large)
    again = json.loads(pasted(forescale, said_after(ran.out, FIT), "--json").out)
    assert (
        again["now"]["step_time_s"] == json.loads(forescale("project", *large, "--json").out)["step_time_s"]
    )
    assert "forescale fit" not in forescale("project", *DENSE, *LAYOUT).out


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("#9", "out_of_range the number of the layout"),
        ("#0", "out_of_range the number of the layout"),
        (".json#1", "not_found file"),
    ],
)
def test_a_row_that_is_not_there_is_one_sentence(forescale, asked, place, text):
    _, path = asked(*SEARCH)
    ran = forescale("project", f"{path}{place}")
    assert (ran.code, ran.out) == (2, "")
    assert text in ran.refused
    assert len(ran.err.strip().splitlines()) == 1


def test_a_document_without_its_question_and_two_questions_at_once(forescale, asked):
    _, path = asked(*SEARCH)
    twice = forescale("project", path, "--plan", path)
    assert (twice.code, twice.out) == (2, "")
    assert "give one of them" in twice.err
    body = json.loads(path.read_text())
    del body["question"]
    path.write_text(json.dumps(body))
    silent = forescale("project", path)
    assert (silent.code, silent.out) == (2, "")
    assert "print it again with --json" in silent.err


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda d: d.pop("strategy"), "wrong_format"),
        (lambda d: d.pop("workload"), "wrong_format"),
        (lambda d: d.update(strategy=[]), "wrong_type strategy"),
        (lambda d: d["memory"].update(stages=[{}]), "wrong_type memory.stages"),
        (lambda d: d["strategy"].update(vpp="x"), "wrong_type vpp"),
    ],
)
def test_a_projection_that_lacks_a_part_is_one_sentence(forescale, tmp_path, change, sentence):
    body = json.loads(forescale("project", *DENSE, *LAYOUT, "--framework", "nanotron", "--json").out)
    path = tmp_path / "one.json"
    change(body)
    path.write_text(json.dumps(body))
    ran = forescale("project", path)
    assert (ran.code, ran.out) == (2, "")
    assert sentence in ran.refused
