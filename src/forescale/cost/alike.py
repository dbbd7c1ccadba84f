"""Operators that differ in extents only, as one operator whose extents are arrays: a model prices them at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, TypeAlias, TypeVar

import numpy as np

from forescale.graph.ops import AttentionCore, Compute, Elementwise, Gemm, GroupedGemm

Op = TypeVar("Op", bound=Compute)
Read: TypeAlias = Callable[[Any], tuple[Any, ...]]
EXTENTS: Mapping[type, tuple[str, ...]] = {
    Gemm: ("m", "n", "k", "batch"),
    GroupedGemm: ("groups", "m", "n", "k"),
    AttentionCore: ("batch", "heads", "kv_heads", "q_len", "kv_len", "pairs", "qk_dim", "v_dim", "busy"),
    Elementwise: ("bytes_moved", "kernels", "transposed_bytes"),
}
"""What may be an array over operators."""
FLAGS: Mapping[type, tuple[str, ...]] = {
    Gemm: ("__class__", "dtype", "accumulate_bytes"),
    GroupedGemm: ("__class__", "dtype", "contract", "accumulate_bytes", "together"),
    AttentionCore: ("__class__", "backward", "flash", "causal", "dtype"),
    Elementwise: ("__class__", "family"),
}
"""The rest, which operators that are priced together must share."""
_EXTENTS: Mapping[type, Read] = {kind: attrgetter(*names) for kind, names in EXTENTS.items()}
_FLAGS: Mapping[type, Read] = {kind: attrgetter(*names) for kind, names in FLAGS.items()}


def flags_of(op: Compute) -> tuple[Any, ...]:
    """Return what `op` shares with operators that differ from it in extents only."""
    return _FLAGS[type(op)](op)


def stacked(ops: Sequence[Op]) -> Op:
    """Return operators of equal flags as one with array extents, in their order."""
    kind = type(ops[0])
    columns = zip(*map(_EXTENTS[kind], ops), strict=True)
    extents: dict[str, Any] = {
        name: np.array(column, dtype=np.float64) for name, column in zip(EXTENTS[kind], columns, strict=True)
    }
    return replace(ops[0], **extents)
