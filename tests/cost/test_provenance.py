from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.small import dense, workload

from forescale.catalogue.clusters import load_cluster, load_device
from forescale.cost.calibration import load_calibration
from forescale.cost.provenance import provenance
from forescale.cost.run_calibration import load_run_calibration
from forescale.cost.select import Costs
from forescale.project import spread_of
from forescale.question import Question
from forescale.spec import Device, Layout, MatrixRates

RUNS = load_run_calibration()
NEW = Device(name="new", matrix_flops=MatrixRates(fp32=1e14), hbm_bytes=1e11, hbm_bandwidth=1e12)


@pytest.mark.parametrize(
    ("name", "origin"),
    [
        ("h100-sxm", "kernels"),
        ("h100-nvl", "generation"),
        ("l4", "generation"),
        ("mi300a", "generation"),
        ("tpu-v5p", "runs"),
        ("rtx-4090", "priors"),
        ("rtx-a6000", "priors"),
        ("t4", "priors"),
        ("h20", "priors"),
    ],
)
def test_what_the_efficiencies_of_a_device_were_fitted_to(name, origin):
    device = load_device(name)
    result = provenance(device, load_calibration(device), RUNS)
    assert result.origin == origin
    assert (device.name in result.devices) == (origin == "kernels")
    assert bool(result.devices) == (origin in ("kernels", "generation"))


def test_nothing_is_known_of_a_new_device():
    assert provenance(NEW, load_calibration(NEW), RUNS).origin == "priors"
    assert load_calibration(NEW).doubt > 0.0


def spread(cluster, costs):
    question = Question(model=dense(), cluster=cluster, strategy=Layout(), workload=workload(), costs=costs)
    return spread_of(question, {"ffn": 1.0, "overhead": 0.0})


def test_ranges_are_wider_where_nothing_was_measured():
    fitted, prior = (load_cluster(name, 1) for name in ("l40s-pcie", "rtx-a6000"))
    assert spread(prior, Costs()).p90 > 1.5 * spread(fitted, Costs()).p90
    local = {prior.device.name: replace(load_calibration(prior.device), doubt=0.0)}
    measured = spread(prior, Costs(kernels=local))
    assert measured.p90 < spread(prior, Costs()).p90
