"""The default model: latency and bandwidth per tier, the best algorithm and wire protocol of the library."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, reduce
from typing import Any, cast

from msgspec.structs import replace

from forescale.arrays import np
from forescale.cost.collectives.algorithms import ALGORITHM_NAMES, ALGORITHMS, Algorithm, Chunks, Line
from forescale.cost.collectives.calibration import LinkCalibration, NetworkCalibration, calibrate
from forescale.cost.collectives.route import Route, route
from forescale.cost.collectives.tuner import BELIEVED, believed_seconds, picked
from forescale.cost.mesh import Group, GroupKey
from forescale.cost.model import Prices, Provenance
from forescale.errors import UnknownNameError
from forescale.formula import Term, formula, value_of
from forescale.graph.ops import CollectiveKind
from forescale.numeric import (
    Integers,
    Numeric,
    all_true,
    indicator,
    mapped,
    maximum,
    minimum,
    numbers,
    taking,
)
from forescale.spec.cluster import Cluster
from forescale.struct import Struct


@formula(unit="s", source="Hockney 1994, The communication challenge for MPP: latency and bandwidth")
def message_seconds(*, num_bytes: Numeric, fixed: Numeric, seconds_per_byte: Numeric) -> Numeric:
    """V·beta, and what a message of no length takes."""
    return fixed + num_bytes * seconds_per_byte


@formula(
    unit="s",
    source="NCCL, src/device/all_gather.h, src/include/collectives.h: a rank forwards a slice, half of a chunk, while "
    "it receives the next; a step of a ring takes max(chunk, hop + slice)",
)
def beyond_transfer(*, latency: Numeric, transfer: Numeric, share: float) -> Numeric:
    """Latency²/(latency + share·transfer): hops vary, so what is as long as their mean hides half of them."""
    return latency * latency / maximum(latency + share * transfer, 1e-30)


@formula(
    unit="s", source="NCCL, src/device/broadcast.h: a chunk is a step, or what a ring has of a short message"
)
def until_forwarded(*, steps: Numeric, whole: Numeric) -> Numeric:
    """min(steps, whole): hops wait for a step, or for all of a message that is shorter."""
    return minimum(steps, whole)


@formula(
    unit="s",
    source="NCCL, src/device/sendrecv.h: what a channel receives is copied out chunk by chunk, each once it is whole",
)
def copied_out(*, num_bytes: Numeric, chunk: Numeric, seconds_per_byte: Numeric) -> Numeric:
    """min(V, chunk)·beta: later chunks are sent meanwhile."""
    return minimum(num_bytes, chunk) * seconds_per_byte


@formula(unit="s", source="NCCL, src/enqueue.cc: a part of up to 16 KiB for a peer goes with flags (LL)")
def started_early(*, num_bytes: Numeric, short: Numeric, saved: Numeric) -> Numeric:
    """Return the seconds that a message saves which goes with flags."""
    return indicator(num_bytes <= short) * saved


@formula(
    unit="s",
    source="NVIDIA, nccl-tests issue 149: at 512 MB the bandwidth of rings still rises; form and size fitted",
)
def running_in(*, transfer: Numeric, share: Numeric, half: float) -> Numeric:
    """share·t/(1 + t/half): what a transfer loses until its channels run at full rate, share·half at most."""
    return share * transfer / (1.0 + transfer / half)


@formula(unit="s", source="NCCL: its tuner estimates every algorithm and protocol and takes the fastest")
def fastest(**seconds: Numeric) -> Numeric:
    """Least of all ways that the library has."""
    return reduce(minimum, seconds.values())


@formula(unit="s", source="definition: a group of one rank and an empty message need no communication")
def collective_seconds(*, seconds: Numeric, num_bytes: Numeric, num_ranks: Numeric) -> Numeric:
    """Seconds where n > 1 and V > 0, else 0."""
    return indicator(num_ranks > 1.0) * indicator(num_bytes > 0.0) * seconds


@formula(
    unit="s/byte",
    source="NCCL, src/device/all_gather.h, reduce_scatter.h, all_reduce.h: an all-gather out of place copies a rank's "
    "own part, a sum only writes it; both do so while the network sends",
)
def with_own_copy(
    *, seconds_per_byte: Numeric, num_ranks: Numeric, copy_bandwidth: Numeric, shown: Numeric
) -> Numeric:
    """Beta + shown/(n·copy)."""
    return seconds_per_byte + shown / (num_ranks * copy_bandwidth)


class Lines(Struct, frozen=True, kw_only=True):
    """All ways to do one kind of collective in one group; none where it has one rank."""

    num_ranks: Numeric
    lines: tuple[Line, ...]

    def take(self, rows: Integers) -> Lines:
        """Return those of some candidates."""
        return mapped(self, taking(rows))

    def __call__(self, num_bytes: Numeric) -> Numeric:
        """Return the seconds of a message: the fastest way."""
        if not self.lines:
            return 0.0 * self.num_ranks * num_bytes
        choices = self._choices(num_bytes)
        believed = self._believed(choices, num_bytes)
        if believed is None:
            least = _named_after_winner(fastest(**choices), choices, choices)
        else:
            taken = picked(**choices, **{label + BELIEVED: value for label, value in believed.items()})
            least = _named_after_winner(taken, choices, believed)
        return collective_seconds(seconds=least, num_bytes=num_bytes, num_ranks=self.num_ranks)

    def way(self, num_bytes: float) -> str:
        """Return the algorithm and wire protocol that is fastest for a message, of one group."""
        choices = self._choices(num_bytes)
        return _winner(self._believed(choices, num_bytes) or choices)

    def _believed(self, choices: Mapping[str, Numeric], num_bytes: Numeric) -> dict[str, Numeric] | None:
        """Return what the library's tuner believes of each way; None where it takes the fastest."""
        if all(line.guess is None for line in self.lines):
            return None
        return {line.label: _guessed(line, num_bytes, choices[line.label]) for line in self.lines}

    def _choices(self, num_bytes: Numeric) -> dict[str, Numeric]:
        return {line.label: _seconds(line, num_bytes) for line in self.lines}


