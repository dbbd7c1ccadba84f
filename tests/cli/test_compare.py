from __future__ import annotations

import json
import re
import shlex

import pytest
from msgspec.structs import replace
from tests.cli.questions import DENSE, LAYOUT, SEARCH
from tests.golden.documents import GOLDEN
from tests.small import cluster, dense, workload

from forescale.cli.misspelt import translated
from forescale.cli.render.compare import machines_view
from forescale.project import project
from forescale.question import Note
from forescale.search.machines import Machine, Machines
from forescale.spec import Layout

PLAN_A, PLAN_B = GOLDEN / "plan_a.toml", GOLDEN / "plan_b.toml"


def document(ran):
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def saved(forescale, path, *arguments):
    path.write_text(json.dumps(document(forescale(*arguments, "--json"))), encoding="utf-8")
    return path


def test_one_screen_says_what_differs(forescale):
    ran = forescale("compare", PLAN_A, PLAN_B)
    assert ran.code == 0, ran.err
    for text in ("tp 4 → 2", "zero 1 → 3", "not only the layout differs: workload.tokens none → 1e+12", "tensor_comm", "B − A", "verdict", "is faster by"):  # fmt: skip
        assert text in ran.out
    assert len(ran.out.splitlines()) <= 25


def test_plans_are_projected_as_project_does(forescale):
    body = document(forescale("compare", PLAN_A, PLAN_B, "--json"))
    one, other = (document(forescale("project", "--plan", plan, "--json")) for plan in (PLAN_A, PLAN_B))
    step = body["figures"][0]
    assert (step["name"], step["a"], step["b"]) == ("step_time_s", one["step_time_s"], other["step_time_s"])
    assert sum(part["difference"] for part in body["time_parts_s"]) == pytest.approx(step["difference"])
    assert body["memory"]["peak_bytes"]["b"] == other["memory"]["peak_bytes"]


def test_saved_projections_equal_their_plans(forescale, tmp_path):
    saved_a = saved(forescale, tmp_path / "a.json", "project", "--plan", PLAN_A)
    body = document(forescale("compare", saved_a, PLAN_A, "--json"))
    assert body["layout"] == body["question"] == []
    assert {part["difference"] for part in body["time_parts_s"]} == {0.0}
    assert "both take the same time" in forescale("compare", saved_a, PLAN_A).out


def test_layouts_of_a_search_are_named_by_their_place(forescale, tmp_path):
    best = saved(forescale, tmp_path / "best.json", "search", *SEARCH)
    ranked = json.loads(best.read_text(encoding="utf-8"))["best"]
    body = document(forescale("compare", best, f"{best}#3", "--json"))
    assert body["figures"][0]["a"] == ranked[0]["step_time_s"]
    assert body["figures"][0]["b"] == ranked[2]["step_time_s"]
    front = saved(forescale, tmp_path / "front.json", "search", *SEARCH, "--pareto")
    assert document(forescale("compare", best, f"{front}#1", "--json"))["layout"] == []
    for place in (0, 9):
        ran = forescale("compare", best, f"{best}#{place}")
        assert (ran.code, ran.out) == (2, "")
        assert "out_of_range the number of the layout" in ran.refused


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ('{"schema": "forescale.explanation/1"}', "wrong_format"),
        (
            '{"schema": "forescale.projection/1"}',
            "wrong_format",
        ),
        ("[]", "wrong_format"),
        ("{", "cannot_parse JSON"),
    ],
)
def test_other_json_is_refused(forescale, tmp_path, content, sentence):
    path = tmp_path / "other.json"
    path.write_text(content, encoding="utf-8")
    ran = forescale("compare", PLAN_A, path)
    assert (ran.code, ran.out) == (2, "")
    assert len(ran.err.splitlines()) == 1
    assert sentence in ran.refused


