"""Options that change nothing in the layout asked for: a note says what they go with."""

from __future__ import annotations

import json

import pytest
from tests.cli.questions import DENSE, LAYOUT

IDLE = [
    (("--sequence-pieces", 4), "schedules that cut sequences (seq1f1b)", ("--schedule", "seq1f1b")),
    (("--cp-inner", 2), "--cp-kind hierarchical", ("--cp", 2, "--cp-kind", "hierarchical")),
    (("--no-cp-balanced",), "cp of 2 or more", ("--cp", 2)),
    (("--reshard", "never"), "--zero 2 or 3", ("--zero", 3)),
    (("--reshard", "always"), "--zero 2 or 3", ("--zero", 2)),
    (("--summa-panels", 2), "--tp-kind summa", ("--tp-kind", "summa", "--cp", 2)),
    (("--fp8-recipe", "delayed"), "--precision fp8", ("--precision", "fp8")),
]


def figures(ran):
    assert (ran.code, ran.err) == (0, "")
    return json.loads(ran.out)


@pytest.mark.parametrize(("words", "under", "with_it"), IDLE, ids=lambda each: str(each[0]))
def test_what_changes_nothing_is_said_and_nothing_else(forescale, words, under, with_it):
    """The figures are those without the option; where it works, no note is made."""
    plain = figures(forescale("project", *DENSE, *LAYOUT, "--json"))
    idle = figures(forescale("project", *DENSE, *LAYOUT, *words, "--json"))
    flag = words[0].replace("--no-", "--")
    said = {"topic": "layout", "text": f"{flag} changes nothing here: it goes with {under}"}
    assert said in idle["notes"]
    assert said not in plain["notes"]
    assert idle["step_time_s"] == plain["step_time_s"]
    assert idle["memory"] == plain["memory"]
    works = figures(forescale("project", *DENSE, *LAYOUT, *words, *with_it, "--json"))
    assert not any("changes nothing here" in each["text"] for each in works["notes"])


def test_a_whole_run_says_so_once(forescale):
    ran = forescale("run", *DENSE, *LAYOUT, "--tokens", "1T", "--reshard", "never")
    assert ran.code == 0, ran.err
    assert ran.out.count("--reshard changes nothing here: it goes with --zero 2 or 3") == 1


def test_a_whole_run_says_it_only_of_what_changes_nothing_in_any_phase(forescale):
    """The option works in the second phase, though not in the first."""
    phases = ("--phase", "tokens=1B", "--phase", "tokens=1B cp=2")
    ran = forescale("run", *DENSE, *LAYOUT, "--no-cp-balanced", *phases)
    assert ran.code == 0, ran.err
    assert "changes nothing here" not in ran.out
