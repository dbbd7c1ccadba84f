from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from forescale.cli.app import run


@dataclass
class Ran:
    code: int
    out: str
    err: str


@pytest.fixture
def forescale(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run the command line as a process would, without one."""

    def call(*arguments: object) -> Ran:
        code = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Ran(code=code, out=captured.out, err=captured.err)

    return call
