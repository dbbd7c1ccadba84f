"""Decoder layers split over tensor- and expert-parallel groups of processes, and both ends.

Weights are cut by columns before a block's nonlinear part and by rows after it, so that each half of a layer sends one
sum forward and one backward (Shoeybi et al. 2019, arXiv:1909.08053, section 3). Hidden states between blocks are whole,
or cut along the sequence: then they are gathered before a half and scattered after it (Korthikanti et al. 2022,
arXiv:2205.05198, section 4.2.2). Tokens travel to their experts and back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn import functional

from forescale.bench.groups import Group, enter, exchange, exchanged, gather, gathered, leave, scatter
from forescale.struct import Struct

COLUMNS = ("q_proj", "k_proj", "v_proj", "q_b_proj", "kv_b_proj", "gate_proj", "up_proj")
ROWS = ("o_proj", "down_proj")
LATENT = "kv_a_proj_with_mqa"
"""Projection to the latent that all heads read: its result is whole on every rank."""
HEAD_NORMS = ("q_norm", "k_norm", "kv_a_layernorm")
"""Norms of what each rank has its own heads of."""
PARTIAL = "_forescale_partial"
"""Marks parameters between whole and split tensors: each rank has a part of their gradients."""
EXPERT = "_forescale_expert"
"""Marks parameters of experts, of which other ranks have copies than of the rest."""


class Split(Struct, frozen=True):
    """A tensor-parallel group; whether hidden states between blocks, and the width of experts, are cut over it."""

    group: Group
    sp: bool
    experts: bool

    def enter(self, x: Tensor) -> Tensor:
        """Return hidden states as products need them: all tokens."""
        return gather(x, x.ndim - 2, self.group) if self.sp else enter(x, self.group)

    def leave(self, x: Tensor) -> Tensor:
        """Return what products made as it is between blocks."""
        return scatter(x, x.ndim - 2, self.group) if self.sp else leave(x, self.group)


def split_layer(layer: nn.Module, split: Split) -> None:
    """Cut the weights of a decoder layer in place, and let it exchange what the cut needs."""
    whole = set(layer.parameters())
    for parent in list(layer.modules()):
        children = dict(parent.named_children())
        columns = [name for name in COLUMNS if isinstance(children.get(name), nn.Linear)]
        for name in columns:
            _cut(children[name], split.group, dim=0)
        for name in ROWS:
            if isinstance(children.get(name), nn.Linear):
                _cut_rows(children[name], split)
        for name in HEAD_NORMS:
            for parameter in children[name].parameters() if name in children else ():
                setattr(parameter, PARTIAL, True)
        if LATENT in children:
            children[LATENT].register_forward_hook(lambda _, __, y: split.enter(y))
            queries = children["q_b_proj" if "q_b_proj" in columns else "q_proj"]
            queries.register_forward_pre_hook(lambda _, value: (split.enter(value[0]), *value[1:]))
        elif columns:
            parent.register_forward_pre_hook(
                lambda _, args, parts: _entered(args, parts, split), with_kwargs=True
            )
        if "experts" in children and split.experts:
            _split_experts(children["experts"], split)
    if split.sp:
        mark_partial(
            parameter
            for parameter in layer.parameters()
            if parameter in whole and not hasattr(parameter, EXPERT)
        )


def mark_partial(parameters: Any) -> None:  # noqa: ANN401 (an iterable of parameters)
    """Note that each rank of tp has a part of these gradients."""
    for parameter in parameters:
        setattr(parameter, PARTIAL, True)


def _entered(
    args: Sequence[Any], values: dict[str, Any], split: Split
) -> tuple[Sequence[Any], dict[str, Any]]:
    """Return a module's arguments with its hidden states entering the split region."""
    if args:
        return (split.enter(args[0]), *args[1:]), values
    return args, {**values, "hidden_states": split.enter(values["hidden_states"])}


def _cut(layer: Any, group: Group, *, dim: int) -> None:  # noqa: ANN401
    layer.weight = _part(layer.weight, group, dim)
    if dim == 0 and getattr(layer, "bias", None) is not None:
        layer.bias = _part(layer.bias, group, 0)


def _cut_rows(layer: Any, split: Split) -> None:  # noqa: ANN401
    """Cut a layer whose results are added up over ranks; its bias comes after the sum."""
    _cut(layer, split.group, dim=1)
    bias, layer.bias = layer.bias, None
    layer.register_parameter("after", bias)
    layer.register_forward_hook(
        lambda _, __, y: split.leave(y) if bias is None else split.leave(y) + layer.after
    )


def _part(weight: Tensor, group: Group, dim: int) -> nn.Parameter:
    part = weight.detach().chunk(dist.get_world_size(group), dim)[dist.get_rank(group)]
    parameter = nn.Parameter(part.clone(), requires_grad=weight.requires_grad)
    if hasattr(weight, EXPERT):
        setattr(parameter, EXPERT, True)
    return parameter


