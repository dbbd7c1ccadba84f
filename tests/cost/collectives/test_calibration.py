from __future__ import annotations

import pytest
from tests.cost.collectives.clusters import cluster, fast, slow
from tests.errors import raises

from forescale.cost.collectives.algorithms import ALGORITHMS
from forescale.cost.collectives.calibration import (
    LinkCalibration,
    WireProtocol,
    calibrate,
    link_calibration_of,
    link_calibrations,
)
from forescale.errors import ReaderError, SpecError
from forescale.spec.cluster import LinkParameters

WIRE = {"name": "only", "launch": 0.0, "hop_factor": 1.0, "efficiency": 0.9}


def test_every_calibration_has_a_source_a_date_and_known_algorithms():
    known = {way.name for way in ALGORITHMS}
    for link in link_calibrations():
        assert link.fit.source, link.name
        assert link.date, link.name
        assert set(link.algorithms) <= known, link.name
        assert 0 < link.fit.low <= 1 <= link.fit.high, link.name


def test_fitted_calibrations_carry_residuals():
    fitted = [link for link in link_calibrations() if link.fit.kind == "fitted"]
    assert {"nvlink-hopper", "slingshot", "infiniband", "xgmi-cdna3"} <= {link.name for link in fitted}
    for link in fitted:
        assert link.fit.in_sample.median_abs < 0.1, link.name


@pytest.mark.parametrize(
    ("architecture", "tier", "expected"),
    [
        ("hopper", fast(name="nvlink"), "nvlink-hopper"),
        ("blackwell-ultra", fast(72, name="nvlink"), "nvlink-blackwell"),
        ("cdna3", fast(name="infinity-fabric"), "xgmi-cdna3"),
        ("volta", fast(name="nvlink"), "scale-up"),
        ("hopper", fast(name="unheard-of"), "scale-up"),
        ("tpu-v5p", fast(name="ici"), "ici"),
    ],
)
def test_the_closest_calibration_is_taken(architecture, tier, expected):
    built = cluster(tier, slow(name="InfiniBand NDR"), architecture=architecture, num_devices=64)
    names = [link.name for link in calibrate(built).links]
    assert names[0] == expected
    assert names[1] in ("infiniband", "fat-tree-cdna")


def test_a_tiers_own_launch_of_exchanges_scales_that_of_short_ones():
    local = fast(name="nvlink", parameters=LinkParameters(exchange_launch=30e-6))
    built = cluster(local, slow(name="y"), architecture="hopper", num_devices=64)
    packaged = next(link for link in link_calibrations() if link.name == "nvlink-hopper")
    result = calibrate(built).links[0]
    ratio = packaged.exchange_short_launch / packaged.exchange_launch
    assert 0.5 < ratio < 1.0
    assert result.exchange_launch == 30e-6
    assert result.exchange_short_launch == pytest.approx(ratio * 30e-6)


def test_beyond_the_node_the_generic_one_is_for_networks():
    assert calibrate(cluster(fast(name="x"), slow(name="y"))).links[1].name == "scale-out"


def test_no_calibration_may_claim_more_than_the_link_has():
    with raises(SpecError, "out_of_range efficiencies of network calibration x"):
        LinkCalibration(
            name="x", protocols=(WireProtocol(**{**WIRE, "efficiency": 1.2}),), algorithms=("ring",)
        )


def test_unknown_and_missing_keys_are_refused():
    good = {"name": "x", "protocols": [WIRE], "algorithms": ["ring"]}
    assert link_calibration_of(good, where="here").protocols[0].efficiency == 0.9
    with raises(ReaderError, "unknown_key effciency"):
        link_calibration_of({**good, "effciency": 1}, where="here")
    with raises(ReaderError, "missing network calibration.protocols"):
        link_calibration_of({"name": "x"}, where="here")


def linked(name, **changes):
    return LinkCalibration(name=name, protocols=(WireProtocol(**WIRE),), algorithms=("ring",), **changes)


def test_what_names_the_devices_generation_comes_before_what_names_the_tier_only():
    known = (
        linked("any", tiers=("nvlink",)),
        linked("other", tiers=("nvlink",), architectures=("volta",)),
        linked("own", tiers=("nvlink",), architectures=("hopper",)),
        linked("scale-up"),
        linked("scale-out"),
    )
    built = cluster(fast(name="NVLink"), slow(name="x"), architecture="Hopper")
    assert [link.name for link in calibrate(built, known).links] == ["own", "scale-out"]
    older = cluster(fast(name="NVLink"), slow(name="x"), architecture="pascal")
    assert [link.name for link in calibrate(older, known).links] == ["any", "scale-out"]
    alone = cluster(slow(name="x"), num_devices=8)
    assert [link.name for link in calibrate(alone, known).links] == ["scale-out"]


def test_of_ones_own_fits_the_first_that_names_a_tier_is_taken_before_all_others():
    local = (linked("mine", tiers=("fast",)), linked("also mine", tiers=("fast",)))
    assert calibrate(cluster(fast(), slow()), own=local).links[0].name == "mine"


def test_what_a_tier_states_is_of_long_messages_and_others_keep_their_ratio():
    """Simple has 0.8 of the link and 8 us, LL a quarter of both; the tier states 0.4 and 4 us."""
    quick = WireProtocol(name="LL", launch=2e-6, hop_factor=1.0, efficiency=0.2)
    wide = WireProtocol(name="Simple", launch=8e-6, hop_factor=5.0, efficiency=0.8)
    known = (
        LinkCalibration(name="scale-up", protocols=(quick, wide), algorithms=("ring",)),
        linked("scale-out"),
    )
    stated = LinkParameters(efficiency=0.4, launch=4e-6, exchange_efficiency=0.3, algorithms=("tree",))
    link = calibrate(cluster(fast(parameters=stated), slow()), known).links[0]
    protocols = [(wire.launch, wire.efficiency, wire.hop_factor) for wire in link.protocols]
    assert protocols == [pytest.approx((1e-6, 0.1, 1.0)), pytest.approx((4e-6, 0.4, 5.0))]
    assert (link.exchange_efficiency, link.reduction_efficiency, link.algorithms) == (0.3, 1.0, ("tree",))


def test_of_what_a_tier_does_not_state_the_fit_stays():
    """LL is launched at once and reaches twice as much as Simple; no share of a link is above 1."""
    quick = WireProtocol(name="LL", launch=2e-6, hop_factor=1.0, efficiency=0.8)
    wide = WireProtocol(name="Simple", launch=0.0, hop_factor=1.0, efficiency=0.4)
    near = LinkCalibration(name="scale-up", protocols=(quick, wide), algorithms=("ring",))

    def found(**stated):
        tier = fast(parameters=LinkParameters(**stated))
        link = calibrate(cluster(tier, slow()), (near, linked("scale-out"))).links[0]
        return [(wire.launch, wire.efficiency) for wire in link.protocols]

    assert found(launch=5e-6) == [(5e-6, 0.8), (5e-6, 0.4)]
    assert found(efficiency=0.9) == [(2e-6, 1.0), (0.0, pytest.approx(0.9))]


def test_roce_has_the_rates_of_infiniband_and_no_reduction_in_switches():
    roce, infiniband = (
        calibrate(cluster(fast(name="nvlink"), slow(name=name), architecture="hopper", num_devices=64)).links[
            1
        ]
        for name in ("RoCE", "InfiniBand")
    )
    assert (roce.name, infiniband.name) == ("roce", "infiniband")
    assert roce.protocols == infiniband.protocols
    assert set(infiniband.algorithms) - set(roce.algorithms) == {"in_network"}
    assert roce.fit.low < infiniband.fit.low
