"""What is done with it: sequence length, global batch, tokens, optimizer; and in which precision."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal, TypeAlias, get_args

from msgspec import field

from forescale.errors import conflicts, given_twice, no_effect, required_with, unsupported_by
from forescale.formula import formula
from forescale.limits import Amount, Count, Interval, OptionalExtent
from forescale.numeric import Numeric
from forescale.repr import one_line
from forescale.spec.model import Images
from forescale.spec.optimizers import TWO_MOMENTS, OptimizerName
from forescale.spec.option import Option
from forescale.struct import SpecStruct

_run, _types = partial(Option, group="Run"), partial(Option, group="Types, training")
ComputeType: TypeAlias = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4", "int8"]
StorageType: TypeAlias = Literal["fp32", "bf16", "fp16", "fp8"]
MasterType: TypeAlias = Literal["fp32", "bf16", "fp16", "fp8", "none"]
FrozenType: TypeAlias = Literal["fp32", "bf16", "fp16", "fp8", "int8", "nf4", "nf4_double"]
HighPrecisionModule: TypeAlias = Literal["attention", "latent", "mtp"]
EXCEPTIONS = ("high_precision_modules", "num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16")
"""Fields of `Precision` that leave products in the type of activations."""
Reference: TypeAlias = Literal["none", "copy", "shared"]
FrozenPart: TypeAlias = Literal["embedding", "attention", "ffn", "moe", "norm", "head", "vision", "projector"]
FROZEN_PARTS: tuple[FrozenPart, ...] = get_args(FrozenPart)
LoraTarget: TypeAlias = Literal[
    "q_proj",
    "k_proj",
    "v_proj",
    "qkv_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "gate_up_proj",
    "down_proj",
    "in_proj",
    "out_proj",
]

STORAGE_BYTES: dict[str, float] = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0}
NARROW: tuple[ComputeType, ...] = ("fp8", "mxfp8", "nvfp4", "int8")
"""Compute types in 8 or 4 bits."""
MATRIX_RATE: dict[str, str] = {
    "fp32": "fp32",
    "tf32": "tf32",
    "fp16": "fp16",
    "bf16": "bf16",
    "fp8": "fp8",
    "mxfp8": "fp8",
    "nvfp4": "fp4",
    "int8": "int8",
}
"""Which of a device's matrix rates a compute type uses."""
QUANTISED_BYTES: dict[str, float] = {
    "fp8": 1.0,
    "int8": 1.0,
    "nf4": (4.0 + 32.0 / 64.0) / 8.0,
    "nf4_double": (4.0 + 8.0 / 64.0 + 32.0 / (64.0 * 256.0)) / 8.0,
}
"""Bytes per element of frozen matrices that are kept narrower than 16 bits. NF4 has one fp32 constant per 64 elements;
double quantisation keeps that in 8 bits, with one fp32 per 256 constants (Dettmers et al. 2023, arXiv:2305.14314,
section 3). One scale per tensor or row is left out."""
ALL_LINEAR: tuple[LoraTarget, ...] = (
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
)
RECURRENT: tuple[LoraTarget, ...] = ("in_proj", "out_proj")
"""Products of layers with a recurrent state, and of no others."""
FUSED: dict[LoraTarget, tuple[LoraTarget, ...]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
"""Targets that are one matrix where a framework fuses others, and then have one adapter."""


@formula(unit="1", source="definition: global batch / (data parallel × micro-batch)")
def num_microbatches(*, global_batch_size: Numeric, dp: Numeric, micro_batch_size: Numeric) -> Numeric:
    """Whole micro-batches per step and pipeline; in a legal layout nothing remains."""
    return global_batch_size // (dp * micro_batch_size)


class Precision(SpecStruct, frozen=True, kw_only=True):
    """Data types of compute and of every state; bytes per element follow from the name."""

    compute: Annotated[ComputeType, _run("Type of the linear layers' products.", flag="precision")] = "bf16"
    """Type of the linear layers' matrix multiplications; attention is never narrower than 16 bits."""
    recipe: Annotated[Literal["none", "delayed", "current", "rowwise", "blockwise", "mxfp8"],
        _types("Scaling recipe of fp8.", flag="fp8-recipe")] = "none"  # fmt: skip
    """Scaling recipe of fp8 compute."""
    parameters: Annotated[StorageType, _types("Type of the weights.", flag="param-dtype")] = "bf16"
    gradients: Annotated[StorageType, _types("Type in which gradients are reduced.",
        flag="grad-dtype")] = "fp32"  # fmt: skip
    """Type in which gradients are accumulated and reduced."""
    master: Annotated[MasterType, _types("Type of the master copy.", flag="master-dtype")] = "fp32"
    moments: Annotated[StorageType, _types("Type of the optimizer's moments.", flag="moment-dtype")] = "fp32"
    second_moments: Annotated[StorageType | None, _types("Type of second moments, if not that of the first.",
        flag="second-moment-dtype")] = None  # fmt: skip
    """Type of the second moments of optimizers that keep two; by default that of `moments`, which then is the type of
    the first (FP8-LM: fp8 and fp16)."""
    activations: Annotated[StorageType, _types("Type of activations.", flag="activation-dtype")] = "bf16"
    frozen: Annotated[FrozenType | None, _types("Type of frozen weights; nf4_double is QLoRA's.",
        flag="frozen-dtype")] = None  # fmt: skip
    """Type of weights that are not trained; None is that of `parameters`. What is narrower than 16 bits holds the
    matrices of layers, which every product makes wide again; embedding, head, norms and biases stay in the type
    of activations (QLoRA)."""
    fp32_frozen: Literal["none", "norms", "unquantised"] = "none"
    """What a model with quantised weights keeps in fp32 before training. Norms alone make the residual stream fp32;
    `unquantised` adds embedding, head and biases (PEFT's prepare_model_for_kbit_training). No effect on others."""

    high_precision_modules: tuple[HighPrecisionModule, ...] = ()
    """Modules whose products stay in the type of activations under an 8- or 4-bit recipe: attention with scores,
    the projections to and from the space of routed experts, and layers that predict further tokens."""
    num_layers_at_start_in_bf16: OptionalExtent = 0
    """Layers at the start whose products stay in the type of activations under such a recipe (Megatron-Core, with
    first_last_layers_bf16)."""
    num_layers_at_end_in_bf16: OptionalExtent = 0
    """The same at the end."""

    def __post_init__(self) -> None:
        """Refuse block scales of one kind with products of another; wider types have no use for a recipe."""
        if self.compute == "fp8" and self.recipe == "mxfp8":
            raise unsupported_by("fp8", "the recipe mxfp8", "give compute type mxfp8 (--precision mxfp8)").at(
                "precision"
            )
        if self.compute == "mxfp8" and self.recipe not in ("none", "mxfp8"):
            fix = "leave recipe out, or give compute type fp8"
            raise conflicts(["compute type mxfp8", f"recipe {self.recipe}"], fix=fix).at("precision")
        if self.is_narrow and self.frozen in QUANTISED_BYTES:
            reason = "frozen weights are converted to 16 bits before every product"
            key = [f"frozen {self.frozen}", f"{self.compute} products"]
            raise conflicts(key, reason=reason, fix="give compute bf16, or leave frozen out").at("precision")

    @property
    def num_layers_in_bf16(self) -> int:
        """Number of layers at both ends whose products stay in the type of activations."""
        return self.num_layers_at_start_in_bf16 + self.num_layers_at_end_in_bf16

    @property
    def is_narrow(self) -> bool:
        """Whether linear layers multiply in 8 or 4 bits."""
        return self.compute in NARROW


def moment_bytes(precision: Precision, moments: float = 2.0) -> float:
    """Return the bytes of so many moments per parameter on average; those beyond the first are second moments."""
    if precision.second_moments is None:
        return moments * STORAGE_BYTES[precision.moments]
    first = min(moments, 1.0)
    second = moments - first
    return first * STORAGE_BYTES[precision.moments] + second * STORAGE_BYTES[precision.second_moments]


def narrow_bytes(precision: Precision) -> float:
    """Return the bytes of one element in the narrow compute type, with the scales of its block.

    One scale per tensor; fp32 per 128 elements (blockwise); one byte per 32 (MXFP8) or 16 elements (NVFP4):
    Transformer Engine, pytorch/tensor.
    """
    if precision.compute == "nvfp4":
        return 1.0 / 2.0 + 1.0 / 16.0
    if precision.compute == "mxfp8":
        return 1.0 + 1.0 / 32.0
    return 1.0 + (4.0 / 128.0 if precision.recipe == "blockwise" else 0.0)


def frozen_storage(precision: Precision) -> str:
    """Return the type of norms that are frozen, which is that of the residual stream."""
    if precision.frozen is None:
        return precision.parameters
    if precision.frozen not in QUANTISED_BYTES:
        return precision.frozen
    return precision.activations if precision.fp32_frozen == "none" else "fp32"


def frozen_bytes(precision: Precision) -> float:
    """Return the bytes of an element of a weight that is frozen and not quantised."""
    narrow = precision.frozen in QUANTISED_BYTES and precision.fp32_frozen != "unquantised"
    return STORAGE_BYTES[precision.activations if narrow else frozen_storage(precision)]


class Trainable(SpecStruct, frozen=True, kw_only=True):
    """What of a model is trained: all of it, or what is not frozen, or adapters beside weights that are."""

    frozen: Annotated[tuple[FrozenPart, ...],
        _types("Parts whose weights are not trained: embedding, attention, ffn, moe, norm, head, vision, projector.",
        "A,B", flag="freeze")] = ()  # fmt: skip
    """Parts that keep their weights: no gradients, no optimizer states, nothing saved for weight gradients."""
    lora_rank: Annotated[OptionalExtent,
        _types("Rank of adapters; all other weights are frozen.", flag="lora-rank")] = 0  # fmt: skip
    """Rank of adapters (Hu et al. 2021, LoRA, arXiv:2106.09685); all other weights are frozen. 0 has none."""
    lora_targets: Annotated[tuple[LoraTarget, ...],
        _types("Products with adapters, such as q_proj,v_proj; by default all of attention and feed-forward.", "A,B",
        flag="lora-targets")] = ALL_LINEAR  # fmt: skip
    """Products with an adapter, by Hugging Face's names; `qkv_proj` and `gate_up_proj` are one adapter for all
    that a framework fuses (Megatron's linear_qkv and linear_fc1). Layers with a recurrent state have them at
    `in_proj`, one for all that it makes, and `out_proj` only."""
    lora_experts: Literal["own", "shared", "none"] = "own"
    """Whether each routed expert has its own adapters, a device's experts share one, or they have none."""
    lora_dropout: bool = False
    """Whether adapters drop out their inputs, and then keep a copy and a mask each."""
    whole: tuple[FrozenPart, ...] = ()
    """Parts that are trained completely, in addition to adapters (PEFT's modules_to_save)."""

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        if not self.lora_rank:
            usual = Trainable.__dataclass_fields__
            names = ("lora_targets", "lora_experts", "lora_dropout", "whole")
            value = [name for name in names if getattr(self, name) != usual[name].default]
            if value:
                raise required_with("lora_rank", " and ".join(value)).at("trainable")
        elif self.frozen:
            reason = "with lora_rank all parts are frozen but those of whole"
            raise no_effect("frozen", reason).at("trainable")
        twice = [
            f"{fused} and {part}"
            for fused, parts in FUSED.items()
            for part in parts
            if {fused, part} <= set(self.lora_targets)
        ]
        if twice:
            fix = "the names mean the same product: give one of them"
            raise given_twice(str(twice[0]), fix=fix).at("trainable: lora_targets")

    @property
    def is_all(self) -> bool:
        """Whether every weight is trained."""
        return not (self.frozen or self.lora_rank)

    @property
    def unfused(self) -> tuple[LoraTarget, ...]:
        """The targets where no products are fused: those of each by itself."""
        return tuple(part for target in self.lora_targets for part in FUSED.get(target, (target,)))

    def freezes(self, part: str) -> bool:
        """Say whether the weights of a part are frozen."""
        return part not in self.whole if self.lora_rank else part in self.frozen


class Outer(SpecStruct, frozen=True, kw_only=True):
    """How sites that train by themselves exchange what they trained: how often, in what pieces and how narrow."""

    method: Literal["diloco", "local_sgd"] = "diloco"
    """Whether an outer optimiser takes the step between two exchanges (Douillard et al. 2023, DiLoCo,
    arXiv:2311.08105), or parameters are averaged (Stich 2018, local SGD, arXiv:1805.09767)."""
    every: Count = 100
    """Steps between two exchanges of the same parameters; 1 is plain data parallelism, of gradients."""
    fragments: Count = 1
    """Pieces that are exchanged in turn within `every` steps (Streaming DiLoCo); a piece is every so manyth layer."""
    overlap: Annotated[int, Interval(ge=0, le=1000)] = 0
    """Steps that go on before what was exchanged is needed; 0 waits for it."""
    bits: Annotated[float, Interval(gt=0, le=64)] = 16.0
    """Bits of a parameter on the link."""


class Workload(SpecStruct, frozen=True, kw_only=True):
    """One training step's input, and how many tokens the whole run sees."""

    seq_len: Annotated[Count, _run("Tokens per sequence, such as 128k; else the model's.", unit="length")]
    """Tokens (or patches) per sequence."""
    global_batch_size: Annotated[Count, _run("Sequences per optimizer step. Required.")]
    """Sequences per optimizer step over all devices."""
    tokens: Annotated[Amount | None, _run("Tokens of the whole run, such as 15T.", "COUNT", unit="token")] = (
        None
    )
    """Tokens of the whole run, for training days."""
    optimizer: Annotated[OptimizerName, _run("Optimizer.")] = "adamw"
    precision: Annotated[Precision, Option()] = field(default_factory=Precision)
    varied_lengths: bool = False
    """Sequences, and with them tensors, differ in length from step to step (fine-tuning without packing or padding):
    the allocator's memory then breaks into more pieces. `seq_len` is the longest."""

    document_len: Annotated[Count | None, _types("Tokens of documents packed into a sequence.", "N",
        unit="length")] = None  # fmt: skip
    """Tokens of the documents that are packed into a sequence, of which attention sees one at a time: their mean
    weighted by tokens, Σd²/Σd, which leaves as many pairs as they do. None is sequences of one document."""

    trainable: Annotated[Trainable, Option()] = field(default_factory=Trainable)
    """What is trained; all of the model unless it says otherwise."""

    images: Annotated[Images, Option()] = field(default_factory=Images)
    """Images of each sequence, for models with a vision tower; their tokens are part of `seq_len`."""

    reference: Reference = "none"
    """Frozen reference model of preference optimisation, such as DPO's, which runs forward on every micro-batch:
    `copy` has weights of its own, `shared` is the model with its adapters disabled."""
    reference_passes: Count = 1
    """Forward passes of each micro-batch that no backward follows: 1 of the reference model; for KTO 3, because model
    and reference also read each prompt with the answer of another one (TRL, KTOTrainer; OpenRLHF, kto_trainer.py)."""

    outer: Annotated[Outer | None,
        _types("Sites train by themselves, such as 'diloco every=100 fragments=3 overlap=1 bits=4', or local_sgd.",
        "WORDS", flag="outer")] = None  # fmt: skip
    """How the sites that the cluster's wide-area link joins train by themselves, each its part of the batch; None has
    gradients reduced over all of them in every step."""

    def __str__(self) -> str:
        """Return the workload on one line, without what has its default."""
        return one_line(self)

    def __post_init__(self) -> None:
        """Refuse a type of frozen weights where none are, and one of second moments that the optimizer lacks."""
        if self.precision.second_moments is not None and self.optimizer not in TWO_MOMENTS:
            raise no_effect("precision.second_moments", f"{self.optimizer} keeps one moment per parameter")
        if self.precision.frozen is not None and self.trainable.is_all:
            fix = "give trainable.frozen or trainable.lora_rank (--freeze, --lora-rank)"
            raise required_with("frozen weights", f"precision.frozen {self.precision.frozen}", fix=fix)

    @property
    def tokens_per_step(self) -> float:
        """Tokens of all sequences of one optimizer step."""
        return float(self.global_batch_size * self.seq_len)

    @property
    def num_steps(self) -> int | None:
        """Whole steps that come nearest to the tokens of the run, one at least; None where these are not given."""
        return None if self.tokens is None else max(1, round(self.tokens / self.tokens_per_step))
