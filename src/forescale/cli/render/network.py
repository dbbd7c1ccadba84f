"""Prices of collectives as tables, one per group, and which algorithm is taken from which size on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import Group
from rich.table import Table
from rich.text import Text

from forescale.cli.render import words
from forescale.cli.render.words import table
from forescale.cost.network import CollectivePrice, NetworkPrices
from forescale.question import Note
from forescale.units import GB, format_seconds

UNITS = (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10), ("B", 1.0))


def network_view(network_prices: NetworkPrices, *, notes: Sequence[Note] = ()) -> Group:
    """Return for every group its times and bus bandwidths, and how they come about."""
    cluster = network_prices.cluster
    head = Text.assemble(
        (cluster.name, "bold"), f" · {cluster.num_devices:,} devices · time and bus bandwidth in GB/s"
    )
    parts: list[Text | Table] = [head]
    for ranks, shares in network_prices.shared.items():
        tiers = ", ".join(
            f"{share:.4g} a {tier.name}" for tier, share in zip(cluster.tiers[:-1], shares, strict=False)
        )
        parts += [
            Text(),
            Text(f"{ranks:,} ranks" + (f", {tiers}" if tiers else ""), style="bold"),
            _table(network_prices, ranks),
        ]
        parts += [Text(line, style="dim") for line in _ways(network_prices, ranks)]
    return Group(*parts, *([Text(), *words.notes(notes)] if notes else []))


def size_word(num_bytes: float) -> str:
    """Return a size in the largest unit that it reaches."""
    name, scale = next((item for item in UNITS if num_bytes >= item[1]), UNITS[-1])
    return f"{num_bytes / scale:.4g} {name}"


def _table(network_prices: NetworkPrices, ranks: int) -> Table:
    kinds = list(dict.fromkeys(price.kind for price in network_prices.prices))
    rows = table("size", *(heading for kind in kinds for heading in (kind, "GB/s")))
    for same in zip(*(network_prices.of(kind, ranks) for kind in kinds), strict=True):
        cells = (
            cell for item in same for cell in (format_seconds(item.seconds), f"{item.bus_bandwidth / GB:.3g}")
        )
        rows.add_row(size_word(same[0].num_bytes), *cells)
    return rows


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
