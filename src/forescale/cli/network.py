"""`forescale network`: what the collectives of a cluster take, by size and ranks."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from forescale.cli.console import show
from forescale.cli.declare import Bounded, option
from forescale.cli.formats import answer_of
from forescale.cli.options import COST, ClusterOptions, complete_presets
from forescale.cli.output import PageOptions
from forescale.errors import SpecError, UnknownNameError, conflicts, missing, out_of_range, wrong_type
from forescale.files import place_of
from forescale.graph.ops import CollectiveKind
from forescale.limits import AMOUNT, DEVICES, whole_of, within
from forescale.spec.cluster import Cluster
from forescale.struct import asdict

if TYPE_CHECKING:
    from forescale.cost.network import NetworkPrices

T = TypeVar("T")
PANEL = "Collectives"
WHERE = "the command line"
MOST = 64
"""Values of a list."""
OTHERS = ("gather", "scatter", "barrier")
"""Collectives that no layout sends."""
NODES = 16
"""Of a cluster whose size nothing says."""


def network_command(
    *,
    cluster: ClusterOptions,
    collectives: str | None = option(
        f"Which ones: {', '.join((*get_args(CollectiveKind), *OTHERS))}; the usual five by default.",
        "A,B",
        panel=PANEL,
    ),
    ranks: str | None = option(
        "Ranks of each group; by default those of a node and those of the cluster.", "N,N", panel=PANEL
    ),
    sizes: str | None = option(
        "Sizes, such as 1MiB,64MiB; by default 4 KiB to 4 GiB.", "SIZE,SIZE", panel=PANEL
    ),
    stride: int = option(
        "Devices from one rank of a group to the next, such as 8: one rank a node.",
        "N",
        default=1,
        check=Bounded(DEVICES),
        panel=PANEL,
    ),
    calibration: Path | None = option("Your own fits, as `calibrate` wrote them.", "FILE.json", panel=COST),
    preset: str | None = option(
        "Published analysis whose formula stands next to each time.",
        "NAME",
        complete=complete_presets,
        panel=PANEL,
    ),
    measurements: list[Path] | None = option("Timed collectives to look up. Repeatable.", "FILE", panel=COST),
    output: PageOptions,
) -> None:
    """Price every collective of a cluster by size and ranks: time, bus bandwidth, algorithm."""
    from forescale.cli.render.network import network_view
    from forescale.cost.network import KINDS, SIZES, price_network
    from forescale.io.measurements import read_costs
    from forescale.io.named import cluster_notes

    counts = _listed("--ranks", ranks, _count)
    selected = _cluster(cluster, counts, stride)
    files = {"calibration": calibration, "measurements": measurements}
    cost = {
        name: [str(place_of(item)) for item in file] if isinstance(file, list) else str(place_of(file))
        for name, file in files.items()
        if file is not None
    }
    network = price_network(
        selected,
        ranks=counts,
        sizes=_listed("--sizes", sizes, _size) or SIZES,
        kinds=_listed("--collectives", collectives, _kind) or KINDS,
        stride=stride,
        costs=read_costs(cost, selected, where=WHERE, folder=None),
    )
    if preset is not None:
        network = _with_published(network, preset)
    notes = cluster_notes(cluster.cluster, WHERE)
    more = {"notes": [asdict(note) for note in notes]} if notes else {}
    show(answer_of(network, partial(network_view, notes=notes), more=more), output)


def _with_published(network: NetworkPrices, preset: str) -> NetworkPrices:
    """Return the prices with what the formula of a published analysis gives."""
    from msgspec.structs import replace

    from forescale.cost.network import PRICED_AS
    from forescale.presets import capable

    account = capable(preset, "collective")
    prices = tuple(
        replace(
            price,
            published_s=None
            if PRICED_AS[price.kind] != price.kind
            else account.collective(
                network.cluster,
                kind=PRICED_AS[price.kind],
                num_bytes=price.num_bytes,
                num_ranks=price.num_ranks,
                near=network.shared[price.num_ranks][0],
            ),
        )
        for price in network.prices
    )
    return replace(network, prices=prices, preset=preset)


def _cluster(cluster_options: ClusterOptions, counts: list[int], stride: int) -> Cluster:
    """Return the cluster, on as many whole nodes as the groups need where nothing says its size."""
    from msgspec.structs import replace

    from forescale.io.named import cluster_given, devices_told

    if cluster_options.cluster is None:
        raise missing("--cluster", "give a name of `forescale catalogue clusters` or a file")
    if cluster_options.devices is not None and cluster_options.nodes is not None:
        raise conflicts(["--devices", "--nodes"])
    config = cluster_options.hardware_config
    result = cluster_given(cluster_options.cluster, WHERE, config=None if config is None else str(config))
    devices_per_node = result.devices_per_node
    requested = -(-max(counts) * stride // devices_per_node) if counts else NODES
    nodes = requested if cluster_options.nodes is None else cluster_options.nodes
    explicit = devices_told({"cluster": cluster_options.cluster, "nodes": cluster_options.nodes})
    num_devices = nodes * devices_per_node if explicit is None else result.num_devices
    devices = num_devices if cluster_options.devices is None else cluster_options.devices
    return replace(result, num_devices=within(devices, DEVICES, "the number of devices", whole=True))


def _listed(name: str, text: str | None, read: Callable[[str, str], T]) -> list[T]:
    parts = [] if text is None else [part.strip() for part in text.split(",") if part.strip()]
    if text is not None and not 0 < len(parts) <= MOST:
        raise out_of_range(name, text, f"1 to {MOST} values with commas between")
    return [read(name, part) for part in parts]


def _count(name: str, text: str) -> int:
    count = whole_of(text)
    if count is None:
        raise wrong_type(name, text, "whole numbers such as 8,64")
    return int(within(count, DEVICES, name, whole=True))


def _size(name: str, text: str) -> float:
    from forescale.units import parse

    binary = f"{text.strip()}iB" if re.fullmatch(r"\s*\d+[KMG]\s*", text, re.ASCII) else text  # as nccl-tests
    try:
        return float(within(parse(binary, "byte"), AMOUNT, "a size"))
    except SpecError as error:
        raise error.at(name) from error


def _kind(name: str, text: str) -> Any:  # noqa: ANN401 (a NetworkKind)
    from forescale.cost.timings import kind_of

    kind, known = kind_of(text.replace("-", "_")) or text, (*get_args(CollectiveKind), *OTHERS)
    if kind not in known:
        raise UnknownNameError(f"collective in {name}", text, known)
    return kind
