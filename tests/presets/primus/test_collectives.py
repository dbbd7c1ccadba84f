"""All-reduce of Primus, algorithm by algorithm, against its own code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forescale.presets.primus.communication import (
    ALGORITHMS,
    DOCUMENTED_ALL_REDUCE,
    Network,
    all_reduce,
    bruck_all_reduce,
    constants,
    pipelined_all_reduce,
)

DATA = Path(__file__).parents[2] / "data" / "presets" / "primus_all_reduce.json"
ROWS = json.loads(DATA.read_text())["rows"]
HARDWARE = {"mi300x": (448e9, 163e12), "mi355x": (537.6e9, 157e12)}
MIB = 2**20


def network(hardware: str) -> Network:
    node, vector = HARDWARE[hardware]
    efficiency = constants()["bandwidth_efficiency"]
    return Network(
        node_size=8,
        nics=8,
        node_bandwidth=node * efficiency,
        pod_bandwidth=50e9 * efficiency,
        pod_latency=2e-6,
        vector_flops=vector,
    )


@pytest.mark.parametrize(
    "row", ROWS, ids=lambda row: f"{row['hardware']}-{row['devices']}-{row['message_mib']}"
)
def test_every_algorithm_and_protocol(row):
    for name, microseconds in row["all_reduce_us"].items():
        algorithm, protocol = name.split("/")
        seconds = ALGORITHMS[algorithm](
            row["message_mib"] * MIB, row["devices"], protocol, network(row["hardware"])
        )
        assert seconds * 1e6 == pytest.approx(microseconds, rel=1e-9), name
    best = pipelined_all_reduce(row["message_mib"] * MIB, row["devices"], network(row["hardware"]))
    assert best * 1e6 == pytest.approx(row["best_us"], rel=1e-9)


def test_bruck_of_a_node_is_its_reduce_scatter_and_all_gather():
    """4 MI300X, 1 MiB, LL128: 6.21768 + 6.21510 microseconds in Primus's own code."""
    seconds = bruck_all_reduce(MIB, 4, "ll128", network("mi300x"))
    inside = 2 * (786432 * 128 / 120 / (448e9 * 0.7) + 2 * 0.37e-6 + 2.8e-6)
    assert seconds == pytest.approx(inside, rel=1e-3)
    assert all_reduce(MIB, 4, network("mi300x"), DOCUMENTED_ALL_REDUCE) <= seconds


def test_one_rank_and_empty_messages_are_free():
    assert all_reduce(MIB, 1, network("mi300x"), DOCUMENTED_ALL_REDUCE) == 0.0
    assert all_reduce(0.0, 8, network("mi300x"), DOCUMENTED_ALL_REDUCE) == 0.0
