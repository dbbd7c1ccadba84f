"""The built wheel in a fresh environment of every Python that pyproject names: its first answer, and the image's server."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import tomllib
import zipfile
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSIONS = [
    name.rpartition(" ")[2] for name in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", name)
]
PROJECTED = (
    "project", "llama-3.1-8b", "--cluster", "h100", "--devices", "8", "--seq-len", "8192",
    "--global-batch-size", "64", "--zero", "3", "--json",
)  # fmt: skip
STARTS_WITHIN = 60.0


def python_of(version: str) -> str | None:
    """Return a Python of a version on PATH, or one of pyenv."""
    candidates = [
        shutil.which(f"python{version}"),
        *map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python")),
    ]
    for path in filter(None, candidates):
        ran = subprocess.run(
            [path, "-c", "import sys; print(*sys.version_info[:2], sep='.')"],
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode == 0 and ran.stdout.strip() == version:
            return path
    return None


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Return the wheel, built from the checkout."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT],
        check=True,
    )
    [path] = folder.glob("*.whl")
    return path


def installed(python: str, folder: Path, requirement: str) -> Path:
    """Return the folder of the commands of a fresh environment with a requirement."""
    subprocess.run([python, "-m", "venv", folder], check=True)
    subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "--quiet", requirement], check=True)
    return folder / "bin"


def test_the_wheel_is_pure_and_typed(wheel):
    assert wheel.name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "forescale/py.typed" in names
    assert all(name.startswith(("forescale/", "forescale-")) for name in names)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_wheel_answers_in_a_fresh_environment(wheel, tmp_path, version):
    if (python := python_of(version)) is None:
        pytest.skip(f"no Python {version} on PATH or with pyenv")
    commands = installed(python, tmp_path / "venv", str(wheel))
    ran = subprocess.run(
        [commands / "forescale", *PROJECTED], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert json.loads(ran.stdout)["memory"]["verdict"] == "FITS"
    about = subprocess.run(
        [commands / "forescale", "--version", "--json"], capture_output=True, text=True, check=True
    )
    assert json.loads(about.stdout)["python"].startswith(version)


def test_the_server_of_the_image_starts(wheel, tmp_path):
    """Run what the Dockerfile installs and starts, on a free port; where docker runs, its image is the same."""
    words = dict(line.split(" ", 1) for line in (ROOT / "Dockerfile").read_text().splitlines() if " " in line)
    commands = installed(sys.executable, tmp_path / "venv", f"{wheel}[web]")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program, *arguments = json.loads(words["ENTRYPOINT"]) + json.loads(words["CMD"])
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    server = subprocess.Popen([commands / program, *arguments, "--port", str(port)], cwd=tmp_path, env=plain)
    try:
        assert b"Forescale" in page(f"http://127.0.0.1:{port}/")
    finally:
        server.terminate()
        server.wait(timeout=30)


def page(address: str) -> bytes:
    """Return a page once its server answers."""
    ends = time.monotonic() + STARTS_WITHIN
    while True:
        try:
            with urlopen(address, timeout=10) as answer:
                return bytes(answer.read())
        except URLError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.2)
