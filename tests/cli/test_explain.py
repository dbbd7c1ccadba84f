from __future__ import annotations

import json

import pytest
from tests.cli.questions import DENSE, LAYOUT, MACHINE, RUN

from forescale.cli.explain import _model_and_quantity
from forescale.cli.options import PlanOptions
from forescale.explain import quantity_names


def test_one_screen_by_default(forescale):
    for quantity in ("step_time", "memory.peak", "mfu", "step_time.data_comm", "memory.activations"):
        ran = forescale("explain", DENSE[0], quantity, *MACHINE, *RUN, *LAYOUT)
        assert ran.code == 0, ran.err
        assert ran.out.startswith(f"{quantity} = ")
        assert len(ran.out.splitlines()) <= 45
        assert "…" not in ran.out.replace(", …]", "")


def test_the_main_term_is_followed_to_what_it_is_made_of(forescale):
    """Activations of a stage are layers times what one keeps, tensor by tensor."""
    words = (
        "--cluster",
        "a100",
        "--devices",
        64,
        "--seq-len",
        2048,
        "--global-batch-size",
        64,
        "--tp",
        8,
        "--pp",
        8,
    )
    ran = forescale("explain", "gpt3-175b", "activations", *words, "--sp", "--recompute", "selective")
    assert "ffn.activated = 24.00 MiB" in ran.out


def test_a_bubble_is_compared_with_the_step_and_with_equal_stages(forescale):
    words = ("--cluster", "h100", "--devices", 64, "--global-batch-size", 32, "--tp", 4, "--pp", 8)
    ran = forescale("explain", "llama-3.1-70b", "bubble", *words)
    seconds = {
        name: json.loads(forescale("explain", "llama-3.1-70b", name, *words, "--depth", 0, "--json").out)[
            "tree"
        ]["value"]
        for name in ("step_time", "step_time.bubble")
    }
    assert f"share of the step: {seconds['step_time.bubble'] / seconds['step_time']:.1%}" in ran.out
    assert "(p-1)/m = 7/16 = 43.8%" in ran.out


def test_depth_and_sources(forescale):
    shallow = forescale("explain", DENSE[0], "memory.weights", *MACHINE, *RUN, *LAYOUT, "--depth", 0)
    assert len(shallow.out.splitlines()) == 1
    cited = forescale("explain", DENSE[0], "memory.weights", *MACHINE, *RUN, *LAYOUT, "--cite")
    assert "1910.02054" in cited.out


def test_json(forescale):
    ran = forescale("explain", DENSE[0], "step_time", *MACHINE, *RUN, *LAYOUT, "--json")
    body = json.loads(ran.out)
    assert body["schema"] == "forescale.explanation/1"
    assert body["quantity"] == "step_time"
    assert body["tree"]["value"] == pytest.approx(sum(part["value"] for part in body["tree"]["inputs"]))