def test_a_projection_has_one_layout(forescale, tmp_path):
    path = saved(forescale, tmp_path / "a.json", "project", *DENSE, *LAYOUT)
    ran = forescale("compare", path, f"{path}#2")
    assert ran.code == 2
    assert "wrong_format" in ran.refused


def _plan(folder, cluster, **more):
    path = folder / f"{cluster}.toml"
    parts = {"seq_len": 4096, "global_batch_size": 64, "tokens": '"100B"', **more}
    lines = [f"{name} = {value}" for name, value in parts.items() if value is not None]
    path.write_text(
        f'model = "llama-3.1-8b"\ncluster = "{cluster}"\ndevices = 16\n[workload]\n'
        + "\n".join(lines)
        + "\n[space]\ncp = [1]\nvpp = [1]\nmicro_batch_size = [1]\n"
    )
    return str(path)


def test_clusters_for_the_same_money(forescale, tmp_path):
    plans = [_plan(tmp_path, cluster) for cluster in ("h100-sxm", "gb200-nvl72")]
    document = json.loads(forescale("compare", *plans, "--equal-budget", "20K", "--json").out)
    one, other = document["runs"]
    assert max(one["cost"], other["cost"]) <= document["budget"] == 20_000.0
    assert (one["cluster"], other["cluster"]) == ("h100-sxm", "gb200-nvl72")
    shown = " ".join(forescale("compare", *plans, "--equal-budget", "20K").out.split())
    assert f"ends in {other['days'] / one['days']:.0%} of the days of" in shown
    little = " ".join(forescale("compare", *plans, "--equal-budget", "10").out.split())
    assert little.count("give a budget of that or more") == 2


def test_the_same_money_needs_prices_tokens_and_plans(forescale, tmp_path):
    priced, unpriced = _plan(tmp_path, "h100-sxm"), _plan(tmp_path, "gaudi2")
    for names, sentence in (
        ((priced, unpriced), "missing the price of an hour of gaudi2"),
        ((priced, "best.json"), "--equal-budget takes two plans (.toml, .yaml)"),
        (
            (_plan(tmp_path, "h200-sxm", tokens=None), priced),
            "required_with the number of training tokens (--tokens 15T)",
        ),
    ):
        ran = forescale("compare", *names, "--equal-budget", "20K")
        assert (ran.code, ran.out) == (2, "")
        assert sentence in ran.refused
    assert (
        "out_of_range --equal-budget" in forescale("compare", priced, priced, "--equal-budget", "-1").refused
    )


def test_a_verdict_that_is_no_text_is_refused(forescale, tmp_path):
    path = saved(forescale, tmp_path / "a.json", "project", *DENSE)
    body = json.loads(path.read_text(encoding="utf-8"))
    body["memory"]["verdict"] = -1
    path.write_text(json.dumps(body), encoding="utf-8")
    ran = forescale("compare", path, path)
    assert (ran.code, ran.out) == (2, "")
    assert (ran.error.code, ran.error.key, ran.error.value) == ("wrong_type", "verdict", -1)


MACHINES = ("llama-3.2-1b", "--seq-len", "1024", "--global-batch-size", "8")


def test_the_best_layout_of_each_machine(forescale):
    ran = forescale("compare", *MACHINES, "--cluster", "h100,mi300x", "--devices", "2", "--json")
    body = json.loads(ran.out)
    assert body["schema"] == "forescale.machines/1"
    assert [(item["cluster"], item["chosen"]) for item in body["machines"]] == [
        ("h100-sxm", "safe"),
        ("mi300x", "safe"),
    ]
    for item in body["machines"]:
        best = json.loads(
            forescale(
                "search",
                *MACHINES,
                "--cluster",
                item["cluster"],
                "--devices",
                "2",
                "--safe",
                "--top",
                1,
                "--json",
            ).out
        )["best"][0]
        assert item["step_time_s"] == best["step_time_s"]


