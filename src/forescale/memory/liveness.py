"""Which tensors of one block exist at which moment of its forward and backward, by its operator list."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, TypeAlias, cast

from msgspec.structs import replace

from forescale.arrays import np
from forescale.formula import Term, as_term, formula, named, total, value_of
from forescale.graph.operator import Block, Names, Operator
from forescale.graph.ops import Collective, Primitive
from forescale.graph.recompute import Kept, awaited, offloaded_bytes, stashed_bytes
from forescale.numeric import Numeric, maximum, minimum
from forescale.spec.layout import OffloadName
from forescale.struct import Struct

Sizes: TypeAlias = dict[str, Numeric]
"""Bytes by name, in the order in which tensors came to exist."""


@formula(unit="1", source="definition")
def any_of(*, count: Numeric) -> Numeric:
    """1 where there is at least one, else 0."""
    return minimum(count, 1.0)


@formula(unit="byte", source="one block is replayed, or one head runs, at a time")
def largest(*, first: Numeric, second: Numeric) -> Numeric:
    """Larger of two working sets that never exist together."""
    return maximum(first, second)


class Moment(Struct, frozen=True, kw_only=True):
    """What exists while one operator runs."""

    name: str
    """The operator."""
    phase: str
    """forward, replay or backward."""
    tensors: Mapping[str, Numeric]
    """Bytes by name; gradients are marked ∂."""

    @property
    def num_bytes(self) -> Numeric:
        """Return the bytes of the tensors that exist at this moment."""
        return total(self.tensors, name=f"{self.phase} {self.name}", unit="byte")


def undominated(moments: Sequence[Moment]) -> list[Moment]:
    """Return the moments whose tensors are not all among those of another: only these can be the peak.

    Of moments with the same tensors the first is returned.
    """
    names = [moment.tensors.keys() for moment in moments]
    sizes = [-len(name) for name in names]
    largest: list[int] = []
    for index in sorted(range(len(names)), key=sizes.__getitem__):
        name = names[index]
        for other in largest:
            if name <= names[other]:
                break
        else:
            largest.append(index)
    return [moments[index] for index in sorted(largest)]


def peak_bytes(moments: Sequence[Moment]) -> Numeric:
    """Return the largest sum of bytes over the moments; of a single candidate under `explain`, that moment's terms."""
    sums = [moment.num_bytes for moment in undominated(moments)]
    if not sums:
        return 0.0
    result = functools.reduce(maximum, map(value_of, sums))
    if Term not in map(type, sums):
        return cast("Numeric", result)
    if np.size(result) == 1:
        return max(sums, key=lambda item: float(np.max(value_of(item))))
    inputs = {f"{index}": as_term(item) for index, item in enumerate(sums)}
    return cast("Numeric", Term(result, name="peak", unit="byte", text="largest moment", inputs=inputs))


class BlockMoments(Struct, frozen=True, kw_only=True):
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
        for name in (*passing, *operator.reads, *here):
            if name not in keeps and last_read.get(name, -1) <= index:
                live.pop(name, None)
        passing = []
    return tuple(moments)


def _backward(block: Block, kept: Kept) -> tuple[Moment, ...]:
    operators = block.operators
    starts = _replay_starts(operators, kept)
    released, fixed = _released(operators), _held(operators)
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
        _drop(live, set(released.get(index, ())) - fixed)
    return tuple(moments)


def _held(operators: tuple[Operator, ...]) -> set[str]:
    return {name for operator in operators for name in operator.held}


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


class _Placed(Struct, frozen=True, kw_only=True):
    """A tensor whose sizes are places in a list of sizes."""

    name: str
    differentiable: bool = True
    num_bytes: int
    gradient_bytes: int = 0


class _Shape(Struct, frozen=True, kw_only=True):
    """All of a block and what it keeps but numbers: blocks of one shape have their peaks among the same moments."""

    operators: tuple[Operator, ...]
    """Without what they do, which makes no tensor."""
    input_name: str
    tensors: tuple[tuple[str, bool], ...]
    """Names, and whether each has a gradient."""
    kept: Names
    dropped: Names
    replays: tuple[Names, ...]


