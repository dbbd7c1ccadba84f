"""The blocks of a model: decoder layers by kind, both ends, multi-token prediction; one thing for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from forescale.graph.layer import embedding_block, head_block, layer_block, mtp_block
from forescale.graph.layout import Layout
from forescale.graph.operator import Block
from forescale.numeric import Numeric
from forescale.spec.model import Model

T = TypeVar("T")


U = TypeVar("U")


V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts(Generic[T]):
    """One thing per block of a model: decoder layers by kind, both ends, multi-token prediction."""

    layers: tuple[T, ...]
    embedding: T
    head: T
    mtp: T | None

    def map(self, of: Callable[[T], U]) -> Parts[U]:
        """Return `of` applied to every block."""
        return Parts(
            layers=tuple(of(item) for item in self.layers),
            embedding=of(self.embedding),
            head=of(self.head),
            mtp=None if self.mtp is None else of(self.mtp),
        )

    def zipped(self, other: Parts[U], of: Callable[[T, U], V]) -> Parts[V]:
        """Return `of` applied to every block of both."""
        return Parts(
            layers=tuple(map(of, self.layers, other.layers)),
            embedding=of(self.embedding, other.embedding),
            head=of(self.head, other.head),
            mtp=None if self.mtp is None or other.mtp is None else of(self.mtp, other.mtp),
        )

    def all(self) -> tuple[T, ...]:
        """Return the things of all blocks, layers first."""
        return (*self.layers, self.embedding, self.head, *(() if self.mtp is None else (self.mtp,)))


def build_blocks(model: Model, layout: Layout) -> Parts[Block]:
    """Return the operator lists of every block of `model`."""
    built = {kind: layer_block(model, kind, layout) for kind in model.layer_kinds}
    head = head_block(model, layout)
    last = built[model.layers[-1]] if model.num_mtp_layers else None
    return Parts(
        layers=tuple(built.values()),
        embedding=embedding_block(model, layout),
        head=head,
        mtp=None if last is None else mtp_block(model, layout, layer=last, head=head),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ByPolicy(Generic[T]):
    """One thing of a block where the recompute policy takes it, and where it does not."""

    taken: T
    left: T
    """The same thing as `taken` where the policy takes all layers."""

    def map(self, of: Callable[[T], U]) -> ByPolicy[U]:
        """Return `of` applied to both."""
        taken = of(self.taken)
        return ByPolicy(taken=taken, left=taken if self.left is self.taken else of(self.left))


def message_bytes(model: Model, layout: Layout) -> Numeric:
    """Return the bytes of one micro-batch between pipeline stages, on one device."""
    return layout.tokens("residual") * model.hidden_size * layout.element_bytes
