"""A sweep that is killed and resumed, on workers of any kind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.sweep.questions import TEXT

from forescale.sweep import Local, read_sweep, run

MANY = (
    TEXT
    + "[vary]\nnic_bandwidth = { from = 'x0.5', to = 'x8', steps = 12 }\nhbm_bandwidth = ['x1', 'x2', 'x4']\n"
)


def kept_in(folder):
    """Return the lines of the points that are known, none that is still being written."""
    points = folder / "points.jsonl"
    return points.read_bytes().split(b"\n")[:-1] if points.exists() else []


def children_of(pid):
    """Return the processes that a process started, where the system says."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    return children.read_text(encoding="utf-8").split() if children.exists() else []


def is_running(pid):
    """Whether a process runs; one that ended and that nobody asked about does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def goes_on_after_a_kill(folder, executor, *options):
    """Kill a sweep in the middle of its work, and check that another run completes it to the same table."""
    file, output = folder / "sweep.toml", folder / "killed"
    file.write_text(MANY, encoding="utf-8")
    command = [sys.executable, "-m", "forescale", "sweep", str(file), "--jobs", "2", "--output", str(output)]
    process = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 120.0
        while len(kept_in(output)) < 5:
            assert process.poll() is None, process.stderr.read().decode()
            assert time.monotonic() < deadline
            time.sleep(0.002)
    finally:
        workers = children_of(process.pid)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stderr.close()
    assert process.returncode == -signal.SIGKILL
    while any(map(is_running, workers)):
        assert time.monotonic() < deadline, "workers of a killed sweep go on"
        time.sleep(0.02)
    kept = kept_in(output)
    assert 5 <= len(kept) < 36
    assert not (output / "results.parquet").exists()

    sweep = read_sweep(file)
    resumed = run(sweep, executor=executor, output=output)
    assert resumed.num_resumed == len(kept)
    assert kept_in(output)[: len(kept)] == kept
    whole = run(sweep, executor=Local(jobs=1), output=folder / "whole")
    assert (output / "results.parquet").read_bytes() == whole.table.read_bytes()
