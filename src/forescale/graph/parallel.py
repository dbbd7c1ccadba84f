"""Split recorded modules over ranks as the plans of transformers do: local shapes, and the messages between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Final

from forescale.files import packaged
from forescale.spec.trace import Formula, KernelKind, TracedKernel
from forescale.struct import Struct

SPLIT_DIMENSION: Final[Mapping[str, int]] = {
    "colwise": 0,
    "colwise_gather_output": 0,
    "rowwise": -1,
    "rowwise_split_input": -1,
    "packed_colwise": -2,
    "embedding_rowwise": 0,
}
"""Dimension of the weight that each style splits (transformers, distributed/tensor_parallel.py)."""
SPLIT_EXTENTS: Final[Mapping[str, Mapping[str, int]]] = {
    "col": {"forward": 1, "backward": 2, "weight": 0},
    "row": {"forward": 2, "backward": 1, "weight": 1},
}
"""Extent of (m, n, k) of a linear layer's products that its style splits, by the first letters of the style."""
WHOLE: Final = ("replicated_with_grad_allreduce", "mla_kv_a_proj")
"""Styles of modules that every rank has whole."""
EXPERTS: Final = "moe_tp_experts"
STYLES: Final = (*SPLIT_DIMENSION, *WHOLE, EXPERTS)
GATHERED: Final = ("colwise_gather_output", "rowwise_split_input", "embedding_rowwise")
"""Styles whose own weights alone are split: operators around them see whole tensors."""
WIDTHS: Final[Mapping[str, int]] = {"bf16": 2, "fp16": 2}


class Plan(Struct, frozen=True, kw_only=True):
    """How modules of a block are split."""

    styles: Mapping[str, str] = MappingProxyType({})
    """Style by the path of a module or parameter within its block."""
    experts: bool = False
    """Whether experts can be dealt to ranks."""

    def style_at(self, path: str) -> str:
        """Return the style of a module or parameter; empty if there is none."""
        known = (style for end, style in self.styles.items() if path == end or path.endswith(f".{end}"))
        return next(known, "")

    def style_of(self, parameter: str) -> str:
        """Return the style of a parameter; empty if every rank has it whole."""
        module, _, name = parameter.rpartition(".")
        style = self.style_at(parameter) or self.style_at(module)
        is_sum = name == "bias" and style.startswith("rowwise")
        return style if style in SPLIT_DIMENSION and not is_sum else ""


NO_PLAN: Final = Plan()


@cache
def plan_of(kind: str) -> Plan:
    """Return the plan of a model type; one that splits nothing if there is none, or if it has another style."""
    for entry in packaged("parallel_plans")["plans"]:
        if kind in entry["types"]:
            styles = ends_of(entry["styles"])
            known = set(styles.values()) <= set(STYLES)
            return Plan(styles=styles if known else NO_PLAN.styles, experts=entry["experts"])
    return NO_PLAN


def ends_of(styles: Mapping[str, str]) -> dict[str, str]:
    """Return styles by what follows the number of a layer in their pattern."""
    return {path.rpartition("*.")[2]: style for path, style in styles.items()}


def split_extent(style: str, part: str, extents: Sequence[Formula]) -> tuple[Formula, ...]:
    """Return the extents of a product on one rank, of which a style splits one."""
    place = SPLIT_EXTENTS.get(style[:3], {}).get(part)
    return tuple(shared(item) if index == place else item for index, item in enumerate(extents))


def shared(whole: Formula) -> Formula:
    """Return the part of a size that each rank of tensor parallelism has."""
    coefficients = whole.coefficients if not any(whole.split) else whole.split
    return Formula(coefficients=(0,) * len(coefficients), divisor=whole.divisor, split=coefficients)


def messages(plan: Plan, path: str, forward: Sequence[TracedKernel]) -> tuple[tuple[TracedKernel, ...], ...]:
    """Return what ranks send in forward and in backward of a module with these kernels.

    Sums and gathers follow transformers, distributed/tensor_parallel.py and expert_parallel.py: each layer that is
    split by columns sums the gradient of its input by itself.
    """
    style = plan.style_at(path)
    kinds = ("gather",) if style == "embedding_rowwise" else ("product", "grouped")
    product = next((item for item in forward if item.kind.startswith(kinds)), None)
    if product is None:
        return (), ()
    if product.kind.startswith("grouped"):
        return (tuple(_of_experts(plan, style, product)),) * 2
    if product.kind == "gather":
        return (_message("tp_all_reduce", product, product.extents[2]),), ()
    m, n, k = product.extents[:3]
    into, out = _bytes(m, k, product.dtype), _bytes(m, n, product.dtype)
    match style:
        case "colwise":
            return (), (_message("tp_all_reduce", product, into),)
        case "colwise_gather_output":
            return (_message("tp_all_gather", product, out),), (_message("tp_all_reduce", product, into),)
        case "rowwise":
            return (_message("tp_all_reduce", product, out),), ()
        case "rowwise_split_input":
            return (_message("tp_all_reduce", product, out),), (_message("tp_all_gather", product, into),)
    return (), ()


def _of_experts(plan: Plan, style: str, product: TracedKernel) -> Iterator[TracedKernel]:
    """Yield the sum of the experts' results, or the exchanges of tokens before and after experts."""
    _, rows, _, width = product.extents
    moved = _bytes(rows, width, product.dtype)
    if style == EXPERTS:
        yield _message("tp_all_reduce", product, moved)
    if plan.experts:
        yield from (_message("ep_all_to_all", product, moved),) * 2


def _message(kind: KernelKind, product: TracedKernel, num_bytes: Formula) -> TracedKernel:
    elements = num_bytes.times(1)
    return TracedKernel(
        operator=kind, kind=kind, dtype=product.dtype, extents=(elements, num_bytes, num_bytes)
    )


def _bytes(rows: Formula, columns: Formula, dtype: str) -> Formula:
    """Return the bytes of whole rows times whole columns, which no batch changes."""
    constant = columns.coefficients[0] + sum(columns.split[:1])
    return rows.times(constant // columns.divisor * WIDTHS.get(dtype, 4))
