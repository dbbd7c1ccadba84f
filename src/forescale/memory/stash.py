"""What a buffer of pages for kept tensors of routed experts takes beyond these tensors."""

from __future__ import annotations

from forescale.formula import formula
from forescale.graph.stages import Stages, StageSums
from forescale.memory.in_flight import InFlightBytes
from forescale.memory.inputs import EvalContext, MemoryInputs
from forescale.memory.liveness import any_of, largest
from forescale.numeric import Numeric

STASH = (
    "Megatron-LM, moe/paged_stash.py: PagedStashBuffer is made once, for the most rows of a step in flight"
)


@formula(unit="byte", source=STASH)
def stash_room_bytes(*, stashed: Numeric, factor: float, layer: Numeric) -> Numeric:
    """Stashed × (factor − 1): room for rows beyond an even routing; and those of the layer that is at work."""
    return stashed * (factor - 1.0) + layer


def stash_room(setting: EvalContext, inputs: MemoryInputs) -> Numeric:
    """Return what pages take beyond the kept tensors that lie in them, per stage [byte]; 0 without a stash."""
    factor, in_flight = setting.choices.kernels.paged_stash, inputs.in_flight
    if not factor:
        return 0.0
    sums = StageSums(model=setting.model, recompute=setting.choices.recompute, stages=inputs.stages)

    def stashed(on: Stages) -> Numeric:
        """Return what one micro-batch keeps in pages."""
        return sums.on(on, copies=in_flight.copies).kept(inputs.blocks, lambda block: block.stashed)

    count = setting.num_microbatches(inputs.degrees)
    most, _ = in_flight.most(inputs.degrees, inputs.stages, count, InFlightBytes(whole=stashed))
    layer: Numeric = 0.0 * inputs.stages.first
    for kind, block in enumerate(inputs.blocks.layers):
        layer = largest(first=layer, second=any_of(count=inputs.stages.counts[kind]) * block.kept.stashed)
    return stash_room_bytes(stashed=most, factor=factor, layer=layer)
