"""Model FLOP: what the mathematics needs, whatever the layout; both attention conventions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from forescale.graph.layer import embedding_block, head_block, layer_block, mtp_block
from forescale.graph.layout import Layout, split_strategy
from forescale.graph.operator import Block
from forescale.graph.ops import AttentionCore
from forescale.numeric import Numeric
from forescale.spec.model import Model
from forescale.spec.strategy import Strategy
from forescale.spec.workload import Precision

BACKWARD_PER_FORWARD = 2.0
"""Every product of forward has two in backward: for its input and for its weight (or other operand)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFlops:
    """FLOP of one sequence, forward and backward, nothing recomputed."""

    masked: float
    """Attention counts only the query-key pairs its mask leaves."""
    full: float
    """Attention counts every pair, as many reports do."""


def model_flops(model: Model, seq_len: int) -> ModelFlops:
    """Return the FLOP of one training sequence: three times those of the forward products (PaLM, appendix B)."""
    degrees, choices = split_strategy(Strategy())
    plain = replace(model, vocab_multiple=1)
    layout = Layout(degrees=degrees, choices=choices, precision=Precision(), seq_len=float(seq_len))
    blocks = [(layer_block(plain, kind, layout), model.layers.count(kind)) for kind in model.layer_kinds]
    blocks += [(embedding_block(plain, layout), 1), (head_block(plain, layout), 1)]
    if model.num_mtp_layers:
        blocks.append((mtp_block(plain, layout), model.num_mtp_layers))
    masked = sum(times * _forward(block, full=False) for block, times in blocks)
    full = sum(times * _forward(block, full=True) for block, times in blocks)
    scale = 1.0 + BACKWARD_PER_FORWARD
    return ModelFlops(masked=float(masked) * scale, full=float(full) * scale)


def _forward(block: Block, *, full: bool) -> Numeric:
    result: Numeric = 0.0
    for operator in block.operators:
        for primitive in operator.forward:
            if (
                full
                and isinstance(primitive, AttentionCore)
                and primitive.causal
                and primitive.q_len == layout_len(primitive)
            ):
                result = result + replace(primitive, pairs=primitive.q_len * primitive.kv_len).flops
            else:
                result = result + getattr(primitive, "flops", 0.0)
    return result


def layout_len(core: AttentionCore) -> Numeric:
    """Return the length of the keys, which equals the queries' in an unsplit core."""
    return core.kv_len
