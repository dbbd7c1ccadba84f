"""Decoder layers split over a tensor-parallel group of processes, and both ends over the vocabulary.

Weights are cut by columns before a block's nonlinear part and by rows after it, so that each half of a layer sends one
sum forward and one backward (Shoeybi et al. 2019, arXiv:1909.08053, section 3). Hidden states between blocks are whole.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn import functional

COLUMNS = ("q_proj", "k_proj", "v_proj", "q_b_proj", "kv_b_proj", "gate_proj", "up_proj")
ROWS = ("o_proj", "down_proj")
LATENT = "kv_a_proj_with_mqa"
"""Projection to the latent that all heads read: its result is whole on every rank."""
PARTIAL = "_forescale_partial"
"""Marks parameters between whole and split tensors: each rank has a part of their gradients."""


class _Enter(torch.autograd.Function):
    """Whole tensors into a split region: forward nothing, backward a sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:  # noqa: ANN401
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        grad = grad.contiguous()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class _Leave(torch.autograd.Function):
    """Out of a split region: forward a sum, backward nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:  # noqa: ANN401, ARG004
        x = x.contiguous()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401, ARG004
        return grad, None


def _enter(x: Tensor, group: Any) -> Tensor:  # noqa: ANN401
    return _Enter.apply(x, group)  # type: ignore[no-any-return, no-untyped-call]


def _leave(x: Tensor, group: Any) -> Tensor:  # noqa: ANN401
    return _Leave.apply(x, group)  # type: ignore[no-any-return, no-untyped-call]


def split_layer(layer: nn.Module, group: Any) -> None:  # noqa: ANN401 (a process group)
    """Cut the weights of a decoder layer in place, and let it exchange what the cut needs."""
    for parent in list(layer.modules()):
        children = dict(parent.named_children())
        columns = [name for name in COLUMNS if isinstance(children.get(name), nn.Linear)]
        for name in columns:
            _cut(children[name], group, dim=0)
        for name in ROWS:
            if isinstance(children.get(name), nn.Linear):
                _cut(children[name], group, dim=1)
                children[name].register_forward_hook(lambda _, __, y: _leave(y, group))
        if LATENT in children:
            children[LATENT].register_forward_hook(lambda _, __, y: _enter(y, group))
            queries = children["q_b_proj" if "q_b_proj" in columns else "q_proj"]
            queries.register_forward_pre_hook(lambda _, given: (_enter(given[0], group), *given[1:]))
            for parameter in children["kv_a_layernorm"].parameters():
                setattr(parameter, PARTIAL, True)
        elif columns:
            parent.register_forward_pre_hook(
                lambda _, args, words: _entered(args, words, group), with_kwargs=True
            )
        if "experts" in children and hasattr(children["experts"], "gate_up_proj"):
            _split_experts(children["experts"], group)


def _entered(args: Sequence[Any], words: dict[str, Any], group: Any) -> tuple[Sequence[Any], dict[str, Any]]:  # noqa: ANN401
    """Return a module's arguments with its hidden states entering the split region."""
    if args:
        return (_enter(args[0], group), *args[1:]), words
    return args, {**words, "hidden_states": _enter(words["hidden_states"], group)}


def _cut(layer: Any, group: Any, *, dim: int) -> None:  # noqa: ANN401
    layer.weight = _part(layer.weight, group, dim)
    if dim == 0 and getattr(layer, "bias", None) is not None:
        layer.bias = _part(layer.bias, group, 0)


def _part(weight: Tensor, group: Any, dim: int) -> nn.Parameter:  # noqa: ANN401
    part = weight.detach().chunk(dist.get_world_size(group), dim)[dist.get_rank(group)]
    return nn.Parameter(part.clone(), requires_grad=weight.requires_grad)


def _split_experts(experts: Any, group: Any) -> None:  # noqa: ANN401
    """Cut every expert's width; gate and up lie behind each other in one matrix."""
    halves = experts.gate_up_proj.detach().chunk(2, 1)
    experts.gate_up_proj = nn.Parameter(torch.cat([_part(half, group, 1) for half in halves], 1).detach())
    experts.down_proj = _part(experts.down_proj, group, 2)
    experts.register_forward_pre_hook(
        lambda _, given: (_enter(given[0], group), given[1], _enter(given[2], group))
    )
    experts.register_forward_hook(lambda _, __, y: _leave(y, group))


def split_embedding(embedding: nn.Embedding, group: Any) -> None:  # noqa: ANN401
    """Give each rank its rows of the table."""
    embedding.weight = _part(embedding.weight, group, 0)
    first = dist.get_rank(group) * embedding.weight.shape[0]

    def look_up(tokens: Tensor) -> Tensor:
        own = tokens - first
        outside = (own < 0) | (own >= embedding.weight.shape[0])
        found = functional.embedding(own.masked_fill(outside, 0), embedding.weight)
        return _leave(found.masked_fill(outside[..., None], 0.0), group)

    embedding.forward = look_up  # type: ignore[method-assign, assignment]


def split_head(head: nn.Linear, group: Any) -> None:  # noqa: ANN401
    """Give each rank its columns of the scores."""
    _cut(head, group, dim=0)
    head.register_forward_pre_hook(lambda _, given: (_enter(given[0], group),))


_mesh = functools.cache(DeviceMesh.from_group)


def split_loss(scores: Tensor, targets: Tensor, group: Any) -> Tensor:  # noqa: ANN401
    """Return the mean cross entropy of scores (rows, own vocabulary), by PyTorch's parallel loss.

    Forward and backward run under `torch.distributed.tensor.parallel.loss_parallel`.
    """
    whole = DTensor.from_local(scores, _mesh(group, scores.device.type), [Shard(-1)], run_check=False)
    found: DTensor = functional.cross_entropy(whole, targets)  # type: ignore[assignment]
    return found.to_local()


def sum_partial(module: nn.Module, group: Any) -> None:  # noqa: ANN401
    """Add up over ranks the gradients of which each has a part; once a step."""
    for parameter in module.parameters():
        if getattr(parameter, PARTIAL, False) and parameter.grad is not None:
            dist.all_reduce(parameter.grad, group=group)
