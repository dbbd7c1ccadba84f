"""From stages to one optimizer step: closed forms of (interleaved) 1F1B with unequal stages."""

from __future__ import annotations

import math

import numpy as np

from forescale.formula import formula
from forescale.numeric import Numeric, larger, smaller

PIPELINE = "Narayanan et al. 2021, arXiv:2104.04473, section 2.2"


def expected_maximum(count: int) -> float:
    """Return the expected maximum of `count` standard normal values: about √(2 ln n).

    Source: Cramér 1946, Mathematical Methods of Statistics, section 28.6 (leading term); at most a third above
    the exact value for tens of devices.
    """
    return math.sqrt(2.0 * math.log(max(count, 1)))


@formula(
    unit="s", source=f"{PIPELINE}; unequal stages: the slowest sets the pace, the others are crossed once"
)
def bubble_time(
    *, total_stage_time: Numeric, slowest_stage_time: Numeric, pp: Numeric, vpp: Numeric
) -> Numeric:
    """(Σ stage times − slowest) / vpp; equal stages: (p−1)/v of one micro-batch; nothing at p = 1."""
    return np.where(np.asarray(pp) > 1, (total_stage_time - slowest_stage_time) / vpp, 0.0)


@formula(
    unit="s",
    source="Megatron-LM: sends block in 1F1B (two exchanges per micro-batch), run behind a chunk when interleaved",
)
def exposed_pipeline_time(
    *,
    hop: Numeric,
    slowest_stage_time: Numeric,
    microbatches: Numeric,
    pp: Numeric,
    vpp: Numeric,
    overlapped: bool,
) -> Numeric:
    """2(p−1) hops to fill and drain, and 2·v·hop per micro-batch in between less what compute hides."""
    traffic = 2.0 * vpp * hop
    hidden = np.where((np.asarray(vpp) > 1) & overlapped, smaller(slowest_stage_time, traffic), 0.0)
    busy = 2.0 * hop * (pp - 1.0) + microbatches * (traffic - hidden)
    return np.where(np.asarray(pp) > 1, busy, 0.0)


@formula(
    unit="s", source="bucketed reduction behind backward: the last bucket has nothing left to hide behind"
)
def exposed_reduction(
    *, reduction: Numeric, cover: Numeric, buckets: Numeric, overlapped: bool, contention: Numeric = 0.0
) -> Numeric:
    """Where overlapped e + contention · (reduction − e), e = max(reduction − cover, reduction / buckets); else all."""
    if not overlapped:
        return reduction
    shown = larger(reduction - cover, reduction / larger(buckets, 1.0))
    return shown + contention * (reduction - shown)


@formula(
    unit="s",
    source="Zhao et al. 2023, PyTorch FSDP, arXiv:2304.11277, section 3.3: the next layer's gather behind compute",
)
def exposed_gather(
    *, gather: Numeric, cover: Numeric, overlapped: bool, contention: Numeric = 0.0
) -> Numeric:
    """Where prefetched e + contention · (gather − e), e = max(0, gather − compute), per layer; else all."""
    if not overlapped:
        return gather
    shown = larger(gather - cover, 0.0)
    return shown + contention * (gather - shown)


@formula(
    unit="s",
    source="Zhao et al. 2023, PyTorch FSDP, arXiv:2304.11277, section 3.3: before the first layer there is nothing to "
    "hide a gather behind, and after the last gradients nothing to hide their reduction",
)
def exposed_ends(*, gather: Numeric, reduction: Numeric, share: Numeric, overlapped: bool) -> Numeric:
    """Share · (gather + reduction) where they are overlapped with other layers; else both are shown already."""
    return share * (gather + reduction) if overlapped else 0.0 * gather


@formula(unit="1", source="definition")
def largest_share(*, largest: Numeric, parameters: Numeric) -> Numeric:
    """Largest / parameters."""
    return largest / parameters


@formula(
    unit="s", source=f"{PIPELINE}: stage s starts s forwards after the first and ends s backwards before it"
)
def pipeline_wait(*, stage: Numeric, seconds: Numeric, vpp: Numeric) -> Numeric:
    """Stage · seconds / vpp: how long a stage waits at one end of the step (1F1B of equal stages)."""
    return stage * seconds / vpp


@formula(unit="s", source="definition: what is left when the wait is over")
def beyond_wait(*, exposed: Numeric, wait: Numeric) -> Numeric:
    """max(0, exposed − wait)."""
    return larger(exposed - wait, 0.0)


def stage_waits(stage: Numeric, vpp: Numeric, forward: Numeric, backward: Numeric) -> tuple[Numeric, Numeric]:
    """Return how long every stage waits before its first forward and after its last backward."""
    before, after = (pipeline_wait(stage=stage, seconds=each, vpp=vpp) for each in (forward, backward))
    return before, after
