"""Process groups of one rank, and what travels in them with its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from forescale.question import Question

Group: TypeAlias = Any
"""A process group; None of one rank."""
Ranks: TypeAlias = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The groups that a rank belongs to; None where it would be alone."""

    tp: Group = None
    cp: Group = None
    ep: Group = None
    dp_cp: Group = None
    """Ranks with the same weights, but for those of experts."""
    expert_dp: Group = None
    """Ranks with the same experts."""


def groups_of(question: Question) -> Groups:
    """Return this rank's groups; every rank of the process must ask.

    Ranks lie in the order tp, cp, dp, and copies of the layout after it; experts in the order etp, ep, replicas.
    """
    layout, world = question.layout, dist.get_world_size()
    ranks = np.arange(world).reshape(-1, layout.dp * layout.cp, layout.tp)
    by_cp = ranks.reshape(-1, layout.cp, layout.tp)
    found: dict[str, Ranks] = {"tp": ranks, "cp": by_cp.swapaxes(1, 2), "dp_cp": ranks.swapaxes(1, 2)}
    if question.model.is_moe:
        experts: Ranks = np.arange(world).reshape(-1, layout.expert_dp, layout.ep, layout.etp)
        found |= {"ep": experts.swapaxes(2, 3), "expert_dp": np.moveaxis(experts, 1, 3)}
    return Groups(**{name: _own(each.reshape(-1, each.shape[-1])) for name, each in found.items()})


def neighbours(num_ranks: int) -> Group:
    """Return this rank's group of so many that follow each other; None of what is left over. Every rank must ask."""
    whole = dist.get_world_size() // num_ranks * num_ranks
    return _own(np.arange(whole).reshape(-1, num_ranks))


def _own(rows: Ranks) -> Group:
    if rows.shape[1] == 1:
        return None
    groups = [dist.new_group(row.tolist()) for row in rows]
    return next((group for group, row in zip(groups, rows, strict=True) if dist.get_rank() in row), None)


def gathered(x: Tensor, dim: int, group: Group) -> Tensor:
    """Return the parts of all ranks behind each other along `dim`."""
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, x.contiguous(), group=group)
    return torch.cat(parts, dim)


def scattered(x: Tensor, dim: int, group: Group) -> Tensor:
    """Return this rank's part along `dim` of the sum over ranks."""
    parts = [part.contiguous() for part in x.chunk(dist.get_world_size(group), dim)]
    own = torch.empty_like(parts[0])
    dist.reduce_scatter(own, parts, group=group)
    return own


def summed(x: Tensor, group: Group) -> Tensor:
    """Return the sum over ranks, in the place of a tensor that lies in one piece."""
    x = x.contiguous()
    dist.all_reduce(x, group=group)
    return x


def exchanged(x: Tensor, receive: Sequence[int], send: Sequence[int], group: Group) -> Tensor:
    """Return the rows that every rank has for this one, which sends so many of its own to each."""
    found = x.new_empty(sum(receive), *x.shape[1:])
    dist.all_to_all_single(found, x.contiguous(), list(receive), list(send), group=group)
    return found


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:  # noqa: ANN401
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        return summed(grad, ctx.group), None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Tensor, group: Group) -> Tensor:  # noqa: ANN401
        return summed(x, group)

    @staticmethod
    def backward(_: Any, grad: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        return grad, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, group: Group) -> Tensor:  # noqa: ANN401
        ctx.dim, ctx.group = dim, group
        return gathered(x, dim, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
        return scattered(grad, ctx.dim, ctx.group), None, None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, group: Group) -> Tensor:  # noqa: ANN401
        ctx.dim, ctx.group = dim, group
        return scattered(x, dim, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
        return gathered(grad, ctx.dim, ctx.group), None, None


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, receive: list[int], send: list[int], group: Group) -> Tensor:  # noqa: ANN401
        ctx.receive, ctx.send, ctx.group = receive, send, group
        return exchanged(x, receive, send, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        return exchanged(grad, ctx.send, ctx.receive, ctx.group), None, None, None


def enter(x: Tensor, group: Group) -> Tensor:
    """Let a whole tensor into a split region: forward nothing, backward a sum."""
    return _Enter.apply(x, group)  # type: ignore[no-any-return, no-untyped-call]


def leave(x: Tensor, group: Group) -> Tensor:
    """Let parts of a sum out of a split region: forward the sum, backward nothing."""
    return _Leave.apply(x, group)  # type: ignore[no-any-return, no-untyped-call]


def gather(x: Tensor, dim: int, group: Group) -> Tensor:
    """Gather along `dim`; backward sums gradients and scatters them."""
    return _Gather.apply(x, dim, group)  # type: ignore[no-any-return, no-untyped-call]


def scatter(x: Tensor, dim: int, group: Group) -> Tensor:
    """Sum and scatter along `dim`; backward gathers gradients."""
    return _Scatter.apply(x, dim, group)  # type: ignore[no-any-return, no-untyped-call]


def exchange(x: Tensor, receive: list[int], send: list[int], group: Group) -> Tensor:
    """Exchange rows; backward sends their gradients back."""
    return _Exchange.apply(x, receive, send, group)  # type: ignore[no-any-return, no-untyped-call]
