"""Options that change nothing in the layout asked for: a note says what they go with."""

from __future__ import annotations

import json

import pytest
from tests.cli.questions import DENSE, LAYOUT, SEARCH

CUT = "a schedule that cuts sequences, such as seq1f1b"
IDLE = [
    (("--sequence-pieces", 4), CUT, ("--schedule", "seq1f1b")),
    (("--cp-inner", 2), "cp_kind hierarchical", ("--cp", 2, "--cp-kind", "hierarchical")),
    (("--no-cp-balanced",), "cp of 2 or more", ("--cp", 2)),
    (("--cp-kind", "ring"), "cp of 2 or more", ("--cp", 2)),
    (("--set", "strategy.cp_balanced=false"), "cp of 2 or more", ("--cp", 2)),
    (("--reshard", "never"), "zero 2 or 3", ("--zero", 3)),
    (("--reshard", "always"), "zero 2 or 3", ("--zero", 2)),
    (("--microbatch-group", 2), "vpp of 2 or more", ("--pp", 2, "--vpp", 2)),
    (("--summa-panels", 2), "tp_kind summa", ("--tp-kind", "summa", "--cp", 2)),
    (("--fp8-recipe", "delayed"), "--precision fp8", ("--precision", "fp8")),
    (("--set", "precision.recipe=delayed"), "--precision fp8", ("--precision", "fp8")),
]
SHAPED = [
    (("--tp", 1), ("--no-sp",), "tp of 2 or more"),
    (("--placement", "tp=4,dp=2"), ("--axis-order", "tp,cp,pp,dp"), "no placement"),
]
SEARCHED = [
    (("--fix", "summa_panels=2"), "--fix summa_panels", "tp_kind summa"),
    (("--fix", "etp=1"), "--fix etp", "a model with experts"),
    (("--fix", "dispatcher=deepep"), "--fix dispatcher", "a model with experts"),
    (("--allow", "ep=2"), "--allow ep", "a model with experts"),
    (("--set", "strategy.cp_balanced=false"), "--set strategy.cp_balanced", "cp of 2 or more"),
    (("--set", "strategy.sequence_pieces=4"), "--set strategy.sequence_pieces", CUT),
]


def figures(ran):
    assert (ran.code, ran.err) == (0, "")
    return json.loads(ran.out)


def written(parts):
    return f"--set {parts[1].partition('=')[0]}" if parts[0] == "--set" else parts[0]


@pytest.mark.parametrize(("words", "under", "with_it"), IDLE, ids=lambda item: str(item[0]))
def test_what_changes_nothing_is_said_and_nothing_else(forescale, words, under, with_it):
    """The figures are those without the option; where it works, no note is made."""
    plain = figures(forescale("project", *DENSE, *LAYOUT, "--json"))
    idle = figures(forescale("project", *DENSE, *LAYOUT, *words, "--json"))
    flag = written(words)
    message = {"topic": "layout", "text": f"{flag} changes nothing here: it goes with {under}"}
    assert message in idle["notes"]
    assert message not in plain["notes"]
    assert idle["step_time_s"] == plain["step_time_s"]
    assert idle["memory"] == plain["memory"]
    works = figures(forescale("project", *DENSE, *LAYOUT, *words, *with_it, "--json"))
    assert not any("changes nothing here" in note["text"] for note in works["notes"])


@pytest.mark.parametrize(("shape", "words", "under"), SHAPED, ids=lambda item: str(item[0]))
def test_what_the_shape_leaves_nothing_to_do_is_said(forescale, shape, words, under):
    plain = figures(forescale("project", *DENSE, *LAYOUT, *shape, "--json"))
    idle = figures(forescale("project", *DENSE, *LAYOUT, *shape, *words, "--json"))
    text = f"{written(words)} changes nothing here: it goes with {under}"
    assert text in [note["text"] for note in idle["notes"]]
    assert (idle["step_time_s"], idle["memory"]) == (plain["step_time_s"], plain["memory"])


