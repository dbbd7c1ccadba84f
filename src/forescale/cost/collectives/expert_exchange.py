"""Expert dispatch and combine that send a token to each block only once (DeepEP, node-limited routing)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, cast

from msgspec.structs import replace

from forescale.cost.collectives.algorithms import Line, fixed_seconds
from forescale.cost.collectives.alpha_beta import AlphaBeta, Lines, known_route
from forescale.cost.collectives.route import Leg, Route
from forescale.cost.mesh import Group, GroupKey
from forescale.cost.model import Priced, Prices, Provenance
from forescale.files import packaged
from forescale.formula import formula
from forescale.graph.ops import CollectiveKind
from forescale.numeric import Numeric, maximum, minimum
from forescale.struct import Struct

PROBABILITY_BYTES = 4.0
"""Bytes of a probability, which is in fp32."""
_DEEPSEEK = "DeepSeek-AI 2024, DeepSeek-V3 technical report, arXiv:2412.19437"


@formula(unit="1", source=f"{_DEEPSEEK}, section 3.2.2: a token crosses to a node once, then spreads inside")
def distinct_blocks(*, num_blocks: Numeric, top_k: int, limit: Numeric) -> Numeric:
    """m·(1 - (1 - 1/m)^k), m = min(blocks, limit): blocks that k evenly chosen experts fall into."""
    eligible = minimum(num_blocks, limit)
    missed: Numeric = 1.0
    for _ in range(top_k):
        missed = missed * (1.0 - 1.0 / eligible)
    return eligible * (1.0 - missed)


@formula(unit="1", source=f"{_DEEPSEEK}, section 2.1.2, node-limited routing: at most M nodes per token")
def reachable_blocks(*, num_blocks: Numeric, num_groups: float, top_groups: float) -> Numeric:
    """top_groups·max(1, blocks / groups): a group may span several blocks, and a block hold several groups."""
    return top_groups * maximum(num_blocks / num_groups, 1.0)


@formula(unit="s/byte", source=f"{_DEEPSEEK}, section 3.2.2")
def spread_seconds_per_byte(*, copies: Numeric, fan: Numeric, top_k: Numeric, bandwidth: Numeric) -> Numeric:
    """copies/k·(1 - 1/fan)/b: of a token's k copies some are sent, all but 1/fan of them away."""
    return copies / top_k * (1.0 - 1.0 / fan) / bandwidth


@formula(
    unit="1",
    source="HybridEP, hybrid_ep_backend.cuh: rows of FORWARD_DISPATCH and BACKWARD_COMBINE take along a probability in "
    "fp32 for every expert of the NVLink domain they go to, those of the two other messages none",
)
def probability_share(
    *, num_experts: float, row_bytes: float, domain: Numeric, num_ranks: Numeric
) -> Numeric:
    """4·experts·domain/ranks/row bytes/2: bytes of probabilities over those of rows, on average of both messages."""
    return PROBABILITY_BYTES * num_experts * domain / num_ranks / row_bytes / 2.0


@formula(unit="s/byte", source="definition")
def with_probabilities(*, seconds_per_byte: Numeric, share: Numeric) -> Numeric:
    """Seconds per byte of rows · (1 + share)."""
    return seconds_per_byte * (1.0 + share)


@formula(
    unit="s/byte",
    source="DeepEP, csrc/kernels: a few SMs copy every row that is sent, device by device and node by node",
)
def copied_seconds_per_byte(*, copies: Numeric, top_k: Numeric, rate: float) -> Numeric:
    """copies/k/rate: of a token's k copies those that are sent, at what the kernel's SMs copy."""
    return copies / top_k / rate


@formula(
    unit="s/byte",
    source="HybridEP, extension/allgather.cu: ranks write their parts of the routing map into the memory of all others",
)
def written_seconds_per_byte(
    *, reach: Numeric, inner: Numeric, num_ranks: Numeric, bandwidth: Numeric
) -> Numeric:
    """(reach − inner)/ranks/b: the part of the whole map that comes over a tier."""
    return (reach - inner) / num_ranks / bandwidth


def copy_rate(dispatcher: str, vendor: str) -> float:
    """Return the byte/s that the kernels of a dispatcher copy on a vendor's devices; 0 is no limit that is known."""
    known = _published(dispatcher, vendor)
    return float(known.get("num_sms", 0.0) * known.get("sm_bandwidth", 0.0))


def link_shares(dispatcher: str, vendor: str) -> tuple[tuple[str, float], ...]:
    """Return the share of links, by the name of their calibration, that a dispatcher's kernels reach themselves."""
    return tuple(_published(dispatcher, vendor).get("link_shares", {}).items())


