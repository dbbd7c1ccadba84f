"""`forescale pipeline`: what is printed, the JSON schema, exit codes."""

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from tests.errors import raises
from typer.testing import CliRunner

import forescale as fs
from forescale.cli.pipeline import pipeline_app
from forescale.cli.typed import typed
from forescale.errors import ForescaleError
from forescale.schedule import families, family
from forescale.schedule.traces import read_run

TRACE = Path(__file__).parents[1] / "data/schedules"
ONE = ("--schedule", "1f1b", "--pp", 2, "-m", 2)
RUNNER = CliRunner()
app = typed(pipeline_app)


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
    result = as_json(
        "simulate", "--schedule", "zbv", "--pp", "8", "--vpp", "2", "--microbatches", "32",
        "--forward", "1", "--input-grad", "1", "--weight-grad", "1",
    )  # fmt: skip
    assert result["bubble_rate_makespan"] == pytest.approx(7 / 199)
    assert (result["makespan"], result["longest_span"], result["bubble_rate_span"]) == (99.5, 96.0, 0.0)
    assert result["peak_activations"] == [8.0] * 8
    assert (result["num_messages"], result["valid"]) == (2 * 14 * 32, True)
    assert (result["schedule"], result["num_stages"], result["num_microbatches"]) == ("zbv", 16, 32)


def test_vpp_is_what_the_schedule_fixes_or_two():
    assert as_json("simulate", "-s", "zbv", "--pp", "4", "-m", "8")["vpp"] == 2
    assert as_json("simulate", "-s", "interleaved", "--pp", "4", "-m", "8")["vpp"] == 2
    assert as_json("simulate", "-s", "interleaved", "--pp", "4", "-m", "8", "--vpp", "4")["vpp"] == 4
    assert as_json("simulate", "-s", "1f1b", "--pp", "4", "-m", "8")["vpp"] == 1


def test_compare_takes_names_and_aliases():
    rows = as_json("compare", "1f1b", "zero-bubble", "--pp", "4", "-m", "8")["schedules"]
    assert {row["schedule"] for row in rows} == {"1f1b", "zb-h1"}


def test_communication_delays_the_step():
    free = as_json("simulate", "-s", "1f1b", "--pp", "4", "-m", "8")["makespan"]
    assert as_json("simulate", "-s", "1f1b", "--pp", "4", "-m", "8", "--comm", "0.1")["makespan"] > free


def test_memory_limit_makes_it_invalid():
    result = as_json("simulate", "-s", "gpipe", "--pp", "2", "-m", "8", "--memory-limit", "4")
    assert not result["valid"]
    assert "the limit is 4" in result["violations"][0]
    assert "limit is 4" in run("simulate", "-s", "gpipe", "--pp", "2", "-m", "8", "--memory-limit", "4")


def test_list_names_every_family():
    rows = as_json("list")["schedules"]
    assert [row["name"] for row in rows] == [family.name for family in families()]
    assert all(row["source"] and row["idle"] and row["peak_activations"] for row in rows)
    assert "dualpipev" in run("list")


def test_compare_sorts_and_refuses():
    result = as_json("compare", "--pp", "5", "-m", "7")
    spans = [row["makespan"] for row in result["schedules"]]
    assert spans == sorted(spans)
    assert {"dualpipe", "dualpipev", "chimera"} <= set(result["refused"])
    assert len(result["schedules"]) + len(result["refused"]) == len(families())
    assert "dualpipev: micro-batches must be at least 2 pp = 10" in run("compare", "--pp", "5", "-m", "7")


def test_compare_keeps_to_the_memory_limit():
    result = as_json("compare", "--pp", "4", "-m", "8", "--memory-limit", "3")
    assert {row["schedule"] for row in result["schedules"]} >= {"v-half", "v-min", "v-zb"}
    assert all(max(row["peak_activations"]) <= 3 for row in result["schedules"])


@pytest.mark.parametrize(
    ("wanted", "start"), [("svg", "<svg"), ("html", "<!doctype"), ("perfetto", "{"), ("csv", "0F0")]
)
def test_draw_writes_files(wanted, start, tmp_path):
    path = tmp_path / "out"
    run("draw", "-s", "zbv", "-f", wanted, "-o", str(path))
    assert path.read_text().startswith(start)


