"""Calibration files: complete, physical, and honest about what they inherit."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import get_args, get_type_hints

import pytest
from tests.errors import raises

from forescale.catalogue.clusters import device_names, load_device
from forescale.cost.calibration import (
    Calibration,
    RunFactors,
    Spread,
    calibration_names,
    calibration_of,
    differing,
    load_calibration,
    read_calibration,
)
from forescale.errors import ReaderError, SpecError
from forescale.graph.ops import Elementwise

NAMES = sorted(calibration_names())


@pytest.fixture(name="content")
def _content():
    return asdict(read_calibration("generic"))


@pytest.mark.parametrize("name", NAMES)
def test_every_file_is_physical(name):
    calibration = read_calibration(name)
    products = (*calibration.gemm.values(), *calibration.tile.values())
    attention = (*calibration.attention.values(), *calibration.tile_attention.values())
    fractions = [entry.fraction for entry in (*products, *attention)]
    fractions += [entry.bandwidth for entry in (*products, *attention, *calibration.memory.values())]
    fractions += [calibration.grouped.fraction, calibration.grouped.contract_m]
    assert all(0.0 < fraction <= 1.0 for fraction in fractions)
    costs = [entry.launch_s for entry in (*products, *attention, *calibration.memory.values())]
    costs += [entry.fill_k for entry in calibration.gemm.values()] + [entry.fill for entry in attention]
    costs += [entry.tail for entry in (*products, *attention)]
    assert all(cost >= 0.0 for cost in costs)


@pytest.mark.parametrize("name", NAMES)
def test_every_entry_says_where_it_comes_from(name):
    calibration = read_calibration(name)
    entries = [*calibration.gemm.values(), *calibration.attention.values(), *calibration.memory.values()]
    entries += [*calibration.tile.values(), *calibration.tile_attention.values()]
    for entry in (*entries, calibration.grouped, calibration.unfused):
        assert entry.fit.source
        assert entry.fit.low <= 1.0 <= entry.fit.high
        if entry.fit.kind == "fitted":
            assert entry.fit.in_sample is not None
            assert entry.fit.machines


def test_every_family_of_traffic_has_parameters():
    families = get_args(get_type_hints(Elementwise)["family"])
    assert set(read_calibration("generic").memory) == set(families)
    for table in (read_calibration("generic").attention, read_calibration("generic").tile_attention):
        assert set(table) == {"forward", "backward"}


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("h100-sxm", "hopper"),
        ("a100-pcie-80gb", "ampere"),
        ("b300", "blackwell-ultra"),
        ("tpu-v5p", "tpu-v5p"),
        ("v100-sxm2-32gb", "volta"),
    ],
)
def test_looked_up_by_architecture_then_generic(device, expected):
    assert load_calibration(load_device(device)).name == expected


def test_a_device_of_no_known_generation_takes_the_generic_one():
    assert load_calibration(replace(load_device("h100-sxm"), architecture="none")).name == "generic"


def test_a_file_named_like_the_device_comes_first():
    device = replace(load_device("h100-sxm"), name="Gaudi2", architecture="none")
    assert load_calibration(device).name == "gaudi2"


def test_every_catalogue_device_has_one():
    assert all(isinstance(load_calibration(load_device(name)), Calibration) for name in device_names())


def test_inherited_entries_stay_priors():
    hopper = read_calibration("hopper")
    assert hopper.gemm["bf16"].fit.kind == "fitted"
    assert hopper.gemm["tf32"].fit.kind == "roofline"
    assert "prior" in hopper.gemm["tf32"].fit.source


def test_reads_back_what_it_writes(content):
    assert calibration_of(content, where="test") == read_calibration("generic")


def test_unknown_key_is_refused(content):
    content["gemm"]["bf16"]["fractoin"] = 0.5
    with raises(ReaderError, "unknown_key fractoin"):
        calibration_of(content, where="mine.json")


def test_missing_key_is_refused(content):
    del content["grouped"]["fraction"]
    with raises(ReaderError, "missing grouped.fraction"):
        calibration_of(content, where="mine.json")


def test_a_spread_lies_around_what_it_is_of():
    """Logarithmic: between half and twice of 10 s; one that lies to a side holds the time itself."""
    wide = Spread(rows=9, median_abs=0.3, bias=0.0, p10=math.log(0.5), p90=math.log(2.0))
    assert (wide.low(10.0), wide.high(10.0)) == (pytest.approx(5.0), pytest.approx(20.0))
    above, below = replace(wide, p10=0.1), replace(wide, p90=-0.1)
    assert (above.low(10.0), below.high(10.0)) == (10.0, 10.0)


def test_run_factors_are_neutral_until_fitted():
    run = read_calibration("hopper").run
    assert run.rate("bf16") == run.rate("attention") == run.rate("memory") == 1.0
    assert run.step_overhead_s == run.microbatch_overhead_s == run.straggler == 0.0


def test_with_run_replaces_only_the_run_factors():
    before = read_calibration("hopper")
    after = before.with_run(RunFactors(sustained={"bf16": 0.9}))
    assert after.run.rate("bf16") == 0.9
    assert after.run.rate("fp8") == 1.0
    assert replace(after, run=before.run) == before


def test_power_scales_matrix_rates_of_weaker_boards_only():
    ampere = read_calibration("ampere")
    assert ampere.reference_power_w == 400.0
    assert ampere.power_factor(300.0) == pytest.approx(0.75**0.5)
    assert ampere.power_factor(500.0) == ampere.power_factor(0.0) == 1.0
    assert read_calibration("generic").power_factor(300.0) == 1.0


def test_cdna3_follows_power_as_amd_measured_its_clocks():
    """Measuring Max-Achievable FLOPs, part 2: BF16 at 1207 MHz on MI300X (750 W), 1447 on MI325X (1000 W); FP8 at 1230
    and 1464."""
    cdna3 = read_calibration("cdna3")
    assert cdna3.power_factor(750.0) == pytest.approx(1207.0 / 1447.0, rel=2e-3)
    assert cdna3.power_factor(750.0) == pytest.approx(1230.0 / 1464.0, rel=2e-2)


def test_older_attention_kernels_replace_the_current_ones():
    hopper = read_calibration("hopper")
    assert hopper.attention_kinds == ("flash-1", "flash-2")
    older = hopper.with_attention("flash-2")
    assert older.attention["forward"] == hopper.attention["forward flash-2"]
    assert older.tile_attention["backward"] == hopper.tile_attention["backward flash-2"]
    assert older.gemm == hopper.gemm


def test_unknown_attention_kernels_are_refused():
    with raises(SpecError, "not_one_of older attention kernels of calibration hopper"):
        read_calibration("hopper").with_attention("flash-9")
    with raises(SpecError, "not_one_of older attention kernels of calibration generic"):
        read_calibration("generic").with_attention("flash-1")


def test_what_a_calibration_changes_is_what_is_written():
    base = read_calibration("hopper")
    assert differing(base, "hopper") == {"base": "hopper"}
    assert differing(replace(base, power_exponent=0.25), "hopper") == {
        "base": "hopper",
        "power_exponent": 0.25,
    }


def test_matrix_rates_follow_power_only_where_both_are_known():
    """Half the watts at the square root: dynamic power grows as clock times voltage squared."""
    known = replace(read_calibration("hopper"), reference_power_w=700.0, power_exponent=0.5)
    assert known.power_share(350.0) == pytest.approx(0.5**0.5)
    assert known.power_share(0.0) == replace(known, reference_power_w=0.0).power_share(350.0) == 1.0
