"""Parsers of other people's frameworks, as scripts/oracles fetched them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TORCHRUN = """\
import json, os, sys
print(json.dumps({"words": sys.argv[1:], "variables": dict(os.environ)}))
"""


def fetched(name: str) -> Path:
    """The folder of a framework's package, such as "megatron-core-0.19.2"; the test is skipped without it."""
    folder = ROOT / ".oracles" / name
    if not folder.is_dir():
        pytest.skip(f"{name} is not there; ./scripts/oracles fetches it")
    return folder


def asked_of(program: str, folder: Path, asked: list[Any], timeout: int = 200) -> list[dict[str, Any]]:
    """What a parser's program beside this file, run by itself, answers to a list; by the folder's own Python if it has one."""
    own = folder / "bin" / "python"
    ran = subprocess.run(
        [own if own.exists() else sys.executable, Path(__file__).parent / program, folder],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return list(json.loads(ran.stdout))


def launched(script: str, folder: Path) -> tuple[list[str], dict[str, str]]:
    """The words and the variables that a launch script gives to torchrun: it is run, with another torchrun."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "torchrun"
    program.write_text(f"#!{sys.executable}\n{TORCHRUN}")
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
    found = json.loads(ran.stdout)
    return found["words"], found["variables"]