def test_a_page_says_the_command_that_draws_it(forescale, tmp_path):
    explicit = ("pipeline", "draw", "-s", "zbv", "--pp", 2, "-f", "html", "-o", tmp_path / "a page.html")
    assert forescale(*explicit).code == 0
    page = (tmp_path / "a page.html").read_text(encoding="utf-8")
    assert f"forescale pipeline draw -s zbv --pp 2 -f html -o &#x27;{tmp_path}/a page.html&#x27;" in page


def test_draw_in_the_terminal():
    assert "rank 3" in run("draw", "-s", "1f1b", "-s", "zb-h1")
    with raises(ForescaleError, "unsupported_by csv"):
        run("draw", "-s", "1f1b", "-s", "zb-h1", "-f", "csv")


def test_of_several_schedules_each_takes_the_options_that_it_knows():
    alone, pieces = run("draw", "-s", "1f1b"), run("draw", "-s", "1f1b", "-s", "seq1f1b", "--splits", "4")
    assert alone.rstrip().splitlines()[0] in pieces
    assert pieces != run("draw", "-s", "1f1b", "-s", "seq1f1b")
    longer = as_json("compare", *SHAPE, "--group-size", "8")["schedules"]
    peaks = {
        schedule["schedule"]: schedule["peak_activations"]
        for schedule in as_json("compare", *SHAPE)["schedules"]
    }
    changed = {item["schedule"] for item in longer if item["peak_activations"] != peaks[item["schedule"]]}
    assert {"interleaved-1f1b", "interleaved-zb"} <= changed
    assert changed.isdisjoint({"1f1b", "gpipe", "seq1f1b"})


@pytest.mark.parametrize("option", ["--vpp", "--splits", "--group-size"])
def test_what_a_file_or_a_run_says_is_not_said_again(option, tmp_path):
    run("draw", "-s", "zbv", "-f", "csv", "-o", str(tmp_path / "a.csv"))
    with raises(ForescaleError, "no_effect"):
        run("simulate", str(tmp_path / "a.csv"), option, "2")
    with raises(ForescaleError, "no_effect"):
        run("draw", "--trace", str(TRACE), option, "2")


@pytest.mark.parametrize("words", [("--pp", "4", "-m", "8"), ("-m", "8")])
def test_a_run_says_its_shape_also_where_the_usual_one_is_given(words):
    with raises(ForescaleError, "no_effect --pp, --microbatches"):
        run("draw", "--trace", str(TRACE), *words)


@pytest.mark.parametrize("command", ["simulate", "draw"])
def test_a_schedule_may_stand_where_a_file_does(command):
    assert run(command, "zb_h1") == run(command, "-s", "zb-h1", "--pp", "4", "-m", "8")


def test_several_schedules_are_one_picture():
    root = ElementTree.fromstring(run("draw", "-s", "1f1b", "-s", "zb-h1", "-f", "svg"))
    assert root.tag.endswith("svg")
    trace = json.loads(run("draw", "-s", "1f1b", "-s", "zb-h1", "-f", "perfetto"))
    assert {event["pid"] for event in trace["traceEvents"]} == set(range(8))


def test_draw_a_measured_run():
    text = run("draw", "--trace", str(TRACE), "--iteration", "7")
    assert "measured, iteration 7" in text
    assert "1f1b, pp 8, 16 micro-batches" in text
    assert "measured 3237.26 ms, simulated" in text
    assert "ms: passes; most on rank" in text
    named = run("draw", "--trace", str(TRACE), "--iteration", "7", "-s", "zb-h1")
    assert "zb-h1, pp 8, 16 micro-batches" in named
    for requested, start in (("svg", "<svg"), ("html", "<!doctype"), ("perfetto", "{"), ("csv", "0F0")):
        assert run("draw", "--trace", str(TRACE), "-f", requested).startswith(start)
    with raises(ForescaleError, "wrong_count zbv"):
        run("draw", "--trace", str(TRACE), "-s", "zbv")