def test_machines_of_which_each_has_its_number_of_devices(forescale):
    body = json.loads(
        forescale("compare", *MACHINES, "--cluster", "2xh100,4xmi300x", "--zero", 1, "--json").out
    )
    assert [(item["cluster"], item["devices"]) for item in body["machines"]] == [
        ("h100-sxm", 2),
        ("mi300x", 4),
    ]


def test_a_figure_of_the_device_is_varied_by_its_name(forescale):
    flags = (*MACHINES, "--cluster", "h100", "--devices", "2", "--zero", "1", "--json")
    own, whole = (
        json.loads(forescale("compare", *flags, "--vary", f"{name}=x1,x2").out)["machines"]
        for name in ("hbm_bandwidth", "cluster.device.hbm_bandwidth")
    )
    assert [item["step_time_s"] for item in own] == [item["step_time_s"] for item in whole]
    assert own[0]["step_time_s"] > own[1]["step_time_s"]


def test_how_much_the_fastest_leads_by(forescale):
    flags = (*MACHINES, "--cluster", "h100", "--devices", "2", "--vary", "zero=0,3")
    rates = [
        item["tokens_per_s"] for item in json.loads(forescale("compare", *flags, "--json").out)["machines"]
    ]
    text = " ".join(forescale("compare", *flags).out.split())
    assert f"{max(rates) / min(rates) - 1:.1%}".replace("%", " % more than zero") in text


def test_one_layout_on_several_numbers_of_devices(forescale):
    flags = ("--cluster", "h100", "--tp", "2", "--zero", "1")
    body = json.loads(forescale("compare", *MACHINES, *flags, "--devices", "2,4", "--json").out)
    for item in body["machines"]:
        one = json.loads(forescale("project", *MACHINES, *flags, "--devices", item["devices"], "--json").out)
        assert (item["chosen"], item["step_time_s"]) == ("given", one["step_time_s"])
        assert item["tokens_per_s"] == pytest.approx(8 * 1024 / one["step_time_s"])


def test_several_values_of_options_and_of_the_cluster(forescale):
    flags = (*MACHINES, "--cluster", "h100", "--devices", "2")
    vary = ("--vary", "zero=0,3", "--vary", "cluster.device.hbm_bandwidth=x1,x0.5")
    body = json.loads(forescale("compare", *flags, *vary, "--json").out)
    assert [item["varied"] for item in body["machines"]] == [
        f"zero {zero} · cluster.device.hbm_bandwidth {factor}" for zero in (0, 3) for factor in ("x1", "x0.5")
    ]
    for item, (zero, factor) in zip(
        body["machines"], [(0, "x1"), (0, "x0.5"), (3, "x1"), (3, "x0.5")], strict=True
    ):
        given = ("--zero", zero, "--set", f"cluster.device.hbm_bandwidth={factor}", "--json")
        one = json.loads(forescale("project", *flags, *given).out)
        assert (item["chosen"], item["step_time_s"]) == ("given", one["step_time_s"])
    table = forescale("compare", *flags, *vary).out
    assert "with" in table
    assert "cluster  " not in table  # one machine: it is not repeated in each row


def test_values_of_the_run_are_compared_at_their_best_layouts(forescale):
    flags = ("llama-3.2-1b", "--cluster", "h100", "--devices", "2", "--global-batch-size", "8")
    body = json.loads(forescale("compare", *flags, "--vary", "seq-len=1k,2048", "--json").out)
    assert [item["chosen"] for item in body["machines"]] == ["safe", "safe"]
    assert [item["projection"]["workload"]["seq_len"] for item in body["machines"]] == [1024, 2048]


