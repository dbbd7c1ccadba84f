"""Fit the network calibrations of the catalogue.

    python benchmarks/fit_network.py KERNELS.csv [NAME ...]

KERNELS.csv is a table of measured collectives (columns of the validation corpus); public logs of nccl-tests
and rccl-tests come from tests/data/collectives. A recipe says which rows fit a link and which only check it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from msgspec import to_builtins
from msgspec.structs import replace

from forescale.catalogue.clusters import load_cluster
from forescale.cost.calibration import Fit, Residual
from forescale.cost.collectives.alpha_beta import AlphaBeta
from forescale.cost.collectives.calibration import (
    Belief,
    LinkCalibration,
    NetworkCalibration,
    Tuner,
    WireProtocol,
)
from forescale.cost.timings import (
    CollectiveBatch,
    MeasuredCollective,
    errors,
    read_collectives,
    stack,
)
from forescale.graph.ops import CollectiveKind
from forescale.io.measurements import read_nccl_tests
from forescale.validation.entries import residual
from forescale.validation.network import fit_link, parameters_of, with_parameters

ROOT = Path(__file__).parent.parent
OUT = ROOT / "src/forescale/catalogue/calibrations/network"
LOGS = ROOT / "tests/data/collectives"
DATE = "2026-11-27"
TABLE = Path(sys.argv[1])

NCCL = ("ring", "tree", "in_network", "direct_exchange", "p2p")
WIRES = [
    f"{prepare}.{key}"
    for prepare in ("LL", "LL128", "Simple")
    for key in ("launch", "hop_factor", "efficiency")
]
COPIES = ["copy_bandwidth", "sum_bandwidth"]
RAMP = ["Simple.ramp_share", "Simple.ramp_seconds"]
LONG = 64 * 2.0**20
"""Bytes from which a launch by one process for all devices, as in some logs, does not show."""
EXCHANGE = ["exchange_efficiency", "exchange_launch", "exchange_copy_bandwidth"]
CHUNKS = ["exchange_out_bandwidth", "exchange_short_launch"]


STEPS = (8 * 512 * 16.0, 120 * 640 * 8.0, 4 * 2.0**20 / 8)
"""Bytes that rings hand to a network at once (NCCL 2.14, src/include/devcomm.h, src/init.cc)."""


def protocols(
    *values: tuple[float, float, float],
    ramp: tuple[float, float] = (0.0, 0.0),
    steps: tuple[float, ...] = (0.0, 0.0, 0.0),
) -> tuple[WireProtocol, ...]:
    short = [
        WireProtocol(name=name, launch=value[0], hop_factor=value[1], efficiency=value[2], step=step)
        for name, value, step in zip(("LL", "LL128"), values, steps, strict=False)
    ]
    launch, hop, efficiency = values[-1]
    long = WireProtocol(
        name="Simple",
        launch=launch,
        hop_factor=hop,
        efficiency=efficiency,
        # NCCL, src/include/collectives.h: Simple has two slices in a chunk, the others forward whole steps.
        slices=2.0,
        step=steps[-1],
        ramp_share=ramp[0],
        ramp_seconds=ramp[1],
    )
    return (*short, long)


def tuner(most: float, speeds: tuple[float, ...] = (), channel_share: float = 1.0) -> Tuner:
    """Constants of NCCL 2.27.3: src/graph/tuning.cc, speeds of src/graph/search.cc, links of src/graph/topo.h."""
    return Tuner(
        share=0.8,
        protocols=(
            Belief(launch=6.6e-6, hop=6e-7, share=0.5, most=most),
            Belief(launch=1.4e-5, hop=1.9e-6, share=0.92),
            Belief(launch=8.4e-6, hop=3.4e-6),
        ),
        reduction_launch=2.5e-5,
        reduction_share=round(5 / 6, 4),
        channels=32.0,
        channel_share=channel_share,
        speeds=tuple(speed * 1e9 for speed in speeds),
    )


def table(hardware: str, prefix: str) -> list[MeasuredCollective]:
    rows = read_collectives(TABLE, hardware)
    return [row for row in rows if row.id.startswith(prefix) and row.num_bytes >= 32768]


def log(
    name: str, nodes: int, per_node: int = 8, kind: CollectiveKind = "all_reduce", shortest: float = 65536
) -> list[MeasuredCollective]:
    value = {"num_ranks": nodes * per_node, "ranks_per_node": per_node}
    run = read_nccl_tests(LOGS / f"{name}.txt", kind=kind, **value)
    return [row for row in run.rows if row.num_bytes >= shortest]


def long_logs(name: str, kinds: Sequence[CollectiveKind]) -> list[MeasuredCollective]:
    return [row for kind in kinds for row in log(f"{name}_{kind}", 1, kind=kind, shortest=LONG)]


def collectives(rows: Iterable[MeasuredCollective]) -> list[MeasuredCollective]:
    return [row for row in rows if row.kind != "all_to_all"]


def exchanges(rows: Iterable[MeasuredCollective]) -> list[MeasuredCollective]:
    return [row for row in rows if row.kind == "all_to_all"]


Sets = list[tuple[str, list[MeasuredCollective]]]


@dataclass
class Recipe:
    start: LinkCalibration
    tier: int
    names: list[str]
    source: str
    fitted: Callable[[], Sets]
    """Cluster names and rows."""
    held_out: dict[str, Callable[[], Sets]] = field(default_factory=dict)
    pull: float = 0.1
    inner: str = ""
    """Calibration of the innermost tier when an outer one is fitted."""
    joins: bool = False
    """Once checked, rings and sums that are held out join the fit that is written: other machines, not more of one.
    Exchanges do not: how NCCL sends them has changed between the logs (2.8 knew no chunks of 512 KiB)."""
    hops: str = ""
    """Calibration, of more nodes, whose hop of Simple counts: between few nodes it is told from no launch."""


def read(name: str) -> LinkCalibration:
    from forescale.cost.collectives.calibration import link_calibration_of

    return link_calibration_of(json.loads((OUT / f"{name}.json").read_text()), where=name)


def batches(sets: Sets) -> list[CollectiveBatch]:
    return [batch for cluster, rows in sets if rows for batch in stack(load_cluster(cluster, 8), rows)]


def placed(recipe: Recipe) -> Callable[[CollectiveBatch, LinkCalibration], NetworkCalibration]:
    filler = read("scale-out")

    def place(batch: CollectiveBatch, link: LinkCalibration) -> NetworkCalibration:
        links = [filler] * len(batch.cluster.tiers)
        if recipe.inner:
            links[0] = read_cached(recipe.inner)
        links[recipe.tier] = link
        return NetworkCalibration(links=tuple(links))

    return place


_CACHE: dict[str, LinkCalibration] = {}


def read_cached(name: str) -> LinkCalibration:
    return _CACHE.setdefault(name, read(name))


def check(sets: Sets, link: LinkCalibration, recipe: Recipe, source: str) -> Residual:
    place = placed(recipe)
    values = [errors(b, AlphaBeta(cluster=b.cluster, calibration=place(b, link))) for b in batches(sets)]
    return residual(np.concatenate(values), source=source)


def fitted_to(sets: Sets, recipe: Recipe, link: LinkCalibration, names: list[str]) -> LinkCalibration:
    place = placed(recipe)
    plain = [(cluster, collectives(rows)) for cluster, rows in sets]
    link = fit_link(batches(plain), place, link, names, pull=recipe.pull)
    across = [(cluster, exchanges(rows)) for cluster, rows in sets]
    if any(rows for _, rows in across):
        names = [*EXCHANGE, *(CHUNKS if link.exchange_chunk else [])]
        link = fit_link(batches(across), place, link, names, pull=recipe.pull)
    return link


def cook(recipe: Recipe) -> None:
    link, names = recipe.start, recipe.names
    if recipe.hops:
        hop = "Simple.hop_factor"
        link = with_parameters(link, {hop: parameters_of(read(recipe.hops), [hop])[hop]})
        names = [name for name in names if name != hop]
    sets = recipe.fitted()
    start, link = link, fitted_to(sets, recipe, link, names)
    outside = tuple(check(rows(), link, recipe, name) for name, rows in recipe.held_out.items())
    every = [*sets, *(item for rows in recipe.held_out.values() for item in rows())]
    if recipe.joins:
        sets = [(c, collectives(rows)) for c, rows in every] + [(c, exchanges(rows)) for c, rows in sets]
        link = fitted_to(sets, recipe, start, names)
    inside = check(sets, link, recipe, "rows of the fit")
    long = [(cluster, [row for row in rows if row.num_bytes >= 2**20]) for cluster, rows in every]
    spread = check(long, link, recipe, "")
    low, high = min(1.0, float(np.exp(-spread.p90))), max(1.0, float(np.exp(-spread.p10)))
    fit = Fit(
        kind="fitted",
        source=recipe.source,
        in_sample=inside,
        held_out=outside,
        low=round(low, 3),
        high=round(high, 3),
    )
    write(replace(link, fit=fit, date=DATE))
    print(link.name, "in", inside.rows, inside.median_abs, inside.p10, inside.p90)
    for r in outside:
        print("   out", r.source, r.rows, "median", r.median_abs, "bias", r.bias, r.p10, r.p90)
    big = [(c, [row for row in rows if row.num_bytes >= 4 * 2**20]) for c, rows in sets]
    r = check(big, link, recipe, "")
    print("   >= 4 MiB", r.rows, r.median_abs, "bias", r.bias, "p10/p90", r.p10, r.p90)


def write(link: LinkCalibration) -> None:
    content = to_builtins(link)
    default = to_builtins(LinkCalibration(name="", protocols=link.protocols, algorithms=()))
    kept = {
        k: v for k, v in content.items() if k in ("name", "protocols", "algorithms", "fit") or v != default[k]
    }
    (OUT / f"{link.name}.json").write_text(json.dumps(kept, indent=1) + "\n")


NVLINK = {
    "algorithms": NCCL,
    "tiers": ("nvlink",),
    "protocols": protocols((8e-6, 0.4, 0.25), (1.5e-5, 0.4, 0.5), (3e-5, 0.8, 0.75), ramp=(0.1, 1e-3)),
    "copy_bandwidth": 1e12,
    "sum_bandwidth": 1e12,
    "exchange_efficiency": 0.7,
    "exchange_launch": 1.3e-5,
    "peer_latency": 5e-8,
    "exchange_copy_bandwidth": 1e12,
    "exchange_chunk": 32 * 2.0**19,
    "exchange_out_bandwidth": 1e12,
    "exchange_short": 2.0**14,
    "exchange_short_launch": 1e-5,
}
REDUCTION = ["reduction_efficiency", "reduction_launch", "reduction_ramp_share", "reduction_ramp_seconds"]
SWITCH = {"reduction_launch": 2.5e-5, "reduction_ramp_share": 0.5, "reduction_ramp_seconds": 5e-5}
NETWORK = {
    "algorithms": NCCL,
    # Hops of the network as NCCL's tuner has them (src/graph/tuning.cc): ring 2.7, 4.0 and 14 us, tree 5.0 us
    # and more, over the 5 us of the catalogue; LL moves a quarter of the bandwidth.
    "protocols": protocols((1.2e-5, 0.54, 0.25), (1.5e-5, 0.8, 0.6), (3e-5, 2.8, 0.9), steps=STEPS),
    "tree_efficiency": 0.95,
    "tree_hop_factor": 1.85,
    "exchange_efficiency": 0.9,
    "exchange_launch": 2e-5,
    "peer_latency": 5e-7,
}
OUTER = WIRES

RECIPES = {
    "nvlink-ampere": Recipe(
        start=LinkCalibration(name="nvlink-ampere", architectures=("ampere",), tuner=tuner(87.7e9), **NVLINK),
        tier=0,
        names=[*WIRES, *COPIES, *RAMP],
        joins=True,
        source="nccl-tests, NCCL 2.27.3 on 2, 4 and 8 A100 of a node (NVIDIA aiconfigurator database, 2026), and "
        "of 64 MiB to 8 GiB on 8 A100 (Microsoft SuperBench, 2021)",
        fitted=lambda: [
            ("a100-sxm-80gb", table("A100-80GB SXM", "AICN")),
            ("a100-sxm-80gb", long_logs("a100_1_node", ("all_gather", "reduce_scatter", "all_reduce"))),
        ],
        held_out={
            "all-to-all from 64 MiB on 8 A100 of Azure": lambda: [
                ("a100-sxm-80gb", long_logs("a100_1_node", ("all_to_all",)))
            ],
            "8 A100, means over 1,939 and 729 nodes of Azure, from 64 MiB": lambda: [
                ("a100-sxm-80gb", long_logs("ndv4_1_node", ("all_reduce",))),
                ("a100-sxm-80gb", long_logs("ndmv4_1_node", ("all_reduce",))),
            ],
            "Perlmutter, one node of 4 A100, NCCL 2.19": lambda: [
                (
                    "perlmutter",
                    [r for r in table("A100-40/80GB SXM", "PERLM") if r.num_ranks == r.ranks_per_node],
                )
            ],
        },
    ),
    "nvlink-hopper": Recipe(
        start=LinkCalibration(
            name="nvlink-hopper",
            architectures=("hopper",),
            tuner=tuner(141e9, (60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3), 20.6 / 25),
            reduction_efficiency=0.67,
            **SWITCH,
            **NVLINK,
        ),
        tier=0,
        names=[*WIRES, *COPIES, *RAMP, *REDUCTION],
        joins=True,
        source="nccl-tests on 2, 4 and 8 H100 and H200 of one node (NVIDIA aiconfigurator database, 2026)",
        fitted=lambda: [("h100-sxm", table("H100 SXM", "AICN")), ("h200-sxm", table("H200 SXM", "AICN"))],
        held_out={"8 H100, DGX Cloud NCCL recipe": lambda: [("h100-sxm", table("H100 SXM", "NCCLH100"))]},
    ),
    "nvlink-blackwell": Recipe(
        start=LinkCalibration(
            name="nvlink-blackwell",
            architectures=("blackwell", "blackwell-ultra"),
            tuner=tuner(282e9, (90, 80, 70, 60, 50, 40, 30, 24, 20, 19, 18), 0.8),
            reduction_efficiency=0.5,
            **SWITCH,
            **NVLINK,
        ),
        tier=0,
        names=[*WIRES, *COPIES, *RAMP, *REDUCTION],
        joins=True,
        source="nccl-tests on 2, 4 and 8 B200, GB200 of one node (NVIDIA aiconfigurator database, 2026)",
        fitted=lambda: [("b200", table("B200", "AICN")), ("gb200-nvl72", table("GB200", "AICN"))],
        held_out={
            "2, 4 and 8 B300 and GB300": lambda: [
                ("b300", table("B300", "AICN")),
                ("gb300-nvl72", table("GB300", "AICN")),
            ]
        },
    ),
    "slingshot": Recipe(
        start=LinkCalibration(
            name="slingshot", tiers=("slingshot",), member_half=0.25, pair_share=1.0, **NETWORK
        ),
        tier=1,
        names=[*OUTER, "member_half", "tree_efficiency", "tree_hop_factor"],
        source="nccl-tests, NCCL 2.19 on 1, 2 and 4 A100 of 2 to 32 nodes of Perlmutter "
        "(validation data of Subramanian et al. 2024)",
        fitted=lambda: [("perlmutter", [r for r in perlmutter() if r.num_ranks // r.ranks_per_node <= 32])],
        held_out={
            "Perlmutter, 64 to 256 nodes": lambda: [
                ("perlmutter", [r for r in perlmutter() if r.num_ranks // r.ranks_per_node > 32])
            ]
        },
        inner="nvlink-ampere",
    ),
    "infiniband": Recipe(
        start=LinkCalibration(name="infiniband", tiers=("infiniband",), **NETWORK),
        tier=1,
        names=OUTER,
        source="nccl-tests, NCCL 2.26 all-reduce on 2 and 4 nodes of 8 H100 with 400 Gb/s InfiniBand "
        "(NVIDIA/nccl-tests issue 309, 2025); hops of Simple as on up to 32 nodes of Perlmutter",
        hops="slingshot",
        fitted=lambda: [("h100-sxm", log("h100_2_nodes_all_reduce", 2) + log("h100_4_nodes_all_reduce", 4))],
        held_out={
            "8 nodes of 8 H100 of another site": lambda: [("h100-sxm", log("h100_8_nodes_all_reduce", 8))]
        },
        inner="nvlink-hopper",
    ),
    "efa": Recipe(
        # Of 3,200 Gb/s two nodes reach two thirds, and a fit from 0.9 ends where short messages pay for it.
        start=LinkCalibration(
            name="efa",
            tiers=("efa",),
            **NETWORK
            | {
                "protocols": protocols(
                    (1.2e-5, 0.54, 0.25), (1.5e-5, 0.8, 0.6), (3e-5, 2.8, 0.65), steps=STEPS
                )
            },
        ),
        tier=1,
        names=OUTER,
        source="nccl-tests all-reduce on 2 p5.48xlarge (aws-ia/terraform-aws-eks-blueprints, 2025)",
        fitted=lambda: [("h100-sxm", log("p5_2_nodes_all_reduce", 2))],
        pull=0.3,
        inner="nvlink-hopper",
    ),
    "xgmi-cdna3": Recipe(
        start=LinkCalibration(
            name="xgmi-cdna3",
            architectures=("cdna3", "cdna4"),
            # RCCL's channels between pairs are its own, and no source times them.
            **{**NVLINK, "tiers": ("infinity-fabric", "xgmi"), "exchange_chunk": 0.0, "exchange_short": 0.0}
            | {"protocols": protocols((8e-6, 0.4, 0.25), (1.5e-5, 0.4, 0.5), (3e-5, 0.8, 0.75))},
        ),
        tier=0,
        names=WIRES,
        source="rccl-tests, RCCL 2.22 all-reduce on 8 MI300X (AMD ROCm blog on xGMI, 2025)",
        fitted=lambda: [("mi300x", log("mi300x_1_node_all_reduce", 1))],
    ),
    "fat-tree-cdna": Recipe(
        start=LinkCalibration(
            name="fat-tree-cdna",
            architectures=("cdna3", "cdna4"),
            tiers=("fat-tree", "pod", "infiniband", "roce", "ethernet"),
            **NETWORK,
        ),
        tier=1,
        names=OUTER,
        source="rccl-tests, RCCL 2.26 and 2.27 all-reduce on 2 nodes of 8 MI355X and of 8 MI308X "
        "with 400 Gb/s Ethernet (public logs, 2025 and 2026)",
        fitted=lambda: [
            ("mi355x", log("mi355x_2_nodes_all_reduce", 2)),
            ("mi300x", log("mi308x_2_nodes_all_reduce", 2)),
        ],
        held_out={
            "2 nodes of 8 MI300X, RCCL 2.22": lambda: [("mi300x", log("mi300x_2_nodes_all_reduce", 2))]
        },
        inner="xgmi-cdna3",
    ),
}


def perlmutter() -> list[MeasuredCollective]:
    return [r for r in table("A100-40/80GB SXM", "PERLM") if r.num_ranks > r.ranks_per_node]


if __name__ == "__main__":
    for name in sys.argv[2:] or RECIPES:
        cook(RECIPES[name])