def test_check_accepts_what_draw_wrote_and_refuses_what_is_wrong(tmp_path):
    path = tmp_path / "table.csv"
    run("draw", "-s", "v-half", "-f", "csv", "-o", str(path))
    assert "valid: 4 ranks, 8 stages (V), 8 micro-batches" in run("check", str(path))
    assert as_json("check", str(path))["deadlock_free"] == ["eager", "pair", "single"]
    path.write_text(path.read_text().replace("0F0,", "", 1))
    result = as_json("check", str(path), code=1)
    assert result["violations"][0]["rule"] == "complete"
    assert "stage 0, micro-batch 0" in run("check", str(path), code=1)
    with raises(ForescaleError, "not_found file"):
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
    result = as_json(*arguments)
    assert result["proven"]
    assert result["makespan"] == result["bound"] <= result["library_makespan"]
    assert "proven optimal" in run(*arguments)
    assert "valid" in run("check", str(path))
    with raises(ForescaleError, "wrong_type --stage-forward"):
        run("optimise", "--pp", "2", "-m", "4", "--stage-forward", "1,x")


def test_a_schedule_of_ones_own_is_simulated_if_it_is_one(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
    named = as_json("simulate", "-s", "1f1b", "--pp", "2", "-m", "2", "--comm", "0.5")
    local = as_json("simulate", str(path), "--comm", "0.5")
    assert {**local, "schedule": "1f1b"} == named
    path.write_text("0F0,0F1,0B0\n1F0,1B0,1F1,1B1\n")
    with pytest.raises(ForescaleError, match=r"own.csv: stage 0, micro-batch 1 .* needs one of B and I once"):
        run("simulate", str(path))


def test_the_name_of_a_file_says_what_is_drawn(tmp_path):
    for name, begins in (("a.svg", "<svg"), ("a.html", "<!doctype"), ("a.csv", "0F0"), ("a.json", "{")):
        run("draw", "--pp", "2", "-m", "2", "-o", str(tmp_path / name))
        assert (tmp_path / name).read_text().startswith(begins)
    with raises(ForescaleError, "differs"):
        run("draw", "--pp", "2", "-m", "2", "-o", str(tmp_path / "b.svg"), "--format", "html")


def test_blocking_messages_cost_more():
    makespans = [
        as_json("simulate", "-s", "1f1b", "--pp", "4", "-m", "8", "--comm", "0.2", "--comm-mode", mode)[
            "makespan"
        ]
        for mode in ("overlapped", "serial", "blocking")
    ]
    assert makespans[0] <= makespans[1] < makespans[2]


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
    with raises(ForescaleError, "not_one_of --comm-mode"):
        run("optimise", "--pp", "2", "-m", "2", "--comm", "0.1", "--comm-mode", "blocking")


def test_ranks_start_and_end_as_they_do():
    # 1F1B, p = 2, m = 2: rank 0 F0 F1 . B0 . B1, rank 1 . F0 B0 F1 B1
    result = as_json("simulate", "-s", "basic_1f1b", "--pp", "2", "-m", "2")
    assert result["schedule"] == "1f1b"
    assert (result["rank_starts"], result["rank_ends"], result["rank_busy"]) == (
        [0.0, 1.0],
        [9.0, 7.0],
        [6.0, 6.0],
    )
    assert "   1      1    7     6     1" in run("simulate", "-s", "basic_1f1b", "--pp", "2", "-m", "2")
    assert "--json has" in run("simulate", "-s", "1f1b", "--pp", "33", "-m", "2")


def test_what_weight_gradients_need_is_all_that_waits_for_them():
    # ZB-H1, p = 4: rank r holds p - r whole micro-batches and r of those that only wait for W
    result = as_json("simulate", "-s", "zb-h1", "--pp", "4", "-m", "8", "--weight-part", "0.5")
    assert result["peak_activations"] == [4.0, 3.5, 3.0, 2.5]
    limited = ("simulate", "-s", "zb-h1", "--pp", "4", "-m", "8", "--memory-limit", "4")
    assert as_json(*limited, "--weight-part", "0.5")["valid"]


def test_a_table_of_schedules(tmp_path):
    path = tmp_path / "pp_simulation.yaml"
    path.write_text(
        "fwd_time: 1000\nbwd_time: 1000\nwgrad_time: 1000\nschedulers:\n"
        "  - {name: basic_1f1b, pp_size: 8, vpp_size: 1, micro_batches: 32}\n"
        "  - {name: formatted, class: x.ScheduleZBVFormatted, pp_size: 8, vpp_size: 2, micro_batches: 32}\n"
    )
    schedules = as_json("simulate", str(path))["schedules"]
    assert [(item["schedule"], item["makespan"]) for item in schedules] == [
        ("basic_1f1b", 1000 * 3 * (32 + 7)), ("formatted", 1000 * (3 * 32 + 3.5)),
    ]  # fmt: skip
    assert "formatted" in run("simulate", str(path))
    with raises(ForescaleError, "no_effect those options"):
        run("simulate", str(path), "--forward", "2")
    with raises(ForescaleError, "no_effect --jitter"):
        run("simulate", str(path), "--jitter", "0.1")


SHAPE = ("--pp", "4", "-m", "8")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("simulate", "--pp", "4"), "missing --schedule"),
        (
            ("simulate", "-s", "1f1b", *SHAPE, "--forward", "inf"),
            "forward must be a duration from 0 to 1e.100; got inf",
        ),
        (("simulate", "-s", "1f1b", *SHAPE, "--forward", "1e308"), "forward must be a duration"),
        (("simulate", "-s", "1f1b", *SHAPE, "--comm", "inf"), "comm must be a duration"),
        (("simulate", "-s", "1f1b", "--pp", "100000", "-m", "1000000"), "at most 32767 stages; got 100000"),
        (("simulate", "-s", "1f1b", "--pp", "9" * 30, "-m", "1"), "at most 32767 stages"),
        (("simulate", "-s", "1f1b", "--pp", "32767", "-m", "1000000"), "65,534,000,000 actions are too many"),
        (("simulate", "-s", "seq1f1b", *SHAPE, "--splits", "100000"), "6,400,000 actions are too many"),
        (("simulate", "-s", "interleaved", *SHAPE, "--vpp", "20000"), "at most 32767 stages"),
        (("simulate", "-s", "hanayo", "--pp", "512", "-m", "2048", "--vpp", "2"), "too many to build"),
        (("simulate", "-s", "v-half", "--pp", "512", "-m", "64"), "up to 64 ranks; got 512"),
        (
            ("simulate", "-s", "1f1b", "--pp", "512", "-m", "4096", "--comm-mode", "serial"),
            "too_large it",
        ),
        (("simulate", "-s", "zbv-gredy", *SHAPE), "unknown_name schedule"),
        (("compare", *SHAPE, "--forward", "inf"), "no schedule applies; gpipe: forward must be"),
        (("compare", "--pp", "100000", "-m", "1000000"), "no schedule applies"),
        (("draw", "-s", "1f1b", *SHAPE, "-f", "perfetto", "--forward", "inf"), "forward must be a duration"),
        (("draw", "-s", "1f1b", "--pp", "512", "-m", "4096"), "too_large 1f1b"),
        (
            ("optimise", *SHAPE, "--forward", "0", "--input-grad", "0", "--weight-grad", "0"),
            "out_of_range the sum of all durations",
        ),
        (("optimise", *SHAPE, "--forward", "inf"), "out_of_range forward"),
        (("optimise", *SHAPE, "--stage-forward", "1,2,nan,4"), "out_of_range forward"),
        (("optimise", *SHAPE, "--stage-forward", "1,2,3,-4"), "out_of_range forward"),
        (("optimise", *SHAPE, "--comm", "inf"), "out_of_range comm"),
        (("optimise", "--pp", "100000", "-m", "1000000"), "too_large the schedule"),
        (
            ("simulate", "-s", "1f1b", *SHAPE, "--splits", "2"),
            "--splits means nothing to 1f1b; it shapes seq1f1b",
        ),
        (
            ("simulate", "-s", "zb-h1", *SHAPE, "--group-size", "4"),
            "it shapes interleaved-1f1b, .*pipeoffload$",
        ),
        (("simulate", "-s", "gis", "--vpp", "2", *SHAPE, "--group-size", "0"), "2 to 4; got 0"),
        (("draw", "-s", "1f1b", "-s", "gpipe", *SHAPE, "--splits", "4"), "means nothing to 1f1b, gpipe"),
        (("draw", "-s", "1f1b", *SHAPE, "--vpp", "2"), "1f1b: vpp must be 1; got 2"),
        (
            ("optimise", *SHAPE, "--group-size", "4"),
            "no_effect --group-size",
        ),
        (("optimise", *SHAPE, "--vpp", "100000"), "too_large the schedule"),
        (("optimise", *SHAPE, "--vpp", "0"), "out_of_range --vpp"),
        (("compare", *SHAPE, "--vpp", "0"), "out_of_range --vpp"),
        (("optimise", *SHAPE, "--transport", "gloo"), "no_effect --transport"),
        (("optimise", *SHAPE, "--sends", "early"), "no_effect --sends"),
        (("optimise", *SHAPE, "--jitter", "0.5"), "no_effect --jitter"),
        (("optimise", *SHAPE, "--measured", str(TRACE), "--comm", "1"), "no_effect other durations"),
        (("compare", *SHAPE, "--jitter", "0.5"), "no_effect --jitter"),
        (("draw", "--jitter", "0.5"), "no_effect --jitter"),
        (("draw", "--iteration", "2"), "required_with the run's folder (--trace)"),
        (("draw", "-f", "svg", "--width", "80"), "no_effect --width"),
        (("draw", "--trace", str(TRACE), "--pp", "2"), "no_effect --pp, --microbatches"),
        (
            ("draw", "--trace", str(TRACE), "--comm", "1"),
            "no_effect --comm",
        ),
        (("draw", "--trace", str(TRACE), "-s", "gpipe", "--sends", "early"), "no_effect --sends"),
    ],
)
def test_what_cannot_run_is_refused_before_work_begins(arguments, says):
    with raises(ForescaleError, says):
        run(*arguments)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty it"),
        ("0F0,0B0\n0F99999999\n", "out_of_range a micro-batch"),
        ("0F0,99999F0\n", "out_of_range the stage"),
        (f"0F{'9' * 5000}\n", "out_of_range the stage"),
        ("0F0,7F0\n", "wrong_type the stages"),
        ('"0F0\n', "wrong_format"),
        ("0F0,\0\n", "cannot_read"),
        (f'"{"x" * 200000}"\n', "wrong_format"),
        ("{}", "cannot_parse action"),
    ],
)
def test_files_that_are_no_schedule(text, says, tmp_path):
    path = tmp_path / "schedule.csv"
    path.write_text(text)
    with raises(ForescaleError, says):
        run("check", str(path))