@pytest.mark.parametrize(
    ("vary", "code", "key"),
    [
        ("zero", "wrong_type", "--vary"),
        ("zero=", "wrong_type", "--vary"),
        ("zero=2,x", "wrong_type", "--vary zero"),
        ("zero=2,9", "out_of_range", "zero"),
        ("top=1,2", "unknown_key", "--vary top"),
        ("devices=0,2", "out_of_range", "--devices"),
        ("sp=on,2", "wrong_type", "--vary sp"),
        ("recompute=full,some", "not_one_of", "--vary recompute"),
        ("gpus=1,2", "unknown_key", "--vary gpus"),
        ("zero=2,2", "given_twice", "2 in --vary zero"),
    ],
)
def test_values_that_an_option_does_not_take(forescale, vary, code, key):
    ran = forescale("compare", *MACHINES, "--cluster", "h100", "--devices", "2", "--vary", vary)
    assert (ran.code, ran.out, ran.error.code, ran.error.key) == (2, "", code, key)


def test_an_option_is_varied_once(forescale):
    flags = ("--cluster", "h100", "--devices", "2", "--vary", "seq-len=1k,2k", "--vary", "seq_len=4k")
    ran = forescale("compare", *MACHINES, *flags)
    assert (ran.code, ran.out) == (2, "")
    assert (ran.error.code, ran.error.key) == ("given_twice", "seq-len in --vary")


def test_a_machine_that_nothing_fits_is_named(forescale):
    flags = ("--cluster", "4090,l4", "--devices", "1", "--seq-len", "1024", "--global-batch-size", "1")
    body = json.loads(forescale("compare", "llama-3.1-405b", *flags, "--json").out)
    assert [bool(item["problem"]) for item in body["machines"]] == [True, True]
    assert forescale("compare", "llama-3.1-405b", *flags).code == 0


def test_a_file_on_several_machines(forescale, tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text(
        'model = "llama-3.1-8b"\ncluster = "h100-sxm"\ndevices = 8\n[workload]\nseq_len = 4096\nglobal_batch_size = 64\n'
        "[strategy]\nzero = 3\n"
    )
    for named in ((plan,), ("--plan", plan)):
        body = json.loads(forescale("compare", *named, "--cluster", "h100,h200", "--tp", "1", "--json").out)
        assert [(item["cluster"], item["devices"]) for item in body["machines"]] == [
            ("h100-sxm", 8),
            ("h200-sxm", 8),
        ]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("llama-3.1-8b",), "missing machines or values to compare"),
        ((), "missing A"),
        (("a.toml", "b.toml", "--cluster", "h100"), "no_effect --cluster"),
        ((*MACHINES, "--cluster", "h100", "--devices", "8,x"), "wrong_type --devices"),
    ],
)
def test_machines_that_cannot_be_compared(forescale, arguments, error):
    ran = forescale("compare", *arguments)
    assert (ran.code, ran.refused.startswith(error)) == (2, True), ran.refused


def test_two_profiles_are_recognised_by_their_content(forescale, tmp_path):
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 0.0, "dur": 100.0}
    for name, length in (("a", 100.0), ("b.trace", 150.0)):
        (tmp_path / name).write_text(json.dumps({"traceEvents": [{**kernel, "dur": length}]}))
    a, b, other = tmp_path / "a", tmp_path / "b.trace", tmp_path / "other.json"
    content = json.loads(forescale("compare", a, b, "--json").out)
    assert content["schema"] == "forescale.profile_comparison/1"
    assert content["kernels"][0]["difference_s"] == pytest.approx(5e-5)
    assert "B is slower" in forescale("compare", a, b).out
    other.write_text("{}")
    assert "wrong_format a profiler trace" in forescale("compare", a, other).refused


def test_prices_of_each_machine_and_the_days_of_a_run(forescale):
    asked = ("compare", "llama-3.2-1b", "--cluster", "h100,b200", "--devices", "8", "--seq-len", "1024")
    asked += ("--global-batch-size", "64", "--tp", "1", "--tokens", "1B", "--price")
    rows = json.loads(forescale(*asked, "2,4", "--json").out)["machines"]
    for row, price in zip(rows, (2.0, 4.0), strict=True):
        assert row["days"] == pytest.approx(1e9 / row["tokens_per_s"] / 86_400, rel=1e-3)
        assert row["cost"] == pytest.approx(row["days"] * 24 * 8 * price)
    same = json.loads(forescale(*asked, "2", "--json").out)["machines"]
    assert [row["cost"] / row["days"] for row in same] == pytest.approx([384.0, 384.0])
    assert "(list prices)" not in forescale(*asked, "2,4").out
    assert json.loads(forescale(*asked, "$2,$4/h", "--json").out)["machines"] == rows
    assert "wrong_type --price" in forescale(*asked, "2,3,4").refused
    assert "no_effect --price" in forescale("compare", "a.json", "b.json", "--price", "2").refused


