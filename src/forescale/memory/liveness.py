"""Which tensors of one block exist at which moment of its forward and backward, by its operator list."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from forescale.formula import named
from forescale.graph.operator import Block, Operator
from forescale.graph.recompute import Kept
from forescale.memory.moments import Moment, peak_bytes
from forescale.numeric import Numeric

Sizes: TypeAlias = dict[str, Numeric]
"""Bytes by name, in the order in which tensors came to exist."""


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
    size_of = block.tensors
    last_read = {name: index for index, operator in enumerate(operators) for name in operator.reads}
    live: Sizes = {name: size_of[name].num_bytes for name in outside | keeps & {block.input_name}}
    moments = []
    passing = list(live)
    for index, operator in enumerate(operators):
        here = (*operator.writes, *(name for name in operator.saves if name in keeps))
        live.update({name: size_of[name].num_bytes for name in here})
        extra = {name: size_of[name].num_bytes for name in operator.temporaries}
        moments.append(Moment(name=operator.name, phase=phase, tensors={**live, **extra}))
        final = operator.writes if index == len(operators) - 1 else ()
        for name in (*passing, *operator.reads, *here):
            if name not in keeps and last_read.get(name, -1) <= index and name not in final:
                live.pop(name, None)
        passing = []
    return tuple(moments)


def _backward(block: Block, kept: Kept) -> tuple[Moment, ...]:
    operators = block.operators
    starts = _replay_starts(operators, kept)
    released = _released(operators)
    live: Sizes = {tensor.name: tensor.num_bytes for tensor in kept.tensors}
    gradients = _Gradients(block)
    gradients.seed(operators[-1].writes)
    moments: list[Moment] = []
    for index in range(len(operators) - 1, -1, -1):
        operator = operators[index]
        for group, names in starts.get(index, ()):
            replay = _forward(block, group, names, set(), "replay")
            here = live | gradients.sizes()
            moments += [Moment(name=m.name, phase=m.phase, tensors={**here, **m.tensors}) for m in replay]
            live.update({name: block.tensors[name].num_bytes for name in names})
            for name in set(group[-1].writes) - names:  # a checkpoint holds the result of its replay
                again = f"{name} again"
                live[again] = block.tensors[name].num_bytes
                released.setdefault(operators.index(group[0]), []).append(again)
        made = gradients.propagate(operator)
        if operator.gradient_in_saved:
            _drop(live, operator.saves)
        extra = {name: block.tensors[name].num_bytes for name in operator.backward_temporaries}
        tensors = {**live, **gradients.sizes(), **made, **extra}
        moments.append(Moment(name=operator.name, phase="backward", tensors=tensors))
        gradients.release(operator)
        _drop(live, released.get(index, ()))
    return tuple(moments)


def _drop(live: Sizes, names: Iterable[str]) -> None:
    for name in names:
        live.pop(name, None)


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


def _released(operators: tuple[Operator, ...]) -> dict[int, list[str]]:
    """Return the tensors that are not needed after an operator's backward: it was the first to save them."""
    first: dict[str, int] = {}
    for index, operator in enumerate(operators):
        for name in operator.saves:
            first.setdefault(name, index)
    released: dict[int, list[str]] = {}
    for name, index in first.items():
        released.setdefault(index, []).append(name)
    return released


class _Gradients:
    """Gradients that exist: names of tensors that share a storage share one entry."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.storage: dict[str, str] = {}
        self._labelled = {name: (f"∂{name}", tensor.gradient_bytes) for name, tensor in block.tensors.items()}

    def seed(self, names: Iterable[str]) -> None:
        """Start with the gradients that come from the next block."""
        self.storage.update({name: name for name in names})

    def propagate(self, operator: Operator) -> Sizes:
        """Make the gradients of what `operator` read; return the bytes that are new while it runs."""
        wrote = [self.storage[name] for name in operator.writes if name in self.storage]
        made: Sizes = {}
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
                made[f"∂{name}+"] = tensor.gradient_bytes  # the summand beside the sum
        return made

    def release(self, operator: Operator) -> None:
        """Forget the gradients of what `operator` wrote."""
        for name in operator.writes:
            if name not in operator.reads:
                self.storage.pop(name, None)

    def sizes(self) -> Sizes:
        """Return the bytes of every storage."""
        return dict(map(self._labelled.__getitem__, self.storage.values()))
