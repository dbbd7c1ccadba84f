"""Losses of whole runs as data: looked up, composed, bounded."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import get_args

import pytest
from tests.errors import raises
from tests.small import cluster

from forescale.catalogue.clusters import load_cluster
from forescale.cost.calibration import UNMEASURED, load_calibration
from forescale.cost.run_calibration import (
    Assumptions,
    DeviceFactors,
    Novelty,
    RunCalibration,
    Seen,
    SharedFactors,
    SoftwareFactors,
    Unseen,
    load_run_calibration,
)
from forescale.cost.select import Calibrations, Costs, read_calibrations
from forescale.errors import ReaderError, SpecError, UnknownNameError

NOVELTIES = get_args(Novelty)
H100 = cluster(8).device
WIDE = Unseen(rows=9, median_abs=0.1, bias=0.0, p10=-0.2, p90=0.1, p90_abs=0.2, coverage=0.8)
EXAMPLE = RunCalibration(
    name="example",
    date="2026-01-01",
    source="made up",
    shared=SharedFactors(network=0.8, dispatch=0.5, memory=0.9),
    devices={
        H100.architecture: DeviceFactors(wide=0.8, narrow=0.7, narrowest=0.6, attention=0.9),
        "generic": DeviceFactors(wide=0.5),
    },
    software={"fast": SoftwareFactors(), "slow": SoftwareFactors(product=0.5, passes=4.0, attention=0.1)},
    seen=Seen(
        sources=("PAPER1",), families=("PAPER",), frameworks=("fast",), architectures=(H100.architecture,)
    ),
    spreads={novelty: {"all": WIDE} for novelty in NOVELTIES},
)


def test_factors_multiply_generation_and_software():
    run = EXAMPLE.factors(H100, "slow")
    assert run.rate("bf16") == pytest.approx(0.8 * 0.5)
    assert run.rate("fp8") == pytest.approx(0.7 * 0.5)
    assert run.rate("nvfp4") == pytest.approx(0.6 * 0.5)
    assert run.rate("attention") == pytest.approx(0.9 * 0.1)
    assert run.rate("norm") == pytest.approx(1 / 4)
    assert run.rate("dispatch") == pytest.approx(0.8 * 0.5)


def test_a_new_generation_s_products_get_faster_with_the_releases_of_a_stack():
    """Half a year after the first device 1/e of what products lacked is left, at the latest release a year later."""
    device_factors = DeviceFactors(wide=0.6, narrow=0.7, narrowest=0.8, since="25.01")
    lacking = replace(EXAMPLE.shared, immaturity=0.1, narrow_immaturity=0.4, maturing_years=0.5)
    known = replace(EXAMPLE, devices={H100.architecture: device_factors}, shared=lacking, latest="26.07")
    then, now = known.factors(H100, "fast@25.07"), known.factors(H100, "fast")
    left = math.exp(-1.0) - math.exp(-3.0)
    assert then.rate("bf16") == pytest.approx(0.6 * math.exp(-0.1 * left))
    assert then.rate("fp8") / now.rate("fp8") == pytest.approx(math.exp(-0.4 * left))
    assert then.rate("nvfp4") / now.rate("nvfp4") == pytest.approx(math.exp(-0.4 * left))
    assert now == known.factors(H100, "fast@26.07")
    assert known.factors(H100, "fast@27.07").rate("fp8") > now.rate("fp8") == 0.7
    matured = replace(known, devices={H100.architecture: replace(device_factors, since="")})
    assert matured.factors(H100, "fast@25.07") == matured.factors(H100, "fast")
    assert matured.factors(H100, "fast").rate("bf16") == 0.6


@pytest.mark.parametrize(
    "release",
    [
        "wrong_type the release of a software stack",
        "wrong_type the release of a software stack",
        "wrong_type the release of a software stack",
        "new",
    ],
)
def test_a_release_is_a_year_and_a_month(release):
    with raises(SpecError, "wrong_type the release of a software stack"):
        EXAMPLE.factors(H100, f"fast@{release}")


def test_power_and_host_are_the_device_s():
    """Wide products sustain more on boards that may draw more; slow hosts take longer for each launch."""
    device_factors = DeviceFactors(wide=0.6, narrow=0.7, power_w=1000.0, power_exponent=0.75)
    slow = {"slow": SoftwareFactors(kernel_interval_s=1e-4)}
    known = replace(EXAMPLE, devices={H100.architecture: device_factors}, software=slow)
    hot = replace(H100, power_w=1200.0, host_pace=1.5)
    base, more = (known.factors(item, "slow") for item in (replace(H100, power_w=1000.0), hot))
    assert base.rate("bf16") == pytest.approx(0.6)
    assert more.rate("bf16") == pytest.approx(0.6 * 1.2**0.75)
    assert more.rate("fp8") == base.rate("fp8")
    assert more.kernel_interval_s == pytest.approx(1.5e-4)
    assert known.factors(replace(H100, power_w=0.0), "slow").rate("bf16") == pytest.approx(0.6)


def test_16_bit_products_of_models_with_experts_sustain_more():
    device_factors = DeviceFactors(wide=0.6, routed=1.1, narrow=0.7)
    known = replace(EXAMPLE, devices={H100.architecture: device_factors})
    dense, routed = (known.factors(H100, "fast", experts=experts) for experts in (False, True))
    assert (dense.rate("bf16"), routed.rate("bf16")) == (0.6, pytest.approx(0.6 * 1.1))
    assert routed.rate("fp8") == dense.rate("fp8") == 0.7
    costs = Costs(calibration=known)
    assert costs.run_factors(H100, "fast", experts=True) == routed


def test_a_device_goes_before_its_generation_and_others_are_generic():
    local = replace(EXAMPLE, devices={**EXAMPLE.devices, H100.name: DeviceFactors(wide=0.9)})
    assert local.factors(H100, "fast").rate("bf16") == pytest.approx(0.9)
    other = replace(H100, name="other", architecture="unheard-of")
    assert local.factors(other, "fast").rate("bf16") == pytest.approx(0.5)


def test_unknown_software_is_named():
    with raises(UnknownNameError, "unknown_name software"):
        EXAMPLE.factors(H100, "slowest")


def spread(calibration=EXAMPLE, device=H100, compute="bf16", *, moe=False, novelty="new family", **more):
    return calibration.spread(device, compute, moe=moe, novelty=novelty, **more)


def test_what_is_new_of_a_run():
    stranger = replace(H100, name="other", architecture="unheard-of")
    assert EXAMPLE.novelty(H100, "fast", "PAPER1") == "known source"
    assert EXAMPLE.novelty(stranger, "fast", "PAPER1") == "known source"
    assert EXAMPLE.novelty(H100, "fast", "PAPER2") == "new release"
    assert EXAMPLE.novelty(H100, "fast", "OTHER") == EXAMPLE.novelty(H100, "fast") == "new family"
    assert EXAMPLE.novelty(H100, None) == EXAMPLE.novelty(H100, "unheard-of") == "new stack"
    assert EXAMPLE.novelty(stranger, "fast") == EXAMPLE.novelty(stranger, "fast", "PAPER2") == "new device"


def test_the_closest_group_that_is_known_gives_the_interval():
    closest = replace(WIDE, p10=-0.5, p90=0.5)
    group = f"{H100.architecture}/16/moe"
    local = replace(EXAMPLE, spreads={"new family": {"all": WIDE, group: closest}})
    assert spread(local, moe=True) == closest
    assert spread(local) == spread(local, compute="fp8", moe=True) == WIDE


def test_what_leaves_something_open_has_an_interval_of_its_own():
    opened = replace(WIDE, p10=-0.5, p90=0.5)
    local = replace(EXAMPLE, spreads={"new family": {"all": WIDE, "all, open": opened}})
    assert (spread(local), spread(local, left_open=True)) == (WIDE, opened)
    assert spread(replace(EXAMPLE, spreads={"new family": {"all": WIDE}}), left_open=True) == WIDE


def test_what_waits_for_the_host_widens_the_interval_by_its_share():
    waiting = replace(WIDE, p10=-0.4, p90=0.4)
    local = replace(EXAMPLE, spreads={"new family": {"all": WIDE, "waiting": waiting}})
    assert spread(local) == WIDE
    half = spread(local, waits=0.5)
    assert (half.p10, half.p90) == pytest.approx((-math.hypot(0.2, 0.2), math.hypot(0.1, 0.2)))
    assert spread(replace(EXAMPLE, spreads={"new family": {"all": WIDE}}), waits=0.5) == WIDE


def test_software_of_few_runs_on_a_generation_has_a_wider_interval():
    few = replace(WIDE, p10=-math.log(1.5), p90=math.log(1.5))
    seen = replace(EXAMPLE.seen, stacks=(f"fast/{H100.architecture}/16",))
    local = replace(EXAMPLE, seen=seen, spreads={"new family": {"all": WIDE, "few runs": few}})
    assert spread(local, software="fast") == spread(local, software="fast@26.04") == WIDE
    for name, compute in (("slow", "bf16"), ("fast", "fp8"), (None, "bf16")):
        other = spread(local, compute=compute, software=name)
        assert (other.p10, other.p90) == pytest.approx((1.5 * WIDE.p10, 1.5 * WIDE.p90))
    assert spread(replace(EXAMPLE, spreads={"new family": {"all": WIDE}}), software="slow") == WIDE


def test_a_pair_of_generation_and_kind_that_is_not_known_has_the_wider_interval_of_the_two():
    narrow, wide = (replace(WIDE, p10=-size, p90=size) for size in (0.05, 0.3))
    group = f"{H100.architecture}/16"
    for known in ({group: narrow, "moe": wide}, {group: wide, "moe": narrow}):
        local = replace(EXAMPLE, spreads={"new family": {"all": WIDE, **known}})
        assert spread(local, moe=True) == wide
        assert spread(local, moe=False) == known[group]


def test_intervals_widen_for_generations_without_kernels():
    known = spread(novelty="new device")
    other = spread(device=replace(H100, name="other", architecture="unheard-of"), novelty="new device")
    assert known.low(1.0) == pytest.approx(math.exp(-0.2))
    assert other.low(1.0) < known.low(1.0) < 1.0 < known.high(1.0) < other.high(1.0)
    assert other.low(1.0) == pytest.approx(math.exp(WIDE.p10) ** 1.5)  # half as wide again
    assert other.high(1.0) == pytest.approx(math.exp(WIDE.p90) ** 1.5)
    assert (other.median_abs, other.bias) == (WIDE.median_abs * 1.5, WIDE.bias)


def test_the_more_is_new_the_wider_the_published_interval():
    published = load_run_calibration()
    widths = [spread(published, novelty=novelty, software="megatron-core").p90 for novelty in NOVELTIES[:4]]
    assert widths[0] <= min(widths[1:])
    assert widths[-1] > max(widths[:-1])
    known = published.spreads["known source"]["hopper/16/dense"]
    narrow = {**published.spreads["new family"], "hopper/16/dense": replace(known, p10=-0.01, p90=0.01)}
    surer = replace(published, spreads={**published.spreads, "new family": narrow})
    assert spread(surer, novelty="new family", software="megatron-core").p90 == widths[0], (
        "what is new is no surer than what is known"
    )


def test_published_factors_are_bounded():
    published = load_run_calibration()
    sustained = load_calibration(H100)
    run = published.factors(H100, "megatron-core")
    for dtype in ("bf16", "fp8"):
        assert 0.3 < sustained.gemm[dtype].fraction * run.rate(dtype) <= 1.0
    for groups in published.spreads.values():
        assert all(
            spread.p10 < 0.0 < spread.p90 and 0.0 <= spread.coverage <= 1.0 for spread in groups.values()
        )


def test_unknown_keys_are_refused(tmp_path):
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps({"name": "x", "date": "", "source": "", "devices": {"a": {"wdie": 1.0}}}))
    with raises(ReaderError, "unknown_key wdie"):
        read_calibrations(path)
    path.write_text("{")
    with raises(ReaderError, "cannot_parse JSON"):
        read_calibrations(path)


def test_devices_are_trained_with_the_usual_software_of_their_vendor():
    published = load_run_calibration()
    tpu = load_cluster("tpu-v5e", 8).device
    assert published.factors(tpu) == published.factors(tpu, "xla")
    assert published.factors(H100) == published.factors(H100, "megatron-core")
    assert published.factors(tpu) != published.factors(tpu, "megatron-core")


def test_without_any_held_out_runs_errors_are_wide():
    """A fifth at the median, a third either way; half as wide again for a device of another generation."""
    bare, other = replace(EXAMPLE, spreads={}), replace(H100, name="other", architecture="new")
    known, unknown = (spread(bare, device, novelty="new device") for device in (H100, other))
    assert (known.median_abs, known.bias, known.p10, known.p90) == (0.2, 0.0, -0.3, 0.3)
    assert (unknown.p10, unknown.p90) == pytest.approx((-0.3 * UNMEASURED, 0.3 * UNMEASURED))
    assert unknown.median_abs == pytest.approx(0.2 * UNMEASURED)


def test_a_document_of_calibrations_is_read_as_it_was_written(tmp_path):
    written = Calibrations(runs=EXAMPLE)
    file = tmp_path / "own.json"
    file.write_text(json.dumps(written.to_json()))
    assert read_calibrations(file) == written


ASSUMED = Assumptions(dense=0.03, moe=0.04, framework=0.12, release=0.1)


def test_assumed_settings_add_as_squares():
    assert ASSUMED.doubt((), moe=True, years=0.0) == 0.0
    assert ASSUMED.doubt(("graphs",), moe=True, years=0.0) == pytest.approx(0.04)
    four = ("graphs", "kernels", "overlap", "recompute")
    assert ASSUMED.doubt(four, moe=False, years=0.0) == pytest.approx(0.06)
    assert ASSUMED.doubt((*four, "framework"), moe=False, years=0.0) == pytest.approx(math.hypot(0.06, 0.12))
    assert ASSUMED.doubt(four, moe=False, years=0.25) == pytest.approx(math.hypot(0.06, 0.05))


def test_releases_later_than_the_latest_widen():
    runs = replace(load_run_calibration(), assumed=ASSUMED, latest="26.04")
    assumed = ("graphs",)
    doubts = [
        runs.doubt(assumed, f"megatron-core@{release}", moe=False) for release in ("26.02", "26.04", "27.04")
    ]
    assert doubts == pytest.approx([0.03, 0.03, math.hypot(0.03, 0.1)])
    assert runs.doubt((), "megatron-core@27.04", moe=False) == pytest.approx(0.1)
