"""One definition for one layout and for many: bit for bit."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.small import cluster, dense, moe, workload

from forescale.project import project
from forescale.question import Question
from forescale.search.evaluate import score
from forescale.search.tree import enumerate_layouts
from forescale.spec.space import Space

CASES = {}


def _case(name):
    if name not in CASES:
        model = {"dense": dense, "moe": moe, "summa": dense}[name]()
        space = Space(tp_kind=("summa",)) if name == "summa" else Space()
        candidates = enumerate_layouts(model, cluster(16), workload(), space)
        question = Question(model=model, cluster=cluster(16), workload=workload())
        CASES[name] = (question, candidates, score(question, candidates))
    return CASES[name]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["dense", "moe", "summa"]), st.floats(0, 1, exclude_max=True))
def test_a_layout_alone_equals_itself_among_all(name, position):
    question, candidates, scores = _case(name)
    evaluated = np.argwhere(np.isfinite(scores.step_time))
    index = tuple(evaluated[int(position * len(evaluated))])
    alone = project(question.model, question.cluster, candidates.strategy(*index), question.workload)
    assert alone.step_time_s == scores.step_time[index]
    assert alone.memory.peak_bytes == scores.peak[index]


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(["dense", "moe", "summa"]), st.randoms(use_true_random=False))
def test_order_of_candidates_does_not_matter(name, random):
    from dataclasses import replace

    question, candidates, scores = _case(name)
    rows = np.array(random.sample(range(candidates.num_rows), 50))
    shuffled = replace(candidates, columns={key: values[rows] for key, values in candidates.columns.items()})
    again = score(question, shuffled)
    np.testing.assert_array_equal(again.step_time, scores.step_time[:, rows])
    np.testing.assert_array_equal(again.peak, scores.peak[:, rows])