def test_files_of_any_size_are_refused_in_time(tmp_path):
    path = tmp_path / "schedule.csv"
    with path.open("wb") as file:
        file.truncate(200_000_000)
    with raises(ForescaleError, "too_large it"):
        run("check", str(path))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--pp", 2), "missing --schedule"),
        (("table.csv", "--pp", 2), "no_effect --schedule, --pp, --microbatches"),
        (
            ("--schedule", "1f1b", "--pp", 2, "-m", 2, "-o", "x.png"),
            "wrong_suffix a picture",
        ),
        (("--schedule", "1f1b", "--pp", 99, "-m", 2), "not_enough_devices 1f1b"),
        ((*ONE, "--jitter", 0.5), "no_effect --jitter"),
        ((*ONE, "--stage-forward", "1,2"), "no_effect --stage-forward and its like"),
        (("zb-h9", "--pp", 2, "-m", 2), "unknown_name"),
        ((*ONE, "--nodes", 1), "required_with --slurm FILE"),
        (
            (*ONE, "--model", "sleep", "--measured", TRACE, "--stage-forward", "1,2"),
            "no_effect --stage-forward and its like",
        ),
    ],
)
def test_what_cannot_run_is_refused_before_anything_starts(forescale, words, said):
    ran = forescale("pipeline", "run", *words)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.refused


