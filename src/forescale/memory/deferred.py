"""Weight gradients of the output layer that wait for the pipeline flush: how many, and what they keep until then."""

from __future__ import annotations

from forescale.formula import formula
from forescale.graph.sharding import several
from forescale.memory.inputs import EvalContext, MemoryInputs
from forescale.memory.parameters import Sharded
from forescale.numeric import Numeric, minimum, where
from forescale.spec.workload import STORAGE_BYTES

SOURCE = "Megatron-LM @d98e8a64dd, core/tensor_parallel/layers.py (embedding_activation_buffer, grad_output_buffer)"
DRAINED_AT_ONCE = 2.0
"""Gathered inputs that the flush holds: one is multiplied while the next arrives."""


@formula(unit="1", source=f"{SOURCE}: the first wgrad_deferral_limit products of a step are deferred")
def deferred_products(*, limit: float, microbatches: Numeric, heads: float) -> Numeric:
    """min(limit, micro-batches × output layers), at least 0: weight gradients that wait at once."""
    return minimum(limit, where(microbatches > 0, microbatches * heads, 0.0))


@formula(unit="byte", source=f"{SOURCE}: the layer's input and the gradient of its logits")
def deferred_gradient_bytes(*, products: Numeric, awaited: Numeric, last: Numeric) -> Numeric:
    """Products × (input + gradient of the logits) on the last stage, else 0."""
    return last * products * awaited


@formula(
    unit="byte",
    source="Megatron-LM @d98e8a64dd, core/utils.py, drain_embedding_wgrad_compute: buffers mpu_0 and mpu_1 of the "
    "global memory buffer, which are never freed",
)
def drain_buffer_bytes(*, gathered: Numeric, products: Numeric, tp: Numeric, last: Numeric) -> Numeric:
    """min(products, 2) × the layer's gathered input on the last stage, where tensor-parallel ranks gather it."""
    return last * several(degree=tp) * minimum(products, DRAINED_AT_ONCE) * gathered


def deferred_of_step(setting: EvalContext, microbatches: Numeric) -> Numeric:
    """Return how many weight gradients of the output layer wait once so many micro-batches are through."""
    return deferred_products(
        limit=float(setting.choices.deferred_head_gradients),
        microbatches=microbatches,
        heads=1.0 + setting.model.num_mtp_layers,
    )


def deferred_bytes(setting: EvalContext, inputs: MemoryInputs, count: Numeric) -> tuple[Numeric, Numeric]:
    """Return what waits on every stage in the last micro-batch's backward: in its layers, and before, at its loss."""
    if not setting.choices.deferred_head_gradients:
        return 0.0, 0.0
    awaited, last = inputs.blocks.head.replayed.awaited, inputs.stages.last
    at_layers, at_loss = (
        deferred_gradient_bytes(products=deferred_of_step(setting, microbatches), awaited=awaited, last=last)
        for microbatches in (count, count - 1.0)
    )
    return at_layers, at_loss


def drain_buffers(setting: EvalContext, sharded: Sharded) -> Numeric:
    """Return the bytes of the buffers into which the flush gathers inputs, on every stage."""
    sharding = setting.sharding(sharded.degrees)
    return drain_buffer_bytes(
        gathered=sharding.tokens("sequence")
        * float(setting.model.hidden_size)
        * STORAGE_BYTES[setting.workload.precision.activations],
        products=deferred_of_step(setting, setting.num_microbatches(sharded.degrees)),
        tp=sharded.degrees.tp,
        last=sharded.stages.last,
    )
