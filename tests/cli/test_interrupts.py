"""An interrupt at any moment ends a command with exit code 130, and one after the answer changes nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from contextlib import suppress
from http.client import HTTPException
from urllib.request import urlopen

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


def test_an_interrupt_of_the_page_while_it_searches_writes_nothing():
    command = [sys.executable, "-m", "forescale", "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        url = server.stdout.readline().split()[0]
        search = "search?model=deepseek-v3&cluster=h100&devices=1024&seq_len=4096&global_batch_size=8192"
        started = threading.Event()

        def ask() -> None:
            with suppress(OSError, HTTPException), urlopen(f"{url}{search}") as answer:
                answer.readline()
                started.set()
                answer.read()

        thread = threading.Thread(target=ask)
        thread.start()
        assert started.wait(60)
        server.send_signal(signal.SIGINT)
        _, errors = server.communicate(timeout=60)
        thread.join()
        assert (server.returncode, errors) == (130, "")