Places: TypeAlias = tuple[tuple[int, tuple[int, ...]], ...]
"""Of each moment that can be the peak: how many of its first tensors are those of the moment before, and the places of
the sizes of the others, in the order in which they are summed."""


@functools.lru_cache(maxsize=1024)
def _fullest(shape: _Shape) -> tuple[Places, Places]:
    """Return the moments of forward and of backward that can be the peak.

    Sizes are those of all tensors, of their gradients, and of what is kept, which may be a share of a tensor.
    """
    count = len(shape.tensors)
    operators = {operator.name: operator for operator in shape.operators}
    tensors: dict[str, Any] = {
        name: _Placed(name=name, differentiable=has, num_bytes=at, gradient_bytes=count + at)
        for at, (name, has) in enumerate(shape.tensors)
    }
    kept: tuple[Any, ...] = tuple(
        _Placed(name=name, num_bytes=2 * count + at) for at, name in enumerate(shape.kept)
    )
    moments = block_moments(
        Block(
            name="",
            operators=shape.operators,
            tensors=tensors,
            parameters=(),
            input_name=shape.input_name,
        ),
        Kept(
            tensors=kept,
            dropped=tuple(tensors[name] for name in shape.dropped),
            replays=tuple(tuple(operators[name] for name in group) for group in shape.replays),
        ),
    )
    forward, backward = (
        _prefixed(sorted(tuple(cast("Iterable[int]", item.tensors.values())) for item in undominated(phase)))
        for phase in (moments.forward, moments.backward)
    )
    return forward, backward


def _prefixed(moments: Sequence[tuple[int, ...]]) -> Places:
    """Return of each moment how many first tensors it shares with the one before, and the others."""
    shared = [_num_shared(before, place) for before, place in pairwise(((), *moments))]
    return tuple((count, place[count:]) for count, place in zip(shared, moments, strict=True))


def peaks_of(block: Block, kept: Kept) -> tuple[Numeric, Numeric]:
    """Return the most bytes during forward and during backward, those of `BlockMoments`.

    Which moments can be the peak is known of blocks of the same shape; recorded sizes are walked through, for their
    names.
    """
    tensors = block.tensors.values()
    sizes = [tensor.num_bytes for tensor in tensors]
    sizes += [tensor.gradient_bytes for tensor in tensors]
    sizes += [tensor.num_bytes for tensor in kept.tensors]
    if Term in map(type, sizes):
        moments = block_moments(block, kept)
        return moments.forward_bytes, moments.backward_bytes
    shape = _Shape(
        operators=tuple(
            replace(operator, forward=(), backward_input=(), backward_weight=(), panels=None)
            for operator in block.operators
        ),
        input_name=block.input_name,
        tensors=tuple((tensor.name, tensor.differentiable) for tensor in tensors),
        kept=tuple(tensor.name for tensor in kept.tensors),
        dropped=tuple(item.name for item in kept.dropped),
        replays=tuple(tuple(item.name for item in group) for group in kept.replays),
    )
    forward, backward = (_largest_sum(sizes, places) for places in _fullest(shape))
    return forward, backward


def _largest_sum(sizes: Sequence[Numeric], places: Places) -> Numeric:
    """Return the most bytes of any moment, each summed one tensor after the other."""
    sums: list[Numeric] = []
    largest: Numeric = 0.0
    for nth, (shared, others) in enumerate(places):
        del sums[shared:]
        for tensor in others:
            sums.append(sums[-1] + sizes[tensor] if sums else sizes[tensor])
        here = sums[-1] if sums else 0.0
        largest = maximum(largest, here) if nth else here
    return largest


