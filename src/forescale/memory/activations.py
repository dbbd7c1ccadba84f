"""Activation bytes of one device: what each micro-batch keeps, times the micro-batches in flight."""

from __future__ import annotations

from forescale.formula import formula
from forescale.numeric import Numeric, larger, smaller


@formula(unit="1", source="Narayanan et al. 2021, arXiv:2104.04473, section 2.2")
def in_flight(*, stage: Numeric, pp: Numeric, vpp: Numeric, num_microbatches: Numeric) -> Numeric:
    """Micro-batches of a full share held at once: min(m, p−r); or the closed form of interleaving."""
    from forescale.schedule.memory import in_flight_microbatches

    return in_flight_microbatches(stage=stage, pp=pp, vpp=vpp, num_microbatches=num_microbatches)


@formula(
    unit="byte",
    source="saved tensors of the operator list (Korthikanti et al. 2022, arXiv:2205.05198, section 4.1)",
)
def saved_bytes(*, per_microbatch: Numeric, microbatches: Numeric) -> Numeric:
    """Bytes kept per micro-batch × micro-batches in flight."""
    return per_microbatch * microbatches


@formula(
    unit="byte", source="DeepSpeed PipelineEngine: pipe_buffers['outputs'] live until the stage's backward"
)
def stage_output_bytes(*, message_bytes: Numeric, microbatches: Numeric, pp: Numeric) -> Numeric:
    """Message × micro-batches in flight, of one chunk, where there are several stages."""
    return message_bytes * microbatches * smaller(pp - 1.0, 1.0)


@formula(unit="1", source="definition")
def any_of(*, count: Numeric) -> Numeric:
    """1 where there is at least one, else 0."""
    return smaller(count, 1.0)


@formula(unit="byte", source="what fits among freed blocks needs no new ones")
def smallest(*, first: Numeric, second: Numeric) -> Numeric:
    """Smaller of two working sets."""
    return smaller(first, second)


@formula(unit="byte", source="one block is replayed, or one head runs, at a time")
def largest(*, first: Numeric, second: Numeric) -> Numeric:
    """Larger of two working sets that never exist together."""
    return larger(first, second)
