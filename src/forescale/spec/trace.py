"""Recorded operators of a model: kernels, parameters and memory of each kind of block.

All sizes are formulas of the micro-batch size and the sequence length, so that one recording answers for all sizes in
its valid range.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import gcd, lcm, prod
from types import MappingProxyType
from typing import Literal, TypeAlias

from msgspec.structs import replace

from forescale.errors import out_of_range
from forescale.numeric import Numeric
from forescale.struct import Struct

KernelKind: TypeAlias = Literal[
    "product", "product_unaligned", "grouped", "grouped_weight", "grouped_loop", "grouped_weight_loop",
    "attention", "attention_causal", "attention_masked", "attention_backward", "attention_backward_causal",
    "attention_backward_masked", "attention_causal_masked", "attention_backward_causal_masked",
    "vector", "mixed", "narrowed", "indexed", "indexed_mixed", "memcpy",
    "row_reduction", "column_reduction", "softmax", "softmax_backward", "log_softmax_backward",
    "concatenation", "concatenation_strided", "gather", "scatter", "sort", "scan", "fill", "norm",
    "norm_backward", "norm_weight", "dropout", "host",
    "tp_all_reduce", "tp_all_gather", "ep_all_to_all",
]  # fmt: skip
PRODUCT = ("m", "n", "k", "batch")
GROUPED = ("groups", "m", "n", "k")
ATTENTION = ("batch", "heads", "kv_heads", "q_len", "kv_len", "qk_dim", "v_dim")
TRAFFIC = ("elements", "read", "written")
COLLECTIVES = ("tp_all_reduce", "tp_all_gather", "ep_all_to_all")
"""Kinds that are messages among ranks of an axis, of the bytes that are read."""
BASIS: tuple[tuple[int, int], ...] = ((0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2))
"""Exponents of the micro-batch size and of the sequence length in the terms of a formula."""


def extents_of(kind: str) -> tuple[str, ...]:
    """Return the names of the extents of a kind of kernel."""
    if kind.startswith("product"):
        return PRODUCT
    if kind.startswith("grouped"):
        return GROUPED
    return ATTENTION if kind.startswith("attention") else TRAFFIC


PARTS = ("coefficients", "split", "experts")


class Formula(Struct, frozen=True, kw_only=True, array_like=True):
    """An exact polynomial of micro-batch size b and sequence length s on one rank.

    (c0 + c1·b + c2·s + c3·bs + c4·s² + c5·bs²) / divisor; `split` and `experts` are added, divided by ranks.
    """

    coefficients: tuple[int, ...]
    divisor: int = 1
    split: tuple[int, ...] = ()
    """Coefficients of what tensor parallelism divides."""
    experts: tuple[int, ...] = ()
    """Coefficients of what tensor and expert parallelism divide: weights of experts."""

    def at(
        self,
        micro_batch_size: Numeric,
        seq_len: Numeric,
        *,
        tp: Numeric = 1.0,
        ep: Numeric = 1.0,
        cp: Numeric = 1.0,
    ) -> Numeric:
        """Return the value at one micro-batch size and sequence length, of which each of `cp` ranks has a part."""
        lengths = (seq_len / cp, seq_len)  # attention: queries of this rank, keys of all
        total = self._part(self.coefficients, micro_batch_size, lengths)
        if self.split:
            total = total + self._part(self.split, micro_batch_size, lengths) / tp
        if self.experts:
            total = total + self._part(self.experts, micro_batch_size, lengths) / (tp * ep)
        return total

    def _part(
        self, coefficients: tuple[int, ...], micro_batch_size: Numeric, lengths: tuple[Numeric, Numeric]
    ) -> Numeric:
        total: Numeric = 0.0
        for coefficient, (of_batch, of_length) in zip(coefficients, BASIS, strict=True):
            if coefficient:
                term: Numeric = float(coefficient) / self.divisor
                for _ in range(of_batch):
                    term = term * micro_batch_size
                for length in lengths[:of_length]:
                    term = term * length
                total = total + term
        return total

    @property
    def of_tokens(self) -> Formula:
        """The part that depends on the batch or the length."""
        parts = {name: (0, *part[1:]) for name in PARTS if (part := getattr(self, name))}
        return replace(self, **parts)

    @property
    def is_constant(self) -> bool:
        """Whether neither the batch nor the length changes the value."""
        return not any(any(getattr(self, name)[1:]) for name in PARTS)

    def times(self, factor: int) -> Formula:
        """Return the product with a number."""
        parts = {name: tuple(factor * item for item in getattr(self, name)) for name in PARTS}
        return replace(self, **parts)


ZERO = Formula(coefficients=(0,) * len(BASIS))


def total(formulas: Iterable[Formula]) -> Formula:
    """Return the sum of formulas."""
    items = [*formulas]
    divisor = lcm(1, *(item.divisor for item in items))
    scaled = [item.times(divisor // item.divisor) for item in items]
    rows = [[getattr(item, part) for item in scaled if getattr(item, part)] for part in PARTS]
    sums = [tuple(map(sum, zip(*row, strict=True))) for row in rows]
    return Formula(coefficients=sums[0] or ZERO.coefficients, divisor=divisor, split=sums[1], experts=sums[2])


def product(*formulas: Formula) -> Formula:
    """Return the product of formulas, of which at most one has parts that ranks divide."""
    result = Formula(coefficients=(1, *ZERO.coefficients[1:]))
    for factor in formulas:
        rows = [[getattr(item, part) for item in (result, factor)] for part in PARTS]
        whole = rows[0]
        parts = {
            name: _product(*(value or other for value, other in zip(row, whole, strict=True)))
            for name, row in zip(PARTS, rows, strict=True)
            if any(row)
        }
        result = Formula(**parts, divisor=result.divisor * factor.divisor)
    return result


def _product(left: Sequence[int], right: Sequence[int]) -> tuple[int, ...]:
    terms = dict.fromkeys(BASIS, 0)
    for (b, s), first in zip(BASIS, left, strict=True):
        for (other_b, other_s), second in zip(BASIS, right, strict=True):
            if first and second:
                terms[b + other_b, s + other_s] += first * second
    return tuple(terms.values())


class TracedKernel(Struct, frozen=True, kw_only=True, array_like=True):
    """One kernel, or several alike."""

    operator: str
    """ATen operator that launches it."""
    kind: KernelKind
    dtype: str
    extents: tuple[Formula, ...]
    """In the order of `extents_of(kind)`."""
    count: int = 1
    replayed: bool = True
    """Whether activation checkpointing runs it again: not if it runs after the last tensor that is saved."""


class TracedOperator(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The kernels of one module."""

    module: str
    """Path within the block; empty for the block itself."""
    forward: tuple[TracedKernel, ...] = ()
    backward: tuple[TracedKernel, ...] = ()
    """Kernels of backward that produce no gradient of a parameter."""
    weight: tuple[TracedKernel, ...] = ()
    """Kernels that produce gradients of parameters."""


