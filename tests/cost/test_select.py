"""Cost models by name, and what auto takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.errors import raises

from forescale.catalogue.clusters import load_cluster, load_device
from forescale.cost.calibration import RunFactors, load_calibration
from forescale.cost.collectives.alpha_beta import AlphaBeta
from forescale.cost.collectives.calibration import calibrate, link_calibrations
from forescale.cost.collectives.expert_exchange import ExpertExchange
from forescale.cost.measured import MeasuredCompute, MeasuredMessages, Measurements
from forescale.cost.roofline import Roofline
from forescale.cost.run_calibration import load_run_calibration
from forescale.cost.select import Costs, select
from forescale.cost.tile import TileModel
from forescale.cost.timings import MeasuredCollective
from forescale.errors import SpecError, UnknownNameError
from forescale.graph.ops import Elementwise, Gemm
from forescale.spec import MoeFfn

H100 = load_device("h100-sxm")
GEMM = Gemm(m=1024.0, n=4096.0, k=2048.0)
KERNELS = Measurements(source="bench.json", device="h100-sxm", kernels=((GEMM, 1e-3),))
TILED = replace(load_run_calibration(), name="own", compute="tile")


@pytest.mark.parametrize(
    ("costs", "expected"),
    [
        (Costs(), Roofline),
        (Costs(calibration=TILED), TileModel),
        (Costs(compute="roofline", calibration=TILED), Roofline),
        (Costs(compute="tile"), TileModel),
        (Costs(measurements=KERNELS), MeasuredCompute),
        (Costs(compute="measured", measurements=KERNELS), MeasuredCompute),
        (Costs(compute="tile", measurements=KERNELS), TileModel),
    ],
)
def test_auto_takes_what_was_measured_and_the_model_of_the_calibration(costs, expected):
    model = costs.compute_model(H100, RunFactors())
    assert type(model) is expected


def test_the_choice_says_why():
    assert Costs().choice.reason == "run calibration published was fitted with it"
    assert Costs(calibration=TILED).choice.reason == "run calibration own was fitted with it"
    assert Costs(compute="tile").choice.reason == "asked for"
    assert Costs(measurements=KERNELS).choice.reason.startswith("kernels of bench.json first; else")


@pytest.mark.parametrize("kind", ["roofline", "tile"])
def test_products_follow_the_clock_and_traffic_does_not(kind):
    slow, local = (select(kind, H100, clock_hz=clock) for clock in (H100.clock_hz / 2, None))
    large = Gemm(m=8192.0, n=8192.0, k=8192.0)
    assert slow.seconds(large) == pytest.approx(2.0 * local.seconds(large), rel=0.02)
    copy = Elementwise(bytes_moved=1e9)
    assert slow.seconds(copy) == local.seconds(copy)


def test_impossible_choices_are_refused():
    with raises(UnknownNameError, "unknown_name compute model"):
        Costs(compute="roof")
    with raises(SpecError, "required_with timed kernels (--measurements FILE)"):
        Costs(compute="measured")
    with raises(SpecError, "out_of_range the device's clock in Hz"):
        Costs(clock_hz=-1.0)
    with raises(SpecError, "out_of_range the device's clock in Hz"):
        Costs(clock_hz=0.0)


def test_measurements_are_of_the_cluster_s_device():
    KERNELS.check(load_cluster("h100-sxm", 8))
    with raises(SpecError, "other_run bench.json"):
        KERNELS.check(load_cluster("b200", 8))
    other = Measurements(source="other.json", device="b200", kernels=KERNELS.kernels)
    with raises(SpecError, "conflicts bench.json, other.json"):
        Measurements.joined([KERNELS, other])


def test_tokens_travel_once_where_the_dispatcher_sends_them_so():
    cluster = load_cluster("h100-sxm", 8)
    assert isinstance(Costs().collective_model(cluster), AlphaBeta)
    routed = MoeFfn(num_experts=256, top_k=8, ffn_hidden_size=2048, num_groups=8, top_groups=4)
    model = Costs().collective_model(cluster, routed=routed)
    assert isinstance(model, ExpertExchange)
    assert (model.top_k, model.num_groups, model.top_groups) == (8, 8, 4)
    assert model.copy_rate == 0.0
    assert Costs().collective_model(cluster, routed=routed, dispatcher="hybridep").copy_rate == 0.0
    assert Costs().collective_model(cluster, routed=routed, dispatcher="deepep").copy_rate == 20 * 1.7e10
    others = load_cluster("mi355x", 8)
    assert Costs().collective_model(others, routed=routed, dispatcher="deepep").copy_rate == 0.0


def test_timed_all_to_alls_are_no_measure_of_tokens_that_travel_once():
    row = MeasuredCollective(kind="all_to_all", num_bytes=1e8, num_ranks=8, ranks_per_node=8, seconds=1.0)
    costs = Costs(measurements=Measurements(source="nccl.txt", collectives=(row,)))
    cluster, routed = load_cluster("h100-sxm", 8), MoeFfn(num_experts=8, top_k=2, ffn_hidden_size=2048)
    assert isinstance(costs.collective_model(cluster), MeasuredMessages)
    assert isinstance(costs.collective_model(cluster, routed=routed), ExpertExchange)


def test_a_clock_is_a_share_of_the_devices_own():
    assert Costs().clock_share(H100) == 1.0
    assert Costs(clock_hz=H100.clock_hz / 4).clock_share(H100) == 0.25


def test_fits_of_one_s_own_are_named_where_they_price():
    cluster = load_cluster("h100-sxm", 16)
    kernels, links = (
        replace(load_calibration(H100), name="mine"),
        AlphaBeta.from_cluster(cluster).calibration.links,
    )
    near = replace(links[0], name="my links", tiers=(cluster.tiers[0].name,))
    assert Costs().own_fits(cluster) == ()
    assert Costs(kernels={"h100-sxm": kernels}).own_fits(cluster) == ("mine",)
    assert Costs(kernels={"hopper": kernels}).own_fits(cluster) == ("mine",)
    assert Costs(links=(near,)).own_fits(cluster) == ("my links",)
    assert Costs(kernels={"b200": kernels}).own_fits(cluster) == ()


def test_links_measured_with_a_generation_come_before_those_of_any():
    cluster = load_cluster("h100-sxm", 16)
    plain = replace(
        AlphaBeta.from_cluster(cluster).calibration.links[0], tiers=(cluster.tiers[0].name,), architectures=()
    )
    hopper = replace(plain, name="hopper", architectures=("hopper",))
    other = replace(plain, name="other", architectures=("cdna3",))
    for known in ((plain, other, hopper), (hopper, plain, other)):
        assert calibrate(cluster, links=(*known, *link_calibrations())).links[0].name == "hopper"
