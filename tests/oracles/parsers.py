"""Parsers of other people's frameworks, as scripts/oracles fetched them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TORCHRUN = """\
#!/bin/sh
printf '%s\\0' "$#" "$@"
env -0
"""


def needs(name: str) -> pytest.MarkDecorator:
    """Mark a test that asks a framework's package, such as "megatron-core-0.19.2": skipped where it is not, before it begins."""
    missing = not (ROOT / ".oracles" / name).is_dir()
    return pytest.mark.skipif(missing, reason=f"{name} is not there; ./scripts/oracles fetches it")


def asked_of(program: str, name: str, values: list[Any], timeout: int = 200) -> list[Any]:
    """What a parser's program beside this file, run by itself, of the package `name`, answers to a list; by its own Python if it has one."""
    ran = subprocess.run(
        _command(program, name),
        input=json.dumps(values),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return list(json.loads(ran.stdout))


def _command(program: str, name: str) -> list[str | Path]:
    folder = ROOT / ".oracles" / name
    local = folder / "bin" / "python"
    return [local if local.exists() else sys.executable, Path(__file__).parent / program, folder]


@contextmanager
def parser(program: str, name: str, timeout: int = 900) -> Iterator[Callable[[list[Any]], list[Any]]]:
    """Yield what asks such a program lists, one after the other: it is started once, and answers each line of JSON by one."""
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            _command(program, name), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None

        def answers(values: list[Any]) -> list[Any]:
            assert process.stdin is not None
            assert process.stdout is not None
            late = threading.Timer(timeout, process.kill)
            late.start()
            try:
                print(json.dumps(values), file=process.stdin, flush=True)
                line = process.stdout.readline()
            finally:
                late.cancel()
            errors.seek(0)
            assert line, errors.read()[-3000:]
            return list(json.loads(line))

        yield answers


def launched(script: str, folder: Path) -> tuple[list[str], dict[str, str]]:
    """The words and the variables that a launch script gives to torchrun: it is run, with another torchrun."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "torchrun"
    program.write_text(TORCHRUN)
    program.chmod(0o755)
    (folder / "run.sh").write_text(script)
    ran = subprocess.run(
        ["/usr/bin/env", "bash", "run.sh"],
        cwd=folder,
        env={"PATH": f"{folder}:{os.environ['PATH']}", "HOME": "/home/someone"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    count, *rest = ran.stdout.split("\0")[:-1]
    return rest[: int(count)], dict(item.split("=", 1) for item in rest[int(count) :])
