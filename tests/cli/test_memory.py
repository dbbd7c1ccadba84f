from __future__ import annotations

import json
import pickle
from xml.etree import ElementTree

import pytest
from tests.cli.questions import DENSE, LAYOUT

GIB = 2.0**30


def document(ran):
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


@pytest.fixture
def bench(tmp_path):
    def write(allocated=10 * GIB, reserved=12 * GIB, **more):
        path = tmp_path / "bench.json"
        config = {
            "model": "llama-3.1-8b", "cluster": "h100-sxm", "devices": 8, "strategy": {"tp": 4, "pp": 2},
            "workload": {"seq_len": 4096, "global_batch_size": 8},
        }  # fmt: skip
        rank = {"peak_allocated_bytes": allocated, "peak_reserved_bytes": reserved}
        content = {"schema": "forescale.bench/1", "config": config, "ranks": [rank]} | more
        path.write_text(json.dumps(content), encoding="utf-8")
        return path

    return write


def test_without_a_command_it_is_one_layout(forescale):
    plain = forescale("memory", *DENSE, "--pp", 4)
    assert plain.code == 0, plain.err
    assert plain.out == forescale("memory", "layout", *DENSE, "--pp", 4).out
    assert "GiB, stage" in plain.out
    assert forescale("memory", *DENSE, "--json").out == forescale("project", *DENSE, "--json").out


def test_help_names_the_comparison(forescale):
    ran = forescale("memory", "--help")
    assert ran.code == 0
    assert "--load-benchmark" in ran.out
    assert "memory compare" in ran.out
    assert "--across" in forescale("memory", "compare", "--help").out


def test_anchored_on_a_measurement(forescale, bench):
    simulated = document(forescale("memory", *DENSE, *LAYOUT, "--json"))
    body = document(
        forescale(
            "memory",
            *DENSE,
            *LAYOUT,
            "--mode",
            "both",
            "--load-benchmark",
            bench(40 * GIB, 42 * GIB),
            "--json",
        )
    )
    assert body["simulated"] == {key: value for key, value in simulated.items() if key != "question"}
    anchored = body["anchored"]
    assert body["memory"]["peak_bytes"] == anchored["point_bytes"]
    assert body["memory"]["peak_high_bytes"] == pytest.approx(anchored["upper_bytes"])
    outside = anchored["stages"][anchored["stage"]]["outside_bytes"]
    handed = anchored["analytical_bytes"] - outside + anchored["live_tensor_excess_bytes"]
    assert anchored["framework_overhead_bytes"] == pytest.approx(
        2.0 / 40.0 * handed
    )  # as large a part as there
    residual = anchored["framework_overhead_bytes"] + anchored["live_tensor_excess_bytes"]
    assert anchored["point_bytes"] == pytest.approx(anchored["analytical_bytes"] + residual)
    assert anchored["upper_bytes"] == pytest.approx(anchored["analytical_bytes"] + 1.05 * residual)
    ran = forescale(
        "memory", *DENSE, *LAYOUT, "--load-benchmark", bench(40 * GIB, 42 * GIB), "--safety-margin", 0.5
    )
    for text in (
        "framework overhead",
        "2.00",
        "live-tensor excess",
        "point estimate",
        "residual × 1.5",
        "FITS",
    ):
        assert text in ran.out


