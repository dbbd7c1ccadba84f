"""What `pipeline run` does on every rank: steps of a schedule on a small model, or on stages that only take time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from forescale.runtime.launch import launch
from forescale.runtime.runner import lowered
from forescale.runtime.step import PipelineStep
from forescale.runtime.toy import TIED, VOCABULARY, SleepingStage, toy_loss, toy_stage
from forescale.schedule import Schedule
from forescale.schedule.measured import MeasuredStep, together, typical


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Steps of one schedule."""

    schedule: Schedule
    steps: int = 5
    warmup: int = 2
    seconds: tuple[tuple[float, float, float], ...] | None = None
    """Forward, input and weight gradient of each stage that only takes time; None for a small GPT."""
    width: int = 64
    tokens: int = 32
    sequences: int = 2
    """Per micro-batch."""


def run_job(job: Job) -> MeasuredStep:
    """Run a job on ranks of this machine and return its step of median makespan.

    Raises
    ------
    RunError
        If the schedule cannot run, or a rank fails.
    """
    lowered(job.schedule)  # refused before anything starts
    found = launch(_work, job.schedule.num_ranks, job)
    steps = [
        together(job.schedule, [rank[index][0] for rank in found], [rank[index][1] for rank in found])
        for index in range(job.steps)
    ]
    return typical(steps)


def _work(_rank: int, job: Job) -> list[tuple[Any, float]]:
    schedule = job.schedule
    if job.seconds is None:
        make = partial(_toy, job)
        step = PipelineStep(schedule, make, toy_loss, tied=TIED, count_bytes=True)
    else:
        step = PipelineStep(schedule, partial(_sleeping, job.seconds), _sum)
    inputs, targets = _batch(job)
    found = []
    for index in range(job.warmup + job.steps):
        step(inputs, targets)
        for parameter in step.parameters():
            parameter.grad = None
        if index >= job.warmup:
            found.append((step.passes, step.start_s))
    return found


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
