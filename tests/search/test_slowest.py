"""The slowest layouts, on the terms of the search that they end."""

from __future__ import annotations

import pytest
from tests.small import cluster, dense, workload

from forescale.cost.select import Costs
from forescale.search import search
from forescale.search.landscape import explore
from forescale.search.scenarios import scenarios
from forescale.search.slowest import slowest_of
from forescale.spec.space import Space

SPACE = Space(tp=(1, 2), cp=(1,), vpp=(1,), zero=(1,), micro_batch_size=(1,))


def test_they_are_projected_as_they_were_scored():
    slow = Costs(clock_hz=0.9e9)
    result = search(dense(4), cluster(8), workload(), space=SPACE, costs=slow)
    landscape = explore(result.asked)
    found = slowest_of(result.asked, 2)
    assert found[0].step_time_s == landscape.scores.step_time[landscape.fits].max()
    assert {each.costs.device_clock_hz for each in found} == {0.9e9}
    assert (
        found[0].step_time_s
        > slowest_of(search(dense(4), cluster(8), workload(), space=SPACE).asked, 1)[0].step_time_s
    )


def test_they_are_those_of_all_scenarios():
    space = Space(
        tp=(1, 2),
        cp=(1,),
        vpp=(1,),
        zero=(1,),
        micro_batch_size=(1,),
        precision=(None, ("fp8", "tensorwise")),
    )
    asked = search(dense(4), cluster(8), workload(), space=space).asked
    landscapes = [explore(each) for each in scenarios(asked)]
    every = sorted((step for each in landscapes for step in each.scores.step_time[each.fits]), reverse=True)
    assert [each.step_time_s for each in slowest_of(asked, 4)] == pytest.approx(every[:4], rel=0)
