"""Losses of whole runs as data: looked up, composed, bounded."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from tests.small import cluster

from forescale.catalogue.clusters import load_cluster
from forescale.cost.calibration import UNMEASURED, Spread, load_calibration
from forescale.cost.run_calibration import (
    DeviceFactors,
    RunCalibration,
    SharedFactors,
    SoftwareFactors,
    load_run_calibration,
)
from forescale.cost.select import read_calibrations
from forescale.errors import ReaderError, UnknownNameError

H100 = cluster(8).device
WIDE = Spread(rows=9, median_abs=0.1, bias=0.0, p10=-0.2, p90=0.1)
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
    held_out={"all": WIDE},
)


def test_factors_multiply_generation_and_software():
    run = EXAMPLE.factors(H100, "slow")
    assert run.rate("bf16") == pytest.approx(0.8 * 0.5)
    assert run.rate("fp8") == pytest.approx(0.7 * 0.5)
    assert run.rate("nvfp4") == pytest.approx(0.6 * 0.5)
    assert run.rate("attention") == pytest.approx(0.9 * 0.1)
    assert run.rate("norm") == pytest.approx(1 / 4)
    assert run.rate("dispatch") == pytest.approx(0.8 * 0.5)


def test_a_device_goes_before_its_generation_and_others_are_generic():
    own = replace(EXAMPLE, devices={**EXAMPLE.devices, H100.name: DeviceFactors(wide=0.9)})
    assert own.factors(H100, "fast").rate("bf16") == pytest.approx(0.9)
    other = replace(H100, name="other", architecture="unheard-of")
    assert own.factors(other, "fast").rate("bf16") == pytest.approx(0.5)


def test_unknown_software_is_named():
    with pytest.raises(UnknownNameError, match="software"):
        EXAMPLE.factors(H100, "slowest")


def test_intervals_widen_for_generations_without_runs():
    known = EXAMPLE.spread(H100, "bf16")
    other = EXAMPLE.spread(replace(H100, name="other", architecture="unheard-of"), "bf16")
    assert known.low(1.0) == pytest.approx(math.exp(-0.2))
    assert other.low(1.0) < known.low(1.0) < 1.0 < known.high(1.0) < other.high(1.0)
    everything = EXAMPLE.held_out["all"]
    assert other.low(1.0) == pytest.approx(math.exp(everything.p10) ** 1.5)  # half as wide again
    assert other.high(1.0) == pytest.approx(math.exp(everything.p90) ** 1.5)
    assert (other.median_abs, other.bias) == (everything.median_abs * 1.5, everything.bias)


def test_published_factors_are_bounded():
    published = load_run_calibration()
    sustained = load_calibration(H100)
    run = published.factors(H100, "megatron-core")
    for dtype in ("bf16", "fp8"):
        assert 0.3 < sustained.gemm[dtype].fraction * run.rate(dtype) <= 1.0
    assert all(spread.p10 < spread.p90 for spread in published.held_out.values())


def test_unknown_keys_are_refused(tmp_path):
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps({"name": "x", "date": "", "source": "", "devices": {"a": {"wdie": 1.0}}}))
    with pytest.raises(ReaderError, match="wdie"):
        read_calibrations(path)
    path.write_text("{")
    with pytest.raises(ReaderError, match="not whole JSON"):
        read_calibrations(path)


def test_devices_are_trained_with_the_usual_software_of_their_vendor():
    published = load_run_calibration()
    tpu = load_cluster("tpu-v5e", 8).device
    assert published.factors(tpu) == published.factors(tpu, "xla")
    assert published.factors(H100) == published.factors(H100, "megatron-core")
    assert published.factors(tpu) != published.factors(tpu, "megatron-core")


def test_without_any_held_out_runs_errors_are_wide():
    """A fifth at the median, a third either way; half as wide again for a device of another generation."""
    bare = replace(EXAMPLE, held_out={})
    known, other = (
        bare.spread(device, "bf16") for device in (H100, replace(H100, name="other", architecture="new"))
    )
    assert (known.median_abs, known.bias, known.p10, known.p90) == (0.2, 0.0, -0.3, 0.3)
    assert (other.p10, other.p90) == pytest.approx((-0.3 * UNMEASURED, 0.3 * UNMEASURED))
    assert other.median_abs == pytest.approx(0.2 * UNMEASURED)