def test_the_fastest_machine_is_one_that_fits(forescale):
    asked = ("compare", "qwen2.5-32b", "--cluster", "h100", "--devices", "8", "--seq-len", "1024")
    out = forescale(*asked, "--global-batch-size", "64", "--vary", "tp=1,8").out
    tp_1, tp_8 = (next(line for line in out.splitlines() if line.startswith(f"tp {tp} ")) for tp in (1, 8))
    assert "OOM" in tp_1 and "OOM" not in tp_8
    fastest = next(line for line in out.splitlines() if line.startswith("fastest: "))
    assert fastest.startswith("fastest: 8 × h100-sxm with tp 8")


def test_optimizer_bytes_have_a_column_where_the_optimizer_varies(forescale):
    words = ("llama-3.1-8b", "--cluster", "h100-sxm", "--devices", 8, "--global-batch-size", 64, "--zero", 1)
    table = forescale("compare", *words, "--vary", "optimizer=adamw,muon").out
    rows = [line for line in table.splitlines() if line.startswith("optimizer ")]
    shown = [float(line.split("%")[1].split()[1]) for line in rows]
    for name, gib in zip(("adamw", "muon"), shown, strict=True):
        body = json.loads(forescale("project", *words, "--optimizer", name, "--json").out)
        stage = max(body["memory"]["stages"], key=lambda stage: stage["peak_bytes"])
        assert gib == round(stage["optimizer_bytes"] / 2**30, 1)
    assert "optim GiB" not in forescale("compare", *words, "--vary", "seq-len=1k,2k").out


PAIR = ("--cluster", "h100", "--devices", "2", "--seq-len", "2048", "--global-batch-size", "8", "--tp", "2")


def test_several_models_are_compared(forescale, tmp_path):
    names = ("llama-3.2-1b", "llama-3.2-3b")
    ran = forescale("compare", *names, *PAIR)
    assert ran.out.startswith("llama-3.2-1b, llama-3.2-3b · ")
    body = document(forescale("compare", *names, *PAIR, "--json"))
    assert [item["varied"] for item in body["machines"]] == [f"model {name}" for name in names]
    alone = document(forescale("project", names[1], *PAIR, "--json"))
    assert body["machines"][1]["step_time_s"] == alone["step_time_s"]
    assert document(forescale("compare", ",".join(names), *PAIR, "--json")) == body
    assert "unknown_name model" in forescale("compare", names[0], "lama-3.2-3b", *PAIR).refused
    assert "not_found" in forescale("compare", "mine.json", "best.json#1").refused


def test_keys_of_the_cluster_are_short_in_the_table(forescale):
    ran = forescale("compare", "llama-3.2-1b", *PAIR, "--vary", "cluster.device.hbm_bandwidth=x1,x2")
    assert [line.split()[:2] for line in ran.out.splitlines()[3:5]] == [
        ["hbm_bandwidth", "x1"],
        ["hbm_bandwidth", "x2"],
    ]


def test_layouts_that_do_not_fit_are_told_how_to_get_one(forescale):
    flags = ("--devices", "2", "--seq-len", "2048", "--global-batch-size", "8", "--offload-optimizer", "1")
    ran = forescale("compare", "llama-3.1-70b", "--cluster", "h100,a100", *flags)
    assert "leave options of the layout out" in ran.out
    none = forescale("compare", "llama-3.1-70b", "--cluster", "h100,a100", *flags[:-2])
    assert "nothing fits: ask forescale fit on one cluster" in none.out
    body = json.loads(
        forescale("compare", "llama-3.1-70b", "--cluster", "h100,a100", *flags[:-2], "--json").out
    )
    assert {(row["chosen"], row["verdict"]) for row in body["machines"]} == {("smallest", "OOM")}
    assert all(f"needs {row['peak_bytes'] / 2**30:.2f} GiB" in row["problem"] for row in body["machines"])


