"""The face as type checkers see it: forty uses without an error, and errors for misuses."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

USES = Path(__file__).with_name("uses.py")
MISUSE = """import forescale as fs
fs.project("llama-3.1-8b", "h100", seqlen=8192)
fs.search("llama-3.1-8b", "h100", tp="two")
fs.export("llama-3.1-8b", "h100")
"""
CHECKERS = {
    "mypy": [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--config-file="],
    "pyright": [shutil.which("pyright") or "pyright", "--pythonpath", sys.executable],
}


@pytest.mark.parametrize("checker", CHECKERS)
def test_forty_uses_have_no_error_and_misuses_have_one_each(checker, tmp_path):
    command = CHECKERS[checker]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{checker} is not installed")
    misuse = tmp_path / "misuse.py"
    misuse.write_text(MISUSE, encoding="utf-8")
    ran = subprocess.run([*command, str(USES), str(misuse)], capture_output=True, text=True, check=False)
    errors = [line for line in ran.stdout.splitlines() if "error:" in line]
    assert [line for line in errors if "misuse.py" not in line] == []
    assert {int(line.split(":")[1]) for line in errors} == {2, 3, 4}
