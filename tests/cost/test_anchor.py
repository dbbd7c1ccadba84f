"""What a bench measured, carried over: by hand, and by the rule that Primus documents."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forescale.catalogue.clusters import load_device
from forescale.cost.anchor import Anchor, Measured, Residual
from forescale.cost.select import Costs

GIB = 2.0**30


def took(measured_s: float, modelled_s: float = 1.0, **more) -> Measured:
    return Measured(measured_s=measured_s, modelled_s=modelled_s, source="bench.json", **more)


@pytest.mark.parametrize("seconds", [1e-4, 1.0, 1e4])
def test_seconds_are_the_measured_ones_up_to_rounding_whatever_their_size(seconds):
    kind = took(seconds).kind_of
    assert {kind(seconds), kind(seconds * (1 + 5e-10)), kind(seconds * (1 - 5e-10))} == {"measured"}
    assert {kind(seconds * (1 + 5e-9)), kind(seconds * (1 - 5e-9)), kind(seconds / 2)} == {"restored"}


def test_work_elsewhere_takes_as_much_longer_than_modelled_as_it_did_there():
    assert took(0.9, 0.6).restored(0.2) == pytest.approx(0.3)


def test_in_proportion_a_quarter_is_left_on_four_times_the_ranks():
    """Primus projection, Tensor Parallelism: compute × benchmark_tp / target_tp; half of 0.8 s was the operator's."""
    there = took(0.8, 0.4, operators={"mlp": 0.2}, tp=2.0)
    assert there.proportional("mlp", 2.0) == pytest.approx(0.4)
    assert there.proportional("mlp", 8.0) == pytest.approx(0.1)


def test_peaks_are_split_into_what_lies_above_formulas_and_above_tensors():
    rows = Residual.from_rows(allocated_bytes=70 * GIB, reserved_bytes=77 * GIB, analytical_bytes=60 * GIB)
    assert (rows.framework_overhead_bytes, rows.live_tensor_excess_bytes) == (7 * GIB, 10 * GIB)
    assert (rows.total_bytes, rows.reserved_ratio) == (17 * GIB, None)
    assert rows.above(0.5) == 8.5 * GIB
    more = Residual.from_rows(allocated_bytes=70 * GIB, reserved_bytes=70 * GIB, analytical_bytes=80 * GIB)
    assert (more.framework_overhead_bytes, more.live_tensor_excess_bytes) == (0.0, 0.0)


def test_formulas_that_say_too_much_take_off_the_expected_and_nothing_of_the_upper_end():
    value = {"allocated_bytes": 70 * GIB, "reserved_bytes": 77 * GIB, "analytical_bytes": 80 * GIB}
    rows = Residual.from_rows(**value, signed=True)
    assert (rows.live_tensor_excess_bytes, rows.total_bytes) == (-10 * GIB, -3 * GIB)
    assert rows.reserved_ratio == pytest.approx(1.1)
    assert rows.total_bytes + rows.above(0.5) == 10.5 * GIB
    assert Residual.from_rows(**value, signed=True, tracked=True).reserved_ratio is None


def test_what_the_host_loses_counts_once():
    device = load_device("h100-sxm")
    anchor = Anchor(source="bench.json", blocks={"dense": {"forward": took(1.0)}})
    plain, timed = (Costs(anchor=item).run_factors(device, "megatron-core") for item in (None, anchor))
    assert plain.microbatch_overhead_s > 0.0
    assert (timed.microbatch_overhead_s, timed.step_overhead_s) == (0.0, 0.0)
    assert Costs(anchor=replace(anchor, timed=False)).run_factors(device, "megatron-core") == plain