def test_a_short_run_has_hours(forescale):
    flags = (
        "--cluster",
        "h100",
        "--devices",
        "1,2",
        "--seq-len",
        "2048",
        "--global-batch-size",
        "8",
        "--tp",
        "1",
    )
    text = forescale("compare", "llama-3.2-1b", *flags, "--tokens", "100M").out
    assert "hours" in text and "days" not in text.partition("fastest")[0]
    body = document(forescale("compare", "llama-3.2-1b", *flags, "--tokens", "100M", "--json"))
    assert f" {24.0 * body['machines'][0]['days']:.2f} " in text


def test_words_of_others_are_values_next_to_ours(forescale):
    optimizers = "--vary", "optimizer=adamw_8bit,adafactor,adamw"
    ran = forescale("compare", "llama-3.2-1b", "--cluster", "h100", "--devices", 1, "--global-batch-size", 8, *optimizers, "--tp", 1, "--json")  # fmt: skip
    sizes = [sum(stage["optimizer_bytes"] for stage in row["projection"]["memory"]["stages"]) for row in document(ran)["machines"]]  # fmt: skip
    assert sizes[1] < sizes[0] < sizes[2]


def test_a_device_without_a_price_is_named_next_to_the_cheapest(forescale):
    ran = forescale("compare", "llama-3.2-1b", "--cluster", "h100,mi355x", "--devices", 8, "--global-batch-size", 64, "--tp", 1)  # fmt: skip
    assert "USD per million tokens at list prices (mi355x not counted" in " ".join(ran.out.split())


def test_values_that_are_illegal_together_are_rows_without_figures(forescale):
    question = ("llama-3.1-8b", "--cluster", "h100", "--devices", "8", "--global-batch-size", "64")
    rows = document(forescale("compare", *question, "--vary", "tp=4,8", "--vary", "pp=1,2", "--json"))[
        "machines"
    ]
    assert [row["projection"] is None for row in rows] == [False, False, False, True]
    assert {row["cluster"] for row in rows} == {"h100-sxm"}
    assert rows[3]["problem"].startswith("the number of devices 8 must be a multiple of")
    assert forescale("compare", *question, "--vary", "tp=3,5").code == 2


def test_rates_of_the_network_are_varied_by_its_name():
    words = "compare llama-3.1-8b --cluster h100 --devices 16 --global-batch-size 64 --zero 3 --vary"
    read, _ = translated([*words.split(), "network=400G,200G"])
    assert read[-1] == "cluster.tiers.infiniband.bandwidth=50GB/s,25GB/s"
    read, _ = translated([*words.split(), "nvlink=x1,x2"])
    assert read[-1] == "cluster.tiers.nvlink.bandwidth=x1,x2"


def test_cost_models_are_varied(forescale):
    question = (
        "llama-3.2-1b",
        "--cluster",
        "h100",
        "--devices",
        "1",
        "--global-batch-size",
        "64",
        "--zero",
        "0",
    )
    rows = document(forescale("compare", *question, "--vary", "device-clock-mhz=1980,990", "--json"))[
        "machines"
    ]
    assert [row["varied"] for row in rows] == ["device-clock-mhz 1980", "device-clock-mhz 990"]
    assert 1.0 < rows[1]["step_time_s"] / rows[0]["step_time_s"] <= 2.0


