"""A row of a search is the projection of its layout: asked directly, read from its document, and typed again."""

from __future__ import annotations

import json

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.small import cluster, dense, moe, workload

from forescale.io.line import has_words, told_words
from forescale.io.question import build_question, read_question
from forescale.io.question_values import question_values
from forescale.project import project
from forescale.search import search

WITHOUT_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)
SHAPES = ((2, 1), (2, 2), (2, 3), (4, 1), (4, 2))
FRAMEWORKS = ("megatron-bridge", "nemo", "nanotron", "megatron-core", None)
UNEVEN = st.tuples(st.sampled_from(FRAMEWORKS), st.integers(8, 23), st.sampled_from(SHAPES), st.booleans())


def rows_of(framework, num_layers, shape, experts):
    """Return the question of a search over stages that may have unequal numbers of layers, and its best rows."""
    pp, vpp = shape
    values = {
        "model": (moe if experts else dense)(num_layers),
        "cluster": cluster(8),
        "workload": workload(),
        "space": {"pp": [pp], "vpp": [vpp], "zero": [1], "base": {}},
    }
    if framework is not None:
        values["framework"] = framework
    result = search(build_question(values, where="the test"), top=3)
    return result.question, result.best


def figures(projection):
    return projection.step_time_s, [stage.peak_bytes for stage in projection.memory.stages]


def build(question, **sections):
    """Return the question of sections of a plan, which the framework completes."""
    values = {"model": question.model, "cluster": question.cluster, **sections}
    if question.framework is not None:
        values["framework"] = question.framework.label
    return build_question(values, where="the test")


@settings(max_examples=12, deadline=None, phases=WITHOUT_SHRINKING)
@given(UNEVEN)
def test_a_row_is_the_projection_of_its_layout(case):
    question, rows = rows_of(*case)
    for row in rows:
        again = project(build(question, strategy=row.to_json()["strategy"], workload=row.workload))
        assert again.strategy == row.strategy
        assert figures(again) == figures(row)


@settings(max_examples=12, deadline=None, phases=WITHOUT_SHRINKING)
@given(UNEVEN)
def test_options_ask_for_the_same_layout(case):
    question, rows = rows_of(*case)
    for row in rows:
        request = question.with_layout(row.strategy)
        assert has_words(request)
        words = told_words(request)
        sections = {name: words[name] for name in ("strategy", "workload", "precision") if name in words}
        assert figures(project(build(question, **{"strategy": {}, **sections}))) == figures(row)


@settings(max_examples=6, deadline=None, phases=WITHOUT_SHRINKING)
@given(UNEVEN)
def test_a_document_gives_back_its_rows(tmp_path_factory, case):
    question, rows = rows_of(*case)
    file = tmp_path_factory.mktemp("rows") / "best.json"
    best = [row.to_json() for row in rows]
    file.write_text(
        json.dumps({"schema": "forescale.search/1", "best": best, "question": question_values(question)})
    )
    for place, row in enumerate(rows, 1):
        assert figures(project(read_question(f"{file}#{place}"))) == figures(row)