@pytest.mark.parametrize(("words", "flag", "under"), SEARCHED, ids=str)
def test_a_search_says_what_changes_nothing_in_its_space(forescale, words, flag, under):
    plain = figures(forescale("search", *SEARCH, "--json"))
    idle = figures(forescale("search", *SEARCH, *words, "--json"))
    message = {"topic": "layout", "text": f"{flag} changes nothing here: it goes with {under}"}
    assert message in idle["best"][0]["notes"]
    assert idle["best"][0]["step_time_s"] == plain["best"][0]["step_time_s"]


def test_a_search_under_which_an_option_works_says_nothing_of_it(forescale):
    few = ("--fix", "micro_batch_size=1", "--fix", "cp=2", "--fix", "vpp=1", "--fix", "zero=1", "--top", 1)
    searched = forescale("search", *DENSE, *few, "--set", "strategy.cp_balanced=false")
    assert searched.code == 0, searched.err
    assert "cp of 2 or more" not in searched.out


@pytest.mark.parametrize("command", [("search", *SEARCH), ("report", *SEARCH), ("advise", *DENSE)])
def test_set_of_what_is_searched_is_refused(forescale, command):
    ran = forescale(*command, "--set", "strategy.tp=4")
    assert (ran.code, ran.out) == (2, "")
    assert "no_effect --set strategy.tp" in ran.refused


def test_an_explanation_says_it_too(forescale):
    model, *question = DENSE
    ran = forescale("explain", model, "mfu", *question, *LAYOUT, "--no-cp-balanced")
    assert ran.out.rstrip().endswith("--no-cp-balanced changes nothing here: it goes with cp of 2 or more")


def test_parts_that_a_model_does_not_have_are_named(forescale):
    parts = ("--freeze", "moe,vision,norm", "--recompute-modules", "moe,mlp", "--document-len", 9999)
    texts = [
        note["text"] for note in figures(forescale("project", *DENSE, *LAYOUT, *parts, "--json"))["notes"]
    ]
    assert "llama-3.1-8b has no moe: recompute.modules changes nothing there" in texts
    assert "llama-3.1-8b has no moe, vision: trainable.frozen changes nothing there" in texts
    assert "documents of 9999 tokens are cut at seq_len 4096: document_len changes nothing" in texts


def test_a_whole_run_says_so_once(forescale):
    ran = forescale("run", *DENSE, *LAYOUT, "--tokens", "1T", "--reshard", "never")
    assert ran.code == 0, ran.err
    assert ran.out.count("--reshard changes nothing here: it goes with zero 2 or 3") == 1


def test_a_whole_run_says_it_only_of_what_changes_nothing_in_any_phase(forescale):
    """The option works in the second phase, though not in the first."""
    phases = ("--phase", "tokens=1B", "--phase", "tokens=1B cp=2")
    ran = forescale("run", *DENSE, *LAYOUT, "--no-cp-balanced", *phases)
    assert ran.code == 0, ran.err
    assert "changes nothing here" not in ran.out


def test_so_is_what_a_plan_says(forescale, tmp_path):
    plan = tmp_path / "plan.toml"
    text = """model = "llama-3.2-1b"
cluster = "h100-sxm"
devices = 8
[strategy]
reshard = "never"
sp = true
zero = 1
[workload]
seq_len = "2k"
global_batch_size = 32
[precision]
recipe = "blockwise"
"""
    plan.write_text(text)
    notes = [note["text"] for note in figures(forescale("project", "--plan", plan, "--json"))["notes"]]
    assert "strategy.reshard of the plan changes nothing here: it goes with zero 2 or 3" in notes
    assert "precision.recipe of the plan changes nothing here: it goes with --precision fp8" in notes
    assert not any("strategy.sp " in note for note in notes)
    plan.write_text(text.replace("zero = 1", "zero = 3").replace("recipe =", 'compute = "fp8"\nrecipe ='))
    works = figures(forescale("project", "--plan", plan, "--json"))
    assert works["workload"]["seq_len"] == 2048
    assert not any("changes nothing here" in note["text"] for note in works["notes"])
