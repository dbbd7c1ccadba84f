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


def needs(name: str) -> pytest.MarkDecorator:
    """Mark a test that asks a framework's package, such as "megatron-core-0.19.2": skipped where it is not, before it begins."""
    missing = not (ROOT / ".oracles" / name).is_dir()
    return pytest.mark.skipif(missing, reason=f"{name} is not there; ./scripts/oracles fetches it")


def asked_of(program: str, name: str, values: list[Any], timeout: int = 200) -> list[Any]:
    """What a parser's program beside this file, run by itself, of the package `name`, answers to a list; by its own Python if it has one."""
    folder = ROOT / ".oracles" / name
    local = folder / "bin" / "python"
    ran = subprocess.run(
        [local if local.exists() else sys.executable, Path(__file__).parent / program, folder],
        input=json.dumps(values),
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
    result = json.loads(ran.stdout)
    return result["words"], result["variables"]
