"""Layouts that ran out of memory: what is proposed first fits, nothing single is cheaper, and the authors' change is near."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from forescale.advise import fit
from forescale.advise.changes import changed, changes
from forescale.io.question import build_question
from forescale.memory.peak import fit as verdict_of
from forescale.project import project

DATA = Path(__file__).parents[1] / "data" / "fit"
PUBLISHED = json.loads((DATA / "published.json").read_text(encoding="utf-8"))
TOO_LARGE = json.loads((DATA / "too_large.json").read_text(encoding="utf-8"))


def question_of(values):
    return build_question(values, where="the case")


def verdict(question, projection):
    memory = projection.memory
    return verdict_of(
        point_bytes=memory.peak_low_bytes,
        upper_bytes=memory.peak_high_bytes,
        capacity_bytes=question.memory_limit,
    )


def check(question, found):
    first = found.first
    assert first is not None
    assert verdict(question, project(question.of(first.projection.strategy))) == "FITS"
    singles = {changed(question, (each,)) for each in changes(question)} - {None}
    projected = [project(question.of(each)) for each in singles]
    steps = [each.step_time_s for each in projected if verdict(question, each) == "FITS"]
    assert first.projection.step_time_s <= min(steps, default=np.inf)
    assert len(first.changes) == (1 if steps else 2)


@pytest.mark.parametrize("case", PUBLISHED, ids=lambda case: case["name"])
def test_what_authors_did_is_among_the_first_three(case):
    question = question_of(case["question"])
    found = fit(question)
    assert found.verdict != "FITS"
    check(question, found)
    assert {each.text for each in found.fixes[:3]} & set(case["mended_by"])


@pytest.mark.parametrize("place", range(len(TOO_LARGE)))
def test_layouts_of_a_search_that_are_too_large(place):
    question = question_of(TOO_LARGE[place])
    found = fit(question)
    assert found.verdict == "OOM"
    assert 1.05 <= found.now.memory.peak_bytes / question.memory_limit <= 1.6
    check(question, found)
