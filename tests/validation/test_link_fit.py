from __future__ import annotations

import numpy as np
import pytest
from tests.cost.collectives.clusters import two_level

from forescale.cost.collectives.alpha_beta import AlphaBeta
from forescale.cost.collectives.calibration import LinkCalibration, NetworkCalibration, WireProtocol
from forescale.cost.timings import MeasuredCollective, errors, stack
from forescale.validation.entries import residual
from forescale.validation.network import BOUNDS, fit_link, parameters_of, with_parameters

TRUTH = LinkCalibration(
    name="truth",
    protocols=(
        WireProtocol(name="LL", launch=1e-5, hop_factor=1.0, efficiency=0.2),
        WireProtocol(name="Simple", launch=5e-5, hop_factor=3.0, efficiency=0.8),
    ),
    algorithms=("ring",),
)
NAMES = ["LL.launch", "LL.efficiency", "Simple.launch", "Simple.hop_factor", "Simple.efficiency"]


def rows(kind="all_gather"):
    return [
        MeasuredCollective(
            kind=kind, num_bytes=2.0**power, num_ranks=ranks, ranks_per_node=min(ranks, 8), seconds=1.0
        )
        for ranks in (2, 8, 16, 64)
        for power in range(14, 32)
    ]


def place(_, link):
    return NetworkCalibration(links=(link, link))


def synthetic():
    [batch] = stack(two_level(), rows())
    model = AlphaBeta(cluster=batch.cluster, calibration=place(batch, TRUTH))
    batch.seconds[:] = model.seconds(kind=batch.kind, num_bytes=batch.num_bytes, group=batch.group)
    return batch


def test_it_finds_the_parameters_that_made_the_rows():
    start = with_parameters(
        TRUTH, {"LL.launch": 2e-5, "LL.efficiency": 0.3, "Simple.launch": 3e-5, "Simple.efficiency": 0.6}
    )
    link = fit_link([synthetic()], place, start, NAMES)
    assert parameters_of(link, NAMES) == pytest.approx(parameters_of(TRUTH, NAMES), rel=0.02)


def test_it_stays_within_physical_bounds():
    batch = synthetic()
    batch.seconds[:] /= 10.0
    link = fit_link([batch], place, TRUTH, NAMES)
    assert max(prepare.efficiency for prepare in link.protocols) <= BOUNDS["efficiency"][1] == 1.0


def test_a_pull_holds_what_the_rows_do_not_tell():
    start = with_parameters(TRUTH, {"LL.hop_factor": 1.0})
    link = fit_link([synthetic()], place, start, ["peer_latency"], pull=0.1)
    assert link.peer_latency == pytest.approx(max(start.peer_latency, BOUNDS["peer_latency"][0]), rel=1e-3)


def test_residuals_are_of_logarithms():
    batch = synthetic()
    batch.seconds[:] *= np.e
    values = errors(batch, AlphaBeta(cluster=batch.cluster, calibration=place(batch, TRUTH)))
    result = residual(values, source="x")
    assert (result.bias, result.median_abs, result.rows) == (-1.0, 1.0, 72)


def test_nodes_are_placed_as_measured():
    [batch] = stack(two_level(), rows())
    assert batch.cluster.num_devices == 64
    assert batch.group.num_ranks.max() == 64.0
