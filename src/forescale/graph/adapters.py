"""Adapters of low rank beside frozen products (Hu et al. 2021, LoRA, arXiv:2106.09685, section 4.1).

Over tp they lie as Megatron-Bridge lays them (peft/utils.py, ParallelLinearAdapter): the rank is split where the
product's outputs are, and gathered; where its inputs are split, the low-rank result is summed and the outputs are
gathered.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from msgspec.structs import replace

from forescale.graph.operator import Builder, Names, Work
from forescale.graph.ops import Collective, Elementwise, Gemm, GroupedGemm
from forescale.graph.sharding import Extent
from forescale.numeric import Numeric, summed
from forescale.spec.workload import LoraTarget
from forescale.struct import Struct

QUERIES: tuple[LoraTarget, ...] = ("q_proj", "qkv_proj")
KEYS_AND_VALUES: tuple[LoraTarget, ...] = ("k_proj", "v_proj", "qkv_proj")
TARGETS: Mapping[str, tuple[LoraTarget, ...]] = {
    "attention.query": QUERIES,
    "attention.query_down": QUERIES,
    "attention.query_up": QUERIES,
    "attention.key": ("k_proj", "qkv_proj"),
    "attention.value": ("v_proj", "qkv_proj"),
    "attention.kv_down": KEYS_AND_VALUES,
    "attention.kv_up": KEYS_AND_VALUES,
    "attention.output": ("o_proj",),
    "attention.recurrent_output": ("out_proj",),
    "ffn.down": ("down_proj",),
    "shared.down": ("down_proj",),
    "moe.down": ("down_proj",),
}
"""Products that have one adapter if any of these is asked for."""
UPS = ("ffn.up", "shared.up", "moe.up")


class Adapted(Struct, frozen=True, kw_only=True):
    """A part of a product's results that has an adapter of its own."""

    target: str
    results: Names
    outputs: Extent
    copies: Numeric = 1.0
    """Of the outputs' local part: key/value heads that ranks hold copies of."""


def parts_of(b: Builder, name: str, result: str, outputs: Extent, *, matrices: int) -> tuple[Adapted, ...]:
    """Return the parts of a product that have adapters, each with its name, inputs and outputs (elements)."""
    lora_targets = b.sharding.trainable.lora_targets if b.sharding.trainable.lora_rank and b.frozen else ()
    dim, width = outputs
    if name in UPS and "gate_up_proj" not in lora_targets:
        names = [name for name in ("up_proj", "gate_proj")[:matrices] if name in lora_targets]
        share: Extent = (dim, width / matrices)
        return tuple(Adapted(target=item, results=(result,), outputs=share) for item in names)
    targets: tuple[LoraTarget, ...] = ("gate_up_proj",) if name in UPS else TARGETS.get(name, ())
    return (
        (Adapted(target="lora", results=(result,), outputs=outputs),)
        if set(targets) & set(lora_targets)
        else ()
    )


def qkv_parts(
    b: Builder, results: Names, widths: tuple[tuple[str, Extent, Numeric], ...]
) -> tuple[Adapted, ...]:
    """Return the parts of a product of queries, keys and values (name, outputs and copies each) that have adapters."""
    lora_targets = b.sharding.trainable.lora_targets if b.sharding.trainable.lora_rank and b.frozen else ()
    if "qkv_proj" in lora_targets:
        local = summed(size / b.sharding.split(dim) * copies for _, (dim, size), copies in widths)
        whole = sum(size for _, (_, size), _ in widths)
        return (
            Adapted(
                target="qkv_proj",
                results=results,
                outputs=("heads", whole),
                copies=local * b.sharding.split("heads") / whole,
            ),
        )
    projections = zip(("q_proj", "k_proj", "v_proj"), results, widths, strict=False)
    return tuple(
        Adapted(target=target, results=(result,), outputs=extent, copies=copies)
        for target, result, (_, extent, copies) in projections
        if target in lora_targets
    )


def recurrent_parts(b: Builder, results: Names, outputs: Extent) -> tuple[Adapted, ...]:
    """Return the one adapter of all products that a layer with a recurrent state reads its input by."""
    lora_targets = b.sharding.trainable.lora_targets if b.sharding.trainable.lora_rank and b.frozen else ()
    return (Adapted(target="in_proj", results=results, outputs=outputs),) if "in_proj" in lora_targets else ()


class Shape(Struct, frozen=True, kw_only=True):
    """What one device multiplies: rows x k by k x down, and rows x rank by rank x n."""

    rows: Numeric
    k: Numeric
    down: Numeric
    n: Numeric
    groups: Numeric | None = None
    """Local experts, each with matrices of its own; None is one pair for all rows."""

    def product(self, b: Builder, n: Numeric, k: Numeric, *, weight: bool = False) -> Gemm | GroupedGemm:
        """Return the product of the rows with k x n, or that of its weight's gradient."""
        dtype, added = b.sharding.wide_type, b.sharding.accumulate_bytes if weight else 0.0
        if self.groups is None:
            m, columns, inner = (n, k, self.rows) if weight else (self.rows, n, k)
            return Gemm(m=m, n=columns, k=inner, dtype=dtype, accumulate_bytes=added)
        return GroupedGemm(
            groups=self.groups,
            m=self.rows,
            n=n,
            k=k,
            dtype=dtype,
            together=b.sharding.choices.kernels.expert_kernels == "one",
            contract="m" if weight else "k",
            accumulate_bytes=added,
        )


class Messages(Struct, frozen=True, kw_only=True):
    """Messages of an adapter, each after the product whose result it completes."""

    down: Work = ()
    up: Work = ()
    back: Work = ()
    """Before backward: of the gradient of the result."""
    low: Work = ()
    """Of the gradient of the low-rank result."""


