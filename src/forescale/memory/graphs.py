"""Memory of captured launches: graphs have a pool of their own, which nothing else uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forescale.formula import formula
from forescale.memory.activations import any_of, largest
from forescale.numeric import Numeric, smaller

if TYPE_CHECKING:
    from forescale.evaluate import Inputs, Setting


@formula(
    unit="byte",
    source="PyTorch CUDA graphs: tensors of a captured region keep their addresses, in a memory pool of their own",
)
def second_pool_bytes(*, captured: Numeric, others: Numeric) -> Numeric:
    """Smaller of two working sets: in two pools they take their sum, in one the larger of them."""
    return smaller(captured, others)


def pool_bytes(setting: Setting, inputs: Inputs) -> Numeric:
    """Return what working sets take more because graphs capture all but the experts; 0 where they do not."""
    stages, head = inputs.stages, inputs.pieces.head.cost
    if setting.choices.graphs != "partial":
        return 0.0
    captured: Numeric = 0.0 * stages.first
    others: Numeric = stages.last * largest(first=head.forward_bytes, second=head.backward_bytes)
    for kind, piece in enumerate(inputs.pieces.layers):
        here: Numeric = any_of(count=stages.counts[kind])
        for cost in (piece.cost, piece.plain):
            inside, outside = cost.captured_bytes or (0.0, 0.0)
            captured = largest(first=captured, second=here * inside)
            others = largest(first=others, second=here * outside)
    return second_pool_bytes(captured=captured, others=others)