def _split_experts(experts: Any, split: Split) -> None:  # noqa: ANN401
    """Cut every expert's width; gate and up lie behind each other in one matrix.

    Where hidden states are cut along the sequence, the experts of a rank take the tokens of all ranks.
    """
    group = split.group
    halves = experts.gate_up_proj.detach().chunk(2, 1)
    experts.gate_up_proj = nn.Parameter(torch.cat([_part(half, group, 1) for half in halves], 1).detach())
    setattr(experts.gate_up_proj, EXPERT, True)
    experts.down_proj = _part(experts.down_proj, group, 2)
    experts.register_forward_pre_hook(
        lambda _, value: (
            split.enter(value[0]),
            gathered(value[1], 0, group) if split.sp else value[1],
            split.enter(value[2]),
        )
    )
    experts.register_forward_hook(lambda _, __, y: split.leave(y))


def balance_experts(experts: Any) -> None:  # noqa: ANN401
    """Let experts have tokens in turn, whatever a router that has learnt nothing chooses; its weights stay."""
    number = experts.num_experts
    experts.register_forward_pre_hook(lambda _, value: (value[0], in_turn(value[1], number), *value[2:]))


def in_turn(tensor: Tensor, num_experts: int) -> Tensor:
    """Return experts in turn in the place of those that were chosen."""
    places = torch.arange(tensor.numel(), device=tensor.device)
    return places.remainder(num_experts).view_as(tensor)


def spread_experts(experts: Any, group: Group) -> None:  # noqa: ANN401
    """Give each rank some of the experts whole; tokens travel to them and their results back."""
    for name, parameter in list(experts.named_parameters(recurse=False)):
        setattr(experts, name, _part(parameter, group, 0))
    experts.num_experts //= dist.get_world_size(group)
    experts.forward = functools.partial(_dispatched, experts.forward, group, experts.num_experts)


def _dispatched(
    run: Callable[..., Tensor], group: Group, num_local: int, x: Tensor, tensor: Tensor, weights: Tensor
) -> Tensor:
    """Return what experts everywhere make of tokens.

    Parameters
    ----------
    x, chosen, weights
        Tokens (tokens, hidden size); of each the experts, and their weights, (tokens, k).
    """
    ranks, top_k = dist.get_world_size(group), tensor.shape[-1]
    order = tensor.flatten().argsort(stable=True)
    counts = torch.bincount(tensor.flatten(), minlength=ranks * num_local).view(ranks, num_local)
    theirs = exchanged(counts, [1] * ranks, [1] * ranks, group)
    send, receive = counts.sum(1).tolist(), theirs.sum(1).tolist()
    rows = exchange(x[order // top_k], receive, send, group)
    local = (
        torch.arange(num_local, device=x.device).repeat(ranks).repeat_interleave(theirs.flatten())[:, None]
    )
    results = exchange(run(rows, local, weights.new_ones(local.shape)), send, receive, group)
    weighted = results[order.argsort()].view(*tensor.shape, -1) * weights[..., None]
    return weighted.sum(1).to(x.dtype)  # weights of a router may be in fp32


def split_embedding(embedding: nn.Embedding, split: Split) -> None:
    """Give each rank its rows of the table."""
    embedding.weight = _part(embedding.weight, split.group, 0)
    first = dist.get_rank(split.group) * embedding.weight.shape[0]

    def look_up(tokens: Tensor) -> Tensor:
        local = tokens - first
        outside = (local < 0) | (local >= embedding.weight.shape[0])
        result = functional.embedding(local.masked_fill(outside, 0), embedding.weight)
        return split.leave(result.masked_fill(outside[..., None], 0.0))

    embedding.forward = look_up  # type: ignore[method-assign, assignment]


def split_head(head: nn.Linear, split: Split) -> None:
    """Give each rank its columns of the scores."""
    _cut(head, split.group, dim=0)
    head.register_forward_pre_hook(lambda _, value: (split.enter(value[0]),))


mesh_of = functools.cache(DeviceMesh.from_group)


def split_loss(scores: Tensor, targets: Tensor, group: Group) -> Tensor:
    """Return the sum of the cross entropies of scores (rows, own vocabulary), by PyTorch's parallel loss.

    Forward and backward run under `torch.distributed.tensor.parallel.loss_parallel`.
    """
    whole = DTensor.from_local(scores, mesh_of(group, scores.device.type), [Shard(-1)], run_check=False)
    d_tensor: DTensor = functional.cross_entropy(whole, targets, reduction="sum")  # type: ignore[assignment]
    return d_tensor.to_local()
