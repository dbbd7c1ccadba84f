"""An interrupt at any moment ends a command with exit code 130, and one after the answer changes nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

INTERRUPT = "signal.raise_signal(signal.SIGINT)"


def code_of(script):
    ran = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import atexit, signal, sys\nfrom forescale.cli import app, console, main\nsys.argv[1:] = ['project']\n{script}",
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return ran.returncode, ran.stderr


@pytest.mark.parametrize(
    ("script", "code"),
    [
        (f"console.readied = lambda: {INTERRUPT}\napp.run = lambda _: 0\nmain()", 130),
        (f"app.run = lambda _: {INTERRUPT}\nmain()", 130),
        (f"app.run = lambda _: atexit.register(lambda: {INTERRUPT}) and 0\nmain()", 0),
        (f"signal.signal(signal.SIGINT, signal.SIG_IGN)\napp.run = lambda _: {INTERRUPT} or 0\nmain()", 0),
    ],
    ids=["while it loads", "while it answers", "after the answer", "where it is ignored"],
)
def test_an_interrupt(script, code):
    assert code_of(script) == (code, "")
