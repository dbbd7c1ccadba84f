"""What `pipeline run` does on every rank: steps of a schedule on a small model, or on stages that only take time."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from forescale.runtime.errors import RunError
from forescale.runtime.launch import launch
from forescale.runtime.runner import lowered
from forescale.runtime.step import PipelineStep
from forescale.runtime.toy import TIED, VOCABULARY, SleepingStage, toy_loss, toy_stage
from forescale.schedule import LoweredSchedule, Schedule
from forescale.schedule.measured import MeasuredStep, Pass, together
from forescale.units import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Steps of one schedule."""

    what: Schedule | LoweredSchedule
    """The schedule, with its sends and receives if they are given."""
    steps: int = 5
    warmup: int = 2
    seconds: tuple[tuple[float, float, float], ...] | None = None
    """Forward, input and weight gradient of each stage that only takes time; None for a small GPT."""
    width: int = 64
    tokens: int = 32
    sequences: int = 2
    """Per micro-batch."""

    @property
    def schedule(self) -> Schedule:
        """The schedule."""
        return self.what.schedule if isinstance(self.what, LoweredSchedule) else self.what


@dataclass(frozen=True, slots=True)
class Ran:
    """What one rank found."""

    host: str
    steps: list[tuple[list[Pass], float]]
    """Passes of each timed step, and when it began on this host's clock."""
    memory_gib: float | None
    """Most memory of the device; None on a CPU."""


def run_job(job: Job) -> list[MeasuredStep]:
    """Run a job on ranks of this machine, or on those that torchrun started, and return its timed steps.

    Under torchrun only the first rank gets them; the others get none.

    Raises
    ------
    RunError
        If the schedule cannot run, there are fewer ranks than it needs, or a rank fails.
    """
    lowered(job.what)  # refused before anything starts
    num_ranks = job.schedule.num_ranks
    if dist.is_torchelastic_launched():
        return _steps(job, _joined(job))
    return _steps(job, launch(_work, num_ranks, job, backend=backend_for(num_ranks)))


def backend_for(num_local: int) -> str:
    """Return nccl where this machine has a device for each of its ranks, else gloo."""
    return "nccl" if torch.cuda.is_available() and torch.cuda.device_count() >= num_local else "gloo"


def _joined(job: Job) -> list[Ran]:
    """Work as one of torchrun's ranks; return what all found on the first."""
    torch.set_num_threads(1)
    dist.init_process_group(backend_for(dist.get_node_local_rank(0) + 1))
    try:
        if dist.get_world_size() != job.schedule.num_ranks:
            needed, started = counted(job.schedule.num_ranks, "rank"), dist.get_world_size()
            msg = f"{job.schedule.name} runs on {needed}; torchrun started {started}"
            raise RunError(msg)
        own, first = _work(dist.get_rank(), job), dist.get_rank() == 0
        found: list[Any] = [None] * dist.get_world_size()
        dist.gather_object(own, found if first else None)
        return found if first else []
    finally:
        dist.destroy_process_group()


def _steps(job: Job, found: Sequence[Ran]) -> list[MeasuredStep]:
    """Return the steps of all ranks; between hosts all clocks begin when the ranks have met."""
    if not found:
        return []
    apart = len({rank.host for rank in found}) > 1
    memory = tuple(rank.memory_gib for rank in found if rank.memory_gib is not None)
    steps = []
    for index in range(job.steps):
        passes, starts = zip(*(rank.steps[index] for rank in found), strict=True)
        moments = [0.0] * len(found) if apart else starts
        step = together(job.schedule, passes, moments, iteration=index + 1)
        steps.append(replace(step, memory_gib=memory))
    return steps


def _work(_rank: int, job: Job) -> Ran:
    device = torch.device("cpu")
    if "nccl" in dist.get_backend():
        device = torch.device("cuda", dist.get_node_local_rank(dist.get_rank()))
        torch.cuda.set_device(device)
    if job.seconds is None:
        make = partial(_toy, job)
        step = PipelineStep(job.what, make, toy_loss, device=device, tied=TIED, count_bytes=True)
    else:
        step = PipelineStep(job.what, partial(_sleeping, job.seconds), _sum, device=device)
    inputs, targets = (each.to(device) for each in _batch(job))
    found = []
    for index in range(job.warmup + job.steps):
        step(inputs, targets)
        for parameter in step.parameters():
            parameter.grad = None
        if index >= job.warmup:
            found.append((step.passes, step.start_s))
    memory = torch.cuda.max_memory_reserved() / 2**30 if device.type == "cuda" else None
    return Ran(host=socket.gethostname(), steps=found, memory_gib=memory)


def _toy(job: Job, stage: int) -> torch.nn.Module:
    return toy_stage(stage, job.schedule.num_stages, width=job.width, num_heads=4, dtype=torch.float32)


def _sleeping(seconds: Sequence[tuple[float, float, float]], stage: int) -> torch.nn.Module:
    return SleepingStage(seconds[stage])


def _sum(y: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return y.sum()


def _batch(job: Job) -> tuple[torch.Tensor, torch.Tensor]:
    rows = job.schedule.num_microbatches * job.sequences
    if job.seconds is not None:
        ones = torch.ones(rows, job.schedule.num_splits)
        return ones, ones
    made = torch.Generator().manual_seed(1)
    inputs, targets = (torch.randint(0, VOCABULARY, (rows, job.tokens), generator=made) for _ in range(2))
    return inputs, targets