def _seconds(line: Line, num_bytes: Numeric) -> Numeric:
    seconds = message_seconds(num_bytes=num_bytes, fixed=line.fixed, seconds_per_byte=line.seconds_per_byte)
    if (first := line.chunks) is not None:
        out = copied_out(num_bytes=num_bytes, chunk=first.num_bytes, seconds_per_byte=first.seconds_per_byte)
        return seconds + out - started_early(num_bytes=num_bytes, short=first.short, saved=first.saved)
    if line.held is not None:
        whole = num_bytes * line.held.seconds_per_byte
        return seconds + until_forwarded(steps=line.held.steps, whole=whole)
    if line.ramp is None and not line.hiding:
        return seconds
    transfer = num_bytes * line.seconds_per_byte
    if line.ramp is not None:
        seconds = seconds + running_in(transfer=transfer, share=line.ramp.share, half=line.ramp.half)
    if not line.hiding:
        return seconds
    return seconds + beyond_transfer(latency=line.latency, transfer=transfer, share=line.hiding)


def _guessed(line: Line, num_bytes: Numeric, seconds: Numeric) -> Numeric:
    guess = line.guess
    if guess is None:
        return seconds
    return believed_seconds(
        num_bytes=num_bytes,
        latency=guess.latency,
        seconds_per_byte=guess.seconds_per_byte,
        within=guess.within,
        seconds=seconds,
    )


def _winner(choices: Mapping[str, Numeric]) -> str:
    return min(choices, key=lambda label: max(numbers(value_of(choices[label]))))


def _named_after_winner(least: Numeric, choices: Mapping[str, Numeric], by: Mapping[str, Numeric]) -> Numeric:
    """Let a recorded number of one candidate say which algorithm and wire protocol it is of."""
    term: Any = least
    if not isinstance(term, Term) or np.size(term.value) != 1:
        return least
    way = _winner(by)
    how = "the fastest" if _winner(choices) == way else "which the library picks"
    text = f"{way}, {how} of {len(choices)} ways" if len(choices) > 1 else way
    return cast("Numeric", term.renamed(term.name, text=text))


