"""A small model with everything that a schedule can get wrong, and stages that only take time."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from forescale.runtime.gradients import grouped_linear, store_of
from forescale.runtime.pieces import extend, offset

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
        weight, chosen = functional.softmax(self.router(rows), -1).max(-1)
        order = chosen.argsort(stable=True)
        counts = torch.bincount(chosen, minlength=self.up.shape[0]).tolist()
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
    found = Stage(blocks, embedding=embedding if stage == 0 else None, head=head if last else None)
    return found.to(dtype)


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
        found: Tensor = _Sleep.apply(x, self.weight, self.seconds, store)  # type: ignore[no-untyped-call]
        return found
