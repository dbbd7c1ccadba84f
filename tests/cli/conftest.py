"""Tests of the command line run commands in their own process, and search each question once."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import Any
from unittest.mock import patch

import pytest
from tests.errors import fields

from forescale.cli import app
from forescale.errors import ForescaleError
from forescale.question import Question
from forescale.search import search


@dataclass
class Ran:
    code: int
    out: str
    err: str
    error: ForescaleError | None = None
    """What the command refused, if it did."""

    @property
    def refused(self) -> str:
        """The code and the key of the error, as `tests.errors` writes them, then what was printed."""
        return f"{'' if self.error is None else fields(self.error)}\n{self.err}"


@pytest.fixture
def forescale(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run the command line as a process would, without one."""

    def call(*arguments: object) -> Ran:
        with patch.object(app, "_refuse", wraps=app._refuse) as refuse:
            code = app.run([str(argument) for argument in arguments])
            errors = [call.args[0] for call in refuse.call_args_list]
        captured = capsys.readouterr()
        return Ran(code=code, out=captured.out, err=captured.err, error=errors[0] if errors else None)

    return call


KNOWN: dict[tuple[Any, ...], Any] = {}
"""Results of searches by question, notes and options: the same for the text, the document and the page of one question."""


@wraps(search)
def searched(question: Question, **options: Any) -> Any:
    """Answer each question once; searches that may stop or go on are made every time."""
    watch = options.pop("watch", None)
    if any(options.get(name) is not None for name in ("time_limit", "checkpoint")):
        return search(question, watch=watch, **options)
    key = (question, question.notes, *sorted(options.items()))
    if key not in KNOWN:
        KNOWN[key] = search(question, watch=watch, **options)
    return KNOWN[key]


@pytest.fixture(autouse=True)
def _searched_once(request: pytest.FixtureRequest) -> Iterator[None]:
    """Remember what searches find, but for tests that change what a search does or watch it."""
    parameters = inspect.signature(request.function).parameters
    if "monkeypatch" in parameters or request.path.stem in ("test_progress", "test_streams"):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["forescale.search"], "search", searched)
        yield
