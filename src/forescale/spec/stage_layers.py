"""How frameworks deal layers to pipeline stages that do not divide them."""

from __future__ import annotations

import math
from itertools import pairwise

from forescale.spec.model import DenseFfn, Model


def light_ends(num_layers: int, pp: int, vpp: int) -> tuple[int, ...] | None:
    """Return the layers of each virtual stage where they do not divide evenly; None where they do.

    If two more layers would divide, embedding and loss take the place of one layer each, as Megatron's
    `account_for_embedding_in_pipeline_split` and DeepSpeed's partitioning do; else stages are filled from the front, so
    that the last leave room for the loss and multi-token prediction (Megatron-Bridge's
    set_deepseek_v3_pipeline_model_parallel_layout).
    """
    stages = pp * vpp
    if pp == 1 or num_layers % stages == 0:
        return None
    most = -(-num_layers // stages)
    if (num_layers + 2) % stages == 0:
        counts = [most - (stage in (0, stages - 1)) for stage in range(stages)]
    else:
        counts = [max(0, min(most, num_layers - stage * most)) for stage in range(stages)]
    return tuple(counts) if all(sum(counts[rank::pp]) for rank in range(pp)) else None


def by_cost(model: Model, pp: int) -> tuple[int, ...] | None:
    """Return the layers of each rank where they go by cost: a rank ends with the layer that passes its share.

    Layers count as gated ones with as many key/value heads as heads, the head as one matrix behind the last.
    Source: nanotron models/base.py and LlamaModel.get_block_compute_costs.
    """
    ffn = model.layers[0].ffn
    if pp == 1 or not isinstance(ffn, DenseFfn):
        return None
    layer = 4 * model.hidden_size + 3 * ffn.ffn_hidden_size
    shares = (layer * model.num_layers + model.vocab_size) / layer / pp
    ends = [min(math.floor(shares * rank) + 1, model.num_layers) for rank in range(1, pp)]
    return tuple(high - low for low, high in pairwise((0, *ends, model.num_layers)))
