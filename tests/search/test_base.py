"""What a search does not choose is as its base strategy says, in what it ranks and in what it returns."""

from __future__ import annotations

import pytest
from tests.small import cluster, dense, workload

from forescale.errors import SpecError
from forescale.search import search
from forescale.spec import Strategy
from forescale.spec.space import Space
from forescale.spec.strategy import Kernels


@pytest.mark.parametrize("base", [Strategy(reshard="never"), Strategy(kernels=Kernels(fused=False))])
def test_what_is_not_searched_holds_in_ranking_and_result(base):
    space = Space(base=base, tp=(1,), pp=(1,), zero=(3,))
    found = search(dense(), cluster(8), workload(), space=space, top=3)
    plain = search(dense(), cluster(8), workload(), space=Space(tp=(1,), pp=(1,), zero=(3,)), top=3)
    assert all(one.strategy.reshard == base.reshard for one in found.best)
    assert all(one.strategy.kernels == base.kernels for one in found.best)
    assert found.best[0].memory.peak_bytes > plain.best[0].memory.peak_bytes
    assert [one.step_time_s for one in found.best] == sorted(one.step_time_s for one in found.best)


@pytest.mark.parametrize(("count", "shards"), [(3, set()), (8, {16}), (16, {16})])
def test_what_is_found_shares_weights_over_a_part_of_its_ranks(count, shards):
    space = Space(tp=(1, 16), cp=(1,), pp=(1,), zero=(0, 3), base=Strategy(reshard=count))
    found = [one.strategy for one in search(dense(), cluster(16), workload(), top=1000, space=space).best]
    assert {one.dp_shard for one in found if one.zero == 3} == shards


def test_no_search_has_neighbours_under_summa():
    space = Space(tp_kind=("1d", "summa"), zero=(3,), base=Strategy(reshard=2))
    with pytest.raises(SpecError, match="reshard is always or never, not 2"):
        search(dense(), cluster(16), workload(), space=space)
