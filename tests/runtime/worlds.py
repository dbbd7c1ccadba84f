"""What ranks do in tests: run schedules on a small model and compare with one process."""

from __future__ import annotations

import functools
import os
import signal
from pathlib import Path

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.flop_counter import FlopCounterMode

from forescale.runtime.channels import Channels
from forescale.runtime.job import TIED, VOCABULARY, SleepingStage, toy_loss, toy_stage
from forescale.runtime.step import PipelineStep
from forescale.schedule import LoweredSchedule, Request, build_schedule

BATCH, TOKENS = 2, 8


def layers_of(num_stages):
    """Return blocks of each stage: not all alike."""
    return tuple(1 + (stage % 3 == 1) for stage in range(num_stages))


def batch_of(num_microbatches, seed=1):
    made = torch.Generator().manual_seed(seed)
    shape = (num_microbatches * BATCH, TOKENS)
    return tuple(torch.randint(0, VOCABULARY, shape, generator=made) for _ in range(2))


def stage_of(num_stages, dtype, stage):
    return toy_stage(stage, num_stages, layers=layers_of(num_stages), dtype=dtype)


@functools.cache
def expected(num_stages, num_microbatches, dtype=torch.float64, seed=1):
    """Return loss and gradients of one process: the plain way, by autograd alone."""
    stages = [stage_of(num_stages, dtype, stage) for stage in range(num_stages)]
    stages[-1].head.weight = stages[0].embedding.weight
    inputs, targets = batch_of(num_microbatches, seed)
    total = 0.0
    for x, target in zip(inputs.chunk(num_microbatches), targets.chunk(num_microbatches), strict=True):
        scores = functools.reduce(lambda y, stage: stage(y), stages, x)
        loss = toy_loss(scores, target) / num_microbatches
        loss.backward()
        total += loss.item()
    grads = [{name: p.grad for name, p in stage.named_parameters()} for stage in stages]
    grads[-1]["head.weight"] = grads[0]["embedding.weight"]
    return total, grads


def error_of(step, loss, dtype=torch.float64):
    """Return the largest difference of a gradient over the largest gradient, and that of the loss."""
    count = step.schedule.num_stages
    total, grads = expected(count, step.schedule.num_microbatches)
    largest = max(grad.abs().max() for stage in grads for grad in stage.values() if grad is not None)
    worst = max(
        (whole(step.runner.store.of(parameter)).double() - grads[stage % count][name]).abs().max() / largest
        for stage, module in step.stages.items()
        for name, parameter in module.named_parameters()
    )
    return float(worst), abs(float(loss) - total)


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def run_all(rank, schedules):
    """Run one step of each schedule; return errors and peaks."""
    channels = Channels([range(schedules[0].num_ranks)], torch.device("cpu"))
    result = []
    for what in schedules:
        schedule = what.schedule if isinstance(what, LoweredSchedule) else what
        make = functools.partial(stage_of, schedule.num_stages, torch.float64)
        step = PipelineStep(what, make, toy_loss, tied=TIED, channels=channels)
        loss = step(*batch_of(schedule.num_microbatches))
        result.append((*error_of(step, loss), max(pass_.live for pass_ in step.passes)))
    return result


def run_kinds(rank, schedule, pipelines, in_fp32, dtype):
    """Run one step with data parallel pipelines, accumulation in fp32, or another type."""
    make = functools.partial(stage_of, schedule.num_stages, dtype)
    step = PipelineStep(schedule, make, toy_loss, tied=TIED, pipelines=pipelines, in_fp32=in_fp32)
    loss = step(*batch_of(schedule.num_microbatches))
    return error_of(step, loss)


def run_fsdp(_rank, schedule):
    """Run steps under FSDP2, blocks and what is around them gathered apart: errors and products by kind of action.

    First two pipelines of two ranks; then one stage whose shards lie over two copies of two ranks, in mixed precision.
    """

    def make(count, over, policy, stage):
        made = stage_of(count, torch.float64, stage)
        for block in made.blocks:
            fully_shard(block, mesh=over, mp_policy=policy)
        return fully_shard(made, mesh=over, mp_policy=policy)

    alone = build_schedule("zb-h1", Request(pp=1, num_microbatches=schedule.num_microbatches))
    pairs = DeviceMesh("cpu", [[0, 2], [1, 3]], mesh_dim_names=("pp", "dp"))["dp"]
    copies = DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=("copy", "dp"))
    mixed = MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float64)
    results = []
    for plan, pipelines, over, policy in (
        (schedule, [[0, 1], [2, 3]], pairs, MixedPrecisionPolicy()),
        (alone, [[0], [1], [2], [3]], copies, mixed),
    ):
        stages = functools.partial(make, plan.num_stages, over, policy)
        step = PipelineStep(plan, stages, toy_loss, tied=TIED, pipelines=pipelines)
        result = counting(step)
        results.append((*error_of(step, step(*batch_of(plan.num_microbatches))), result))
    return results


