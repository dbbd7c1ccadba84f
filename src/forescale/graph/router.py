"""The router of a mixture of experts: scores, selection, and the counts that balance it."""

from __future__ import annotations

import numpy as np

from forescale.graph.modules import elementwise, linear
from forescale.graph.operator import Builder
from forescale.graph.ops import Collective
from forescale.spec.model import MoeFfn

COUNT_BYTES = 4.0
"""Counts of tokens are summed in fp32 (Megatron-LM, transformer/moe/moe_utils.py)."""


def router(b: Builder, spec: MoeFfn, *, hidden: float, source: str) -> None:
    """Append the router's product (fp32 logits over all experts), scores and top-k, and what its loss counts."""
    local, experts = b.layout.tokens("residual"), float(spec.num_experts)
    logits = b.tensor("moe.logits", local * experts, 4.0)
    probabilities = b.tensor("moe.probabilities", local * experts, 4.0)
    linear(
        b,
        "moe.router",
        source=source,
        result=logits,
        rows=local,
        inputs=("hidden", hidden),
        outputs=("rank", experts),
        bias=spec.router_bias,
        narrow=False,
    )
    if spec.score_bias:
        b.parameter("moe.score_bias", ("rank", experts))
    size = 4.0 * b.bytes_of(logits)
    elementwise(
        b,
        "moe.top_k",
        reads=(logits,),
        writes=(probabilities,),
        saves=(probabilities,),
        forward_bytes=size,
        backward_bytes=size,
        kernels=6.0,
    )
    if b.layout.choices.routing.balance == "aux_loss":
        _counts(b, spec, source=probabilities)


def _counts(b: Builder, spec: MoeFfn, *, source: str) -> None:
    """Append the sum of each expert's tokens over the ranks that share a sequence; gradients need no sum."""
    several = b.layout.more_than_one("tp") + b.layout.more_than_one("cp")
    num_bytes = np.minimum(several, 1.0) * float(spec.num_experts) * COUNT_BYTES
    counts = Collective(kind="all_reduce", axis="tp_cp", num_bytes=num_bytes)
    b.operator("moe.balance", forward=(counts,), reads=(source,))