def test_partition_by_what_stages_took():
    """The measured run's first and last stages are as long as the others: its cut is even but for their ends."""
    shape = (
        "llama-3.1-8b", "--cluster", "h100-sxm", "--devices", "8", "--seq-len", "4096", "--global-batch-size", "16",
        "--micro-batch-size", "1",
    )  # fmt: skip
    text = run("partition", *shape, "--pp", "8", "--measured", str(TRACE))
    assert re.search(r"measured  slowest stage \d+\.?\d* ms, \d+\.?\d* ms by this cut", text)
    result = json.loads(run("partition", *shape, "--pp", "8", "--measured", str(TRACE), "--json"))
    total = read_run(TRACE).typical.times
    assert sum(result["stage_time_s"]) == pytest.approx(1e-3 * (total.forward + total.input_grad).sum())
    with raises(ForescaleError, "wrong_count the measurement"):
        run("partition", *shape, "--pp", "4", "--measured", str(TRACE))


def test_check_holds_a_table_to_its_own_limit(tmp_path):
    path = tmp_path / "table.yaml"
    shape = "{class: Schedule1F1B, pp_size: 4, vpp_size: 1, micro_batches: 8, cached_fwd_chunks_limit: %d}"
    head = "fwd_time: 1\nbwd_time: 1\nwgrad_time: 1\nschedulers:\n  - "
    path.write_text(head + shape % 4)
    assert "valid" in run("check", str(path))
    path.write_text(head + shape % 2)
    assert "memory: 0F2 (rank 0, position 2) brings the rank to 3; the limit is 2" in run(
        "check", str(path), code=1
    )
    assert "valid" in run("check", str(path), "--memory-limit", "4")


