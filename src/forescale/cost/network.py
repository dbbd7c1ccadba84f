"""Collectives of a cluster priced by size and ranks, with the figures that nccl-tests print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

from forescale.cost.collectives.algorithms import bus_bytes, passes
from forescale.cost.collectives.alpha_beta import AlphaBeta
from forescale.cost.measured import MeasuredMessages
from forescale.cost.mesh import Group, ranks_per_tier
from forescale.cost.select import Costs
from forescale.errors import SpecError
from forescale.graph.ops import CollectiveKind
from forescale.results import Result
from forescale.spec.cluster import Cluster, Tier
from forescale.struct import Struct, attributes
from forescale.units import GB, KIB, MIB
from forescale.view.axes import value_axis
from forescale.view.lines import Dot, Line, LineChart

SCHEMA = "forescale.network/1"
KINDS: tuple[CollectiveKind, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")
"""What training sends most."""
SIZES = tuple(KIB * 4.0**power for power in range(1, 12))
"""4 KiB to 4 GiB."""
NetworkKind: TypeAlias = CollectiveKind | Literal["gather", "scatter", "barrier"]
PRICED_AS: Mapping[NetworkKind, CollectiveKind] = {
    **{kind: kind for kind in get_args(CollectiveKind)},
    "gather": "all_to_all",
    "scatter": "all_to_all",
    "barrier": "all_reduce",
}
"""NCCL's gather and scatter are messages between one rank and all others, whose links carry what they carry of an
exchange of all ranks; a barrier of torch.distributed is an all-reduce of one number."""
BARRIER_BYTES = 4.0
WHOLE: tuple[NetworkKind, ...] = ("broadcast", "reduce", "p2p", "barrier")
"""What moves the message itself over a link: its bus bandwidth is that of the algorithm."""


class CollectivePrice(Struct, frozen=True, kw_only=True):
    """One collective of one size in one group."""

    kind: NetworkKind
    num_ranks: int
    num_bytes: float
    """As in `graph.ops.Collective`, which is what nccl-tests call the size."""
    seconds: float
    way: str
    """The algorithm and wire protocol that is fastest, or "timed"."""
    published_s: float | None = None
    """Seconds by the formula of a published analysis, where one is asked and it has a formula."""

    @property
    def algorithm_bandwidth(self) -> float:
        """byte/s of the message; 0 for a barrier, which has none."""
        return 0.0 if self.kind == "barrier" else self.num_bytes / self.seconds

    @property
    def bus_bandwidth(self) -> float:
        """byte/s that each rank sends and receives, which compares with the links' own whatever the collective."""
        if self.kind in WHOLE:
            return self.algorithm_bandwidth
        ranks = float(self.num_ranks)
        sent = bus_bytes(num_bytes=self.num_bytes, num_ranks=ranks, passes=passes(PRICED_AS[self.kind]))
        return float(sent) / self.seconds


