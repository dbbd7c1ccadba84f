"""Activations of one device: what micro-batches in flight hold, and the working set of the fullest block beside."""

from __future__ import annotations

from forescale.formula import formula
from forescale.graph.parts import message_bytes
from forescale.graph.stages import Stages, StageSums
from forescale.memory.inputs import Resident, Setting
from forescale.memory.liveness import BlockBytes, any_of, largest
from forescale.memory.offload import in_transit, offloaded_bytes, resident_bytes
from forescale.numeric import Numeric, smaller


def activation_bytes(
    setting: Setting, inputs: Resident, sums: StageSums, count: Numeric
) -> tuple[Numeric, Numeric]:
    """Return what activations take on the device, at work and in flight, and what of them lies on the host."""
    degrees, stages, in_flight = inputs.degrees, inputs.stages, inputs.in_flight
    head, offloads = inputs.blocks.head.taken, setting.choices.offload.activations

    def kept(on: Stages) -> Numeric:
        """Return what one micro-batch keeps on layers less what the head does, which lives for a moment only."""
        here = sums.on(on, copies=in_flight.copies).kept(inputs.blocks, lambda block: block.kept)
        return here - on.last * head.kept / float(in_flight.copies)

    def moved(on: Stages) -> Numeric:
        return offloaded_bytes(setting, inputs, on)

    most = (lambda on: kept(on) - moved(on)) if offloads else kept
    saved, beside_loss = in_flight.most(degrees, stages, count, most)
    part = 1.0 / in_flight.num_splits
    loss = stages.last * largest(first=head.forward, second=head.backward)
    beside, other = (stages.last * losses * head.kept for losses in in_flight.losses_beside)
    activations: Numeric = largest(
        first=saved + part * _working_set(setting, inputs) + beside, second=beside_loss + part * loss + other
    )
    host: Numeric = 0.0
    if offloads:
        host, _ = in_flight.most(degrees, stages, count, moved)
        activations = resident_bytes(kept=activations, in_transit=in_transit(setting, inputs, moved(stages)))
    if setting.choices.kernels.keeps_stage_outputs:
        outputs = stage_output_bytes(
            message_bytes=message_bytes(setting.model, setting.layout(degrees)),
            microbatches=in_flight.shares(degrees, stages, count),
            pp=degrees.pp,
        )
        sending = degrees.vpp - stages.last / float(in_flight.copies)  # chunks but the last of the model
        activations = activations + sending * outputs
    return activations, host


def _working_set(setting: Setting, inputs: Resident) -> Numeric:
    """Return what the fullest block of each stage needs at work beyond what it keeps, forward or backward."""
    stages, policy = inputs.stages, setting.choices.recompute
    working: Numeric = 0.0 * stages.first
    for kind, block in enumerate(inputs.blocks.layers):
        unit = float(policy.unit - 1) * block.left.kept  # a unit's other layers, replayed with it
        extra = _at_work(block.taken, unit)
        working = largest(first=working, second=any_of(count=stages.replayed[kind]) * extra)
        if not policy.takes_all:
            others = any_of(count=stages.counts[kind] - stages.replayed[kind])
            working = largest(first=working, second=others * _at_work(block.left, 0.0))
    return working


def _at_work(block: BlockBytes, replayed_beside: Numeric) -> Numeric:
    """Return what a block needs beyond what it keeps in the fuller of its passes."""
    return largest(first=block.forward - block.kept, second=block.backward - block.kept + replayed_beside)


@formula(
    unit="byte", source="DeepSpeed PipelineEngine: pipe_buffers['outputs'] live until the stage's backward"
)
def stage_output_bytes(*, message_bytes: Numeric, microbatches: Numeric, pp: Numeric) -> Numeric:
    """Message × micro-batches in flight, of one chunk, where there are several stages."""
    return message_bytes * microbatches * smaller(pp - 1.0, 1.0)


def pool_bytes(setting: Setting, inputs: Resident) -> Numeric:
    """Return what working sets take more because graphs capture all but the experts; 0 where they do not."""
    stages, head = inputs.stages, inputs.blocks.head.taken
    if setting.choices.graphs != "partial":
        return 0.0
    captured: Numeric = 0.0 * stages.first
    others: Numeric = stages.last * largest(first=head.forward, second=head.backward)
    for kind, block in enumerate(inputs.blocks.layers):
        here: Numeric = any_of(count=stages.counts[kind])
        for each in (block.taken, block.left):
            inside, outside = each.captured or (0.0, 0.0)
            captured = largest(first=captured, second=here * inside)
            others = largest(first=others, second=here * outside)
    return second_pool_bytes(captured=captured, others=others)


@formula(
    unit="byte",
    source="PyTorch CUDA graphs: tensors of a captured region keep their addresses, in a memory pool of their own",
)
def second_pool_bytes(*, captured: Numeric, others: Numeric) -> Numeric:
    """Smaller of two working sets: in two pools they take their sum, in one the larger of them."""
    return smaller(captured, others)
