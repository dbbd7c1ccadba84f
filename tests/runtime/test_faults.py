"""What goes wrong ends the job on all ranks, with rank, action and reason."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest
from tests.runtime.worlds import break_at, break_in, die

from forescale.runtime import RunError, launch
from forescale.schedule import Kind, Request, build_schedule

ZB = build_schedule("zb-h1", Request(pp=2, num_microbatches=4))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("backward", r"rank 1, 1I2: ValueError: no backward"),
        ("nan", r"rank 1, 1F2: the loss is nan"),
    ],
)
def test_a_rank_that_fails_ends_all(how, said):
    with pytest.raises(RunError, match=said):
        launch(break_at, 2, ZB, how)
    assert not multiprocessing.active_children()


WHOLE = build_schedule("1f1b", Request(pp=2, num_microbatches=4))
OFFLOADING = build_schedule("pipeoffload", Request(pp=2, num_microbatches=4), vpp=2)


@pytest.mark.parametrize("kind", list(Kind)[: Kind.RECV_B + 1], ids=str)
def test_an_exception_in_any_action_ends_all(kind):
    schedule = {Kind.OFFLOAD: OFFLOADING, Kind.RELOAD: OFFLOADING, Kind.B: WHOLE}.get(kind, ZB)
    where = 0 if kind in (Kind.SEND_F, Kind.RECV_B) else 1
    with pytest.raises(RunError, match=rf"rank {where}, \d{kind.name}\d: ValueError: on purpose"):
        launch(break_in, 2, schedule, kind, where)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("rank", range(3))
def test_a_rank_that_is_killed_ends_all(rank):
    with pytest.raises(RunError, match=rf"rank {rank} died \(killed by SIGKILL\)"):
        launch(die, 3, build_schedule("zb-h1", Request(pp=3, num_microbatches=4)), rank)
    assert not multiprocessing.active_children()


def test_a_stage_whose_output_changes_shape_is_named():
    deep = build_schedule("1f1b", Request(pp=3, num_microbatches=4))
    with pytest.raises(RunError, match=r"rank 1, 1F1: stage 1 gave \(1, 2\) of torch.float32; .* \(1, 4\)"):
        launch(break_at, 3, deep, "shape")


def test_a_schedule_that_deadlocks_is_refused_before_anything_starts():
    from forescale.runtime.runner import lowered
    from forescale.schedule import from_actions

    stuck = from_actions([["0B0", "0F0"], ["1F0", "1B0"]])
    with pytest.raises(RunError, match="cannot run"):
        lowered(stuck)


SLOW = """import os, sys, pathlib, signal, threading
if "multiprocessing.forkserver" in " ".join(sys.orig_argv):
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    pathlib.Path("partial").write_text(str(signal.SIGINT in blocked))
    os.replace("partial", "loading")
    threading.Event().wait()
def work(rank):
    return rank
"""
LAUNCHING = """import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
import slow
from forescale.runtime import launch
try:
    launch(slow.work, 2)
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_ctrl_c_while_ranks_load_modules_ends_all_without_a_word(tmp_path):
    (tmp_path / "slow.py").write_text(SLOW, encoding="utf-8")
    (tmp_path / "launching.py").write_text(LAUNCHING, encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, "launching.py"],
        cwd=tmp_path, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        while not (tmp_path / "loading").exists():
            assert process.poll() is None, process.stdout.read()
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate()  # which ends once nothing that it started is left
    assert (process.returncode, output) == (130, "")
    assert (tmp_path / "loading").read_text(encoding="utf-8") == "True", (
        "ranks must not receive SIGINT while they load"
    )
