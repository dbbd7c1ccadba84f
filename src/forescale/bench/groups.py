"""Process groups of one rank, and what travels in them with its gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from forescale.question import Question
from forescale.struct import Struct

Group: TypeAlias = Any
"""A process group; None of one rank."""
Ranks: TypeAlias = NDArray[Any]
Way: TypeAlias = Callable[[Tensor], Tensor]


class Groups(Struct, frozen=True, kw_only=True):
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
    result: dict[str, Ranks] = {"tp": ranks, "cp": by_cp.swapaxes(1, 2), "dp_cp": ranks.swapaxes(1, 2)}
    if question.model.is_moe:
        experts: Ranks = np.arange(world).reshape(-1, layout.expert_dp, layout.ep, layout.etp)
        result |= {"ep": experts.swapaxes(2, 3), "expert_dp": np.moveaxis(experts, 1, 3)}
    return Groups(**{name: _own(item.reshape(-1, item.shape[-1])) for name, item in result.items()})


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
    empty_like = torch.empty_like(parts[0])
    dist.reduce_scatter(empty_like, parts, group=group)
    return empty_like


def summed(x: Tensor, group: Group) -> Tensor:
    """Return the sum over ranks, in the place of a tensor that lies in one piece."""
    x = x.contiguous()
    dist.all_reduce(x, group=group)
    return x


def exchanged(x: Tensor, receive: Sequence[int], send: Sequence[int], group: Group) -> Tensor:
    """Return the rows that every rank has for this one, which sends so many of its own to each."""
    new_empty = x.new_empty(sum(receive), *x.shape[1:])
    dist.all_to_all_single(new_empty, x.contiguous(), list(receive), list(send), group=group)
    return new_empty


class _Sent(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Way, back: Way) -> Tensor:  # noqa: ANN401
        ctx.back = back
        return there(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
        return ctx.back(grad), None, None


def _sent(x: Tensor, there: Way, back: Way) -> Tensor:
    """Return what goes one way forward, and its gradient the other way backward."""
    return _Sent.apply(x, there, back)  # type: ignore[no-any-return, no-untyped-call]


def enter(x: Tensor, group: Group) -> Tensor:
    """Let a whole tensor into a split region: forward nothing, backward a sum."""
    return _sent(x, lambda whole: whole.view_as(whole), partial(summed, group=group))


def leave(x: Tensor, group: Group) -> Tensor:
    """Let parts of a sum out of a split region: forward the sum, backward nothing."""
    return _sent(x, partial(summed, group=group), lambda grad: grad)


def gather(x: Tensor, dim: int, group: Group) -> Tensor:
    """Gather along `dim`; backward sums gradients and scatters them."""
    return _sent(x, partial(gathered, dim=dim, group=group), partial(scattered, dim=dim, group=group))


def scatter(x: Tensor, dim: int, group: Group) -> Tensor:
    """Sum and scatter along `dim`; backward gathers gradients."""
    return _sent(x, partial(scattered, dim=dim, group=group), partial(gathered, dim=dim, group=group))


def exchange(x: Tensor, receive: list[int], send: list[int], group: Group) -> Tensor:
    """Exchange rows; backward sends their gradients back."""
    there = partial(exchanged, receive=receive, send=send, group=group)
    return _sent(x, there, partial(exchanged, receive=send, send=receive, group=group))
