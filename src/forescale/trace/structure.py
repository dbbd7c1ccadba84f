"""Find the repeated blocks of a module and run each kind of block once.

Blocks are the members of the outermost module lists whose members are alike. A block of a kind that has been recorded
is replaced by a stand-in, which returns tensors of the recorded shapes and runs no operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from math import prod
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from forescale.trace.recorder import Recorder

Signature: TypeAlias = tuple[Any, ...]


@dataclass(slots=True)
class Kind:
    """One kind of block: the first block of the kind was recorded."""

    name: str
    path: str
    segment: int
    module: nn.Module
    seen: frozenset[str] = frozenset()
    """Names of its parameters that blocks before it have: it runs again, or shares them."""
    results: Any = None
    """What its forward returned."""


@dataclass(slots=True)
class Order:
    """The sequence in which kinds of blocks ran."""

    kinds: list[Kind] = field(default_factory=list)
    sequence: list[tuple[int, str]] = field(default_factory=list)
    """Segment of the kind and path of the block, in the order of the forward pass."""
    after: dict[int, int] = field(default_factory=dict)
    """For each position in `sequence`, the segment that records what runs after it."""


def find_blocks(module: nn.Module) -> dict[str, nn.Module]:
    """Return the repeated blocks of a module by path: members of the outermost lists of like modules."""
    modules: dict[str, nn.Module] = {}
    _search(module, "", modules)
    return modules


def _search(module: nn.Module, path: str, modules: dict[str, nn.Module]) -> None:
    for name, child in module.named_children():
        where = f"{path}.{name}" if path else name
        if isinstance(child, nn.ModuleList | nn.Sequential) and _is_repeated(child):
            modules |= {f"{where}.{index}": item for index, item in child.named_children()}
        else:
            _search(child, where, modules)


def _is_repeated(members: nn.Module) -> bool:
    """Return whether a list holds at least two modules of one class, with submodules and parameters of their own."""
    children = list(members.children())
    classes = [type(child) for child in children if any(True for _ in child.children())]
    return len(children) == len(classes) >= 2 and len(set(classes)) < len(classes)


Settings: TypeAlias = dict[tuple[str, str], Any]


def signatures_of(blocks: Mapping[str, nn.Module]) -> dict[str, Signature]:
    """Return what blocks of one kind have in common, by path: class, parameters, buffers and settings.

    Settings that count the blocks of a list do not say what a block does, and are left out.
    """
    settings = {path: _settings(block) for path, block in blocks.items()}
    lists: dict[str, list[str]] = {}
    for path in blocks:
        lists.setdefault(path.rpartition(".")[0], []).append(path)
    for paths in lists.values():
        positions = _positions([settings[path] for path in paths])
        for path in paths:
            settings[path] = {name: value for name, value in settings[path].items() if name not in positions}
    return {path: _signature(block, settings[path]) for path, block in blocks.items()}


def _signature(block: nn.Module, settings: Settings) -> Signature:
    tensors = tuple(
        (name, tuple(item.shape), item.dtype, item.requires_grad)
        for name, item in (*block.named_parameters(), *block.named_buffers())
    )
    return type(block).__qualname__, tensors, tuple(settings.items())


def _settings(block: nn.Module) -> Settings:
    return {
        (path, name): bool(value) if isinstance(value, float) else value
        for path, child in block.named_modules()
        for name, value in sorted(vars(child).items())
        if isinstance(value, bool | int | float | str | None) and not name.startswith("_")
    }


def _positions(settings: Sequence[Settings]) -> set[tuple[str, str]]:
    """Return the whole numbers that grow linearly with the index of a block; of two blocks, by one."""
    values: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for index, items in enumerate(settings):
        for name, value in items.items():
            if isinstance(value, int) and not isinstance(value, bool):
                values.setdefault(name, []).append((index, value))
    return {name for name, points in values.items() if _counts(points)}


def _counts(points: Sequence[tuple[int, int]]) -> bool:
    (first, start), (last, end) = points[0], points[-1]
    step = Fraction(end - start, max(last - first, 1))
    return (step == 1 or (step != 0 and len(points) > 2)) and all(
        value == start + step * (index - first) for index, value in points
    )


def _described(item: Any) -> Any:  # noqa: ANN401
    """Return what the kind of a call depends on in one of its arguments."""
    if isinstance(item, Tensor):
        return tuple(item.shape), item.dtype, item.requires_grad
    if isinstance(item, bool | int | float | str | None):
        return item
    return type(item).__qualname__


class _StandIn(torch.autograd.Function):
    """Tensors of recorded shapes, which pass a gradient on to what a block read."""

    @staticmethod
    def forward(ctx: Any, recorder: Recorder, like: Any, *sources: Tensor) -> Any:  # noqa: ANN401
        ctx.recorder = recorder
        ctx.shapes = [(source.shape, source.dtype) for source in sources]
        with recorder.mute():
            return tuple(item.new_empty(item.shape) for item in like)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # noqa: ANN401
        recorder: Recorder = ctx.recorder
        with recorder.mute():
            made = tuple(gradients[0].new_empty(shape, dtype=dtype) for shape, dtype in ctx.shapes)
        return None, None, *made


class Blocks:
    """Run a module so that each kind of block is recorded once."""

    def __init__(self, module: nn.Module, recorder: Recorder, *, whole: bool = False) -> None:
        self.blocks = find_blocks(module)
        self.recorder, self.whole = recorder, whole
        self.order = Order()
        self._kinds: dict[Signature, Kind] = {}
        self._signatures = signatures_of(self.blocks)
        self._ran: set[int] = set()
        """Parameters of the blocks that ran."""

    @contextmanager
    def patched(self) -> Iterator[Order]:
        """Record the forward of the body; blocks of recorded kinds are replaced."""
        for path, block in self.blocks.items():
            block.forward = self._forward(path, block, block.forward)
        self.recorder.start(None)
        try:
            yield self.order
        finally:
            self.recorder.finish()
            for block in self.blocks.values():
                del block.__dict__["forward"]

    def _forward(self, path: str, block: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            call = tuple(map(_described, tree_leaves((args, kwargs))))
            parameters = {name: id(item) for name, item in block.named_parameters()}
            seen = frozenset(name for name, item in parameters.items() if item in self._ran)
            key = (self._signatures[path], call, seen)
            self._ran |= {*parameters.values()}
            kind = None if self.whole else self._kinds.get(key)
            if kind is not None:
                return self._replaced(kind, path, args, kwargs)
            segment = self.recorder.start(path, _tensors((args, kwargs)))
            segment.input_bytes = self._bytes_of((args, kwargs))
            kind = Kind(
                name=f"{type(block).__name__}",
                path=path,
                segment=len(self.recorder.segments) - 1,
                module=block,
                seen=seen,
            )
            result = forward(*args, **kwargs)
            kind.results = result
            segment.output_bytes = self._bytes_of(result)
            self._kinds[key] = kind
            self.order.kinds.append(kind)
            self._note(kind, path, _tensors(result))
            return result

        return run

    def _bytes_of(self, items: Any) -> int:  # noqa: ANN401
        """Return the bytes of the floating-point tensors that carry gradients."""
        return sum(
            prod(self.recorder.extents(tensor.shape)) * tensor.element_size()
            for tensor in _tensors(items)
            if tensor.requires_grad
        )

    def _note(self, kind: Kind, path: str, results: list[Tensor]) -> None:
        self.order.sequence.append((kind.segment, path))
        self.recorder.finish(results)
        self.recorder.start(None, results)
        self.order.after[len(self.order.sequence) - 1] = len(self.recorder.segments) - 1

    def _replaced(self, kind: Kind, path: str, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
        """Return tensors shaped as the recorded results, connected to what the block reads."""
        sources = [
            leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf.requires_grad
        ]
        leaves, tree = tree_flatten(kind.results)
        places = [index for index, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        made = [leaves[index] for index in places]
        if sources:
            replaced = _StandIn.apply(self.recorder, made, *sources)  # type: ignore[no-untyped-call]
        else:
            with self.recorder.mute():
                replaced = tuple(item.new_empty(item.shape) for item in made)
        for index, tensor in zip(places, replaced, strict=True):
            leaves[index] = tensor if tensor.dtype.is_floating_point else tensor.detach()
        self._note(kind, path, [leaf for leaf in leaves if isinstance(leaf, Tensor)])
        return tree_unflatten(leaves, tree)


def _tensors(items: Any) -> list[Tensor]:  # noqa: ANN401
    return [leaf for leaf in tree_leaves(items) if isinstance(leaf, Tensor)]
