"""The question: its parts, what it refuses, and what it shows of itself."""

from __future__ import annotations

from dataclasses import replace

from tests import small
from tests.errors import raises

from forescale.cost.select import Costs
from forescale.errors import SpecError
from forescale.question import Note, Question, question_of
from forescale.spec import Layout, Space


def ask(**changes):
    return Question(model=small.dense(), cluster=small.cluster(8), workload=small.workload(), **changes)


def test_a_question_is_itself_or_made_of_its_parts():
    question = ask(strategy=Layout(tp=8), costs=Costs(compute="tile"))
    parts = {"strategy": Layout(tp=8), "costs": Costs(compute="tile"), "space": None}
    assert question_of(question) is question
    assert question_of(question.model, question.cluster, question.workload, **parts) == question


def test_parts_beside_a_whole_question_and_missing_ones_are_refused():
    with raises(SpecError, "given_twice strategy, costs"):
        question_of(ask(), strategy=Layout(), costs=Costs())
    with raises(SpecError, "required_with cluster, workload"):
        question_of(small.dense())


def test_a_question_without_a_layout_says_so():
    assert ask(strategy=Layout(tp=8)).layout == Layout(tp=8)
    with raises(SpecError, "missing a layout"):
        assert ask().layout


def test_memory_is_never_more_than_the_device_has():
    capacity = small.cluster(8).device.hbm_bytes
    assert ask().memory_limit == capacity
    assert ask(max_memory=1e9).memory_limit == 1e9
    assert ask(max_memory=2 * capacity).memory_limit == capacity


def test_losses_of_runs_are_those_of_the_layouts_software():
    eager = Layout(software="torch-eager")
    by_layout, by_space = ask(strategy=eager), ask(space=Space(base=eager))
    assert by_layout.run == by_space.run != ask().run


def test_changes_leave_the_rest_as_it_was():
    question = ask(max_memory=1e9)
    assert question.with_layout(Layout(tp=2)) == replace(question, strategy=Layout(tp=2))
    assert question.with_space(tp=(2,)) == replace(question, space=Space(tp=(2,)))


def test_what_it_shows_is_what_was_asked():
    text = repr(ask(strategy=Layout(tp=8), safe=True))
    assert text.startswith("Question(model=small-dense, cluster='8 x ")
    assert "strategy=Layout(tp=8)" in text
    assert "safe=True" in text
    assert "objective" not in text
    assert len(text) < 400


def test_questions_are_equal_if_they_ask_the_same_whatever_their_notes():
    one = ask()
    noted = replace(one, notes=(Note(topic="file", text="read"),))
    other = replace(one, safe=True)
    assert one == noted
    assert not one != noted  # noqa: SIM202  (both operators count)
    assert hash(one) == hash(noted)
    assert one != other
    assert not one == other  # noqa: SIM201
    assert one != "a question"
    assert "notes" not in repr(noted)
