"""Ring: n - 1 steps per pass, each rank forwards what it received; bandwidth-optimal."""

from __future__ import annotations

from dataclasses import dataclass

from forescale.cost.collectives.algorithm import passes
from forescale.cost.collectives.route import Route
from forescale.formula import formula
from forescale.graph.ops import CollectiveKind
from forescale.numeric import Numeric


@formula(
    unit="s", source="Thakur, Rabenseifner and Gropp 2005, section 4; Subramanian et al. 2024, section 3"
)
def ring_seconds(
    *, num_bytes: Numeric, num_ranks: Numeric, passes: Numeric, launch: Numeric, latency: Numeric,
    seconds_per_byte: Numeric, pipeline_bytes: Numeric,
) -> Numeric:  # fmt: skip
    """Launch + passes·((n - 1)/n·V·beta + latency / (1 + (V/n) / pipeline)).

    `latency` is the sum over the hops of one pass. A rank that forwards a long part in slices sends the first
    before the last arrives, so hops hide behind bandwidth as the part V/n outgrows the pipeline.
    """
    part = num_bytes / num_ranks
    hidden = 1.0 + part / pipeline_bytes if pipeline_bytes else 1.0
    return launch + passes * ((num_ranks - 1.0) * part * seconds_per_byte + latency / hidden)


@formula(
    unit="s", source="Chan et al. 2007, Collective communication: theory, practice, and experience, section 5"
)
def chain_seconds(
    *, num_bytes: Numeric, launch: Numeric, latency: Numeric, seconds_per_byte: Numeric
) -> Numeric:
    """Launch + latency + V·beta: a message piped through a chain of all ranks."""
    return launch + latency + num_bytes * seconds_per_byte


def ring_latency(route: Route, protocol: int) -> Numeric:
    """Seconds of the hops of one pass: n/inner - n/shared of them cross each tier, n - 1 in all."""
    latency: Numeric = 0.0
    for leg in route.legs:
        hops = route.num_ranks / leg.inner - route.num_ranks / leg.shared
        latency = latency + hops * leg.hop_latency(protocol)
    return latency


@dataclass(frozen=True, slots=True)
class Ring:
    """One ring over all ranks, as many in parallel as a node has links outwards."""

    name: str = "ring"
    kinds: frozenset[CollectiveKind] = frozenset(
        ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
    )

    def seconds(self, *, kind: CollectiveKind, num_bytes: Numeric, route: Route, protocol: int) -> Numeric:
        """Return ring time with one wire protocol."""
        latency = ring_latency(route, protocol)
        launch, beta = route.launch(protocol), route.seconds_per_byte(protocol)
        if kind in ("broadcast", "reduce"):
            return chain_seconds(num_bytes=num_bytes, launch=launch, latency=latency, seconds_per_byte=beta)
        return ring_seconds(
            num_bytes=num_bytes, num_ranks=route.num_ranks, passes=passes(kind), launch=launch,
            latency=latency, seconds_per_byte=beta, pipeline_bytes=max(leg.link.pipeline_bytes for leg in route.legs),
        )  # fmt: skip
