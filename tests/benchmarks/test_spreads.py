"""Intervals by group: what 8 runs in 10 of a kind lie within, said by other families; waiting for the host errs by itself."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.spreads import MUCH_WAITING, Errors, spreads, widths

from forescale.cost.run_calibration import FEW, WAITING

GROUPS = ("hopper/16/dense", "hopper/16", "dense", "all")


def rows(errors, families="AB", core=True, waits=0.0, groups=GROUPS, few=False):
    """Return errors whose families alternate; what is not a list is of every run."""
    count = len(errors)
    every = [groups] * count if isinstance(groups, tuple) else groups
    return Errors(
        errors=np.asarray(errors, dtype=np.float64),
        core=np.broadcast_to(np.asarray(core), count),
        families=np.array([families[index % len(families)] for index in range(count)]),
        groups=tuple(every),
        waits=np.broadcast_to(np.asarray(waits, dtype=np.float64), count),
        few=np.broadcast_to(np.asarray(few), count),
    )


def test_large_groups_of_two_families_have_a_spread_of_their_own():
    errors = np.linspace(-0.2, 0.2, 40)
    assert set(spreads(rows(errors, "A"))) == {"all", "core"}
    two = spreads(rows(errors))
    assert set(two) == {*GROUPS, "core"}
    assert two["all"].p90 == -two["all"].p10 == pytest.approx(0.16, abs=0.006)
    assert two["all"].coverage == pytest.approx(0.8, abs=0.05)
    assert (two["all"].median_abs, two["all"].p90_abs) == pytest.approx((0.1, 0.18), abs=0.006)
    assert set(spreads(rows(errors[:19]))) == {"all", "core"}


def test_rows_that_leave_something_open_have_an_interval_of_their_own():
    """Core rows lie within 0.1, others within 0.3: each is judged by its like, sizes of errors are of all."""
    errors = np.concatenate([np.linspace(-0.1, 0.1, 40), np.linspace(-0.3, 0.3, 40)])
    result = spreads(rows(errors, core=np.arange(80) < 40))
    assert result["all"].p90 == result["core"].p90 == pytest.approx(0.08, abs=0.004)
    assert result["all, open"].p90 == pytest.approx(0.24, abs=0.012)
    assert (result["all"].rows, result["core"].rows, result["all, open"].rows) == (80, 40, 40)
    assert result["all"].coverage == pytest.approx(0.8, abs=0.05)


def test_few_core_rows_have_the_interval_of_all_rows_of_their_group_few_open_ones_that_of_a_wider_group():
    few = rows(np.concatenate([np.full(10, 0.01), np.full(30, 0.3)]), core=np.arange(40) < 10)
    assert spreads(few)["dense"].p90 == pytest.approx(0.3)
    others = ("ampere/16/dense", "ampere/16", "dense", "all")
    errors = np.concatenate([np.full(30, 0.01), np.full(4, 0.5), np.full(30, 0.3)])
    known = np.concatenate([np.ones(30), np.zeros(34)]) > 0
    result = spreads(rows(errors, core=known, groups=[GROUPS] * 34 + [others] * 30))
    assert result["hopper/16"].p90 == pytest.approx(0.01)
    assert "hopper/16, open" not in result
    assert result["dense, open"].p90 == pytest.approx(0.3)


def test_a_generation_of_one_family_is_wider_than_its_kind_where_its_runs_err_more_and_never_narrower():
    others = ("ampere/16/dense", "ampere/16", "dense", "all")
    groups = [GROUPS] * 240 + [others] * 24
    families = [*("ABCDEF" * 40), *("G" * 24)]
    known = np.full(240, 0.1)
    far, near = (spreads(rows([*known, *np.full(24, size)], families, groups=groups)) for size in (0.3, 0.02))
    assert far["ampere/16/dense"].p90 == pytest.approx(0.3)
    assert "ampere/16" not in far
    assert (far["dense"].p90, far["hopper/16/dense"].p90) == pytest.approx((0.1, 0.1))
    assert "ampere/16/dense" not in near


def test_what_leaves_something_open_is_no_surer_than_what_is_fully_known():
    others = ("ampere/16/dense", "ampere/16", "dense", "all")
    errors = np.concatenate([np.full(30, 0.4), np.full(4, 0.1), np.full(30, 0.2)])
    known = np.concatenate([np.ones(30), np.zeros(34)]) > 0
    result = spreads(rows(errors, core=known, groups=[GROUPS] * 34 + [others] * 30))
    assert result["hopper/16/dense, open"].p90 == pytest.approx(0.4)
    assert result["all, open"].p90 == pytest.approx(0.4)
    assert "ampere/16, open" in result


def test_a_family_with_many_runs_weighs_less_for_each():
    """80 runs within 0.1 and 20 within 0.4: of 100 alike 80 in 100 lie within 0.1, but the next family may be as B."""
    errors = np.concatenate([np.linspace(0.0, 0.1, 80), np.linspace(0.0, 0.4, 20)])
    alike = np.quantile(errors, 0.8)
    result = spreads(rows(errors, ["A"] * 80 + ["B"] * 20))
    weights = np.array([1 / 95] * 80 + [1 / 35] * 20)
    within = weights[errors <= result["all"].p90].sum() / weights.sum()
    assert within == pytest.approx(0.8, abs=0.02)
    assert result["all"].p90 > 1.5 * alike


def test_time_that_devices_wait_for_the_host_errs_by_itself():
    """Half of the runs wait half of their time, whose seconds err by 0.4 beyond the 0.03 of all others."""
    share = np.where(np.arange(80) < 40, 0.5, 0.0)
    errors = np.where(share > 0.0, np.hypot(0.03, 0.5 * 0.4), 0.03)
    result = widths(rows(errors, waits=share), np.ones(80, dtype=bool))
    assert result.waiting == pytest.approx(0.4)
    assert result.core["all"] == pytest.approx(0.03)
    every = rows(errors, waits=share)
    assert result.of(every, 0) == pytest.approx(errors[0])
    assert result.of(every, 79) == pytest.approx(0.03)
    shown = spreads(every)[WAITING]
    assert (shown.rows, shown.p90, shown.coverage) == (40, pytest.approx(0.4), 1.0)
    assert WAITING not in spreads(rows(errors, waits=MUCH_WAITING / 2.0))
    assert WAITING not in spreads(rows(errors, "A", waits=share))


def test_software_of_few_runs_on_a_generation_has_a_wider_interval():
    """Of 400 runs 40 are of such software: all within 0.1, those at 0.15."""
    few = np.arange(400) < 40
    errors = np.where(few, 0.15, 0.1)
    every = rows(errors, few=few)
    result = widths(every, np.ones(400, dtype=bool))
    assert result.core["all"] == pytest.approx(0.1)
    assert result.few == pytest.approx(1.5)
    assert (result.of(every, 0), result.of(every, 399)) == pytest.approx((0.15, 0.1))
    shown = spreads(every)[FEW]
    assert (shown.rows, shown.p90) == (40, pytest.approx(np.log(1.5)))


def test_few_runs_of_one_family_or_within_the_interval_of_others_widen_nothing():
    few = np.arange(400) < 40
    families = np.where(few, "A", np.where(np.arange(400) % 2, "A", "B")).tolist()
    assert FEW not in spreads(rows(np.where(few, 0.15, 0.1), families, few=few))
    near = rows(np.where(few, 0.05, 0.1), few=few)
    assert widths(near, np.ones(400, dtype=bool)).few == 1.0
    assert FEW not in spreads(near)


def test_an_interval_is_judged_by_the_other_families():
    """A's errors are 0.1 and B's 0.2: each lies outside or inside of what the other says."""
    result = spreads(rows(np.tile([0.1, 0.2], 20)))
    assert result["all"].coverage == pytest.approx(0.5)
