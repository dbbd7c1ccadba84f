"""Where the seconds of a projection come from: measured, interpolated, fitted or reasoned."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import get_args

from forescale.cost.measured import MeasuredMessages
from forescale.cost.model import ProvenanceKind
from forescale.graph.parts import Parts
from forescale.graph.stages import StagePlan
from forescale.time.price import PricedBlock, Pricing

EXPERT_AXES = ("ep", "etp", "expert_dp")
SHOWN = 6
"""Operators that a note names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSources:
    """Shares of the seconds of all kernels and messages of one micro-batch, before anything overlaps."""

    shares: dict[str, float]
    """By kind of provenance; they sum to 1."""
    kernel_shares: dict[str, float]
    """The same of kernels alone."""
    not_measured: tuple[str, ...]
    """Operators with kernels that were neither measured nor interpolated, the longest first."""


def time_sources(priced: Parts[PricedBlock], plan: StagePlan, *, num_mtp: int) -> TimeSources:
    """Return where the seconds of one layout come from; every block counts as often as the model has it."""
    kernels: dict[str, float] = dict.fromkeys(get_args(ProvenanceKind), 0.0)
    messages = dict(kernels)
    missing: dict[str, float] = defaultdict(float)
    times = [*plan.counts.sum(axis=0).tolist(), 1.0, 1.0, float(num_mtp)]
    for block, count in zip(priced.all(), times, strict=False):
        for own in block.origins:
            spent = count * float(own.seconds)
            if own.message:
                messages[own.kind] += spent
                continue
            kernels[own.kind] += spent
            if own.kind not in ("measured", "interpolated"):
                missing[own.operator] += spent
    return TimeSources(
        shares=_shares({kind: kernels[kind] + messages[kind] for kind in kernels}),
        kernel_shares=_shares(kernels),
        not_measured=tuple(sorted(missing, key=lambda name: -missing[name])),
    )


def coverage(sources: TimeSources, source: str, fallback: str) -> str:
    """Return the sentence that says how much of the kernels' time was measured, and what was not."""
    shares = sources.kernel_shares
    said = (
        f"{shares['measured']:.0%} of kernel time was measured ({source}), {shares['interpolated']:.0%} lies "
        "between measured shapes"
    )
    if not sources.not_measured:
        return said
    names = ", ".join(sources.not_measured[:SHOWN])
    more = len(sources.not_measured) - SHOWN
    return f"{said}; by the {fallback} model: {names}{f' and {more} more' if more > 0 else ''}"


def message_coverage(priced: Parts[PricedBlock], pricing: Pricing, *, experts: bool) -> str:
    """Return the sentence that says which messages of a layout may be looked up; all others are not timed."""
    model = pricing.collectives
    if not isinstance(model, MeasuredMessages):
        return "the timed collectives are all-to-alls, and this dispatcher sends no such messages"
    sent = (op for block in priced.all() for own in block.operators.values() for op, _ in own.primitives)
    found = [
        f"{kind} over {axis}"
        for axis, kind in pricing.communicators(sent)
        if (experts or axis not in EXPERT_AXES) and model.covers(kind=kind, group=pricing.groups[axis])
    ]
    return (
        f"{model.source} timed {model.timed}; within these sizes looked up: "
        f"{', '.join(found) or 'nothing of this layout'}; all other messages by the model of links"
    )


def _shares(seconds: dict[str, float]) -> dict[str, float]:
    whole = sum(seconds.values())
    return {kind: value / whole if whole else 0.0 for kind, value in seconds.items()}
