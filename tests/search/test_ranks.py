"""Where communicators may lie over all placements, and what messages take at best."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from tests.small import cluster, dense, moe, workload

from forescale.cost.mesh import AXES, placed
from forescale.graph.ops import Collective
from forescale.graph.sharding import split_layout
from forescale.inputs import pricing_of
from forescale.project import project
from forescale.question import Question
from forescale.search.evaluate import score
from forescale.search.layouts import as_degrees
from forescale.search.ranks import GivenRanks, relaxed_placement
from forescale.search.tree import enumerate_cells, enumerate_layouts
from forescale.spec.layout import Share
from forescale.spec.space import Space

DEVICES, WORK = cluster(16), workload(seq_len=1024, global_batch_size=16)
SPACE = Space(zero=(1,), micro_batch_size=(1,), placement=("orders", "all"))


def test_a_group_lies_wherever_some_placement_puts_it():
    cells = enumerate_cells(dense(2), DEVICES, WORK, SPACE)
    places = relaxed_placement(cells.whole, DEVICES)
    (part,) = places.parts
    columns = cells.whole.columns
    cell = int(np.flatnonzero((columns["tp"] == 4) & (columns["cp"] == 1) & (columns["pp"] == 1))[0])
    inside = set(part.places["tp"].size[:, part.codes["tp"][part.where[cell]]].tolist())
    assert inside == {2.0, 4.0}  # of 4 x 4 ranks a node of 8 holds 2 x 4 or 4 x 2


@pytest.mark.parametrize(("axis", "kind"), [("tp", "all_gather"), ("ep", "all_to_all"), ("pp", "p2p")])
def test_a_message_takes_what_it_takes_at_the_best_place(axis, kind):
    cells = enumerate_cells(moe(2), DEVICES, WORK, SPACE)
    rows = np.arange(len(cells))
    question = Question(model=moe(2), cluster=DEVICES, workload=WORK)
    degrees, choices = as_degrees(cells.whole.columns), split_layout(SPACE.base)[1]
    message = Collective(kind=kind, axis=axis, num_bytes=1e8)
    everywhere = relaxed_placement(cells.whole, DEVICES).pricing(question, degrees, choices, rows)
    orders = tuple(dict.fromkeys(variant.rank_order for variant in cells.whole.variants))
    wheres = [
        np.where(allowed, pricing_of(question, degrees, choices, placed(*order)).seconds(message), np.inf)
        for order, allowed in zip(orders, cells.whole.allows_orders(orders), strict=True)
    ]
    best = np.min(wheres, axis=0)
    np.testing.assert_array_equal(everywhere.seconds(message), best)
    of_stages = replace(message, num_bytes=np.full((3, len(rows)), 1e8))
    np.testing.assert_array_equal(everywhere.seconds(of_stages), np.stack([best] * 3))
    assert (best < wheres[0]).any() == (axis == "pp")


def test_a_placement_in_a_batch_of_many_is_that_placement_alone():
    candidates = enumerate_layouts(moe(2), DEVICES, WORK, SPACE)
    question = Question(model=moe(2), cluster=DEVICES, workload=WORK)
    scores = score(question, candidates)
    placed = [
        (index, row)
        for index, row in zip(*np.nonzero(candidates.legal), strict=True)
        if candidates.variants[index].placement is not None
    ]
    assert len({candidates.variants[index].placement for index, _ in placed}) > 5
    for index, row in placed[:: len(placed) // 25]:
        alone = project(moe(2), DEVICES, candidates.strategy(index, row), WORK)
        assert alone.step_time_s == scores.step_time[index, row]
        assert alone.memory.peak_bytes == scores.peak[index, row]


def test_placements_of_different_numbers_of_tiers_stand_next_to_each_other():
    one, two = (Share(tp=4),), (Share(tp=2), Share(tp=4, dp=2))
    ranks = GivenRanks(orders=((AXES, one), (AXES, two)), which=np.array([0, 1]), pp=np.array([1, 1]))
    (inner,) = ranks._order(np.array([0]))
    assert inner.tp.tolist() == [4.0]
    assert [tier.tp.tolist() for tier in ranks._order(np.array([1]))] == [[2.0], [4.0]]