class NetworkPrices(Result, Struct, frozen=True, kw_only=True):
    """Prices by collective, ranks and size, in this order."""

    cluster: Cluster
    stride: int
    shared: dict[int, tuple[float, ...]]
    """By ranks: how many of a group share each tier, innermost first."""
    prices: tuple[CollectivePrice, ...]
    preset: str = ""
    """The published analysis whose formula stands next to each price; empty for none."""

    def to_json(self) -> dict[str, Any]:
        """Return the `forescale.network/1` document."""
        names = [tier.name for tier in self.cluster.tiers]
        return {
            "schema": SCHEMA,
            **attributes(self, "cluster=cluster.name", "num_devices=cluster.num_devices", "stride"),
            "groups": [
                {"num_ranks": ranks, "per_tier": dict(zip(names, shares, strict=True))}
                for ranks, shares in self.shared.items()
            ],
            **({"preset": self.preset} if self.preset else {}),
            "prices": self.rows(),
        }

    def used(self, ranks: int, tier: Tier) -> int:
        """Return the devices of a tier that whole groups of `ranks` use, such as 64 of a rack of 72."""
        span = ranks * self.stride
        size = tier.size or self.cluster.num_devices
        lies_within = size >= span and self.shared[ranks][self.cluster.tiers.index(tier)] == ranks
        return size // span * span if lies_within and size < self.cluster.num_devices else size

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per price."""
        names = ["kind", "num_ranks", "num_bytes", "seconds", "algorithm_bandwidth", "bus_bandwidth", "way"]
        names += ["published_s"] if self.preset else []
        return [attributes(price, *names) for price in self.prices]

    def pictures(self) -> list[LineChart]:
        """Return time and bus bandwidth over size of every collective, for each group."""
        names = ("time", "bus bandwidth") if any(price.bus_bandwidth for price in self.prices) else ("time",)
        return [self._chart(ranks, name) for ranks in self.shared for name in names]

    def _chart(self, ranks: int, name: str) -> LineChart:
        """Return the time [ms], or the bus bandwidth [GB/s], of all collectives of one group."""
        drawn: dict[tuple[Dot, ...], list[str]] = {}
        for kind in dict.fromkeys(price.kind for price in self.prices):
            dots = tuple(
                Dot(
                    x=item.num_bytes / MIB,
                    y=1e3 * item.seconds if name == "time" else item.bus_bandwidth / GB,
                    remark=item.way,
                )
                for item in self.of(kind, ranks)
                if name == "time" or item.bus_bandwidth
            )
            if dots:
                drawn.setdefault(dots, []).append(kind)
        lines = tuple(
            Line(name=", ".join(kinds), colour=place, dots=dots)
            for place, (dots, kinds) in enumerate(drawn.items())
        )
        every = [dot for line in lines for dot in line.dots]
        return LineChart(
            title=f"{name.capitalize()} among {ranks:,} ranks",
            note=f"{self.cluster.num_devices:,} × {self.cluster.name}, {self._apart}",
            x=value_axis("MiB", [dot.x for dot in every], log=True),
            y=value_axis("ms" if name == "time" else "GB/s", [dot.y for dot in every], log=True),
            lines=lines,
        )

    @property
    def _apart(self) -> str:
        return "ranks side by side" if self.stride == 1 else f"{self.stride} devices from rank to rank"

    def of(self, kind: NetworkKind, num_ranks: int) -> list[CollectivePrice]:
        """Return the prices of one collective in one group, by size."""
        return [price for price in self.prices if (price.kind, price.num_ranks) == (kind, num_ranks)]


def price_network(
    cluster: Cluster,
    *,
    ranks: Sequence[int] = (),
    sizes: Sequence[float] = SIZES,
    kinds: Sequence[NetworkKind] = KINDS,
    stride: int = 1,
    costs: Costs | None = None,
) -> NetworkPrices:
    """Return what collectives take in groups whose neighbours are `stride` devices apart.

    Parameters
    ----------
    ranks
        Ranks of each group; by default those of a node and those of the cluster.
    sizes
        Bytes: of the whole tensor for all-reduce, all-gather, reduce-scatter, gather and scatter, of a rank's send
        buffer for all-to-all, of the message for the others; a barrier takes the same time for all.

    Raises
    ------
    SpecError
        If a group has one rank, or more than the cluster has room for.
    """
    room = cluster.num_devices // stride
    counts = tuple(dict.fromkeys(ranks or (max(cluster.devices_per_node // stride, 2), room)))
    for count in counts:
        if not 2 <= count <= room:
            apart = f" that are {stride} devices apart" if stride > 1 else ""
            msg = (
                f"a group has 2 to {room:,} ranks{apart} on {cluster.num_devices:,} devices; "
                f"got {count:,}; give more --devices or fewer --ranks"
            )
            raise SpecError(msg)
    groups = {count: Group(size=float(count), stride=float(stride)) for count in counts}
    base = costs or Costs()
    model = base.collective_model(cluster)
    lines = AlphaBeta.from_cluster(cluster, own=base.links)

    def price(name: NetworkKind, count: int, num_bytes: float) -> CollectivePrice:
        group, kind = groups[count], PRICED_AS[name]
        sent = BARRIER_BYTES if name == "barrier" else num_bytes
        timed = (
            name == kind
            and isinstance(model, MeasuredMessages)
            and model.covers(kind=kind, group=group, num_bytes=num_bytes)
        )
        priced = model if name == kind else lines
        return CollectivePrice(
            kind=name,
            num_ranks=count,
            num_bytes=num_bytes,
            seconds=float(priced.seconds(kind=kind, num_bytes=sent, group=group)),
            way="timed" if timed else lines.lines(kind=kind, route=lines.route(group)).way(sent),
        )

    return NetworkPrices(
        cluster=cluster,
        stride=stride,
        shared={n: tuple(map(float, ranks_per_tier(group, cluster))) for n, group in groups.items()},
        prices=tuple(price(kind, n, size) for kind in kinds for n in counts for size in sizes),
    )