def test_a_plan_needs_no_model(forescale, tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text(
        'model = "llama-3.1-8b"\ncluster = "h100-sxm"\ndevices = 8\n'
        "[workload]\nseq_len = 4096\nglobal_batch_size = 64\n",
        encoding="utf-8",
    )
    assert forescale("explain", "step_time", "--plan", plan).code == 0


def test_without_a_quantity_all_are_listed_with_their_values(forescale):
    listed = forescale("explain", DENSE[0], *MACHINE, *RUN, *LAYOUT, "--json")
    assert listed.code == 0, listed.err
    values = {quantity["name"]: quantity["value"] for quantity in json.loads(listed.out)["quantities"]}
    assert set(values) == set(quantity_names()) - {"training_days"}
    for name in ("step_time", "memory.peak", "mfu"):
        one = forescale("explain", DENSE[0], name, *MACHINE, *RUN, *LAYOUT, "--json", "--depth", 0)
        assert json.loads(one.out)["tree"]["value"] == values[name]
    shown = forescale("explain", DENSE[0], *MACHINE, *RUN, *LAYOUT)
    assert all(name in shown.out for name in values)


def test_an_incomplete_question_lists_the_names(forescale):
    for arguments in ((), (DENSE[0], "--cluster", "h100-sxm")):
        ran = forescale("explain", *arguments)
        assert ran.code == 0, ran.err
        assert all(name in ran.out for name in quantity_names())
        assert "--global-batch-size" in ran.out


def test_the_quantities_of_a_preset_are_its_own(forescale):
    ran = forescale("explain", DENSE[0], *MACHINE, *RUN, *LAYOUT, "--preset", "playbook", "--json")
    names = {quantity["name"] for quantity in json.loads(ran.out)["quantities"]}
    assert "memory.weights" in names
    assert "step_time" not in names


@pytest.mark.parametrize(
    ("arguments", "model", "quantity"),
    [
        (("mfu",), None, "mfu"),
        (("step_tim",), None, "step_tim"),
        (("llama-3.1-8b",), "llama-3.1-8b", None),
        (("llama-3.1-8",), "llama-3.1-8", None),
        (("llama-3.1-8b", "mfuu"), "llama-3.1-8b", "mfuu"),
        (("mfu", "llama-3.1-8b"), "llama-3.1-8b", "mfu"),
        (("llama-3.1-8", "mfu"), "llama-3.1-8", "mfu"),
        ((), None, None),
    ],
)
def test_arguments_are_a_model_and_a_quantity(arguments, model, quantity):
    assert _model_and_quantity(list(arguments), PlanOptions()) == (model, quantity)


def test_options_of_one_quantity_require_it(forescale):
    assert forescale("explain", DENSE[0], *MACHINE, *RUN, *LAYOUT, "--depth", 1).code == 2


@pytest.mark.parametrize("quantity", ["step_time", "memory.activations", "params.per_device_max"])
def test_arithmetic_is_named_by_its_operands(forescale, quantity):
    out = forescale("explain", DENSE[0], quantity, *DENSE[1:], "--depth", 30).out
    names = {row.partition(" = ")[0].lstrip("│├└─ ") for row in out.splitlines() if " = " in row}
    assert not {"product", "quotient", "sum", "difference", "first", "second", "×", "+"} & names
    assert any(" × " in name for name in names)
    assert "(quotient)" not in out and "(sum)" not in out


def test_the_end_of_a_name_is_enough_where_one_quantity_has_it(forescale):
    asked = (
        "llama-3.2-1b",
        "--cluster",
        "h100",
        "--devices",
        "1",
        "--seq-len",
        "1024",
        "--global-batch-size",
        "8",
    )
    for text in ("activations", "Activations", "memory.activations"):
        assert forescale("explain", *asked, text).out.startswith("memory.activations = ")


def test_the_formula_that_is_asked_for_is_shown_whole(forescale):
    words = ("--cluster", "h100-sxm", "--devices", 16, "--pp", 4, "--global-batch-size", 64)
    ran = forescale("explain", "llama-3.1-8b", "bubble", *words)
    assert "equal stages: (p−1)/v of one micro-batch; nothing at p = 1." in " ".join(ran.out.split())
    lines = [
        line for line in ran.out.splitlines() if "forescale explain" not in line
    ]  # a command is one line
    assert max(map(len, lines)) <= 100


def test_summands_state_their_share_of_the_sum(forescale):
    asked = ("explain", DENSE[0], "step_time", *MACHINE, *RUN, *LAYOUT)
    tree = json.loads(forescale(*asked, "--json").out)["tree"]
    largest = max(part["value"] for part in tree["inputs"])
    first = forescale(*asked, "--depth", 1).out.splitlines()[1]
    assert f"({100.0 * largest / tree['value']:.1f} %)" in first


def test_every_line_has_a_name(forescale):
    lines = forescale("explain", DENSE[0], "memory.activations", *DENSE[1:], "--depth", 3).out.splitlines()
    named = [line.partition(" = ")[0].lstrip("│├└─ ") for line in lines if " = " in line]
    assert len(named) > 3
    assert all(named)


def test_a_table_of_operators_says_what_limits_each(forescale):
    words = (DENSE[0], *MACHINE, *RUN, *LAYOUT, "--table")
    rows = json.loads(forescale("explain", *words, "--json").out)["operations"]
    assert {row["bound"] for row in rows} <= {"compute", "memory", "launch", "network"}
    ran = forescale("explain", *words)
    assert ran.code == 0, ran.err
    assert all(row["name"] in ran.out for row in rows)
    assert max(map(len, ran.out.splitlines())) <= 100


def test_utilisations_are_listed_in_percent(forescale):
    question = (
        "llama-3.1-8b",
        "--cluster",
        "h100",
        "--devices",
        8,
        "--seq-len",
        4096,
        "--global-batch-size",
        64,
    )
    rows = [row.split() for row in forescale("explain", *question).out.splitlines()]
    shown = {row[0]: row[1:] for row in rows if row}
    assert [shown[name][-1] for name in ("mfu", "mfu_full_attention", "hfu")] == ["%", "%", "%"]


def test_a_way_without_alternatives_is_not_called_the_fastest(forescale):
    question = (
        "--cluster",
        "gb200",
        "--devices",
        64,
        "--seq-len",
        4096,
        "--global-batch-size",
        64,
        "--ep",
        8,
    )
    answer = " ".join(forescale("explain", "qwen3-235b-a22b", "step_time.expert_comm", *question).out.split())
    assert "expert_comm" in answer
    assert "of 1 ways" not in answer