def test_where_no_schedule_of_the_library_fits_the_optimised_one_is_compared_with_none():
    assert "shorter than one micro-batch at a time (10)" in run(
        "optimise", "--pp", "2", "-m", "2", "--vpp", "3", "--placement", "V"
    )


TABLE = """\
fwd_time: 1000
bwd_time: 1000
wgrad_time: 1000
output_dir: {folder}
schedulers:
  - {{name: plain, class: a.Schedule1F1B, pp_size: 4, vpp_size: 1, micro_batches: 8}}
  - {{name: v, class: a.ScheduleZBVGreedy, pp_size: 4, vpp_size: 2, micro_batches: 8, memory_config: half}}
  - {{name: limited, class: a.ScheduleZeroBubbleHeuristic, pp_size: 4, vpp_size: 1, micro_batches: 8,
     cost_f: 1000, cost_b: 1000, cost_w: 1000, cost_comm: 10, max_mem: 5}}
"""


@pytest.fixture
def primus_table(tmp_path):
    path = tmp_path / "table.yaml"
    path.write_text(TABLE.format(folder=tmp_path / "steps"))
    return path


def test_a_table_of_primus_writes_its_simulated_steps(primus_table, tmp_path):
    """`--config=` as Primus' tools take it; the files read back as the steps that were simulated."""
    result = RUNNER.invoke(app, ["simulate", f"--config={primus_table}", "--json"])
    document = json.loads(result.stdout)
    assert result.stderr == f"wrote {tmp_path / 'steps'}: plain, v, limited\n"
    for one in document["schedules"]:
        step = read_run(tmp_path / "steps" / one["schedule"]).typical
        assert 1e3 * step.makespan_s == pytest.approx(one["makespan"])
        assert list(step.memory_gib) == one["peak_activations"]
        assert step.schedule.name == one["schedule"]
    config = json.loads((tmp_path / "steps" / "v" / "config.json").read_text())
    assert (config["pp_size"], config["vp_size"], config["num_mbs"]) == (4, 2, 8)
    rank = json.loads((tmp_path / "steps" / "v" / "pp_rank_0.json").read_text())["0"]
    assert {
        len(rank[f"{kind}_{part}"]) for kind in ("fwd", "bwd", "wgrad") for part in ("start", "chunk")
    } == {16}
    limited = document["schedules"][2]
    assert max(limited["peak_activations"]) == 5
    assert limited["num_microbatches"] == 8


def test_bars_for_each_rank_of_a_table(primus_table):
    text = run("simulate", str(primus_table))
    assert re.search(r"plain +\S{4} +27000 to 33000 +█▆▄▂ +1 to 4", text)
    one = run("simulate", str(primus_table), "-s", "plain")
    assert "plain" in one
    assert "limited" not in one


def test_all_schedules_of_a_table_on_one_page(primus_table, tmp_path):
    page = tmp_path / "all.html"
    run("draw", f"--config={primus_table}", "-o", str(page))
    assert [name in page.read_text() for name in ("plain, pp 4", "v, pp 4", "limited, pp 4")] == [True] * 3
    assert run("draw", str(primus_table), "-s", "v").count(", pp 4") == 1


def test_one_schedule_into_a_folder(tmp_path):
    run("simulate", *map(str, ONE), "--output-dir", str(tmp_path / "out"))
    assert read_run(tmp_path / "out" / "1f1b").typical.schedule.num_ranks == 2