def checkpointed(rank, schedule):
    """Run one step whose blocks are computed again in their backward."""
    from torch.utils.checkpoint import checkpoint

    def make(stage):
        made = stage_of(schedule.num_stages, torch.float64, stage)
        for block in made.blocks:
            block.forward = functools.partial(checkpoint, type(block).forward, block, use_reentrant=False)
        return made

    step = PipelineStep(schedule, make, toy_loss, tied=TIED)
    return error_of(step, step(*batch_of(schedule.num_microbatches)))


def sleep(rank, schedule, seconds, steps):
    """Run stages that only take time; return every step's passes and start."""
    step = PipelineStep(
        schedule, lambda stage: SleepingStage(seconds[stage]), lambda y, _: y.sum(), count_bytes=False
    )
    batch = torch.ones(schedule.num_microbatches, 4)
    result = []
    for _ in range(steps):
        step(batch, batch)
        result.append((step.passes, step.start_s))
    return result


class Breaks(torch.nn.Module):
    """A stage that fails at one place."""

    def __init__(self, how, stage):
        super().__init__()
        self.weight, self.how, self.stage, self.count = torch.nn.Parameter(torch.ones(1)), how, stage, 0

    def forward(self, x):
        self.count += 1
        failing = self.stage == 1 and self.count == 3
        if failing and self.how == "shape":
            return (x * self.weight)[:, :2]
        if failing and self.how == "nan":
            return x * self.weight * float("nan")
        return _Broken.apply(x, self.weight) if failing and self.how == "backward" else x * self.weight


class _Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        return x * weight

    @staticmethod
    def backward(ctx, grad):
        raise ValueError("no backward")


def break_at(rank, schedule, how):
    step = PipelineStep(schedule, lambda stage: Breaks(how, stage), lambda y, _: y.sum())
    batch = torch.ones(schedule.num_microbatches, 4)
    step(batch, batch)


def break_in(rank, schedule, kind, where):
    """Raise in the second action of a kind on one rank, or kill it there."""
    step = PipelineStep(
        schedule, functools.partial(stage_of, schedule.num_stages, torch.float64), toy_loss, tied=TIED
    )
    handler, left = step.runner._handlers[kind], [2]

    def failing(action, state):
        left[0] -= rank == where
        if not left[0]:
            raise ValueError("on purpose")
        handler(action, state)

    step.runner._handlers = {**step.runner._handlers, kind: failing}
    step(*batch_of(schedule.num_microbatches))


def die(rank, schedule, where):
    """Kill one rank while all run."""
    step = PipelineStep(schedule, lambda stage: SleepingStage((0.01, 0.01, 0.01)), lambda y, _: y.sum())
    batch = torch.ones(schedule.num_microbatches, 4)
    step(batch, batch)
    if rank == where:
        os.kill(os.getpid(), signal.SIGKILL)
    step(batch, batch)


def many(rank, schedule, steps):
    """Run many steps; return file handles and memory after some and after all."""
    import resource

    make = functools.partial(stage_of, schedule.num_stages, torch.float64)
    step = PipelineStep(schedule, make, toy_loss, tied=TIED)
    seen = []
    for index in range(steps):
        step(*batch_of(schedule.num_microbatches))
        for parameter in step.parameters():
            parameter.grad = None
        if index in (steps // 5, steps - 1):
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            seen.append((len(list(Path("/proc/self/fd").iterdir())), memory))
    return seen


def products(_rank, schedule):
    """Run one step and count the FLOPs of products in each action: pairs of kind and FLOPs."""
    make = functools.partial(stage_of, schedule.num_stages, torch.float64)
    step = PipelineStep(schedule, make, toy_loss, tied=TIED)
    result = counting(step)
    step(*batch_of(schedule.num_microbatches))
    return result


def counting(step):
    """Let a step count the FLOPs of products in each action, in what is returned."""
    result, run = [], step.runner._run

    def counted(action, state):
        with FlopCounterMode(display=False) as counter:
            run(action, state)
        if action.kind <= 3:
            result.append((action.kind.name, counter.get_total_flops()))

    step.runner._run = counted
    return result
