"""The ranking of the analysis: best, slowest, and its first table."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.presets.almodel.published import CLUSTER, MODEL, WORKLOAD, key, key_of, remat, rows

from forescale.errors import InfeasibleError
from forescale.presets.almodel import Almodel, first_table_terms, search_almodel
from forescale.presets.almodel.preset import POLICIES


@pytest.fixture(scope="module")
def found():
    return search_almodel(MODEL, CLUSTER, WORKLOAD, top=12)


def test_the_best_five_are_the_detailed_ones_in_order(found):
    assert [key_of(one) for one in found.best[:5]] == [key(row) for row in rows("detailed")]
    assert [one.strategy.recompute for one in found.best[:5]] == [
        remat(row["remat"]) for row in rows("detailed")
    ]


def test_the_slowest_ten_are_the_published_ones_in_order(found):
    assert [key_of(one) for one in found.slowest] == [key(row) for row in rows("slowest")]
    assert {one.strategy.recompute.granularity for one in found.slowest} == {"none"}


def test_range_of_step_times_and_mfu(found):
    assert found.best[0].step.total == pytest.approx(4.402, abs=0.0006)
    assert found.slowest[0].step.total == pytest.approx(40.406, abs=0.006)
    assert 100 * found.best[0].projection.mfu_full_attention == pytest.approx(31.5, abs=0.06)
    assert 100 * found.slowest[0].projection.mfu_full_attention == pytest.approx(3.4, abs=0.06)


def test_the_first_table_on_its_own_terms():
    preset = Almodel(terms=first_table_terms())
    result = search_almodel(MODEL, CLUSTER, WORKLOAD, preset=preset, top=14, worst=0, least_mfu=0.2)
    assert [key_of(one) for one in result.best] == [key(row) for row in rows("first_table")]
    assert [one.strategy.recompute for one in result.best] == [
        remat(row["remat"]) for row in rows("first_table")
    ]


def test_the_ranking_has_each_layout_once(found):
    totals = [one.step.total for one in found.best]
    assert totals == sorted(totals)
    assert len({key_of(one)[:6] for one in found.best}) == len(totals) == 12
    assert found.num_layouts == 76
    assert all(one.memory.total <= CLUSTER.device.hbm_bytes for one in (*found.best, *found.slowest))
    assert found.num_feasible <= found.num_layouts * len(POLICIES)


def test_nothing_that_fits_is_an_error():
    small = replace(CLUSTER, device=replace(CLUSTER.device, hbm_bytes=1e9))
    with pytest.raises(InfeasibleError, match="no layout of almodel fits"):
        search_almodel(MODEL, small, WORKLOAD)
