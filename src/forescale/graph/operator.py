"""Blocks of the graph: operators with their three passes, the tensors they save, the parameters they own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from forescale.graph.ops import Elementwise, Primitive
from forescale.graph.sharding import Extent, ShardingRules
from forescale.numeric import Numeric, summed
from forescale.spec.layout import Module
from forescale.spec.workload import QUANTISED_BYTES, Precision
from forescale.struct import Struct

Part: TypeAlias = Literal["attention", "ffn", "moe", "norm", "embedding", "head", "vision", "optimizer"]
ENDS: tuple[Part, ...] = ("embedding", "head")
ParameterGroup: TypeAlias = Literal["dense", "expert"]
Names: TypeAlias = tuple[str, ...]
Work: TypeAlias = tuple[Primitive, ...]

ROUTING = ("moe.router", "moe.top_k", "moe.balance")
"""Operators that choose experts, whose shapes never change."""
STASH = "moe.stash"
"""Operator that copies what routed experts keep to pages, and back."""
NARROWEST_GRADIENT_BYTES = 2.0
"""Gradients of activations that are kept in fp8 are bf16."""


class Operator(Struct, frozen=True, kw_only=True):
    """One node: what forward, backward-input and backward-weight do, and what must be kept for them."""

    name: str
    part: Part
    """Where its time is reported."""
    modules: tuple[Module, ...] = ()
    """Recompute modules it belongs to."""
    forward: Work = ()
    backward_input: Work = ()
    backward_weight: Work = ()
    reads: Names = ()
    writes: Names = ()
    """What it writes to a name that exists already takes that storage."""
    saves: Names = ()
    """Tensors kept for backward, by name; a tensor saved by several operators is kept once."""
    temporaries: Names = ()
    """Tensors that exist only while its forward runs."""
    backward_temporaries: Names = ()
    """Tensors that exist only while its backward runs."""
    held: Names = ()
    """Of what it saved, the tensors that the training loop holds until the micro-batch's backward is over."""
    afterwards: Names = ()
    """Tensors that exist for a moment once that is over, beside the held ones."""
    stranded: Names = ()
    """Of what it read, tensors that leave room in which nothing fits that is made while the block is at work."""
    gradient_in_saved: bool = False
    """Backward turns what it saved into the gradient of what it read, in place."""
    shares_gradient: bool = False
    """Backward hands the gradient of its result on as it is (an addition)."""
    overlaps_itself: bool = False
    """Its collectives run behind its own compute (ring attention)."""
    frozen: bool = False
    """Its weight is not trained: backward has one product for one of forward."""
    replayed: bool = True
    """Whether full recompute runs it again."""
    reads_counts: bool = False
    """The host reads how many tokens each expert has before it launches this and what follows: it is not ahead."""
    panels: Numeric | None = None
    """Steps of SUMMA: each pass is done so often, and a step's messages run beside the step before."""
    hidden_behind: str | None = None
    """Linear layer whose backward hides this reshard's: the scatter of the input gradient runs behind the
    weight gradient, the second gather of the input behind the input gradient (Megatron-LM's asynchronous
    linear)."""

    @property
    def primitives(self) -> Work:
        """What its three passes do."""
        return (*self.forward, *self.backward_input, *self.backward_weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """An activation of one micro-batch on one device."""

    name: str
    elements: Numeric
    element_bytes: float
    differentiable: bool = True
    copy_of: str | None = None
    """Tensor that this is a narrow copy of: where that is dropped and made again, the copy is not needed."""
    gradient_elements: Numeric | None = None
    """Elements of its gradient where it stands for another tensor and has none of its own; None: as many."""
    num_bytes: Numeric = field(init=False, repr=False, compare=False)
    gradient_bytes: Numeric = field(init=False, repr=False, compare=False)
    """Bytes of its gradient."""

    def __post_init__(self) -> None:
        """Work out both sizes once: they are asked for at every moment of a block."""
        gradient = max(self.element_bytes, NARROWEST_GRADIENT_BYTES) if self.differentiable else 0.0
        object.__setattr__(self, "num_bytes", self.elements * self.element_bytes)
        elements = self.elements if self.gradient_elements is None else self.gradient_elements
        object.__setattr__(self, "gradient_bytes", elements * gradient if gradient else 0.0)


class Parameter(Struct, frozen=True, kw_only=True):
    """A weight: global element count and how many of them one device of its stage holds."""

    name: str
    elements: float
    local_elements: Numeric
    group: ParameterGroup = "dense"
    matrix: bool = True
    """Whether it is a matrix (Muon orthogonalises those; norms and biases are not)."""
    active_fraction: float = 1.0
    """Share used by one token (top_k / num_experts for routed experts)."""
    shape: tuple[float, ...] = ()
    """Global sizes of its logical dimensions."""
    narrow: bool = False
    """Whether its product runs in the compute type, however narrow, rather than in that of activations."""
    matrices: int = 1
    """How many weights it is where a framework does not fuse them: gate and up."""
    tensors: int = 1
    """How many the framework holds it as: 0 where it is a part of the parameter before it."""
    frozen: bool = False
    """Whether it is not trained."""
    quantised: bool = False
    """Whether it is frozen in less than 16 bits."""


class Block(Struct, frozen=True, kw_only=True):
    """An operator list with its tensors and parameters; the unit that stages are made of."""

    name: str
    operators: tuple[Operator, ...]
    tensors: dict[str, Tensor]
    parameters: tuple[Parameter, ...]
    input_name: str
    recorded: bool = False
    """Whether its operators were recorded: they name no tensor that one hands to the next."""


def quantised_bytes(precision: Precision, part: Part | None) -> float | None:
    """Return the bytes per element of frozen matrices of a part in less than 16 bits; None where they have more."""
    return None if part in ENDS else QUANTISED_BYTES.get(precision.frozen or "")


def widened(
    elements: Numeric, *, stored_bytes: float, wide_bytes: float, kernels: Numeric = 1.0
) -> Elementwise:
    """Return the pass that makes a quantised weight wide, before each product by it."""
    return Elementwise(bytes_moved=elements * (stored_bytes + wide_bytes), family="cast", kernels=kernels)


@dataclass(slots=True)
class Builder:
    """Collects one block. Mutable only while the block is being written down."""

    sharding: ShardingRules
    """Rules of what is written down next."""
    part: Part = "attention"
    modules: tuple[Module, ...] = ()
    operators: list[Operator] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    parameters: list[Parameter] = field(default_factory=list)
    rules: ShardingRules = field(init=False)
    """Rules of the whole block."""

    def __post_init__(self) -> None:
        """Keep the rules of the block."""
        self.rules = self.sharding

    @contextmanager
    def widened(self, *, wide: bool) -> Iterator[None]:
        """Leave the products of the `with` body in the type of activations."""
        outer = self.sharding
        if wide:
            self.sharding = outer.widened
        yield
        self.sharding = outer

    @contextmanager
    def module(self, name: Module) -> Iterator[None]:
        """Put the operators of the `with` body into a recompute module."""
        outer = self.modules
        self.modules = (*outer, name)
        yield
        self.modules = outer

    def tensor(
        self,
        name: str,
        elements: Numeric,
        element_bytes: float | None = None,
        **more: Any,  # noqa: ANN401 (fields of a tensor)
    ) -> str:
        """Declare an activation of `elements` per device and micro-batch; return its name."""
        size = self.sharding.element_bytes if element_bytes is None else element_bytes
        self.tensors[name] = Tensor(name=name, elements=elements, element_bytes=size, **more)
        return name

    def bytes_of(self, *names: str) -> Numeric:
        """Return the bytes of the named tensors together."""
        return summed(self.tensors[name].num_bytes for name in names)

    def operator(self, name: str, **work: Any) -> None:  # noqa: ANN401 (fields of an operator)
        """Append an operator to this block, in the current part and modules."""
        self.operators.append(Operator(name=name, part=self.part, modules=self.modules, **work))

    @property
    def frozen(self) -> bool:
        """Whether the weights of the current part are not trained."""
        return self.sharding.trainable.freezes(self.part)

    def quantised_bytes(self, group: ParameterGroup = "dense") -> float | None:
        """Return the bytes per element of the current part's matrices where they are frozen in less than 16 bits."""
        wide = group == "expert" and not self.sharding.choices.kernels.quantises_experts
        return None if wide or not self.frozen else quantised_bytes(self.sharding.precision, self.part)

    def parameter(
        self,
        name: str,
        *dims: Extent,
        copies: Numeric = 1.0,
        adapter: bool = False,
        **more: Any,  # noqa: ANN401 (fields of a parameter)
    ) -> None:
        """Declare a weight by its logical dimensions; `copies` scales the local part (replicas, padding).

        An `adapter` is trained whatever its part is.
        """
        elements: float = 1.0
        local: Numeric = 1.0
        parts = self.sharding.weight_split([dim for dim, _ in dims])
        for (_, size), split in zip(dims, parts, strict=True):
            elements *= size
            local = local * (size / split)
        shape = tuple(size for _, size in dims)
        frozen, matrix = self.frozen and not adapter, len(dims) > 1
        stored = self.quantised_bytes(more.get("group", "dense"))
        if self.sharding is not self.rules:
            more["narrow"] = False
        self.parameters.append(
            Parameter(
                name=name,
                elements=elements,
                local_elements=local * copies,
                matrix=matrix,
                shape=shape,
                frozen=frozen,
                quantised=frozen and matrix and stored is not None,
                **more,
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