@pytest.mark.usefixtures("usual_frameworks")
@pytest.mark.parametrize("values", ["2,3", "3,2"])
def test_rows_of_a_comparison_have_one_framework(forescale, values):
    question = (
        "llama-3.1-8b",
        "--cluster",
        "h100",
        "--devices",
        "8",
        "--seq-len",
        "8192",
        "--global-batch-size",
        "16",
    )
    rows = json.loads(forescale("compare", *question, "--vary", f"zero={values}", "--json").out)["machines"]
    framework = ("--framework", "torchtitan" if values[0] == "3" else "megatron-bridge")
    steps = [
        json.loads(forescale("project", *question, "--zero", zero, *framework, "--json").out)["step_time_s"]
        for zero in values.split(",")
    ]
    assert [row["projection"]["step_time_s"] for row in rows] == steps
    own = "megatron-bridge" if values[0] == "3" else "torchtitan"
    said = [any(f"would use {own}" in text for text in texts_of(row["projection"])) for row in rows]
    assert said == [False, True]
    shown = " ".join(forescale("compare", *question, "--vary", f"zero={values}").out.split())
    assert f"would use {own}" in shown


def texts_of(projection):
    return [note["text"] for note in projection["notes"]]


@pytest.mark.usefixtures("usual_frameworks")
def test_rows_of_memory_have_one_framework(forescale):
    question = (
        "llama-3.1-8b",
        "--cluster",
        "h100",
        "--devices",
        "64",
        "--global-batch-size",
        "64",
        "--seq-len",
        "4096",
    )
    rows = json.loads(forescale("memory", "compare", *question, "--across", "zero", "--json").out)["rows"]
    assert len({row["activations_bytes"] for row in rows}) == 1


def test_degrees_that_do_not_fit_alone_are_compared_in_their_fastest_layouts(forescale):
    question = ("mixtral-8x7b", "--cluster", "h100", "--devices", "16", "--seq-len", "2048")
    flags = (*question, "--global-batch-size", "16", "--framework", "none")
    body = json.loads(forescale("compare", *flags, "--vary", "ep=2,4", "--json").out)
    for row, ep in zip(body["machines"], (2, 4), strict=True):
        best = json.loads(forescale("search", *flags, "--fix", f"ep={ep}", "--safe", "--json").out)["best"][0]
        assert row["projection"]["strategy"] == best["strategy"]
        assert row["projection"]["strategy"]["ep"] == ep


def test_sizes_of_a_cluster_are_compared_under_one_recompute(forescale):
    question = ("llama-3.1-405b", "--cluster", "h100", "--seq-len", "8192", "--global-batch-size", "2k")
    flags = (*question, "--framework", "megatron-bridge", "--tp", "8", "--pp", "16")
    alone = {
        count: json.loads(forescale("project", *flags, "--devices", count, "--json").out)["strategy"][
            "recompute"
        ]
        for count in ("8192", "16384")
    }
    assert alone["8192"] != alone["16384"]  # the more devices, the fewer states
    body = json.loads(forescale("compare", *flags, "--devices", "8k,16k", "--json").out)
    assert [row["devices"] for row in body["machines"]] == [8192, 16384]
    assert {str(row["projection"]["strategy"]["recompute"]) for row in body["machines"]} == {
        str(alone["8192"])
    }


@pytest.mark.parametrize("name", ["network.bandwidth", "network_bandwidth", "infiniband.bandwidth"])
def test_the_bandwidth_of_a_network_is_its_rate(name):
    words = "compare llama-3.1-8b --cluster h100 --devices 16 --global-batch-size 64 --zero 3 --vary"
    read, _ = translated([*words.split(), f"{name}=200Gb/s,400Gb/s"])
    assert read[-1] == "cluster.tiers.infiniband.bandwidth=25GB/s,50GB/s"


def test_a_bandwidth_that_may_be_of_memory_is_refused(forescale):
    question = ("llama-3.1-8b", "--cluster", "h100", "--devices", "16", "--global-batch-size", "64")
    ran = forescale("project", *question, "--set", "cluster.bandwidth=50GB/s")
    assert (ran.code, ran.error.code, ran.error.key) == (2, "unknown_key", "bandwidth")


