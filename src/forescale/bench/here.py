"""The machine at hand: its devices, whether they are those of a question, and what state they are in."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess

import torch

from forescale.catalogue.clusters import hardware_device
from forescale.errors import UnknownNameError, other_run
from forescale.question import Question
from forescale.struct import Struct

QUERIED = ("clocks.sm", "power.limit", "clocks_event_reasons.active")
IDLE = 0x1
"""Bit of the reasons for which a clock is low that says nothing runs."""
CPU = "cpu"


class Here(Struct, frozen=True, kw_only=True):
    """Devices of this machine."""

    kind: str
    """cuda (AMD's devices too) or cpu."""
    name: str
    """As its driver, or the operating system, says."""
    num_devices: int
    """Accelerators; of a CPU cores that this process may use, one for each rank."""

    def check(self, question: Question) -> None:
        """Raise unless the question is about devices like these.

        Raises
        ------
        SpecError
            With both names.
        """
        device = question.cluster.device
        if self.kind == CPU:
            if device.vendor != CPU:
                raise other_run(
                    "a benchmark of this machine",
                    "no accelerator",
                    device.name,
                    'a CPU predicts nothing of it: give a cluster file with the vendor "cpu" (docs/bench.md)',
                )
            return
        try:
            mine = hardware_device(self.name)
        except UnknownNameError:
            mine = self.name
        if device.name not in (mine, self.name):
            key = "a benchmark of this machine"
            raise other_run(key, self.name, device.name, f"measure there, or ask about a cluster of {mine}")


def find_here() -> Here:
    """Return the accelerators that torch sees, else the CPU."""
    if torch.cuda.is_available():
        return Here(kind="cuda", name=torch.cuda.get_device_name(0), num_devices=torch.cuda.device_count())
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Here(kind=CPU, name=platform.processor() or platform.machine(), num_devices=usable)


class State(Struct, frozen=True, kw_only=True):
    """Clock, power limit and why the clock is held down, of the first device."""

    clock_mhz: float | None = None
    power_cap_w: float | None = None
    throttled: str = ""


def state_of(here: Here) -> State:
    """Return what the driver says now; nothing where it says nothing."""
    tool = shutil.which("nvidia-smi") if here.kind == "cuda" else None
    if tool is None:
        return State()
    question = [tool, f"--query-gpu={','.join(QUERIED)}", "--format=csv,noheader,nounits", "-i", "0"]
    done = subprocess.run(question, capture_output=True, text=True, timeout=10, check=False)  # noqa: S603
    parts = [word.strip() for word in done.stdout.split(",")]
    if done.returncode or len(parts) != len(QUERIED):
        return State()
    reasons = int(parts[2], 16) & ~IDLE if parts[2].startswith("0x") else 0
    numbers = [float(word) if word.replace(".", "", 1).isdigit() else None for word in parts[:2]]
    return State(
        clock_mhz=numbers[0], power_cap_w=numbers[1], throttled=f"reasons {reasons:#x}" if reasons else ""
    )