def _num_shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many first items two sequences have in common."""
    pairs = zip(one, other, strict=False)
    return next(
        (nth for nth, (first, second) in enumerate(pairs) if first != second), min(len(one), len(other))
    )


class BlockBytes(Struct, frozen=True, kw_only=True):
    """Bytes of one block and micro-batch on one device."""

    kept: Numeric
    """Kept from forward to backward."""
    offloaded: Numeric = 0.0
    """Of these, what modules that are offloaded saved."""
    stashed: Numeric = 0.0
    """Of these, what routed experts keep in pages."""
    awaited: Numeric = 0.0
    """Kept from the input gradient to the weight gradient, where they are passes of their own."""
    held: Numeric = 0.0
    """Of what is kept, what stays until the micro-batch's backward is over on all blocks."""
    afterwards: Numeric = 0.0
    """At work for a moment after that, beside what is held."""
    stranded: Numeric = 0.0
    """Freed by the time it peaks, in pieces in which nothing fits."""
    summed: Numeric = 0.0
    """What forward frees as soon as its sum over tp is asked for, whatever the policy."""
    captured: tuple[Numeric, Numeric] | None = None
    """Working sets beyond what is kept, of launches in graphs and of others, where graphs capture some."""
    forward: Numeric
    """Most bytes of the block that exist during its forward."""
    backward: Numeric
    """Most bytes of the block that exist during its backward: kept tensors, replay, gradients."""

    def corrected(self, factor: float) -> BlockBytes:
        """Return the same of a block that keeps `factor` times as much; what is at work beside stays."""
        more = (factor - 1.0) * self.kept
        return replace(
            self,
            kept=self.kept + more,
            offloaded=factor * self.offloaded,
            stashed=factor * self.stashed,
            awaited=factor * self.awaited,
            forward=self.forward + more,
            backward=self.backward + more,
        )


def block_bytes(
    block: Block,
    kept: Kept,
    *,
    offloaded: tuple[OffloadName, ...] = (),
    captured: bool = False,
    split: bool = False,
) -> BlockBytes:
    """Return the bytes of a block under a recompute policy, with some modules `offloaded`.

    `captured` asks for the working sets of what graphs capture and of experts apart, `split` for what waits for
    weight gradients.
    """
    forward, backward = peaks_of(block, kept)
    return BlockBytes(
        kept=kept.num_bytes,
        offloaded=offloaded_bytes(block, kept, offloaded),
        stashed=stashed_bytes(block, kept),
        awaited=total(dict(awaited(block)), name="awaited_bytes", unit="byte") if split else 0.0,
        held=_sum_of(block, "held"),
        afterwards=_sum_of(block, "afterwards"),
        stranded=_sum_of(block, "stranded"),
        summed=_summed_bytes(block),
        captured=_pools(block, kept, block_moments(block, kept)) if captured else None,
        forward=forward,
        backward=backward,
    )


def _sum_of(block: Block, field: Literal["held", "afterwards", "stranded"]) -> Numeric:
    names = dict.fromkeys(name for operator in block.operators for name in getattr(operator, field))
    sizes = {name: block.tensors[name].num_bytes for name in names}
    return total(sizes, name=f"{field}_bytes", unit="byte") if sizes else 0.0


def _summed_bytes(block: Block) -> Numeric:
    saved = {name for operator in block.operators for name in operator.saves}
    sums = [operator for operator in block.operators if list(map(_sums, operator.forward)) == [True]]
    names = dict.fromkeys(name for operator in sums for name in operator.reads if name not in saved)
    sizes = {name: block.tensors[name].num_bytes for name in names}
    return total(sizes, name="summed_bytes", unit="byte") if sizes else 0.0


def _sums(primitive: Primitive) -> bool:
    return (
        isinstance(primitive, Collective)
        and primitive.axis == "tp"
        and primitive.kind in ("reduce_scatter", "all_reduce")
    )


def _pools(block: Block, kept: Kept, moments: BlockMoments) -> tuple[Numeric, Numeric]:
    """Return the working sets, beyond what is kept, of all operators but experts', and of experts'."""
    experts = {operator.name for operator in block.operators if operator.part == "moe"}
    inside, outside = (
        peak_bytes([item for item in moments.backward if (item.name in experts) is among])
        for among in (False, True)
    )
    none = kept.num_bytes * 0.0
    return inside - kept.num_bytes, (outside - kept.num_bytes) if experts else none
