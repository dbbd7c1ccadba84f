"""Parameters of one device: of every block, and of every pipeline stage, before sharding over data-parallel ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

from msgspec import field
from msgspec.structs import replace

from forescale.formula import formula, named, total
from forescale.graph.layer import VOCABULARY_WEIGHT
from forescale.graph.operator import Block, Parameter
from forescale.graph.ops import Gemm, GroupedGemm
from forescale.graph.per_block import PerBlock
from forescale.graph.sharding import Degrees
from forescale.graph.stages import Stages, over_stages
from forescale.numeric import Numeric, maximum, minimum, summed, where
from forescale.spec.model import Model
from forescale.spec.workload import QUANTISED_BYTES, Precision, frozen_bytes
from forescale.struct import Struct

SCORE_BIAS = "moe.score_bias"


def gathered_bytes(precision: Precision) -> float:
    """Return bytes of a parameter that travels: 16 bits, but 32 where products take them so."""
    return 4.0 if precision.compute in ("fp32", "tf32") else 2.0


def narrow_gathered_bytes(precision: Precision) -> float:
    """Return the bytes per element of gathered weights of products that are kept in 8 bits: 1, but 2 in MXFP8.

    MXFP8 has scales of its own along rows and along columns, so both copies are made where 16 bits arrive (Megatron-LM,
    distributed/param_and_grad_buffer.py).
    """
    return 1.0 if precision.parameters == "fp8" and precision.compute == "fp8" else gathered_bytes(precision)


class Elements(Struct, frozen=True, kw_only=True):
    """Parameters on one device (elements)."""

    dense: Numeric
    expert: Numeric
    vocabulary: Numeric = 0.0
    """Of a block, the head's matrix, not in `dense`: one copy with the embedding's where both stand on one stage."""


NO_ELEMENTS = Elements(dense=0.0, expert=0.0)


class Weights(Elements, frozen=True, kw_only=True):
    """Parameters on one device, and which of them are trained."""

    trained: Elements
    frozen: Elements | None = None
    """Those that are not, in 16 bits or more; None is none."""
    quantised: Elements | None = None
    """Those that are not, in less."""

    def in_narrow(self) -> Elements:
        """Return those trained whose products run in the compute type however narrow."""
        return NO_ELEMENTS

    def updates(self, precision: Precision) -> Elements:
        """Return how many numbers travel for the parameters that are trained: narrow ones are parts of one."""
        saved = 1.0 - narrow_gathered_bytes(precision) / gathered_bytes(precision)
        if not saved:
            return self.trained
        narrow, trained = self.in_narrow(), self.trained
        return replace(
            trained,
            dense=trained.dense - saved * narrow.dense,
            expert=trained.expert - saved * narrow.expert,
        )

    def not_trained(self, precision: Precision) -> tuple[tuple[Elements, float], ...]:
        """Return pairs of frozen parameters (elements on a device) and their bytes per element, one pair per type."""
        narrow = QUANTISED_BYTES.get(precision.frozen or "", 0.0)
        kinds = (self.frozen, frozen_bytes(precision)), (self.quantised, narrow)
        return tuple((elements, size) for elements, size in kinds if elements is not None)

    def sent(self, precision: Precision) -> Elements:
        """Return how many numbers travel for the parameters: frozen ones are sent as they are kept."""
        trained = self.updates(precision)
        dense, expert, vocabulary = trained.dense, trained.expert, trained.vocabulary
        for elements, size in self.not_trained(precision):
            share = min(size / gathered_bytes(precision), 1.0)
            dense = dense + share * elements.dense
            expert = expert + share * elements.expert
            vocabulary = vocabulary + share * elements.vocabulary
        return Elements(dense=dense, expert=expert, vocabulary=vocabulary)


class BlockParameters(Weights, frozen=True, kw_only=True):
    """Parameters of one block on one device (elements)."""

    products: dict[str, Numeric] = field(default_factory=dict)
    """Elements of the weight of every product: fused weights together, of experts one."""
    vectors: Numeric = 0.0
    """Of `dense`, biases and weights of norms."""
    narrow: Numeric = 0.0
    """Of `dense` and `expert`, weights whose products run in the compute type however narrow."""
    narrow_trained: Elements = NO_ELEMENTS
    """Of these, those that are trained."""
    largest: Elements = NO_ELEMENTS
    """The largest weight of each group: of experts that of all of a device's."""
    largest_trained: Elements = NO_ELEMENTS
    """The largest that is trained."""
    score_biases: float = 0.0
    """Selection biases of its router's experts."""
    tensors: float = 0.0
    """Trained parameters that the framework holds apart."""
    expert_tensors: float = 0.0
    """Of `tensors`, those that every expert has."""
    vector_tensors: float = 0.0
    """Of `tensors`, biases and weights of norms."""
    num_experts: float = 0.0
    """Experts, each of which has its own of those."""

    def in_narrow(self) -> Elements:
        """Return those trained whose products run in the compute type however narrow."""
        return self.narrow_trained


def holdings(blocks: PerBlock[Block]) -> PerBlock[BlockParameters]:
    """Return what one device holds of every block's parameters."""
    return blocks.map(_holding)


