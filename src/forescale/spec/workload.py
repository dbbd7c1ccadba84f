"""What is done with it: sequence length, global batch, tokens, optimizer; and in which precision."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from forescale.errors import SpecError
from forescale.formula import formula
from forescale.limits import Amount, Count
from forescale.numeric import Numeric

OptimizerName: TypeAlias = Literal["adamw", "adafactor", "lion", "muon", "sgd"]
ComputeType: TypeAlias = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4"]
StorageType: TypeAlias = Literal["fp32", "bf16", "fp16", "fp8"]

STORAGE_BYTES: dict[str, float] = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0}
NARROW: tuple[ComputeType, ...] = ("fp8", "mxfp8", "nvfp4")
"""Compute types in 8 or 4 bits."""
MATRIX_RATE: dict[str, str] = {
    "fp32": "fp32",
    "tf32": "tf32",
    "fp16": "fp16",
    "bf16": "bf16",
    "fp8": "fp8",
    "mxfp8": "fp8",
    "nvfp4": "fp4",
}
"""Which of a device's matrix rates a compute type uses."""


@formula(unit="1", source="definition: global batch / (data parallel × micro-batch)")
def num_microbatches(*, global_batch_size: Numeric, dp: Numeric, micro_batch_size: Numeric) -> Numeric:
    """Whole micro-batches per step and pipeline; in a legal layout nothing remains."""
    return global_batch_size // (dp * micro_batch_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Data types of compute and of every state; bytes per element follow from the name."""

    compute: ComputeType = "bf16"
    """Type of the linear layers' matrix multiplications; attention is never narrower than 16 bits."""
    recipe: Literal["none", "delayed", "current", "blockwise", "mxfp8"] = "none"
    """Scaling recipe of fp8 compute."""
    parameters: StorageType = "bf16"
    gradients: StorageType = "fp32"
    """Type in which gradients are accumulated and reduced."""
    master: StorageType | Literal["none"] = "fp32"
    moments: StorageType = "fp32"
    activations: StorageType = "bf16"

    def __post_init__(self) -> None:
        """Refuse block scales of one kind with products of another; wider types have no use for a recipe."""
        if self.compute == "fp8" and self.recipe == "mxfp8":
            msg = "precision: fp8 has no recipe mxfp8; give compute type mxfp8 (--precision mxfp8)"
            raise SpecError(msg)
        if self.compute == "mxfp8" and self.recipe not in ("none", "mxfp8"):
            msg = f"precision: mxfp8 has its own recipe, got {self.recipe}; leave recipe out, or give compute type fp8"
            raise SpecError(msg)

    @property
    def is_narrow(self) -> bool:
        """Whether linear layers multiply in 8 or 4 bits."""
        return self.compute in NARROW


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One training step's input, and how many tokens the whole run sees."""

    seq_len: Count
    """Tokens (or patches) per sequence."""
    global_batch_size: Count
    """Sequences per optimizer step over all devices."""
    tokens: Amount | None = None
    """Tokens of the whole run, for training days."""
    optimizer: OptimizerName = "adamw"
    precision: Precision = field(default_factory=Precision)
    varied_lengths: bool = False
    """Sequences, and with them tensors, differ in length from step to step (fine-tuning without packing or padding):
    the allocator's memory then breaks into more pieces. `seq_len` is the longest."""

    document_len: Count | None = None
    """Tokens of the documents that are packed into a sequence, of which attention sees one at a time: their mean
    weighted by tokens, Σd²/Σd, which leaves as many pairs as they do. None is sequences of one document."""

    @property
    def tokens_per_step(self) -> float:
        """Tokens of all sequences of one optimizer step."""
        return float(self.global_batch_size * self.seq_len)