def test_both_show_the_differences(forescale, bench):
    ran = forescale(
        "memory", *DENSE, *LAYOUT, "--memory-mode", "both", "--load-benchmark", bench(allocated=40 * GIB, reserved=87 * GIB)
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert "simulate  benchmark  difference" in ran.out
    peak = next(line for line in ran.out.splitlines() if line.startswith("peak"))
    simulated, benchmark, difference = (float(word) for word in peak.split()[1:4])
    assert benchmark - simulated == pytest.approx(difference, abs=0.011)
    assert "simulate: FITS" in ran.out
    assert "AT RISK" in ran.out
    assert len(ran.out.splitlines()) <= 25


def test_layers_correct_activations(forescale, bench):
    path = bench(layers=[{"kind": "dense", "activation_bytes": 1e9}])
    body = document(forescale("memory", *DENSE, *LAYOUT, "--load-benchmark", path, "--json"))
    (correction,) = body["anchored"]["corrections"]
    assert correction["kind"] == "attention+dense"
    assert correction["factor"] == pytest.approx(1e9 / correction["analytical_bytes"])
    assert "measured" in forescale("memory", *DENSE, *LAYOUT, "--load-benchmark", path).out


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (("--memory-mode", "benchmark"), "required_with a measurement (--load-benchmark FILE)"),
        (("--safety-margin", "0.1"), "required_with --load-benchmark"),
        (
            ("--memory-mode", "simulate", "--load-benchmark", "x.json"),
            "required_with --mode benchmark or both",
        ),
        (("--load-benchmark", "no-such.json"), "not_found file"),
        (("--export", "x.txt"), "wrong_suffix a timeline"),
    ],
)
def test_options_that_do_not_go_together(forescale, given, text):
    ran = forescale("memory", *DENSE, *LAYOUT, *given)
    assert ran.code == 2
    assert text in ran.refused


def test_another_model_or_account_is_refused(forescale, bench):
    ran = forescale("memory", "llama-2-7b", *DENSE[1:], *LAYOUT, "--load-benchmark", bench())
    assert ran.code == 2
    assert "other_run bench.json" in ran.refused
    ran = forescale("memory", *DENSE, *LAYOUT, "--load-benchmark", bench(), "--preset", "primus")
    assert ran.code == 2
    assert "preset default only" in ran.err


def test_the_timeline_locates_and_names_the_peak(forescale):
    ran = forescale("memory", *DENSE, *LAYOUT, "--timeline")
    assert ran.code == 0, ran.err
    for text in ("1f1b, 32 micro-batches", "rank 0", "rank 1", "█", "peak: rank 0 in 0B0 (stage 0)", "2 passes held", "states: optimizer"):  # fmt: skip
        assert text in ran.out
    assert len(ran.out.splitlines()) <= 25
    body = document(forescale("memory", *DENSE, *LAYOUT, "--timeline", "--json"))["timeline"]
    assert body["peak"]["action"] == "0B0"
    assert len(body["ranks"]) == 2


def test_many_ranks_fit_one_screen(forescale):
    question = ("llama-3.1-70b", "--cluster", "h100-sxm", "--devices", 128, "--seq-len", 4096, "--global-batch-size", 64)  # fmt: skip
    ran = forescale("memory", *question, "--tp", 8, "--pp", 16, "--timeline")
    assert ran.code == 0, ran.err
    assert "9 more ranks" in ran.out
    assert len(ran.out.splitlines()) <= 30


def test_the_timeline_is_exported(forescale, tmp_path):
    for name in ("trace.json", "snapshot.pickle"):
        ran = forescale("memory", *DENSE, *LAYOUT, "--export", tmp_path / name)
        assert ran.code == 0, ran.err
        assert f"wrote {tmp_path / name}" in ran.out
    assert json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    assert len(pickle.loads((tmp_path / "snapshot.pickle").read_bytes())["device_traces"]) == 2


@pytest.mark.parametrize(
    ("across", "values", "falls"),
    [
        ("recompute", "none,core_attn+mlp,full", True),
        ("recompute", "none,minimal", True),
        ("zero", "0,1,2,3", True),
        ("tp", "1,2,4,8", True),
        ("seq-len", "1024,4096,16384", False),
        ("micro-batch-size", "1,2,4", False),
    ],
)
def test_comparisons_go_the_way_they_must(forescale, across, values, falls):
    body = document(forescale("memory", "compare", *DENSE, "--across", across, "--values", values, "--json"))
    assert [row["value"] for row in body["rows"]] == values.split(",")
    peaks = [row["peak_bytes"] for row in body["rows"]]
    assert peaks == sorted(peaks, reverse=falls)
    assert len(set(peaks)) == len(peaks)


def test_a_comparison_agrees_with_single_projections(forescale):
    body = document(forescale("memory", "compare", *DENSE, "--across", "tp", "--values", "2,4", "--json"))
    for row in body["rows"]:
        single = document(forescale("memory", *DENSE, "--tp", row["value"], "--json"))["memory"]
        assert row["peak_bytes"] == single["peak_bytes"]