class AlphaBeta(Struct, frozen=True, kw_only=True, eq=False):
    """Alpha-beta over tiers: the fastest of the algorithms and protocols that the library offers.

    Of groups that are kept (`GroupKey`), the lines are worked out once, for all messages of all questions.
    """

    cluster: Cluster
    calibration: NetworkCalibration

    @classmethod
    def from_cluster(cls, cluster: Cluster, *, own: tuple[LinkCalibration, ...] = ()) -> AlphaBeta:
        """Return the model of `cluster` with calibrations of one's `own`, else those of the catalogue.

        Raises
        ------
        UnknownNameError
            If a tier's own parameters name an algorithm that there is not.
        """
        return _of(cluster, own)

    def seconds(self, *, kind: CollectiveKind, num_bytes: Numeric, group: Group) -> Numeric:
        """Return the seconds of one collective of `group`."""
        return self.within(group)(kind)(num_bytes)

    def within(self, group: Group) -> Prices:
        """Return the prices of `group`, laid over the tiers once."""
        num_ranks = group.num_ranks
        if not isinstance(num_ranks, Term) and all_true(num_ranks <= 1.0):
            return lambda _: Lines(num_ranks=num_ranks, lines=())
        if (key := GroupKey.kept(group)) is not None:
            known = _known_lines if key.is_number else _known_arrays
            return lambda kind: known(self, kind, key)
        route = self.route(group)
        return lambda kind: self.lines(kind=kind, route=route)

    def route(self, group: Group) -> Route:
        """Return `group` laid over the tiers; worth keeping for several collectives of the group."""
        return route(group, self.cluster, self.calibration)

    def lines(self, *, kind: CollectiveKind, route: Route) -> Lines:
        """Return the ways to do `kind` along `route`; worth keeping for several messages."""
        lines = [line for way in self._ways(kind) for line in way.lines(kind=kind, route=route)]
        if (copy := self._copy_bandwidth(kind)) is not None:
            pairs = kind == "all_to_all"
            shown, rate = (1.0, copy) if pairs else (route.within_a_node, copy * route.legs[0].used)
            lines = [_with_copy(line, route, rate, shown) for line in lines]
        if kind in PAIRS and (first := self.calibration.links[0]).exchange_chunk:
            chunks = _chunks(first, route, PAIRS[kind])
            lines = [replace(line, chunks=chunks) for line in lines]
        return Lines(num_ranks=route.num_ranks, lines=tuple(lines))

    def provenance(self, *, kind: CollectiveKind) -> Provenance:
        """Return the sources of all tiers, and the widest of their intervals."""
        fits = [link.fit for link in self.calibration.links]
        sources = dict.fromkeys(fit.source for fit in fits)
        fitted = all(fit.kind == "fitted" for fit in fits)
        return Provenance(
            kind="fitted" if fitted else "roofline",
            source=f"{kind}: {'; '.join(sources)}",
            low=min(fit.low for fit in fits),
            high=max(fit.high for fit in fits),
        )

    def _ways(self, kind: CollectiveKind) -> tuple[Algorithm, ...]:
        offered = {name for link in self.calibration.links for name in link.algorithms}
        return tuple(way for way in ALGORITHMS if way.name in offered and kind in way.kinds)

    def _copy_bandwidth(self, kind: CollectiveKind) -> float | None:
        first = self.calibration.links[0]
        if kind == "all_to_all":
            return first.exchange_copy_bandwidth
        if kind == "all_gather":
            return first.copy_bandwidth
        return first.sum_bandwidth if kind in ("reduce_scatter", "all_reduce") else None


@lru_cache(maxsize=256)
def _of(cluster: Cluster, link_calibrations: tuple[LinkCalibration, ...]) -> AlphaBeta:
    for tier in cluster.tiers:
        for name in (tier.parameters and tier.parameters.algorithms) or ():
            if name not in ALGORITHM_NAMES:
                kind = "collective algorithm"
                raise UnknownNameError(kind, name, ALGORITHM_NAMES)
    return AlphaBeta(cluster=cluster, calibration=calibrate(cluster, own=link_calibrations))


@lru_cache(maxsize=4096)
def _known_lines(model: AlphaBeta, kind: CollectiveKind, key: GroupKey) -> Lines:
    return model.lines(kind=kind, route=known_route(model, key))


_known_arrays = lru_cache(maxsize=64)(_known_lines.__wrapped__)


@lru_cache(maxsize=1024)
def known_route(model: AlphaBeta, key: GroupKey) -> Route:
    """Return the route of a group that is kept."""
    return model.route(key.group)


PAIRS: Mapping[CollectiveKind, bool] = {"all_to_all": True, "p2p": False}
"""What is sent between pairs, and whether each rank sends a part to all, itself included."""


def _chunks(link: LinkCalibration, route: Route, parts: bool) -> Chunks:
    inside, ranks = route.within_a_node, route.num_ranks if parts else 1.0
    leaving = 1.0 - 1.0 / ranks if parts else 1.0
    return Chunks(
        num_bytes=link.exchange_chunk,
        seconds_per_byte=inside * leaving / link.exchange_out_bandwidth,
        short=link.exchange_short * ranks,
        saved=inside * max(0.0, link.exchange_launch - link.exchange_short_launch),
    )


def _with_copy(line: Line, route: Route, copy_bandwidth: Numeric, shown: Numeric) -> Line:
    """Return the line with copies, by channels as many as the links in use; across nodes the network hides them."""
    beta = with_own_copy(
        seconds_per_byte=line.seconds_per_byte,
        num_ranks=route.num_ranks,
        copy_bandwidth=copy_bandwidth,
        shown=shown,
    )
    return replace(line, seconds_per_byte=beta)
