"""Messages between the ranks of one pipeline: one channel per ordered pair of ranks and direction.

In a channel the order of sends equals the order of receives, because both follow one lowered schedule. A pending
receive therefore holds up only what needs it, and what the checker proved free of deadlock is what runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from forescale.errors import ForescaleError


class RunError(ForescaleError):
    """A rank that raised, died or disagreed; the message says which, at which action, and why."""


Wait: TypeAlias = Callable[[], Tensor]
Meta: TypeAlias = tuple[tuple[int, ...], torch.dtype]


class Channels:
    """torch.distributed between processes, one process group per channel."""

    def __init__(self, pipelines: Sequence[Sequence[int]], device: torch.device, *, tp: int = 1) -> None:
        """Take the global ranks of every pipeline in its order; this process is in one of them.

        Each `tp` pipelines after each other hold shards of one model; gradients are averaged over the others.
        All processes make all channels: torch wants groups made everywhere, in one order.
        """
        self.pipelines = [tuple(members) for members in pipelines]
        self.members = next(members for members in self.pipelines if dist.get_rank() in members)
        self.rank, self.device = self.members.index(dist.get_rank()), device
        self._groups: dict[Any, Any] = {}
        self._sent: list[tuple[Any, Tensor]] = []
        self._all = self._group("all", range(len(self.members)))
        self._groups[tuple(range(len(self.members)))] = self._all
        made = [
            dist.new_group(list(place))
            for shard in range(tp)
            for place in zip(*self.pipelines[shard::tp], strict=True)
        ]
        self._peers = made[self.pipelines.index(self.members) % tp * len(self.members) + self.rank]
        self._num_peers = len(self.pipelines) // tp

    def connect(self, pairs: Iterable[tuple[int, int]], shared: Iterable[frozenset[int]]) -> None:
        """Make the channels of ordered pairs of ranks, and groups of ranks that share parameters."""
        for pair in sorted(set(pairs)):
            for backward in (False, True):
                self._group((*pair, backward), pair)
        for ranks in sorted(set(map(tuple, map(sorted, shared)))):
            if len(ranks) > 1:
                self._group(ranks, ranks)

    def _group(self, key: Any, ranks: Iterable[int]) -> Any:  # noqa: ANN401
        if key not in self._groups:
            selected = list(ranks)
            made = [dist.new_group([members[rank] for rank in selected]) for members in self.pipelines]
            self._groups[key] = made[self.pipelines.index(self.members)]
        return self._groups[key]

    def send(self, tensor: Tensor, *, to: int, backward: bool) -> None:
        """Send without waiting; gloo takes contiguous tensors only."""
        payload = tensor.detach().contiguous()
        work = dist.isend(payload, self.members[to], group=self._groups[self.rank, to, backward])
        self._sent.append((work, payload))

    def receive(self, meta: Meta, *, source: int, backward: bool) -> Wait:
        """Post a receive and return what waits for it."""
        shape, dtype = meta
        buffer = torch.empty(shape, dtype=dtype, device=self.device)
        work = dist.irecv(buffer, self.members[source], group=self._groups[source, self.rank, backward])
        assert work is not None

        def wait() -> Tensor:
            work.wait()
            return buffer

        return wait

    def settle(self) -> None:
        """Wait until everything sent has left."""
        for work, _ in self._sent:
            work.wait()
        self._sent.clear()

    def share(self, value: object, *, owner: int) -> Any:  # noqa: ANN401
        """Return the owner's value on all ranks."""
        holder = [value]
        dist.broadcast_object_list(holder, self.members[owner], group=self._all, device=self.device)
        return holder[0]

    def meet(self) -> None:
        """Wait for all ranks of the pipeline."""
        dist.barrier(group=self._all)

    def average(self, tensors: Iterable[Tensor]) -> None:
        """Average tensors in place over the data-parallel pipelines' ranks of this place."""
        if self._num_peers > 1:
            for tensor in tensors:
                local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
                dist.all_reduce(local, group=self._peers)
                local.div_(self._num_peers)

    def sum(self, tensor: Tensor, ranks: Iterable[int]) -> None:
        """Add up a tensor in place over some ranks, all of which call it in one order."""
        key = tuple(sorted(set(ranks)))
        if len(key) > 1:
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            dist.all_reduce(local, group=self._groups[key])
