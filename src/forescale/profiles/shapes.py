"""What the recorded shapes of operators say: FLOP of matrix products, attention calls, bytes of messages."""

from __future__ import annotations

import re
from math import prod
from typing import Any

import msgspec

from forescale.profiles.events import TraceEvent
from forescale.struct import attributes

TYPES = {
    "float": "fp32",
    "double": "fp64",
    "c10::BFloat16": "bf16",
    "c10::Half": "fp16",
    "c10::Float8_e4m3fn": "fp8",
    "Float": "fp32",
    "Double": "fp64",
    "BFloat16": "bf16",
    "Half": "fp16",
}
"""Types of elements, by the names of the profiler and of NCCL."""
BYTES = {"fp64": 8.0, "fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0}
PRODUCTS = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1, "aten::_grouped_mm": 0}
"""Operators that multiply two matrices, and the place of the first of them among the arguments."""
ATTENTION = re.compile(r"aten::_scaled_dot_product_|flash_attn\w*::|FlashAttn\w*Func|FusedAttnFunc")
"""Operators of fused attention; their names say "backward" or "Backward" if they are."""


class Shapes(msgspec.Struct):
    """Sums over the operators of a trace, of which there are fewer than there are operators without shapes."""

    flops: dict[str, float] = msgspec.field(default_factory=dict)
    """FLOP of matrix products by type."""
    attention: dict[str, float] = msgspec.field(default_factory=dict)
    """Calls of fused attention: forward and backward."""
    sequences: dict[tuple[int, int], float] = msgspec.field(default_factory=dict)
    """Forward calls of fused attention by the sequences and tokens per sequence of a call."""
    messages: dict[tuple[str, float], float] = msgspec.field(default_factory=dict)
    """Calls of messages by collective and bytes."""

    def add(self, event: TraceEvent, kind: tuple[str, bool]) -> None:
        """Take an operator in."""
        part, communicates = kind
        if communicates:
            self._add_message(event, part)
        elif event.name in PRODUCTS:
            self._add_product(event)
        elif part == "attention" and ATTENTION.match(event.name):
            self._add_attention(event)

    def _add_product(self, event: TraceEvent) -> None:
        if (factors := factors_of(event)) is not None:
            one, other, kind = factors
            self.flops[kind] = self.flops.get(kind, 0.0) + 2.0 * prod(one) * other[-1]

    def _add_attention(self, event: TraceEvent) -> None:
        backward = "backward" if "backward" in event.name.lower() else "forward"
        self.attention[backward] = self.attention.get(backward, 0.0) + 1.0
        dims = sizes_of(event.args.dims) if event.args is not None else []
        if backward == "forward" and dims and len(dims[0]) == 4:
            key = (dims[0][0], dims[0][2])
            self.sequences[key] = self.sequences.get(key, 0.0) + 1.0

    def _add_message(self, event: TraceEvent, part: str) -> None:
        if event.args is None:
            return
        dims, types = sizes_of(event.args.dims), sizes_of(event.args.types)
        size = 0.0
        if isinstance(event.args.elements, int):
            size = event.args.elements * BYTES.get(TYPES.get(event.args.dtype or "", ""), 1.0)
        elif event.name.startswith("gloo:"):
            size = sum(
                prod(shape) * BYTES.get(TYPES.get(kind, ""), 1.0)
                for shape, kind in zip(dims, types, strict=False)
                if shape and isinstance(shape[0], int)
            )
        if size:
            self.messages[part, size] = self.messages.get((part, size), 0.0) + 1.0

    def per_step(self, steps: int) -> Shapes:
        """Return the sums of one step."""
        values = attributes(self, *self.__struct_fields__)
        return Shapes(
            **{name: {key: value / steps for key, value in sums.items()} for name, sums in values.items()}
        )


def factors_of(event: TraceEvent) -> tuple[list[int], list[int], str] | None:
    """Return the extents of both factors of a product and the type of the first; None if they were not recorded."""
    first = PRODUCTS[event.name]
    dims, types = ([], []) if event.args is None else map(sizes_of, (event.args.dims, event.args.types))
    if len(dims) < first + 2 or len(types) <= first:
        return None
    one, other = dims[first : first + 2]
    for extents in (one, other):
        if not isinstance(extents, list) or len(extents) < 2 or not all(isinstance(n, int) for n in extents):
            return None
    return one, other, TYPES.get(str(types[first]), str(types[first]))


def sizes_of(text: msgspec.Raw) -> list[Any]:
    """Return a list of arguments; empty if it is none."""
    try:
        value = msgspec.json.decode(text)
    except msgspec.MsgspecError:
        return []
    return value if isinstance(value, list) else []
