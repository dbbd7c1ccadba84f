"""What a library believes each way to do a collective to take within a node: it picks by that."""

from __future__ import annotations

from forescale.formula import formula
from forescale.numeric import Condition, Numeric, indicator, minimum, where
from forescale.struct import Struct

_TUNING = "NCCL 2.27.3, src/graph/tuning.cc"
BELIEVED = ", believed"
"""Ends the names of what is believed among the arguments of `picked`."""


class Guess(Struct, frozen=True, kw_only=True):
    """What a tuner takes one way to need: latency + bytes·seconds_per_byte where `within` is 1, else the truth."""

    latency: Numeric
    seconds_per_byte: Numeric
    within: Numeric


@formula(
    unit="byte/s", source=f"{_TUNING}: bandwidth of a ring's flags and data (LL, LL128) and of whole chunks"
)
def believed_bandwidth(*, links: Numeric, share: float, most: float) -> Numeric:
    """min(most, share·links)."""
    return minimum(share * links, most)


@formula(unit="s", source=f"{_TUNING}: baseLat, and hwLat of each step")
def believed_latency(*, launch: float, hop: float, steps: Numeric) -> Numeric:
    """Launch + steps·hop."""
    return launch + steps * hop


@formula(
    unit="byte/s",
    source="NCCL 2.27.3, src/graph/search.cc (ncclTopoSearchTryNvls): each rank heads a channel through the switch, up "
    "to 32, and takes two shares of its own",
)
def switch_bandwidth(*, links: Numeric, num_ranks: Numeric, most: float, **speeds: Numeric) -> Numeric:
    """c·v, c = min(n, most): v is the largest of the speeds of which the links hold c + 1; 0 where none fits."""
    channels = minimum(num_ranks, most)
    value: Numeric = 0.0
    for speed in speeds.values():  # ascending
        value = value + indicator((channels + 1.0) * speed <= links * (1.0 + 1e-9)) * (speed - value)
    return channels * value


@formula(unit="s", source=f"{_TUNING}, ncclTopoGetAlgoTime")
def believed_seconds(
    *, num_bytes: Numeric, latency: Numeric, seconds_per_byte: Numeric, within: Numeric, seconds: Numeric
) -> Numeric:
    """Latency + V·beta within a node; beyond, where this model knows no better, what it takes."""
    return where(_holds(within), latency + num_bytes * seconds_per_byte, seconds)


@formula(
    unit="s",
    source="NCCL 2.27.3, src/enqueue.cc: it takes the algorithm and protocol that its tuner expects first",
)
def picked(**numbers: Numeric) -> Numeric:
    """Seconds of the way of which least are believed."""
    ways = [name for name in numbers if not name.endswith(BELIEVED)]
    seconds, least = numbers[ways[0]], numbers[ways[0] + BELIEVED]
    for way in ways[1:]:
        believed = numbers[way + BELIEVED]
        seconds = where(believed < least, numbers[way], seconds)
        least = minimum(believed, least)
    return seconds


def _holds(within: Numeric) -> Condition:
    return within > 0.0
