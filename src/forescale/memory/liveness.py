"""Which tensors of one block exist at which moment of its forward and backward, by its operator list."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

from forescale.formula import named
from forescale.graph.operator import Block, Operator, Tensor
from forescale.graph.recompute import Kept
from forescale.memory.moments import Moment, peak_bytes
from forescale.numeric import Numeric


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockMoments:
    """The moments of one block and micro-batch, in order; other blocks and micro-batches are apart."""

    forward: tuple[Moment, ...]
    backward: tuple[Moment, ...]

    @property
    def forward_bytes(self) -> Numeric:
        """Most bytes that exist during forward."""
        return named(peak_bytes(self.forward), "forward_bytes", unit="byte")

    @property
    def backward_bytes(self) -> Numeric:
        """Most bytes that exist during backward, kept tensors, replay and gradients included."""
        return named(peak_bytes(self.backward), "backward_bytes", unit="byte")


def block_moments(block: Block, kept: Kept) -> BlockMoments:
    """Walk through one block's forward and backward.

    Forward: a tensor exists from its writer to its last reader, or on, if it is kept. Backward: an operator
    needs what it saved, the gradients of what it wrote, and makes those of what it read; kept tensors go
    with the last operator that needs them; a replay happens where backward first needs one of its tensors.
    """
    if not block.operators:
        return BlockMoments(forward=(), backward=())
    keeps = {tensor.name for tensor in kept.tensors}
    forward = _forward(block, block.operators, keeps, outside={block.input_name} - keeps)
    return BlockMoments(forward=forward, backward=_backward(block, kept))


def _forward(
    block: Block, operators: tuple[Operator, ...], keeps: set[str], outside: set[str], phase: str = "forward"
) -> tuple[Moment, ...]:
    last_read = {name: index for index, operator in enumerate(operators) for name in operator.reads}
    live: dict[str, Tensor] = {name: block.tensors[name] for name in outside | keeps & {block.input_name}}
    moments = []
    for index, operator in enumerate(operators):
        for name in (*operator.writes, *(name for name in operator.saves if name in keeps)):
            live[name] = block.tensors[name]
        extra = {name: block.tensors[name] for name in operator.temporaries}
        moments.append(_moment(operator, phase, {**live, **extra}.values()))
        final = index == len(operators) - 1
        live = {
            name: tensor
            for name, tensor in live.items()
            if name in keeps or last_read.get(name, -1) > index or (final and name in operator.writes)
        }
    return tuple(moments)


def _backward(block: Block, kept: Kept) -> tuple[Moment, ...]:
    operators = block.operators
    starts = _replay_starts(operators, kept)
    released = _released(operators)
    live = {tensor.name: tensor for tensor in kept.tensors}
    gradients = _Gradients(block)
    gradients.seed(operators[-1].writes)
    moments: list[Moment] = []
    for index in range(len(operators) - 1, -1, -1):
        operator = operators[index]
        for group, names in starts.get(index, ()):
            replay = _forward(block, group, names, set(), "replay")
            here = (*_sizes(live.values()), *gradients.sizes())
            moments += [Moment(name=m.name, phase=m.phase, tensors=(*here, *m.tensors)) for m in replay]
            live.update({name: block.tensors[name] for name in names})
            for name in set(group[-1].writes) - names:  # a checkpoint holds the result of its replay
                again = replace(block.tensors[name], name=f"{name} again")
                live[again.name], released[again.name] = again, operators.index(group[0])
        made = gradients.propagate(operator)
        if operator.gradient_in_saved:
            live = {name: tensor for name, tensor in live.items() if name not in operator.saves}
        extra = [block.tensors[name] for name in operator.backward_temporaries]
        sizes = (*_sizes(live.values()), *gradients.sizes(), *made, *_sizes(extra))
        moments.append(Moment(name=operator.name, phase="backward", tensors=sizes))
        gradients.release(operator)
        live = {name: tensor for name, tensor in live.items() if released.get(name, 0) != index}
    return tuple(moments)


Replay: TypeAlias = tuple[tuple[Operator, ...], set[str]]
"""Operators that are replayed together, and the dropped tensors that they make again."""


def _replay_starts(operators: tuple[Operator, ...], kept: Kept) -> dict[int, list[Replay]]:
    """Return, by operator index, the replays that backward starts before that operator."""
    dropped = {tensor.name for tensor in kept.dropped}
    needed = {name: index for index, operator in enumerate(operators) for name in operator.saves}
    position = {operator.name: index for index, operator in enumerate(operators)}
    starts: dict[int, list[Replay]] = {}
    for group in kept.replays:
        names = {name for operator in group for name in (*operator.saves, *operator.writes)} & dropped
        dropped -= names
        first = max([position[group[-1].name], *(needed[name] for name in names)])
        starts.setdefault(first, []).append((group, names))
    return starts


def _released(operators: tuple[Operator, ...]) -> dict[str, int]:
    """Return, by tensor, the first operator that saved it: the last to need it in backward."""
    released: dict[str, int] = {}
    for index, operator in enumerate(operators):
        for name in operator.saves:
            released.setdefault(name, index)
    return released


class _Gradients:
    """Gradients that exist: names of tensors that share a storage share one entry."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.storage: dict[str, str] = {}

    def seed(self, names: Iterable[str]) -> None:
        """Start with the gradients that come from the next block."""
        self.storage.update({name: name for name in names})

    def propagate(self, operator: Operator) -> list[tuple[str, Numeric]]:
        """Make the gradients of what `operator` read; return the bytes that are new while it runs."""
        wrote = [self.storage[name] for name in operator.writes if name in self.storage]
        made = []
        for name in operator.reads:
            tensor = self.block.tensors[name]
            if not tensor.differentiable or name in operator.writes:
                continue
            if operator.shares_gradient and wrote:
                self.storage.setdefault(name, wrote[0])
                continue
            before = self.storage.get(name)
            self.storage[name] = name
            if before is not None and (before == name or before not in self.storage.values()):
                made.append((f"∂{name}+", tensor.gradient_bytes))  # the summand beside the sum
        return made

    def release(self, operator: Operator) -> None:
        """Forget the gradients of what `operator` wrote."""
        for name in operator.writes:
            if name not in operator.reads:
                self.storage.pop(name, None)

    def sizes(self) -> list[tuple[str, Numeric]]:
        """Return name and bytes of every storage."""
        return [
            (f"∂{name}", self.block.tensors[name].gradient_bytes)
            for name in dict.fromkeys(self.storage.values())
        ]


def _moment(operator: Operator, phase: str, tensors: Iterable[Tensor]) -> Moment:
    return Moment(name=operator.name, phase=phase, tensors=tuple(_sizes(tensors)))


def _sizes(tensors: Iterable[Tensor]) -> list[tuple[str, Numeric]]:
    return [(tensor.name, tensor.num_bytes) for tensor in tensors]
