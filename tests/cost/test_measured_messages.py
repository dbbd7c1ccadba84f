from __future__ import annotations

import numpy as np
import pytest
from tests.conformance.cost_models import check_collective_model

from forescale.catalogue.clusters import load_cluster
from forescale.cost.collectives.alpha_beta import AlphaBeta
from forescale.cost.measured import Measurements
from forescale.cost.mesh import Group
from forescale.cost.timings import MeasuredCollective

CLUSTER = load_cluster("h100-sxm", 32)
BASE = AlphaBeta.from_cluster(CLUSTER)
ROWS = tuple(
    MeasuredCollective(kind="all_reduce", num_bytes=size, num_ranks=8, ranks_per_node=8, seconds=seconds)
    for size, seconds in ((1e6, 4e-5), (1e8, 6e-4), (1e9, 5e-3))
)
MODEL = Measurements(source="nccl.txt", collectives=ROWS).messages(BASE, CLUSTER)
NODE = Group(size=8.0)


def price(model, num_bytes, group=NODE, kind="all_reduce"):
    return np.asarray(model.seconds(kind=kind, num_bytes=num_bytes, group=group))


def test_timed_sizes_are_exact_and_others_lie_in_proportion():
    assert price(MODEL, np.array([1e6, 1e8, 1e9])).tolist() == [4e-5, 6e-4, 5e-3]
    assert price(MODEL, 55e7) == pytest.approx((6e-4 + 5e-3) / 2)


def test_what_was_not_timed_is_the_other_model_s():
    for size, group, kind in (
        (1e10, NODE, "all_reduce"),
        (1e3, NODE, "all_reduce"),
        (1e8, Group(size=16.0), "all_reduce"),
        (1e8, Group(size=8.0, stride=8.0), "all_reduce"),
        (1e8, NODE, "all_gather"),
    ):
        assert price(MODEL, size, group, kind) == price(BASE, size, group, kind)


def test_candidates_take_their_own_group():
    groups = Group(size=np.array([4.0, 8.0, 16.0]))
    seconds = price(MODEL, 1e8, groups)
    assert seconds[1] == 6e-4
    assert seconds[[0, 2]].tolist() == price(BASE, 1e8, groups)[[0, 2]].tolist()


def test_provenance_names_the_measurements_of_what_was_timed():
    provenance = MODEL.provenance(kind="all_reduce")
    assert (provenance.kind, provenance.source, provenance.low, provenance.high) == (
        "interpolated",
        "nccl.txt",
        0.9,
        1.1,
    )
    assert MODEL.provenance(kind="all_gather") == BASE.provenance(kind="all_gather")


def test_tokens_without_duplicates_are_no_timed_all_to_all():
    rows = (MeasuredCollective(kind="all_to_all", num_bytes=1e8, num_ranks=8, ranks_per_node=8, seconds=1.0),)
    measurements = Measurements(source="nccl.txt", collectives=rows)
    assert price(measurements.messages(BASE, CLUSTER), 1e8, kind="all_to_all") == 1.0
    assert measurements.messages(BASE, CLUSTER, exchanges=False) is BASE


def test_the_contract_of_collective_models_holds():
    check_collective_model(MODEL)


def test_it_says_what_it_covers():
    assert MODEL.covers(kind="all_reduce", group=NODE)
    assert MODEL.covers(kind="all_reduce", group=NODE, num_bytes=np.array([1e6, 1e9]))
    assert not MODEL.covers(kind="all_reduce", group=NODE, num_bytes=np.array([1e6, 1e10]))
    assert not MODEL.covers(kind="all_reduce", group=Group(size=8.0, stride=8.0))
    assert not MODEL.covers(kind="all_gather", group=NODE)
    assert MODEL.timed == "all_reduce among 8 ranks, 8 a node, 1,000,000 to 1,000,000,000 bytes"


def test_ranks_of_a_group_and_ranks_of_a_node_are_told_apart():
    row = MeasuredCollective(kind="all_reduce", num_bytes=1e8, num_ranks=16, ranks_per_node=8, seconds=2e-3)
    model = Measurements(source="nccl.txt", collectives=(row,)).messages(BASE, CLUSTER)
    assert price(model, 1e8, Group(size=16.0)) == 2e-3
    for group in (NODE, Group(size=16.0, stride=2.0)):
        assert price(model, 1e8, group) == price(BASE, 1e8, group)
