"""Biases of routed experts: each expert's own vector, times every row's routing weight, added to its output."""

from __future__ import annotations

from forescale.graph.operator import Builder
from forescale.graph.ops import Elementwise
from forescale.numeric import Numeric

EAGER_FORWARD = 28.0
"""Bytes per output in 16 bits where the host goes from expert to expert (Megatron-LM, TEGroupedMLP._apply_bias), in
fp32 as the weights are: bias · weight written (4), added (2 + 4 read, 4 written), joined (4 + 4), narrowed (4 + 2)."""
EAGER_BACKWARD = 40.0
"""The same of its gradient: widened (2 + 4), narrowed (4 + 2) and joined (2 + 2); times the weight (4 + 4) and summed
over rows (4), times the bias (4 + 4) and summed over columns (4)."""
EAGER_KERNELS = (2.0, 6.0)
"""Kernels per expert, forward and backward."""
TOGETHER = 4.0
"""Bytes per output in 16 bits where one kernel adds the biases of all experts: read and written."""


def expert_bias(b: Builder, source: str, *, groups: Numeric) -> str:
    """Append the addition of every expert's bias to its rows; return the sum's name."""
    elements, together = b.tensors[source].elements, b.layout.choices.kernels.expert_kernels == "one"
    result = b.tensor("moe.biased", elements)
    if together:
        work = Elementwise(bytes_moved=TOGETHER * elements)
        b.operator("moe.bias", forward=(work,), backward_input=(work,), reads=(source,), writes=(result,))
        return result
    # The sums of all experts in fp32, and they once more joined.
    sums = (b.tensor("moe.bias.sums", elements, 4.0), b.tensor("moe.bias.joined", elements, 4.0))
    forward, backward = EAGER_KERNELS
    b.operator(
        "moe.bias",
        forward=(Elementwise(bytes_moved=EAGER_FORWARD * elements, family="cast", kernels=forward * groups),),
        backward_input=(
            Elementwise(bytes_moved=EAGER_BACKWARD * elements, family="cast", kernels=backward * groups),
        ),
        reads=(source,),
        writes=(result,),
        temporaries=sums,
        backward_temporaries=sums,
    )
    return result
