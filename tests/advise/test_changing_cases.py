"""Layouts that ran out of memory: what is proposed first fits, nothing single is cheaper, and the authors' change is near."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from forescale.advise import fit
from forescale.advise.changes import changed, changes
from forescale.io.question import build_question
from forescale.memory.peak import fit as verdict_of
from forescale.project import project
from forescale.search.evaluate import score_layouts

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


def singles(question):
    """Return the layouts of all single changes."""
    return list({changed(question, (change,)) for change in changes(question)} - {None})


def projected_steps(question):
    """Return the step times of all single changes that fit for sure, each projected by itself."""
    projected = [project(question.with_layout(single)) for single in singles(question)]
    return [item.step_time_s for item in projected if verdict(question, item) == "FITS"]


def scored_steps(question):
    """Return the same from the scores of all together."""
    layouts = singles(question)
    highest = score_layouts(replace(question, safe=True), layouts).peak
    return score_layouts(question, layouts).step_time[highest <= question.memory_limit].tolist()


def check(question, result, steps):
    first = result.first
    assert first is not None
    assert verdict(question, project(question.with_layout(first.projection.strategy))) == "FITS"
    assert first.projection.step_time_s <= min(steps, default=np.inf)
    assert len(first.changes) == (1 if steps else 2)


@pytest.mark.parametrize("case", PUBLISHED, ids=lambda case: case["name"])
def test_what_authors_did_is_among_the_first_three(case):
    question = question_of(case["question"])
    result = fit(question)
    assert result.verdict != "FITS"
    steps = projected_steps(question)
    assert sorted(steps) == pytest.approx(sorted(scored_steps(question)), rel=1e-12)
    check(question, result, steps)
    assert {fix.text for fix in result.fixes[:3]} & set(case["mended_by"])


@pytest.mark.parametrize("place", range(len(TOO_LARGE)))
def test_layouts_of_a_search_that_are_too_large(place):
    question = question_of(TOO_LARGE[place])
    result = fit(question)
    assert result.verdict == "OOM"
    assert 1.05 <= result.now.memory.peak_bytes / question.memory_limit <= 1.6
    check(question, result, scored_steps(question))