def test_two_tables_are_refused(primus_table):
    with pytest.raises(ForescaleError, match="are two files"):
        run("simulate", str(primus_table), "--config", str(primus_table))
    with raises(ForescaleError, "no_effect those options"):
        run("draw", str(primus_table), "--pp", "4")


@pytest.mark.parametrize("name", ["seaailab-ilp", "megatron-ilp", "ILP", "zb-heuristic"])
def test_names_of_the_heuristic(name):
    """What Primus and the zero-bubble authors call the automatic schedule; without a limit, all wait."""
    document = as_json("simulate", "-s", name, "--pp", "2", "-m", "4", "--memory-limit", "2")
    assert (document["schedule"], max(document["peak_activations"])) == ("zb-unlimited", 2)


@pytest.mark.parametrize(
    ("share", "vpp", "name"), [(0.05, 1, "1f1b"), (0.2, 1, "1f1b"), (0.05, 4, "interleaved-1f1b")]
)
def test_the_fewest_microbatches_for_a_bubble(forescale, share, vpp, name):
    """By the closed form (p - 1) / v micro-batches of idle time; interleaved ones run in groups of the ranks."""
    ran = forescale(
        "pipeline", "compare", name, "--pp", "8", "--vpp", str(vpp), "--bubble", str(share), "--json"
    )
    [step] = json.loads(ran.out)["schedules"]
    idle = 7 / vpp
    least = idle * (1 - share) / share
    fewest = math.ceil(least - 1e-9) if vpp == 1 else 8 * math.ceil(least / 8)
    assert step["bubble_rate_makespan"] == pytest.approx(idle / (idle + fewest))
    assert step["bubble_rate_makespan"] <= share + 1e-9


def test_a_bubble_excludes_microbatches_and_is_a_share(forescale):
    asked = ("pipeline", "compare", "1f1b", "--pp", "8", "--bubble")
    assert forescale(*asked, "5%", "-m", "8").refused.startswith("conflicts --bubble")
    assert forescale(*asked, "120%").refused.startswith("out_of_range --bubble")
    assert "no schedule applies" in forescale(*asked, "0.0001").err


@pytest.mark.parametrize(
    ("name", "stages", "makespan"),
    [
        # Rank 0: F 0-1, 1-2, B 5-7, 9-11; rank 1: F 1-3, B 3-5, F 5-7, B 7-9.
        ("1f1b", "1,2", 11.0),
        # Rank 0: F 0-1, 1-2, B 7-9, 9-11; rank 1: F 1-3, 3-5, B 5-7, 7-9.
        ("gpipe", "1,2", 11.0),
    ],
)
def test_stages_that_take_different_times_are_simulated(forescale, name, stages, makespan):
    shape = ("--pp", 2, "--microbatches", 2, "--stage-forward", stages)
    body = json.loads(forescale("pipeline", "simulate", "-s", name, *shape, "--json").out)
    assert body["makespan"] == makespan
    compared = json.loads(forescale("pipeline", "compare", name, *shape, "--json").out)
    assert compared["schedules"][0]["makespan"] == makespan
    assert f"makespan {makespan:g}" in forescale("pipeline", "draw", name, *shape).out
    forward = [float(item) for item in stages.split(",")]
    assert fs.pipeline(name, pp=2, microbatches=2, forward=forward).makespan == makespan


@pytest.mark.parametrize("name", [item.name for item in families()])
def test_every_schedule_takes_the_times_of_its_stages(name):
    even = fs.pipeline(name, vpp=family(name).fixed_vpp or family(name).least_vpp)
    stages = even.schedule.num_stages
    share = 4 / stages
    uneven = fs.pipeline(name, vpp=even.schedule.placement.vpp, forward=[*[share] * (stages - 1), 3 * share])
    assert uneven.makespan > even.makespan
    same = fs.pipeline(name, vpp=even.schedule.placement.vpp, forward=[share] * stages)
    assert same.makespan == pytest.approx(even.makespan)


def test_times_of_stages_are_one_for_each(forescale):
    line = ("pipeline", "simulate", "-s", "1f1b", "--stage-forward")
    assert "wrong_count --stage-forward" in forescale(*line, "1,2").refused
    assert "wrong_type --stage-forward" in forescale(*line, "1,a,1,1").refused
    with raises(fs.ForescaleError, "wrong_count forward"):
        fs.pipeline("1f1b", forward=[1, 2])
