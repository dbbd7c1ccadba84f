"""Blocks of the graph: operators with their three passes, the tensors they save, the parameters they own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from forescale.graph.layout import Dim, Layout
from forescale.graph.ops import Primitive
from forescale.numeric import Numeric

Part: TypeAlias = Literal["attention", "ffn", "moe", "norm", "embedding", "head", "optimizer"]
ParameterGroup: TypeAlias = Literal["dense", "expert"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One node: what forward, backward-input and backward-weight do, and what must be kept for them."""

    name: str
    part: Part
    """Where its time is reported."""
    modules: tuple[str, ...] = ()
    """Recompute modules it belongs to."""
    forward: tuple[Primitive, ...] = ()
    backward_input: tuple[Primitive, ...] = ()
    backward_weight: tuple[Primitive, ...] = ()
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    saves: tuple[str, ...] = ()
    """Tensors kept for backward, by name; a tensor saved by several operators is kept once."""
    overlaps_itself: bool = False
    """Its collectives run behind its own compute (ring attention)."""
    hidden_behind: str | None = None
    """Linear layer whose backward hides this reshard's: the scatter of the input gradient runs behind the weight
    gradient, the second gather of the input behind the input gradient (Megatron-LM's asynchronous linear)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """An activation of one micro-batch on one device."""

    name: str
    num_bytes: Numeric


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A weight: global element count and how many of them one device of its stage holds."""

    name: str
    elements: float
    local_elements: Numeric
    group: ParameterGroup = "dense"
    matrix: bool = True
    """Whether it is a matrix (Muon orthogonalises those; norms and biases are not)."""
    active_fraction: float = 1.0
    """Share used by one token (top_k / num_experts for routed experts)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """An operator list with its tensors and parameters; the unit that stages are made of."""

    name: str
    operators: tuple[Operator, ...]
    tensors: dict[str, Tensor]
    parameters: tuple[Parameter, ...]
    input_name: str


@dataclass(slots=True)
class Builder:
    """Collects one block. Mutable only while the block is being written down."""

    layout: Layout
    part: Part = "attention"
    modules: tuple[str, ...] = ()
    operators: list[Operator] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    parameters: list[Parameter] = field(default_factory=list)

    def tensor(self, name: str, elements: Numeric, element_bytes: float | None = None) -> str:
        """Declare an activation of `elements` per device and micro-batch; return its name."""
        size = self.layout.element_bytes if element_bytes is None else element_bytes
        self.tensors[name] = Tensor(name=name, num_bytes=elements * size)
        return name

    def bytes_of(self, *names: str) -> Numeric:
        """Return the bytes of the named tensors together."""
        result: Numeric = 0.0
        for name in names:
            result = result + self.tensors[name].num_bytes
        return result

    def operator(self, name: str, **fields: object) -> None:
        """Append an operator to this block, in the current part and modules."""
        self.operators.append(Operator(name=name, part=self.part, modules=self.modules, **fields))  # type: ignore[arg-type]

    def parameter(
        self,
        name: str,
        *dims: tuple[Dim, float],
        group: ParameterGroup = "dense",
        copies: Numeric = 1.0,
        active_fraction: float = 1.0,
    ) -> None:
        """Declare a weight by its logical dimensions; `copies` scales the local part (replicas, padding)."""
        elements: float = 1.0
        local: Numeric = 1.0
        for dim, size in dims:
            elements *= size
            local = local * (size / self.layout.split(dim))
        self.parameters.append(
            Parameter(
                name=name,
                elements=elements,
                local_elements=local * copies,
                group=group,
                matrix=len(dims) > 1,
                active_fraction=active_fraction,
            )
        )

    def block(self, name: str, input_name: str) -> Block:
        """Return the finished block."""
        return Block(
            name=name,
            operators=tuple(self.operators),
            tensors=dict(self.tensors),
            parameters=tuple(self.parameters),
            input_name=input_name,
        )