def test_a_topic_has_one_note_whatever_the_values():
    one = project(dense(), cluster(4), Layout(dp_shard=4), workload(global_batch_size=16))
    notes = [Note(topic="framework", text=text) for text in ("bf16 recipe", "fp8 recipe", "mxfp8 recipe")]
    machines = tuple(
        Machine(cluster="h100-sxm", devices=4, projection=replace(one, notes=(note,)), varied=note.text)
        for note in notes
    )
    [shown] = machines_view(Machines(machines=machines)).notes
    assert (shown.topic, shown.text) == (
        "framework",
        "bf16 recipe (first row; 2 variants in other rows: --json)",
    )
    assert machines_view(Machines(machines=machines[:1])).notes == (notes[0],)


def test_clusters_with_each_number_of_devices_say_how_pairs_are_compared(forescale):
    line = ("compare", "llama-3.2-1b", "--seq-len", "1024", "--global-batch-size", "64", "--tp", "1")
    every = " ".join(forescale(*line, "--cluster", "h100,h200", "--devices", "8,16").out.split())
    pairs = re.search(
        r"2 clusters × 2 numbers of devices: every combination; (--cluster \S+) compares", every
    )[1]
    assert pairs == "--cluster 8xh100-sxm,16xh200-sxm"
    paired = forescale(*line, *pairs.split())
    rows = json.loads(forescale(*line, *pairs.split(), "--json").out)["machines"]
    assert [(row["cluster"], row["devices"]) for row in rows] == [("h100-sxm", 8), ("h200-sxm", 16)]
    assert "every combination" not in paired.out
    assert "every combination" not in forescale(*line, "--cluster", "h100", "--devices", "8,16").out


def test_machines_are_compared_with_failures_and_checkpoints(forescale):
    line = (
        "compare",
        "llama-3.2-1b",
        "--cluster",
        "h100,h200",
        "--devices",
        "8",
        "--global-batch-size",
        "64",
    )
    line += ("--seq-len", "1024", "--tp", "1", "--tokens", "100B")
    operated = ("--failures", "0.5", "--storage-bandwidth", "2GB/s")
    one, other = (json.loads(forescale(*line, *more, "--json").out)["machines"] for more in ((), operated))
    assert [row["days"] for row in one] == [row["days"] for row in other]
    assert all(often["calendar_days"] > row["calendar_days"] for row, often in zip(one, other, strict=True))
    text = forescale(*line, *operated).out
    assert "calendar" in text and f"{other[0]['calendar_days']:.1f}" in text
    assert "calendar" not in forescale(*line).out
    varied = forescale(*line, "--vary", "interval=5min,2h", "--json").out
    days = [row["calendar_days"] for row in json.loads(varied)["machines"]]
    assert len({*days}) == 4
    assert "no_effect --interval" in forescale("compare", "a.json", "b.json", "--interval", "30min").refused


def test_the_fastest_row_can_be_projected_again(forescale):
    """Its dispatcher and overlap are in the line, which nothing else of the table says."""
    asks = (
        "--cluster",
        "h200",
        "--devices",
        "16,32",
        "--seq-len",
        4096,
        "--global-batch-size",
        256,
        "--tp",
        2,
    )
    answer = forescale("compare", "llama-3.1-8b", *asks, "--framework", "megatron-bridge@26.08")
    (asked,) = [row for row in answer.out.splitlines() if "forescale project" in row]
    words = shlex.split(asked.partition("forescale ")[2])
    assert words[:2] == ["project", "llama-3.1-8b"]
    again = json.loads(forescale(*words, "--json").out)
    rows = json.loads(
        forescale("compare", "llama-3.1-8b", *asks, "--framework", "megatron-bridge@26.08", "--json").out
    )
    fastest = max(rows["machines"], key=lambda row: row["tokens_per_s"])
    assert again["step_time_s"] == fastest["step_time_s"]
