"""What `pipeline run` does on every rank: steps of a schedule on a small model, or on stages that only take time."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from msgspec.structs import replace
from torch import Tensor, nn
from torch.nn import functional

from forescale.runtime.channels import RunError
from forescale.runtime.gradients import grouped_linear, store_of
from forescale.runtime.launch import launch
from forescale.runtime.pieces import extend, offset
from forescale.runtime.runner import lowered
from forescale.runtime.step import PipelineStep
from forescale.schedule import LoweredSchedule, Schedule
from forescale.schedule.measured import MeasuredStep, Pass, together
from forescale.struct import Struct
from forescale.units import counted

VOCABULARY = 64


class Experts(nn.Module):
    """Tokens go to one of a few experts each, whose products are grouped."""

    def __init__(self, width: int, num_experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, num_experts, bias=False)
        self.up = nn.Parameter(torch.randn(num_experts, width, 2 * width) / width**0.5)
        self.down = nn.Parameter(torch.randn(num_experts, 2 * width, width) / (2 * width) ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the chosen experts make of every token."""
        rows = x.flatten(0, 1)
        weight, selected = functional.softmax(self.router(rows), -1).max(-1)
        order = selected.argsort(stable=True)
        counts = torch.bincount(selected, minlength=self.up.shape[0]).tolist()
        inner = functional.silu(grouped_linear(rows[order], self.up, counts))
        out = grouped_linear(inner, self.down, counts) * weight[order, None]
        return torch.zeros_like(rows).index_copy(0, order, out).view_as(x)


class Block(nn.Module):
    """Causal attention and experts, each after a norm."""

    def __init__(self, width: int, num_heads: int, num_experts: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.first, self.second = nn.RMSNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width, bias=False)
        self.experts = Experts(width, num_experts)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, (batch, tokens, width)."""
        x = x + self.out(self._attention(self.qkv(self.first(x))))
        out: Tensor = x + self.experts(self.second(x))
        return out

    def _attention(self, qkv: Tensor) -> Tensor:
        batch, tokens, _ = qkv.shape
        q, k, v = (part.view(batch, tokens, self.num_heads, -1).transpose(1, 2) for part in qkv.chunk(3, -1))
        k, v = extend(k, 2), extend(v, 2)
        seen = torch.arange(k.shape[2]) <= torch.arange(tokens)[:, None] + offset(tokens)
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen.to(q.device))
        return mixed.transpose(1, 2).reshape(batch, tokens, -1)


class Stage(nn.Module):
    """A few blocks; the first stage has the embedding, the last the norm and the head."""

    def __init__(
        self, blocks: list[Block], *, embedding: nn.Embedding | None, head: nn.Linear | None
    ) -> None:
        super().__init__()
        self.embedding, self.blocks, self.head = embedding, nn.ModuleList(blocks), head
        self.norm = nn.LayerNorm(blocks[0].first.normalized_shape) if head is not None and blocks else None

    def forward(self, x: Tensor) -> Tensor:
        """Return hidden states, or scores of the last stage."""
        x = x if self.embedding is None else self.embedding(x)
        for block in self.blocks:
            x = block(x)
        x = x if self.norm is None else self.norm(x)
        return x if self.head is None else self.head(x)


def toy_stage(
    stage: int,
    num_stages: int,
    *,
    layers: tuple[int, ...] | None = None,
    width: int = 16,
    num_heads: int = 2,
    num_experts: int = 3,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Stage:
    """Return one stage of a small GPT whose weights depend on `seed` only, not on how it is cut.

    Parameters
    ----------
    layers
        Blocks of each stage; one each by default.
    """
    layers = layers or (1,) * num_stages
    first = sum(layers[:stage])
    blocks = []
    for index in range(first, first + layers[stage]):
        torch.manual_seed(seed + 1 + index)
        blocks.append(Block(width, num_heads, num_experts))
    torch.manual_seed(seed)
    embedding = nn.Embedding(VOCABULARY, width)
    head = nn.Linear(width, VOCABULARY, bias=False)
    head.weight.data.copy_(embedding.weight.data)
    last = stage == num_stages - 1
    result = Stage(blocks, embedding=embedding if stage == 0 else None, head=head if last else None)
    return result.to(dtype)


TIED = (((0, "embedding.weight"), (-1, "head.weight")),)
"""Parameters that first and last stage share."""


def toy_loss(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy."""
    return functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, seconds: tuple[float, ...], store: Any) -> Tensor:  # noqa: ANN401
        ctx.seconds, ctx.store, ctx.weight = seconds, store, weight
        time.sleep(seconds[0])
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        time.sleep(ctx.seconds[1])

        def compute() -> None:
            time.sleep(ctx.seconds[2])
            ctx.store.add(ctx.weight, torch.ones_like(ctx.weight))

        ctx.store.put(compute)
        return grad.clone(), None, None, None


class SleepingStage(nn.Module):
    """Takes time and nothing else: `seconds` of forward, input gradient and weight gradient."""

    def __init__(self, seconds: tuple[float, float, float]) -> None:
        super().__init__()
        self.seconds, self.weight = seconds, nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """Sleep."""
        store = store_of(self.weight)
        tensor: Tensor = _Sleep.apply(x, self.weight, self.seconds, store)  # type: ignore[no-untyped-call]
        return tensor


class Job(Struct, frozen=True, kw_only=True):
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


class Ran(Struct, frozen=True):
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
            raise RunError(f"{job.schedule.name} runs on {needed}; torchrun started {started}")
        work, first = _work(dist.get_rank(), job), dist.get_rank() == 0
        values: list[Any] = [None] * dist.get_world_size()
        dist.gather_object(work, values if first else None)
        return values if first else []
    finally:
        dist.destroy_process_group()


def _steps(job: Job, rans: Sequence[Ran]) -> list[MeasuredStep]:
    """Return the steps of all ranks; between hosts all clocks begin when the ranks have met."""
    if not rans:
        return []
    apart = len({rank.host for rank in rans}) > 1
    memory = tuple(rank.memory_gib for rank in rans if rank.memory_gib is not None)
    steps = []
    for index in range(job.steps):
        passes, starts = zip(*(rank.steps[index] for rank in rans), strict=True)
        moments = [0.0] * len(rans) if apart else starts
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
    inputs, targets = (item.to(device) for item in _batch(job))
    result = []
    for index in range(job.warmup + job.steps):
        step(inputs, targets)
        for parameter in step.parameters():
            parameter.grad = None
        if index >= job.warmup:
            result.append((step.passes, step.start_s))
    memory = torch.cuda.max_memory_reserved() / 2**30 if device.type == "cuda" else None
    return Ran(host=socket.gethostname(), steps=result, memory_gib=memory)


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