def _published(dispatcher: str, vendor: str) -> Mapping[str, Any]:
    known: Mapping[str, Any] = packaged("calibrations/time/dispatchers").get(dispatcher, {})
    return known if known.get("vendor") == vendor else {}


class ExpertExchange(Struct, frozen=True, kw_only=True):
    """All-to-all of tokens without duplicates; every other collective as in `base`."""

    base: AlphaBeta
    top_k: int
    """Experts per token; the buffer that is priced holds so many copies of each token."""
    num_groups: int = 0
    """Groups of experts, laid over the ranks in order; 0 has none."""
    top_groups: int = 0
    """Groups that a token's experts may lie in; 0 is all of them."""
    copy_rate: float = 0.0
    """byte/s that the kernel's SMs copy; 0 is no limit."""
    probabilities: tuple[float, float] | None = None
    """Experts, and bytes of a row, where rows take their probabilities along; None where they take none."""
    link_shares: tuple[tuple[str, float], ...] = ()
    """Share of links that the kernel reaches, by the name of their calibration; others as all-to-alls."""

    def seconds(self, *, kind: CollectiveKind, num_bytes: Numeric, group: Group) -> Numeric:
        """Return the seconds of one collective."""
        return self.within(group)(kind)(num_bytes)

    def within(self, group: Group) -> Prices:
        """Return the prices of `group`."""
        others, key = self.base.within(group), GroupKey.kept(group)

        def prices(kind: CollectiveKind) -> Priced:
            if kind == "all_to_all":
                return self.exchange(self.base.route(group)) if key is None else _known_exchange(self, key)
            if kind != "all_gather" or self.probabilities is None:
                return others(kind)
            known = cast("Lines", others(kind))
            ways = (*(replace(line, guess=None) for line in known.lines), self.gather(self.base.route(group)))
            return replace(known, lines=ways if known.lines else ())

        return prices

    def gather(self, route: Route) -> Line:
        """Return the price of the gather of the routing map where every rank writes its part to all others."""
        beta: Numeric = 0.0
        for leg in route.legs:
            share = written_seconds_per_byte(
                reach=leg.reach, inner=leg.inner, num_ranks=route.num_ranks, bandwidth=self._rate(leg)
            )
            beta = maximum(beta, share)
        fixed = fixed_seconds(launch=route.exchange_launch(), passes=1.0, latency=0.0)
        return Line(label="routing_map", fixed=fixed, seconds_per_byte=beta)

    def exchange(self, route: Route) -> Lines:
        """Return the price of dispatch and combine; tiers and the SMs that copy work at the same time."""
        beta: Numeric = 0.0
        sent: Numeric = 0.0
        for leg in route.legs:
            blocks = route.num_ranks / leg.inner
            copies = distinct_blocks(num_blocks=blocks, top_k=self.top_k, limit=self._limit(blocks))
            share = spread_seconds_per_byte(
                copies=copies, fan=leg.reach / leg.inner, top_k=self.top_k, bandwidth=self._rate(leg)
            )
            beta = maximum(beta, share)
            sent = sent + copies * minimum(leg.reach / leg.inner - 1.0, 1.0)
        if self.copy_rate:
            beta = maximum(beta, copied_seconds_per_byte(copies=sent, top_k=self.top_k, rate=self.copy_rate))
        if self.probabilities is not None and route.legs:
            experts, row = self.probabilities
            domain, ranks = route.legs[0].reach, route.num_ranks
            share = probability_share(num_experts=experts, row_bytes=row, domain=domain, num_ranks=ranks)
            beta = with_probabilities(seconds_per_byte=beta, share=share)
        fixed = fixed_seconds(launch=route.exchange_launch(), passes=1.0, latency=0.0)
        line = Line(label="expert_exchange", fixed=fixed, seconds_per_byte=beta)
        return Lines(num_ranks=route.num_ranks, lines=(line,))

    def provenance(self, *, kind: CollectiveKind) -> Provenance:
        """Return the sources of the link calibrations."""
        return self.base.provenance(kind=kind)

    def _rate(self, leg: Leg) -> Numeric:
        """Return the byte/s that the kernel reaches over a tier."""
        share = dict(self.link_shares).get(leg.link.name, leg.link.exchange_efficiency)
        return leg.exchange_bandwidth * share

    def _limit(self, num_blocks: Numeric) -> Numeric:
        """Return how many of the blocks a token's experts may lie in."""
        if not 0 < self.top_groups < self.num_groups:
            return num_blocks
        return reachable_blocks(
            num_blocks=num_blocks, num_groups=float(self.num_groups), top_groups=float(self.top_groups)
        )


@lru_cache(maxsize=1024)
def _known_exchange(model: ExpertExchange, key: GroupKey) -> Lines:
    return model.exchange(known_route(model.base, key))