def adapters(
    b: Builder,
    name: str,
    parts: tuple[Adapted, ...],
    *,
    source: str,
    saved: str,
    rows: Numeric,
    inputs: Extent,
    summed_up: bool = False,
) -> None:
    """Append the adapters of a product: down to the rank, up again, scaled and added to its result.

    Parameters
    ----------
    source
        What the product reads, `rows` of it.
    saved
        What of it this rank keeps anyway: the adapter keeps the rest as well.
    summed_up
        Whether the product's inputs are split, and its result has been summed over tp already.
    """
    sharding = b.sharding
    rank, size = float(sharding.trainable.lora_rank), sharding.element_bytes
    for part in parts:
        text = f"{name}.{part.target}"
        split: Extent = ("rank" if summed_up else "ffn", rank)
        outputs: Extent = ("ffn" if summed_up else part.outputs[0], part.outputs[1])
        b.parameter(f"{text}.down", inputs, split, adapter=True)
        b.parameter(f"{text}.up", ("rank", rank), outputs, adapter=True, copies=part.copies)
        low = (Collective(kind="all_reduce", axis="tp", num_bytes=rows * rank * size),)
        gathered = (Collective(kind="all_gather", axis="tp", num_bytes=rows * part.outputs[1] * size),)
        _adapter(
            b,
            text,
            part.results,
            source=source,
            saved=saved,
            shape=Shape(
                rows=rows,
                k=inputs[1] / sharding.split(inputs[0]),
                down=rank / sharding.split(split[0]),
                n=outputs[1] / sharding.split(outputs[0]) * part.copies,
            ),
            messages=Messages(down=low, up=gathered, back=gathered if sharding.choices.sp else (), low=low)
            if summed_up
            else Messages(down=(replace(low[0], kind="all_gather"),), low=low),
        )


def expert_adapters(
    b: Builder,
    name: str,
    parts: tuple[Adapted, ...],
    *,
    source: str,
    rows: Numeric,
    inputs: Extent,
    num_experts: float,
) -> None:
    """Append the adapters of the products of all local experts, each expert's own or one for all of a device."""
    sharding, kind = b.sharding, b.sharding.trainable.lora_experts
    rank: Extent = ("rank", float(sharding.trainable.lora_rank))
    experts: tuple[Extent, ...] = (("experts", num_experts),) if kind == "own" else ()
    for part in parts if kind != "none" else ():
        text, group = f"{name}.{part.target}", "expert" if experts else "dense"
        b.parameter(f"{text}.down", *experts, inputs, rank, adapter=True, group=group)
        b.parameter(f"{text}.up", *experts, rank, part.outputs, adapter=True, group=group)
        shape = Shape(
            rows=rows,
            k=inputs[1] / sharding.split(inputs[0]),
            down=rank[1],
            n=part.outputs[1] / sharding.split(part.outputs[0]),
            groups=num_experts / sharding.split("experts") if experts else None,
        )
        _adapter(b, text, part.results, source=source, saved=source, shape=shape, messages=Messages())


def _adapter(
    b: Builder,
    name: str,
    results: Names,
    *,
    source: str,
    saved: str,
    shape: Shape,
    messages: Messages,
) -> None:
    rank, size = float(b.sharding.trainable.lora_rank), b.sharding.element_bytes
    added = shape.rows * shape.n
    if messages.up:  # of the sum over tp each rank has its part
        added = summed(b.tensors[result].elements for result in results)
    low = b.tensor(f"{name}.low", shape.rows * rank)
    made = b.tensor(f"{name}.result", 2.0 * added, differentiable=False)
    kept, dropped = _kept_input(b, name, saved=saved, elements=shape.rows * shape.k)
    product = partial(shape.product, b)
    # The product with alpha / rank and the sum are kernels of their own (PEFT, torchtune, Megatron-Bridge).
    scaled_and_added = Elementwise(bytes_moved=5.0 * added * size, kernels=2.0)
    moved_back = (2.0 * added + 3.0 * shape.rows * shape.k) * size
    b.operator(
        name,
        forward=(
            *dropped,
            product(shape.down, shape.k),
            *messages.down,
            product(shape.n, rank),
            *messages.up,
            scaled_and_added,
        ),
        backward_input=(
            *messages.back,
            product(rank, shape.n),
            *messages.low,
            product(shape.k, shape.down),
            *dropped,
            Elementwise(bytes_moved=moved_back, kernels=2.0),
        ),
        backward_weight=(product(shape.n, rank, weight=True), product(shape.down, shape.k, weight=True)),
        reads=(source, *results),
        writes=results,
        saves=(*kept, low),
        temporaries=(made,),
        backward_temporaries=(made,),
    )


def _kept_input(b: Builder, name: str, *, saved: str, elements: Numeric) -> tuple[Names, Work]:
    """Return what an adapter keeps of its input, and the work of dropping it out.

    It keeps all of it in the type of activations, also where sequence parallelism keeps a part for the product and
    8-bit recipes a narrow copy (Megatron-Bridge, docs/performance-guide.md: sequence_parallel_input_regather).
    """
    size = b.sharding.element_bytes
    if b.sharding.trainable.lora_dropout:
        mask = b.tensor(f"{name}.mask", elements, 1.0, differentiable=False)
        dropped = b.tensor(f"{name}.dropped", elements)
        return (dropped, mask), (Elementwise(bytes_moved=elements * (2.0 * size + 1.0)),)
    rest = f"{saved}.beside"
    if rest not in b.tensors:
        b.tensor(rest, elements - b.bytes_of(saved) / size, differentiable=False)
    return (saved, rest), ()
