"""Layouts of searches are kept, and projected again to the same figures."""

import json
from dataclasses import replace

import pytest
from tests import small
from winners import Winners, layouts_text

from forescale.question import Question
from forescale.search import search
from forescale.spec import Workload

QUESTION = Question(
    model=small.dense(), cluster=small.cluster(8), workload=Workload(seq_len=4096, global_batch_size=64)
)


def test_known_layouts_are_projected_as_the_search_projects_them():
    searched = Winners()
    best = searched.best("one", QUESTION, top=3)
    kept = json.loads(layouts_text(searched.layouts))
    known = Winners(kept)
    assert known.best("one", QUESTION, top=3) == best == search(QUESTION, top=3).best
    assert known.layouts == searched.layouts == kept


def test_some_of_the_known_are_searched():
    wrong = {"one": [{"zero": 3, "dp_shard": 8}], "other": [{"zero": 3, "dp_shard": 8}]}
    winners = Winners(wrong, searched=["one"])
    (best,) = search(QUESTION, top=1).best
    assert winners.best("one", QUESTION) == (best,)
    assert winners.best("other", QUESTION)[0].strategy.zero == 3
    assert best.strategy.zero != 3


def test_nothing_fits():
    winners = Winners()
    assert winners.best("none", replace(QUESTION, max_memory=1e6)) == ()
    assert winners.layouts == {"none": []}


def test_names_are_of_one_question():
    winners = Winners()
    winners.best("one", QUESTION)
    assert winners.best("one", QUESTION)
    with pytest.raises(ValueError, match="'one'"):
        winners.best("one", replace(QUESTION, max_memory=2e9))
    with pytest.raises(ValueError, match="'two'"):
        Winners({}).best("two", QUESTION)