def _holding(block: Block) -> BlockParameters:
    others = [parameter for parameter in block.parameters if parameter.name != VOCABULARY_WEIGHT]
    whole = _of(block.parameters)
    trained = [parameter for parameter in block.parameters if not parameter.frozen]
    experts = [parameter for parameter in trained if parameter.group == "expert"]
    quantised = [parameter for parameter in block.parameters if parameter.quantised]
    wide = [parameter for parameter in block.parameters if parameter.frozen and not parameter.quantised]
    return BlockParameters(
        dense=whole.dense,
        expert=whole.expert,
        vocabulary=whole.vocabulary,
        trained=_of(trained) if len(trained) < len(block.parameters) else whole,
        frozen=_of(wide) if wide else None,
        quantised=_of(quantised) if quantised else None,
        products=product_elements(block),
        vectors=_elements([other for other in others if not other.matrix], "dense"),
        narrow=_narrow_elements(others),
        narrow_trained=_of([item for item in trained if item.narrow]),
        largest=_largest(others),
        largest_trained=_largest([other for other in others if not other.frozen]),
        score_biases=sum(other.elements for other in others if other.name == SCORE_BIAS),
        tensors=_tensors(trained),
        expert_tensors=_tensors(experts),
        vector_tensors=_tensors([item for item in trained if not item.matrix]),
        num_experts=max((expert.shape[0] for expert in experts), default=0.0),
    )


def _tensors(parameters: Sequence[Parameter]) -> float:
    return float(sum(parameter.tensors for parameter in parameters))


def _of(parameters: Sequence[Parameter]) -> Elements:
    vocabulary = [parameter for parameter in parameters if parameter.name == VOCABULARY_WEIGHT]
    others = [parameter for parameter in parameters if parameter.name != VOCABULARY_WEIGHT]
    return Elements(
        dense=_elements(others, "dense"),
        expert=_elements(others, "expert"),
        vocabulary=_elements(vocabulary, "dense"),
    )


def _largest(parameters: Sequence[Parameter]) -> Elements:
    values: dict[str, Numeric] = {"dense": 0.0, "expert": 0.0}
    for parameter in parameters:
        elements = named(parameter.local_elements, parameter.name, unit="parameter")
        values[parameter.group] = maximum(values[parameter.group], elements / float(parameter.matrices))
    return Elements(**values)


def _narrow_elements(parameters: Sequence[Parameter]) -> Numeric:
    narrow = summed(parameter.local_elements for parameter in parameters if parameter.narrow)
    return named(narrow, "weights of narrow products", unit="parameter")


def _elements(parameters: Sequence[Parameter], group: str) -> Numeric:
    local = (parameter for parameter in parameters if parameter.group == group)
    ours = {item.name: named(item.local_elements, item.name, unit="parameter") for item in local}
    return total(ours, name="weights", unit="parameter")


def product_elements(block: Block) -> dict[str, Numeric]:
    """Return the elements of the weight of every product of a block, by operator; of experts those of one."""
    products: dict[str, Numeric] = {}
    for operator in block.operators:
        if operator.panels is not None:  # their gradients are summed over ranks before they are accumulated
            continue
        for primitive in operator.backward_weight:
            if isinstance(primitive, Gemm):
                products[operator.name] = primitive.m * primitive.n
            elif isinstance(primitive, GroupedGemm):
                products[operator.name] = primitive.n * primitive.k
    return products


@formula(
    unit="1", source="Megatron-LM: tied embedding and head share one matrix on one stage, two copies on two"
)
def head_copies(*, pp: Numeric, tied: bool) -> Numeric:
    """1; 0 where tied and both ends stand on one stage."""
    return where((pp == 1) & tied, 0.0, 1.0)


@formula(
    unit="1",
    source="Megatron-LM, GPTModel: the stage of multi-token prediction embeds the tokens after the next",
)
def second_embedding(*, first: Numeric, last: Numeric) -> Numeric:
    """1 on the last stage where the embedding stands elsewhere, else 0."""
    return last * (1.0 - minimum(first, 1.0))


class Sharded(Weights, frozen=True, kw_only=True):
    """Parameters of every candidate, (stages, candidates), and the degrees by which they are sharded."""

    degrees: Degrees
    stages: Stages
    block_parameters: PerBlock[BlockParameters]
    """Parameters of every block on one device."""
    num_mtp: int = 0
    """Layers of multi-token prediction."""

    def in_narrow(self) -> Elements:
        """Return those trained whose products run in the compute type however narrow, on every stage."""

        def over(part: str) -> Numeric:
            read = attrgetter(f"narrow_trained.{part}")
            return over_stages(self.stages, self.block_parameters, read, num_mtp=self.num_mtp)

        return Elements(dense=over("dense"), expert=over("expert"))

    @classmethod
    def from_model(
        cls, model: Model, per_block: PerBlock[BlockParameters], stages: Stages, degrees: Degrees
    ) -> Sharded:
        """Return the parameters of every stage that holds what of a model."""
        tied, num_mtp = model.tied_embeddings, model.num_mtp_layers

        def over(of: Callable[[BlockParameters], Elements | None]) -> Elements | None:
            if not any(map(of, per_block.all())):
                return None
            elements = per_block.map(lambda block: of(block) or NO_ELEMENTS)
            head = stages.last * elements.head.vocabulary * head_copies(pp=degrees.pp, tied=tied)
            dense = over_stages(stages, elements, lambda block: block.dense, num_mtp=num_mtp) + head
            if num_mtp:
                apart = second_embedding(first=stages.first, last=stages.last)
                dense = dense + apart * named(elements.embedding.dense, "embedding for mtp", unit="parameter")
            expert = over_stages(stages, elements, lambda block: block.expert, num_mtp=num_mtp)
            return Elements(dense=dense, expert=expert)

        whole = over(lambda block: block) or NO_ELEMENTS
        frozen, quantised = over(attrgetter("frozen")), over(attrgetter("quantised"))
        trained = over(attrgetter("trained")) if frozen or quantised else whole
        return cls(
            degrees=degrees,
            stages=stages,
            block_parameters=per_block,
            num_mtp=num_mtp,
            dense=whole.dense,
            expert=whole.expert,
            trained=trained or NO_ELEMENTS,
            frozen=frozen,
            quantised=quantised,
        )
