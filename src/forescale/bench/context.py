"""Attention of sequences that are cut over a context-parallel group of processes.

Each rank has its own queries. It gathers all keys and values (Llama 3, arXiv:2407.21783, section 3.3.2); or these go
around a ring, and what queries find among each part is put together (Liu et al. 2023, arXiv:2310.01889); or ranks
exchange parts of the sequence for heads (DeepSpeed-Ulysses, arXiv:2309.14509).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right

from forescale.bench.groups import Group, exchange, gather
from forescale.bench.here import CPU
from forescale.spec.context import ContextKind
from forescale.struct import Struct

Runs: TypeAlias = list[tuple[int, int]]
"""First token, and the one after the last, of each run of tokens that a rank has."""


class Context(Struct, frozen=True):
    """A rank's part of each sequence among those of its context-parallel group."""

    group: Group
    kind: ContextKind
    balanced: bool
    """Whether it is a part from the front and one from the back, so that all see as many keys."""

    def own(self, x: Tensor) -> Tensor:
        """Return this rank's part of whole sequences, (..., tokens)."""
        if self.group is None:
            return x
        return torch.cat([x[..., first:end] for first, end in self.runs(x.shape[-1], self.rank)], -1)

    @property
    def rank(self) -> int:
        """Place of this rank in its group."""
        return dist.get_rank(self.group)

    @property
    def ranks(self) -> int:
        """Ranks of the group."""
        return dist.get_world_size(self.group)

    def runs(self, length: int, rank: int) -> Runs:
        """Return what a rank has of a sequence."""
        parts = (rank, 2 * self.ranks - 1 - rank) if self.balanced else (rank,)
        size = length // (self.ranks * len(parts))
        return [(part * size, (part + 1) * size) for part in parts]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        """Return what own queries find among all keys before them; shapes (batch, heads, tokens, head size)."""
        return DATAFLOWS[self.kind](self, query, key, value, scaling)

    def _around_ring(self, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        result: Tensor = _Ring.apply(query, key, value, self, scaling)  # type: ignore[no-untyped-call]
        return result

    def _order(self, part: int) -> Tensor:
        """Return where each token of a sequence stands once the parts of all ranks, so long, are put together."""
        runs = (run for rank in range(self.ranks) for run in self.runs(self.ranks * part, rank))
        return torch.tensor([place for run in runs for place in range(*run)]).argsort()

    def _among_gathered(self, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        order = self._order(query.shape[2]).to(query.device)
        key, value = (gather(item, 2, self.group)[:, :, order] for item in (key, value))
        runs = self.runs(len(order), self.rank)
        scaled_dot_product_attentions = [
            functional.scaled_dot_product_attention(
                part, key[:, :, :end], value[:, :, :end], attn_mask=causal_lower_right(end - first, end),
                scale=scaling, enable_gqa=key.shape[1] != query.shape[1],
            )
            for part, (first, end) in zip(query.chunk(len(runs), 2), runs, strict=True)
        ]  # fmt: skip
        return torch.cat(scaled_dot_product_attentions, 2)

    def _by_heads(self, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        """Have some heads of all tokens."""
        order = self._order(query.shape[2]).to(query.device)
        query, key, value = (self._exchanged(item, 1, 2)[:, :, order] for item in (query, key, value))
        scaled_dot_product_attention = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scaling, enable_gqa=key.shape[1] != query.shape[1]
        )
        return self._exchanged(scaled_dot_product_attention[:, :, order.argsort()], 2, 1)

    def _exchanged(self, x: Tensor, value: int, taken: int) -> Tensor:
        """Return parts of all ranks behind each other along `taken`, for as many of one's own along `value`."""
        counts = [1] * self.ranks
        parts = exchange(torch.stack(x.chunk(self.ranks, value)), counts, counts, self.group)
        return torch.cat(parts.unbind(), taken)

    def pairs(self, length: int, other: int) -> Iterator[tuple[int, int, bool]]:
        """Yield own runs of queries, runs of another rank's keys that these see, and whether they are the same."""
        for mine, (first, _) in enumerate(self.runs(length, self.rank)):
            for theirs, (begin, _) in enumerate(self.runs(length, other)):
                if begin <= first:
                    yield mine, theirs, begin == first

    def passed(self, x: Tensor) -> tuple[Tensor, Callable[[], None]]:
        """Start to pass a tensor on to the next rank; return where the other's arrives, and what waits for it."""
        x, empty_like = x.contiguous(), torch.empty_like(x)
        ways = ((dist.isend, x, self.rank + 1), (dist.irecv, empty_like, self.rank - 1))
        sent = [
            dist.P2POp(way, item, group=self.group, group_peer=peer % self.ranks) for way, item, peer in ways
        ]
        waiting = dist.batch_isend_irecv(sent)

        def wait() -> None:
            for item in waiting:
                item.wait()
            sent.clear()  # what was sent is held until then

        return empty_like, wait


DATAFLOWS: Mapping[ContextKind, Callable[..., Tensor]] = {
    "all_gather": Context._among_gathered,  # noqa: SLF001
    "ring": Context._around_ring,  # noqa: SLF001
    "ulysses": Context._by_heads,  # noqa: SLF001
}
"""Attention of each kind of context parallelism that runs here."""


class _Ring(torch.autograd.Function):
    """Keys and values of one rank after the other, while those of the next are on their way."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        query: Tensor,
        key: Tensor,
        value: Tensor,
        context: Context,
        scaling: float | None,
    ) -> Tensor:
        length, runs = context.ranks * query.shape[2], len(context.runs(0, 0))
        queries = query.chunk(runs, 2)
        sums: list[tuple[Tensor, Tensor] | None] = [None] * runs
        for other, pair in _around(context, torch.stack((key, value))):
            keys, values = (item.chunk(runs, 2) for item in pair)
            for mine, theirs, same in context.pairs(length, other):
                attended = _attended(
                    queries[mine], keys[theirs], values[theirs], causal=same, scaling=scaling
                )
                sums[mine] = _together(sums[mine], attended)
        parts = [item for item in sums if item is not None]
        out = torch.cat([item for item, _ in parts], 2).to(query.dtype)
        ctx.save_for_backward(query, key, value, out, torch.cat([weight for _, weight in parts], 2))
        ctx.context, ctx.scaling = context, scaling
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        query, key, value, out, weights = ctx.saved_tensors
        context: Context = ctx.context
        length, runs = context.ranks * query.shape[2], len(context.runs(0, 0))
        of_queries = torch.zeros_like(query)
        chunks = [item.chunk(runs, 2) for item in (grad, query, out, weights, of_queries)]
        gradients = torch.zeros((2, *key.shape), dtype=key.dtype, device=key.device)
        wait = _nothing
        for other, pair in _around(context, torch.stack((key, value))):
            keys, values = (item.chunk(runs, 2) for item in pair)
            added = torch.zeros_like(pair)
            sums = [item.chunk(runs, 2) for item in added]
            for mine, theirs, same in context.pairs(length, other):
                raw, question, made, weight, total = (item[mine] for item in chunks)
                attended_backward = _attended_backward(
                    raw,
                    question,
                    keys[theirs],
                    values[theirs],
                    made,
                    weight,
                    causal=same,
                    scaling=ctx.scaling,
                )
                for sum_, item in zip(
                    (total, sums[0][theirs], sums[1][theirs]), attended_backward, strict=True
                ):
                    sum_.add_(item)
            wait()
            gradients, wait = context.passed(gradients.add_(added))
        wait()
        return of_queries, gradients[0], gradients[1], None, None


def _nothing() -> None:
    """Wait for nothing."""


def _around(context: Context, tensor: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yield every rank of a ring with what it has, own first, while the next is on its way."""
    for step in range(context.ranks):
        last = step == context.ranks - 1
        coming, wait = (tensor, _nothing) if last else context.passed(tensor)
        yield (context.rank - step) % context.ranks, tensor
        wait()
        tensor = coming


def _together(before: tuple[Tensor, Tensor] | None, tensors: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return what queries find among two parts of the keys; each with the logarithm of its sum of weights."""
    if before is None:
        return tensors[0].float(), tensors[1]
    (one, first), (other, second) = before, tensors
    both = torch.logaddexp(first, second)
    return one * (first - both).exp()[..., None] + other * (second - both).exp()[..., None], both


def _attended(query: Tensor, key: Tensor, value: Tensor, *, causal: bool, scaling: float | None) -> Any:  # noqa: ANN401
    """Return what queries find, and the logarithm of each one's sum of weights, by the device's fused attention."""
    if query.device.type == CPU:
        return _HOST(query, key, value, 0.0, causal, scale=scaling)
    return _DEVICE(query, key, value, 0.0, causal, scale=scaling)[:2]


def _attended_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    weight: Tensor,
    *,
    causal: bool,
    scaling: float | None,
) -> Any:  # noqa: ANN401
    """Return gradients of queries, keys and values, where `out` and `weight` may be of more keys than these."""
    values = grad, query, key, value, out, weight
    if query.device.type == CPU:
        return _HOST_BACKWARD(*values, 0.0, causal, scale=scaling)
    drawn = torch.zeros(2, dtype=torch.uint64, device=query.device)  # nothing is dropped
    lengths = None, None, query.shape[2], key.shape[2]
    return _DEVICE_BACKWARD(*values, *lengths, 0.0, causal, drawn, drawn[0], scale=scaling)


_HOST = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # noqa: SLF001
_HOST_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward  # noqa: SLF001
_DEVICE = torch.ops.aten._scaled_dot_product_flash_attention  # noqa: SLF001
_DEVICE_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_backward  # noqa: SLF001
CONTEXT = "_forescale_context"
"""Name of the attention that `attend_in_context` is, and of what a module has for it."""


def attend_in_context(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _mask: None,
    scaling: float | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """Run attention as transformers calls it: returns (batch, tokens, heads, head size)."""
    context: Context = getattr(module, CONTEXT)
    return context.attend(query, key, value, scaling).transpose(1, 2).contiguous(), None