def test_values_that_make_no_layout_are_named(forescale):
    ran = forescale("memory", "compare", *DENSE, "--across", "tp", "--values", "2,3")
    assert ran.code == 0, ran.err
    assert "3: " in ran.out
    ran = forescale("memory", "compare", *DENSE, "--across", "tp", "--values", "3")
    assert ran.code == 2
    ran = forescale("memory", "compare", *DENSE, "--across", "tp", "--values", "two")
    assert "wrong_type --values of tp" in ran.refused


def test_pictures(forescale, tmp_path):
    for name in ("bars.svg", "bars.html", "bars.json"):
        ran = forescale(
            "memory", "compare", *DENSE, "--tp", 2, "--across", "recompute", "--plot", tmp_path / name
        )
        assert ran.code == 0, ran.err
        assert f"wrote {tmp_path / name}" in ran.out
    assert ElementTree.fromstring((tmp_path / "bars.svg").read_text(encoding="utf-8")).tag.endswith("svg")
    assert "data-spec" in (tmp_path / "bars.html").read_text(encoding="utf-8")
    spec = json.loads((tmp_path / "bars.json").read_text(encoding="utf-8"))
    assert len(spec["data"]["values"]) == 18
    ran = forescale("memory", "compare", *DENSE, "--across", "tp", "--plot", tmp_path / "bars.pdf")
    assert ran.code == 2
    assert "wrong_suffix --plot" in ran.refused


def test_files_hold_the_first_of_many_microbatches(forescale, tmp_path):
    question = (*DENSE[:-1], 512, "--pp", 2, "--tp", 8)
    whole = document(forescale("memory", *question, "--timeline", "--export", tmp_path / "t.json", "--json"))
    assert whole["timeline"]["num_microbatches"] == 512
    events = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))["traceEvents"]
    assert max(event["args"]["microbatch"] for event in events if event["ph"] == "X") == 63
    kept = [event["args"]["bytes"] for event in events if event["name"] == "allocated"]
    assert max(kept) == pytest.approx(whole["timeline"]["peak"]["allocated_bytes"])


def test_states_by_number_of_parameters_and_types(forescale):
    """The playbook's memory table, 16 and 20 bytes per parameter, and its table of FP8 recipes."""
    printed = document(forescale("memory", "1B", "7B", "70B", "405B", "--json"))
    table = {}
    for row in printed["rows"]:
        table.setdefault(row["types"], []).append(row["total_bytes"] / 1e9)
    assert table["fp32"] == table["bf16"] == [16, 112, 1120, 6480]
    assert table["bf16, fp32 gradients"] == [20, 140, 1400, 8100]
    assert [table[f"fp8, {name}"][0] for name in ("Transformer Engine", "FP8-LM O3", "nanotron")] == [
        16,
        7,
        6,
    ]


def test_states_of_a_model_are_those_of_its_parameters(forescale):
    (row, *_) = document(forescale("memory", "states", "llama-3.1-8b", "--json"))["rows"]
    assert row["total_bytes"] == 16 * row["parameters"] == 16 * 8_030_261_248
    assert "out_of_range parameters" in forescale("memory", "states", "0").refused
    assert "unknown_name" in forescale("memory", "states", "lama-3.1-8b").refused


def test_a_vision_tower_is_named_with_its_memory(forescale):
    line = (
        "memory",
        "qwen2.5-vl-7b",
        "--cluster",
        "h100",
        "--devices",
        "8",
        "--global-batch-size",
        "8",
        "--zero",
        "3",
    )
    seen = (*line, "--image-size", "448")
    tower = json.loads(forescale(*seen, "--json").out)["vision"]
    text = " ".join(forescale(*seen).out.split())
    assert f"vision tower {tower['parameters'] / 1e6:.1f} M parameters" in text
    assert f"{tower['states_bytes'] / 2**30:.2f} GiB of states" in text
    assert "vision tower" not in forescale(*line, "--images", "0").out