class TracedParameter(Struct, frozen=True, kw_only=True, array_like=True):
    """A parameter of a block."""

    name: str
    shape: tuple[int, ...]
    """That of all ranks together."""
    trained: bool = True
    split: Literal["", "tp", "experts"] = ""
    """What divides it: tensor parallelism, or, of experts, expert parallelism in its place."""

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)


class TracedBlock(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One kind of block."""

    name: str
    operators: tuple[TracedOperator, ...]
    parameters: tuple[TracedParameter, ...] = ()
    input_bytes: Formula = ZERO
    output_bytes: Formula = ZERO
    saved_bytes: Formula = ZERO
    """Bytes that backward needs; the input among them if it is saved."""
    forward_bytes: tuple[Formula, ...] = ()
    """Bytes that exist at moments of forward, without the input; the largest is the peak."""
    backward_bytes: tuple[Formula, ...] = ()
    """Bytes that exist at moments of backward, saved tensors included, gradients of parameters excluded."""

    @property
    def num_launches(self) -> int:
        """Kernels of one forward and backward."""
        return sum(
            kernel.count
            for operator in self.operators
            for kernel in (*operator.forward, *operator.backward, *operator.weight)
            if kernel.kind not in COLLECTIVES
        )

    @property
    def attention(self) -> tuple[TracedKernel, ...]:
        """Kernels of attention of the forward pass."""
        kernels = (kernel for operator in self.operators for kernel in operator.forward)
        return tuple(kernel for kernel in kernels if kernel.kind.startswith("attention"))


class Trace(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Recorded operators of a model trained in one precision."""

    parameters: str
    """Type of the parameters, such as "bf16"."""
    autocast: str = ""
    """Type of `torch.autocast`; empty without autocast."""
    layers: tuple[str, ...]
    """Names of the kinds of the blocks, in the order of the forward pass."""
    blocks: Mapping[str, TracedBlock]
    embedding: TracedBlock
    head: TracedBlock
    tied: bool = False
    """Whether the head multiplies by the embedding's weight."""
    min_seq_len: int = 1
    max_seq_len: int = 2**24
    seq_len_multiple: int = 1
    unused: tuple[tuple[str, int], ...] = ()
    """Modules whose parameters no operator reads (the tower of images, for a batch of text), and how many they are."""
    tp: int = 1
    """Degrees of tensor parallelism divide it."""
    ep: int = 1
    """Degrees of expert parallelism divide it: the number of experts."""
    synchronises: bool = False
    """Whether the host waits for the device at the start of every micro-batch."""
    torch: str = ""
    transformers: str = ""
    attention: str = ""
    experts: str = ""
    kernels: str = ""
    """Libraries whose kernels stand for functions of transformers; "torch" if what it runs without them was traced."""

    def __hash__(self) -> int:
        """Hash what is small."""
        return hash((self.parameters, self.autocast, self.layers))

    @property
    def num_parameters(self) -> int:
        """Parameters of all blocks; a tied head counts none."""
        counts = {
            name: sum(parameter.elements for parameter in block.parameters)
            for name, block in self.blocks.items()
        }
        ends = sum(
            parameter.elements for block in (self.embedding, self.head) for parameter in block.parameters
        )
        return ends + sum(counts[name] for name in self.layers)

    @property
    def shared_heads(self) -> int:
        """Number that divides the heads of all kernels of attention; 0 unless sequences can be split.

        Ranks of context parallelism exchange keys and values in attention with a causal mask.
        """
        kernels = [kernel for block in self.blocks.values() for kernel in block.attention]
        blocks = all(block.attention for block in self.blocks.values())
        if not blocks or any(kernel.kind != "attention_causal" for kernel in kernels):
            return 0
        return gcd(*(round(float(item.at(1.0, 1.0))) for kernel in kernels for item in kernel.extents[1:3]))

    @property
    def has_frozen(self) -> bool:
        """Whether some parameters are not trained."""
        blocks = (*self.blocks.values(), self.embedding, self.head)
        return any(not parameter.trained for block in blocks for parameter in block.parameters)

    @property
    def precision(self) -> str:
        """Precision in words: the type of the parameters, and that of autocast."""
        return f"{self.parameters} under autocast to {self.autocast}" if self.autocast else self.parameters

    def is_valid(self, seq_len: float) -> bool:
        """Return whether a sequence length is in the valid range."""
        return self.min_seq_len <= seq_len <= self.max_seq_len and seq_len % self.seq_len_multiple == 0

    def check_seq_len(self, seq_len: float, name: str) -> None:
        """Raise SpecError unless the sequence length is in the valid range."""
        if not self.is_valid(seq_len):
            multiple = f" and multiples of {self.seq_len_multiple}" if self.seq_len_multiple > 1 else ""
            allowed = f"{self.min_seq_len} to {self.max_seq_len}{multiple} (the trace of {name})"
            fix = f"trace the model again with --seq-len {seq_len:g}"
            raise out_of_range("seq_len", round(seq_len), allowed, fix)


NO_BLOCKS: Mapping[str, TracedBlock] = MappingProxyType({})
