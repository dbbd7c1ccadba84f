"""Prices of collectives as tables, one per group, and which algorithm is taken from which size on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from forescale.cost.network import CollectivePrice, NetworkPrices
from forescale.question import Note
from forescale.report.document import Section, Table, View, table
from forescale.spec.cluster import Tier
from forescale.units import GB, format_seconds

UNITS = (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10), ("B", 1.0))


def network_view(network_prices: NetworkPrices, *, notes: Sequence[Note] = ()) -> View:
    """Return for every group its times and bus bandwidths, and how they come about."""
    cluster = network_prices.cluster
    return View(
        title=cluster.name,
        lead=f"{cluster.num_devices:,} devices · time and bus bandwidth in GB/s",
        contents=tuple(
            _group(network_prices, ranks, shares) for ranks, shares in network_prices.shared.items()
        ),
        notes=tuple(notes),
    )


def _group(network_prices: NetworkPrices, ranks: int, shares: Sequence[float]) -> Section:
    tiers = ", ".join(
        f"{share:.4g} a {tier.name}{_used(network_prices, ranks, tier)}"
        for tier, share in zip(network_prices.cluster.tiers[:-1], shares, strict=False)
    )
    title = f"{ranks:,} ranks" + (f", {tiers}" if tiers else "")
    return Section(title, (_table(network_prices, ranks),), 2)


def _used(network_prices: NetworkPrices, ranks: int, tier: Tier) -> str:
    """Return how many devices of a tier are used, where some are idle so that groups lie within it."""
    used = network_prices.used(ranks, tier)
    return "" if used == (tier.size or used) else f" ({used} of {tier.size} devices used)"


def size_word(num_bytes: float) -> str:
    """Return a size in the largest unit that it reaches."""
    name, scale = next((item for item in UNITS if num_bytes >= item[1]), UNITS[-1])
    return f"{num_bytes / scale:.4g} {name}"


def _table(network_prices: NetworkPrices, ranks: int) -> Table:
    kinds = list(dict.fromkeys(price.kind for price in network_prices.prices))
    rows = (
        [
            size_word(same[0].num_bytes),
            *(cell for item in same for cell in _cells(item, network_prices.preset)),
        ]
        for same in zip(*(network_prices.of(kind, ranks) for kind in kinds), strict=True)
    )
    return table(
        "size",
        *(heading for kind in kinds for heading in (kind, "GB/s", *network_prices.preset.split())),
        rows=rows,
        gap=1,
        caption="\n".join(_ways(network_prices, ranks)),
    )


def _cells(price: CollectivePrice, preset: str) -> list[str]:
    published = "–" if price.published_s is None else format_seconds(price.published_s)
    return [
        format_seconds(price.seconds),
        f"{price.bus_bandwidth / GB:.3g}" if price.bus_bandwidth else "–",
        *([published] if preset else []),
    ]


def _ways(network_prices: NetworkPrices, ranks: int) -> list[str]:
    """Return a line per list of algorithms, with the collectives that take it."""
    kinds = dict.fromkeys(price.kind for price in network_prices.prices)
    lines: dict[str, list[str]] = {}
    for kind in kinds:
        lines.setdefault(_by_size(network_prices.of(kind, ranks)), []).append(kind)
    return [f"{', '.join(names)}: {text}" for text, names in lines.items() if [text] != names]


def _by_size(prices: list[CollectivePrice]) -> str:
    runs = [(way, [*item]) for way, item in groupby(prices, key=lambda price: price.way)]
    first = runs[0][0]
    return ", ".join([first, *(f"{way} from {size_word(item[0].num_bytes)}" for way, item in runs[1:])])
