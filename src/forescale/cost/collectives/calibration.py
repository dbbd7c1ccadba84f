"""Fitted parameters of network links and the libraries that drive them. Data files hold the values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from forescale.errors import ReaderError
from forescale.spec.cluster import Cluster, Tier

_FOLDER = ("calibrations", "network")


@dataclass(frozen=True, slots=True, kw_only=True)
class WireProtocol:
    """How messages are put on a link: flags with the data (LL, LL128) or separate (Simple)."""

    name: str
    launch: float
    """Seconds before the first byte moves, once per collective."""
    hop_latency: float
    """Seconds per hop as measured through the library; the tier's own latency is a lower bound."""
    efficiency: float
    """Share of the link's bandwidth that a long message reaches; at most 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCalibration:
    """What was measured of one kind of link."""

    name: str
    protocols: tuple[WireProtocol, ...]
    algorithms: tuple[str, ...]
    """Names of the algorithms that the library on this link has."""
    architectures: tuple[str, ...] = ()
    tiers: tuple[str, ...] = ()
    """Words in a tier's name that this calibration answers to; with `architectures` they say where it applies."""
    pipeline_bytes: float = 0.0
    """Ring messages much longer than this hide the latency of all hops but the first; 0: they never do."""
    member_half: float = 0.0
    """Ranks per inner block at which the pooled bandwidth of their links is half used: b·g / (g + member_half)."""
    tree_efficiency: float = 1.0
    """Bandwidth of the tree relative to the ring's."""
    tree_latency: float = 1.0
    """Latency of a level of the tree relative to a hop of the ring."""
    reduction_efficiency: float = 1.0
    """Share of the link's bandwidth that in-network reduction reaches (bytes of the tensor per second)."""
    reduction_latency: float = 0.0
    """Seconds that in-network reduction takes before the first byte."""
    exchange_efficiency: float = 1.0
    """Share of the link's bandwidth that point-to-point traffic (all-to-all, p2p) reaches."""
    exchange_launch: float = 0.0
    """Seconds before the first byte of point-to-point traffic."""
    peer_latency: float = 0.0
    """Seconds per peer of an all-to-all."""
    copy_bandwidth: float = float("inf")
    """byte/s at which the rank's own part is copied to the output buffer."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Source, date, rows and residuals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkCalibration:
    """One link calibration per tier of a cluster, innermost first."""

    links: tuple[LinkCalibration, ...]


@lru_cache(maxsize=1)
def link_calibrations() -> tuple[LinkCalibration, ...]:
    """Return all link calibrations of the catalogue, by file name."""
    folder = resources.files("forescale.catalogue").joinpath(*_FOLDER)
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".json")), key=lambda f: f.name)
    return tuple(_read(f) for f in files)


def calibrate(cluster: Cluster, links: tuple[LinkCalibration, ...] | None = None) -> NetworkCalibration:
    """Return the best fitting calibration for each tier of `cluster`.

    A calibration fits when the tier's name contains one of its words; naming the device's architecture is
    better than naming none, and a longer word is better than a shorter one. Else the generic ones apply: "scale-up"
    inside a node, "scale-out" beyond.
    """
    known = link_calibrations() if links is None else links
    return NetworkCalibration(links=tuple(_choose(cluster, tier, known) for tier in cluster.tiers))


def _choose(cluster: Cluster, tier: Tier, known: tuple[LinkCalibration, ...]) -> LinkCalibration:
    name, architecture = tier.name.casefold(), cluster.device.architecture.casefold()

    def score(link: LinkCalibration) -> tuple[int, int]:
        if link.architectures and architecture not in link.architectures:
            return (-1, 0)
        return (bool(link.architectures), max((len(word) for word in link.tiers if word in name), default=-1))

    named = [link for link in known if score(link)[0] >= 0 and score(link)[1] >= 0]
    if named:
        return max(named, key=score)
    inside = 0 < tier.size <= cluster.devices_per_node or (
        tier is cluster.tiers[0] and len(cluster.tiers) > 1
    )
    generic = "scale-up" if inside else "scale-out"
    return next(link for link in known if link.name == generic)


def _read(file: Traversable) -> LinkCalibration:
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
        protocols = tuple(WireProtocol(**item) for item in raw.pop("protocols"))
        lists = {key: tuple(raw.pop(key)) for key in ("algorithms", "architectures", "tiers") if key in raw}
        return LinkCalibration(protocols=protocols, **lists, **raw)
    except (KeyError, TypeError, ValueError) as error:
        raise ReaderError(file.name, f"not a network calibration ({error})") from error
