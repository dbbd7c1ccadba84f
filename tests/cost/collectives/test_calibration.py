from __future__ import annotations

import pytest
from tests.cost.collectives.clusters import cluster, fast, slow

from forescale.cost.collectives import LinkCalibration, WireProtocol, calibrate, link_calibrations
from forescale.cost.collectives.calibration import link_calibration_of
from forescale.cost.collectives.catalogue import ALGORITHMS
from forescale.errors import ReaderError, SpecError

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


def test_beyond_the_node_the_generic_one_is_for_networks():
    assert calibrate(cluster(fast(name="x"), slow(name="y"))).links[1].name == "scale-out"


def test_no_calibration_may_claim_more_than_the_link_has():
    with pytest.raises(SpecError, match="between 0 and 1"):
        LinkCalibration(
            name="x", protocols=(WireProtocol(**{**WIRE, "efficiency": 1.2}),), algorithms=("ring",)
        )


def test_unknown_and_missing_keys_are_refused():
    good = {"name": "x", "protocols": [WIRE], "algorithms": ["ring"]}
    assert link_calibration_of(good, where="here").protocols[0].efficiency == 0.9
    with pytest.raises(ReaderError, match="here: unknown key 'effciency'"):
        link_calibration_of({**good, "effciency": 1}, where="here")
    with pytest.raises(
        ReaderError, match="here: network calibration is incomplete: it lacks protocols, algorithms"
    ):
        link_calibration_of({"name": "x"}, where="here")
