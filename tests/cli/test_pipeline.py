"""`forescale pipeline`: what is printed, the JSON schema, exit codes."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from forescale.cli.pipeline import app
from forescale.errors import ForescaleError
from forescale.schedule import FAMILIES

TRACE = Path(__file__).parents[1] / "data/schedules"
RUNNER = CliRunner()


def run(*arguments, code=0):
    result = RUNNER.invoke(app, list(arguments))
    if isinstance(result.exception, ForescaleError):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.output


def as_json(*arguments, code=0):
    document = json.loads(run(*arguments, "--json", code=code))
    assert document["schema"] == "forescale.pipeline/1"
    return document


def test_simulate_zbv_as_documented():
    found = as_json(
        "simulate", "--schedule", "zbv", "--pp", "8", "--vpp", "2", "--microbatches", "32",
        "--forward", "1", "--input-grad", "1", "--weight-grad", "1",
    )  # fmt: skip
    assert found["bubble_rate_makespan"] == pytest.approx(7 / 199)
    assert (found["makespan"], found["longest_span"], found["bubble_rate_span"]) == (99.5, 96.0, 0.0)
    assert found["peak_activations"] == [8.0] * 8
    assert (found["num_messages"], found["valid"]) == (2 * 14 * 32, True)
    assert (found["schedule"], found["num_stages"], found["num_microbatches"]) == ("zbv", 16, 32)


def test_vpp_may_be_left_out_where_it_is_fixed():
    assert as_json("simulate", "-s", "zbv", "--pp", "4", "-m", "8")["vpp"] == 2
    with pytest.raises(ForescaleError, match="say which"):
        run("simulate", "-s", "interleaved", "--pp", "4", "-m", "8")


def test_communication_delays_the_step():
    free = as_json("simulate", "-s", "1f1b", "--pp", "4", "-m", "8")["makespan"]
    assert as_json("simulate", "-s", "1f1b", "--pp", "4", "-m", "8", "--comm", "0.1")["makespan"] > free


def test_memory_limit_makes_it_invalid():
    found = as_json("simulate", "-s", "gpipe", "--pp", "2", "-m", "8", "--memory-limit", "4")
    assert not found["valid"]
    assert "the limit is 4" in found["violations"][0]
    assert "limit is 4" in run("simulate", "-s", "gpipe", "--pp", "2", "-m", "8", "--memory-limit", "4")


def test_list_names_every_family():
    rows = as_json("list")["schedules"]
    assert [row["name"] for row in rows] == [each.name for each in FAMILIES]
    assert all(row["source"] and row["idle"] and row["peak_activations"] for row in rows)
    assert "dualpipev" in run("list")


def test_compare_sorts_and_refuses():
    found = as_json("compare", "--pp", "5", "-m", "7")
    spans = [row["makespan"] for row in found["schedules"]]
    assert spans == sorted(spans)
    assert {"dualpipe", "dualpipev", "chimera"} <= set(found["refused"])
    assert len(found["schedules"]) + len(found["refused"]) == len(FAMILIES)
    assert "dualpipev: micro-batches must be at least 2 pp = 10" in run("compare", "--pp", "5", "-m", "7")


def test_compare_keeps_to_the_memory_limit():
    found = as_json("compare", "--pp", "4", "-m", "8", "--memory-limit", "3")
    assert {row["schedule"] for row in found["schedules"]} >= {"v-half", "v-min", "v-zb"}
    assert all(max(row["peak_activations"]) <= 3 for row in found["schedules"])


@pytest.mark.parametrize(
    ("wanted", "start"), [("svg", "<svg"), ("html", "<!doctype"), ("perfetto", "{"), ("csv", "0F0")]
)
def test_draw_writes_files(wanted, start, tmp_path):
    path = tmp_path / "out"
    run("draw", "-s", "zbv", "-f", wanted, "-o", str(path))
    assert path.read_text().startswith(start)


def test_draw_in_the_terminal():
    assert "rank 3" in run("draw", "-s", "1f1b", "-s", "zb-h1")
    with pytest.raises(ForescaleError, match="holds one schedule"):
        run("draw", "-s", "1f1b", "-s", "zb-h1", "-f", "perfetto")


def test_draw_a_measured_run():
    text = run("draw", "--trace", str(TRACE), "--iteration", "7")
    assert "measured, iteration 7" in text
    assert "1f1b, pp 8, 16 micro-batches" in text


def test_check_accepts_what_draw_wrote_and_refuses_what_is_wrong(tmp_path):
    path = tmp_path / "table.csv"
    run("draw", "-s", "v-half", "-f", "csv", "-o", str(path))
    assert "valid: 4 ranks, 8 stages (V), 8 micro-batches" in run("check", str(path))
    assert as_json("check", str(path))["deadlock_free"] == ["eager", "pair", "single"]
    path.write_text(path.read_text().replace("0F0,", "", 1))
    found = as_json("check", str(path), code=1)
    assert found["violations"][0]["rule"] == "complete"
    assert "stage 0, micro-batch 0" in run("check", str(path), code=1)
    with pytest.raises(ForescaleError, match="No such file"):
        run("check", str(tmp_path / "none.csv"))


def test_optimise_proves_a_small_pipeline(tmp_path):
    pytest.importorskip("ortools")
    path = tmp_path / "best.csv"
    arguments = [
        "optimise",
        "--pp",
        "2",
        "-m",
        "4",
        "--stage-forward",
        "1,2",
        "--memory-limit",
        "2",
        "-o",
        str(path),
    ]
    found = as_json(*arguments)
    assert found["proven"]
    assert found["makespan"] == found["bound"] <= found["library_makespan"]
    assert "proven optimal" in run(*arguments)
    assert "valid" in run("check", str(path))
    with pytest.raises(ForescaleError, match="give 2 numbers"):
        run("optimise", "--pp", "2", "-m", "4", "--stage-forward", "1,x")


def test_blocking_messages_cost_more():
    found = [
        as_json("simulate", "-s", "1f1b", "--pp", "4", "-m", "8", "--comm", "0.2", "--comm-mode", mode)[
            "makespan"
        ]
        for mode in ("overlapped", "serial", "blocking")
    ]
    assert found[0] <= found[1] < found[2]


QUESTION = (
    "llama3-8b", "--cluster", "h100-sxm", "--devices", "8", "--pp", "8",
    "--seq-len", "4096", "--global-batch-size", "32",
)  # fmt: skip


def test_partition_gives_options_that_are_faster():
    text = run("partition", *QUESTION)
    assert "--stage-layers " in text
    document = json.loads(run("partition", *QUESTION, "--json"))
    assert document["schema"] == "forescale.pipeline_partition/1"
    assert ",".join(map(str, document["stage_layers"])) in text
    assert sum(document["stage_layers"]) == 32
    assert document["step_time_s"] < document["given_step_time_s"]
    assert len(document["stage_time_s"]) == len(document["stage_memory_bytes"]) == 8
    assert len(document["bounds"]) == 9


def test_optimise_says_what_messages_it_takes():
    with pytest.raises(ForescaleError, match="only delay"):
        run("optimise", "--pp", "2", "-m", "2", "--comm", "0.1", "--comm-mode", "blocking")
