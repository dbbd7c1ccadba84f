"""Links fitted to timed collectives: found again tier by tier, and used where they were measured."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from tests.errors import raises

from forescale.catalogue.clusters import load_cluster
from forescale.cost.collectives.alpha_beta import AlphaBeta
from forescale.cost.collectives.calibration import NetworkCalibration, calibrate
from forescale.cost.measured import Measurements
from forescale.cost.select import Calibrations, read_calibrations
from forescale.cost.timings import MeasuredCollective, stack
from forescale.errors import SpecError
from forescale.validation.network import fit_network, timed_of, with_parameters

CLUSTER = load_cluster("h100-sxm", 64)
KNOWN = calibrate(CLUSTER).links
DATE = "2026-01-01"


def shapes(kind="all_gather", nodes=(1, 2, 4, 8), powers=range(16, 31, 2)):
    return [
        MeasuredCollective(kind=kind, num_bytes=2.0**power, num_ranks=8 * node, ranks_per_node=8, seconds=1.0)
        for node in nodes
        for power in powers
    ]


def timed(rows, links, source="log.txt", factor=1.0):
    """The rows with the times that `links` give them."""
    result = []
    for row in rows:
        (batch,) = stack(CLUSTER, [row])
        model = AlphaBeta(cluster=batch.cluster, calibration=NetworkCalibration(links=links))
        seconds = model.seconds(kind=row.kind, num_bytes=batch.num_bytes, group=batch.group)
        result.append(replace(row, seconds=float(np.asarray(seconds)[0]) * factor))
    return timed_of([Measurements(source=source, collectives=tuple(result))])


def with_efficiency(link, share):
    return with_parameters(
        link, {f"{wire.name}.efficiency": wire.efficiency * share for wire in link.protocols}
    )


def test_every_tier_is_found_again_from_the_rows_that_cross_it():
    # Slow enough that the network, not the links inside a node, sets the pace of long messages across.
    truth = (with_efficiency(KNOWN[0], 0.77), with_efficiency(KNOWN[1], 0.34), *KNOWN[2:])
    network = fit_network(timed(shapes(), truth), CLUSTER, date=DATE)
    inner, outer = network.links
    assert inner.wire(9).efficiency == pytest.approx(truth[0].wire(9).efficiency, rel=0.03)
    assert outer.wire(9).efficiency == pytest.approx(truth[1].wire(9).efficiency, rel=0.03)
    assert [entry.rows for entry in network.entries] == [8, 24]
    for entry in network.entries:
        assert entry.before.median_abs > 0.05 > 0.02 > entry.after.median_abs
    assert network.entries[1].held_out.median_abs < 0.03
    assert outer.fit.kind == "fitted"
    assert outer.fit.source == "log.txt"


def test_exchanges_have_parameters_of_their_own():
    truth = (replace(KNOWN[0], exchange_efficiency=0.4), *KNOWN[1:])
    network = fit_network(timed(shapes("all_to_all", nodes=(1,)), truth), CLUSTER, date=DATE)
    assert network.links[0].exchange_efficiency == pytest.approx(0.4, rel=0.03)
    assert network.links[0].protocols == KNOWN[0].protocols


def test_no_link_is_faster_than_it_is():
    network = fit_network(timed(shapes(nodes=(2, 4)), KNOWN, factor=0.1), CLUSTER, date=DATE)
    assert max(wire.efficiency for wire in network.links[0].protocols) <= 1.0
    assert network.entries[0].after.bias > 0.3


def test_own_links_come_before_the_catalogue_and_what_a_tier_states(tmp_path):
    truth = (KNOWN[0], with_efficiency(KNOWN[1], 0.63), *KNOWN[2:])
    network = fit_network(timed(shapes(nodes=(2, 4)), truth), CLUSTER, date=DATE)
    path = tmp_path / "own.json"
    path.write_text(
        json.dumps(Calibrations(links=network.links).to_json(), allow_nan=False), encoding="utf-8"
    )
    links = read_calibrations(path).links
    assert links == network.links
    assert calibrate(CLUSTER, own=links).links == (KNOWN[0], network.links[0], *KNOWN[2:])
    other = load_cluster("b200", 64)
    assert calibrate(other, own=links).links == calibrate(other).links
    again = fit_network(timed(shapes(nodes=(2, 4)), truth), CLUSTER, own=links, date=DATE)
    assert again.entries[0].before == network.entries[0].after


def test_short_messages_and_few_rows_are_named():
    rows = timed([*shapes(nodes=(2,)), *shapes(nodes=(2,), powers=(10, 12)), *shapes(nodes=(1,))[:2]], KNOWN)
    network = fit_network(rows, CLUSTER, date=DATE)
    assert [(one.path.rsplit(".", 1)[1], one.rows) for one in network.left] == [
        (CLUSTER.tiers[0].name, 2),
        (CLUSTER.tiers[1].name, 2),
    ]


def test_rows_that_cannot_be_of_the_cluster_are_refused():
    wide = [replace(row, ranks_per_node=16) for row in shapes(nodes=(2,))]
    with raises(SpecError, "differs the ranks per node of log.txt"):
        fit_network([("log.txt", row) for row in wide], CLUSTER, date=DATE)
    with raises(SpecError, "not_measured the table"):
        fit_network([], CLUSTER, date=DATE)
    with pytest.raises(SpecError, match="no tier of h100-sxm has 3"):
        fit_network(timed(shapes(nodes=(1,))[:2], KNOWN), CLUSTER, date=DATE)
