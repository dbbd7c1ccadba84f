"""From one layer to one step: micro-batches, pipeline, data parallelism, memory."""

from __future__ import annotations

import numpy as np

from forescale.formula import formula
from forescale.numeric import Numeric
from forescale.presets.subramanian2024.sources import CODE, PAPER


@formula(unit="s", source=f"{PAPER}, section III-A (S2)")
def stage_work_time(*, layer_time: Numeric, num_microbatches: Numeric, layers: Numeric) -> Numeric:
    """t·m·d/np: every micro-batch through every layer of the stage."""
    return layer_time * num_microbatches * layers


@formula(unit="s", source=f"{PAPER}, section III-A (S1), pipeline parallel: not overlapped")
def stage_exchange_time(*, hop_time: Numeric, num_microbatches: Numeric) -> Numeric:
    """2·x·m: one message forward and one backward for every micro-batch."""
    return 2.0 * hop_time * num_microbatches


@formula(unit="s", source=f"{PAPER}, section III-A (S2), pipeline bubble time")
def stage_bubble_time(*, pp: Numeric, busy_time: Numeric, num_microbatches: Numeric) -> Numeric:
    """(np − 1)·(tf + tb), with the messages of a micro-batch in tf and tb."""
    return (pp - 1.0) * busy_time / num_microbatches


@formula(unit="s", source=f"{CODE}; section III-A (S1), data parallel and optimizer")
def exposed_weight_exchange_time(*, exchange_time: Numeric, layer_time: Numeric, layers: Numeric) -> Numeric:
    """Exposed: x + max(x − t, 0)·(d/np − 1); one layer is bare, compute covers the others."""
    return exchange_time + np.maximum(exchange_time - layer_time, 0.0) * (layers - 1.0)
