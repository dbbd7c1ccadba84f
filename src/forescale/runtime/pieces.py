"""Pieces of sequences (Seq1F1B): a later piece reads what earlier pieces of its micro-batch left behind.

An attention layer calls `extend` on its keys and values. Gradients flow back the same way: the backward pass of a
later piece leaves them, that of the earlier piece takes them up.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

_RUNNING: ContextVar[Piece | None] = ContextVar("piece", default=None)


@dataclass(slots=True)
class Piece:
    """What one forward of one piece reads and leaves."""

    earlier: tuple[Piece, ...] = ()
    """Forwards of earlier pieces of the same micro-batch on the same stage, in order."""
    left: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """Per call of `extend`: the tensor of this piece, and the leaf that later pieces read."""

    def roots(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return what this piece left behind and later pieces used, and the gradients that they left."""
        used = [(local, leaf.grad) for local, leaf in self.left if leaf.grad is not None]
        return [local for local, _ in used], [grad for _, grad in used]


@contextmanager
def running(piece: Piece) -> Iterator[None]:
    """Let `extend` know which piece runs."""
    token = _RUNNING.set(piece)
    try:
        yield
    finally:
        _RUNNING.reset(token)


def extend(tensor: Tensor, dim: int = 1) -> Tensor:
    """Return `tensor` after those of earlier pieces along `dim`: the keys (or values) that this piece attends to."""
    piece = _RUNNING.get()
    if piece is None:
        return tensor
    place = len(piece.left)
    leaf = tensor.detach().requires_grad_(tensor.requires_grad)
    piece.left.append((tensor, leaf))
    return torch.cat([*(item.left[place][1] for item in piece.earlier), tensor], dim)


def offset(dim_size: int) -> int:
    """Return how many tokens of the sequence come before a piece of `dim_size` tokens; 0 without pieces."""
    piece = _RUNNING.get()
    return 0 if piece is None else len(piece.earlier) * dim_size
