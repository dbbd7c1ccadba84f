"""Notes have a rank by topic: the terminal shows the two that change the figures most, JSON all of them."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

import forescale
from forescale.cli.formats.text import notes, to_text
from forescale.question import FOREMOST, RANKS, TOPICS, Note, by_rank
from forescale.report.document import View

SOURCE = Path(forescale.__file__).parent


def topics(path):
    """Return the topics that the code of a file gives to notes."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Note":
            for word in node.keywords:
                if word.arg == "topic" and isinstance(word.value, ast.Constant):
                    yield word.value.value


def test_every_topic_has_a_rank():
    used = {topic for path in SOURCE.rglob("*.py") for topic in topics(path)}
    assert used
    assert used <= set(RANKS)


@pytest.mark.parametrize("rank", range(len(TOPICS)))
def test_a_note_of_each_rank_is_before_all_of_lower_ones(rank):
    for topic in TOPICS[rank]:
        note = Note(topic=topic, text="this")
        lower = [Note(topic=item[0], text="other") for item in TOPICS[rank + 1 :]]
        assert note.rank == rank
        assert by_rank([*reversed(lower), note]) == [note, *lower]


def test_the_terminal_shows_two_and_counts_the_rest():
    several = [Note(topic=topics[0], text=f"text {rank}") for rank, topics in enumerate(TOPICS)]
    shown = [note.text for note in notes(several, verbose=False)]
    assert FOREMOST == 2
    assert [text[-1] for text in shown[:2]] == ["1", "2"]
    assert "2 more notes" in shown[2]
    assert [note.text[-1] for note in notes(several, verbose=True)] == ["1", "2", "3", "4"]
    text = to_text(View(title="title", contents=(), notes=tuple(several)))
    assert text.splitlines()[1] == "left out: text 0"


def test_equal_notes_are_shown_once():
    assert len(by_rank([Note(topic="model", text="a"), Note(topic="model", text="a")])) == 1


IDLE = (
    "--set",
    "strategy.summa_panels=4",
    "--set",
    "strategy.cp_inner=2",
    "--set",
    "strategy.microbatch_group=8",
)


def test_json_has_the_notes_that_the_terminal_leaves_out(forescale_command):
    question = ("project", "llama-3.1-8b", "--cluster", "h100-sxm", "--devices", 8, "--seq-len", 262144)
    question = (*question, "--global-batch-size", 8, *IDLE)
    documents = json.loads(forescale_command(*question, "--json"))["notes"]
    short, whole = forescale_command(*question), forescale_command(*question, "--verbose")
    assert len(documents) > FOREMOST
    assert whole.count("note (") == len(documents)
    assert short.count("note (") == FOREMOST
    assert f"{len(documents) - FOREMOST} more note" in short
    assert "note (sequence)" in short


@pytest.fixture
def forescale_command(capsys):
    from forescale.cli.app import run

    def call(*words):
        assert run([str(word) for word in words]) == 0
        return capsys.readouterr().out

    return call
