"""A sample of what `python -m tests.fuzz.fuzz` asks at length."""

from __future__ import annotations

import pytest
from tests.fuzz import hostile
from tests.fuzz.fuzz import EXAMPLES, ask, broken, projection_document


@pytest.fixture(scope="session")
def document() -> str:
    return projection_document()


@pytest.mark.parametrize("first", range(2))
def test_broken_questions_end_in_an_answer_or_a_sentence(tmp_path, document, first):
    for seed in range(first * len(EXAMPLES), (first + 1) * len(EXAMPLES)):
        folder = tmp_path / str(seed)
        folder.mkdir()
        question = ask(broken(seed, document), folder)
        assert question.problems == [], (seed, question.arguments)


@pytest.mark.parametrize("first", range(2))
def test_hostile_files_of_measurements_end_in_an_answer_or_a_sentence(tmp_path, first):
    for seed in range(first * 9, (first + 1) * 9):
        folder = tmp_path / str(seed)
        folder.mkdir()
        assert hostile.problems(seed, folder) == [], (seed, hostile.hostile(seed)[0])
