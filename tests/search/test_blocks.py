"""Blocks that are known are neither built nor priced again, and give the same bits."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
from tests.small import cluster, dense, moe, workload

from forescale.question import Question
from forescale.search.blocks import KnownBlocks
from forescale.search.evaluate import score_pairs
from forescale.search.ranks import relaxed_placement
from forescale.search.tree import enumerate_cells
from forescale.spec import Layout
from forescale.spec.layout import Recompute
from forescale.spec.space import Space


def question(model):
    return Question(model=model, cluster=cluster(32), workload=workload(global_batch_size=64))


def candidates(asked, **space):
    selected = {"cp": (1, 2), "micro_batch_size": (1, 2), "zero": (1,), **space}
    return enumerate_cells(asked.model, asked.cluster, asked.workload, Space(base=Layout(), **selected)).whole


@pytest.fixture
def built(monkeypatch):
    """How many lists of operators were built."""
    module, counts = sys.modules["forescale.search.blocks"], []
    whole = module.build_blocks
    monkeypatch.setattr(module, "build_blocks", lambda *args: counts.append(1) or whole(*args))
    return counts


@pytest.mark.parametrize("model", [dense(4), moe(3)], ids=["dense", "moe"])
@pytest.mark.parametrize("relaxed", [False, True], ids=["placed", "relaxed"])
def test_known_blocks_are_not_built_again_and_give_the_same(model, relaxed, built):
    asked = question(model)
    layouts = candidates(asked)
    variant, row = np.nonzero(layouts.legal)
    places = relaxed_placement(layouts, asked.cluster) if relaxed else None
    keywords = {"relaxed": places}
    whole = score_pairs(asked, layouts, variant, row, **keywords)
    known, before = KnownBlocks(), len(built)
    score_pairs(asked, layouts, variant, row, **keywords, known=known)
    assert len(built) == 2 * before > 0
    some = np.arange(0, len(row), 3)
    again = score_pairs(asked, layouts, variant[some], row[some], **keywords, known=known)
    assert len(built) == 2 * before
    np.testing.assert_array_equal(again.step_time, whole.step_time[some])
    np.testing.assert_array_equal(again.peak, whole.peak[some])


def test_blocks_that_are_not_known_are_built(built):
    asked = question(dense(4))
    layouts, known = candidates(asked), KnownBlocks()
    variant, row = np.nonzero(layouts.legal)
    few = layouts.columns["micro_batch_size"][row] == 1
    score_pairs(asked, layouts, variant[few], row[few], known=known)
    before = len(built)
    result = score_pairs(asked, layouts, variant, row, known=known)
    assert len(built) > before
    np.testing.assert_array_equal(result.step_time, score_pairs(asked, layouts, variant, row).step_time)


def test_orders_of_ranks_are_known_by_what_they_are_not_by_their_number(built):
    asked = question(dense(4))
    orders = (("tp", "cp", "dp", "pp"), ("pp", "dp", "cp", "tp"))
    layouts, known = candidates(asked, axis_order=orders), KnownBlocks()
    variant, row = np.nonzero(layouts.legal)
    whole = score_pairs(asked, layouts, variant, row, known=known)
    second = np.array([item.axis_order == orders[1] for item in layouts.variants])[variant]
    before = len(built)
    result = score_pairs(asked, layouts, variant[second], row[second], known=known)
    assert len(built) == before
    np.testing.assert_array_equal(result.step_time, whole.step_time[second])
    np.testing.assert_array_equal(result.peak, whole.peak[second])


@pytest.mark.parametrize("model", [dense(4), moe(3)], ids=["dense", "moe"])
def test_policies_that_take_some_layers_are_those_alone(model):
    asked = question(model)
    policies = (Recompute(), Recompute(granularity="full", num_layers=1), Recompute(granularity="full"))
    layouts = candidates(asked, recompute=policies)
    variant, row = np.nonzero(layouts.legal)
    whole = score_pairs(asked, layouts, variant, row)
    which = np.array([policies.index(item.recompute) for item in layouts.variants])[variant]
    assert set(which.tolist()) == {0, 1, 2}
    for policy in range(len(policies)):
        some = np.flatnonzero(which == policy)
        alone = score_pairs(asked, replace(layouts), variant[some], row[some])
        np.testing.assert_array_equal(whole.step_time[some], alone.step_time)
        np.testing.assert_array_equal(whole.peak[some], alone.peak)
