"""What a search does not choose is as its base strategy says, in what it ranks and in what it returns."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.small import cluster, dense, workload

from forescale.project import project
from forescale.search import search
from forescale.spec import Layout, Recompute
from forescale.spec.layout import Kernels
from forescale.spec.space import Space


@pytest.mark.parametrize("base", [Layout(reshard="never"), Layout(kernels=Kernels(fused=False))])
def test_what_is_not_searched_holds_in_ranking_and_result(base):
    space = Space(base=base, tp=(1,), pp=(1,), zero=(3,))
    result = search(dense(), cluster(8), workload(), space=space, top=3)
    plain = search(dense(), cluster(8), workload(), space=Space(tp=(1,), pp=(1,), zero=(3,)), top=3)
    assert all(one.strategy.reshard == base.reshard for one in result.best)
    assert all(one.strategy.kernels == base.kernels for one in result.best)
    assert result.best[0].memory.peak_bytes > plain.best[0].memory.peak_bytes
    assert [one.step_time_s for one in result.best] == sorted(one.step_time_s for one in result.best)


@pytest.mark.parametrize(("count", "shards"), [(3, set()), (8, {16}), (16, {16})])
def test_what_is_found_shares_weights_over_a_part_of_its_ranks(count, shards):
    space = Space(tp=(1, 16), cp=(1,), pp=(1,), zero=(0, 3), base=Layout(reshard=count))
    best = [one.strategy for one in search(dense(), cluster(16), workload(), top=1000, space=space).best]
    assert {one.dp_shard for one in best if one.zero == 3} - {1} == shards


@pytest.mark.parametrize(
    ("group", "vpp"), [(None, {1, 2}), (3, {1}), (4, {1, 2}), (6, {1, 2}), (12, {1, 2}), (13, {1})]
)
def test_what_is_found_takes_micro_batches_in_the_groups_of_its_base(group, vpp):
    """12 micro-batches on 4 ranks: groups of 3 and 13 fit no layout of several chunks; with 10 the last of 6 has 4."""
    space = Space(tp=(1,), cp=(1,), pp=(4,), vpp=(1, 2), micro_batch_size=(1,), zero=(1,), sp=(True,))
    for batch in (12, 10):
        work = replace(workload(), global_batch_size=batch)
        local = replace(space, base=Layout(microbatch_group=group))
        result = search(dense(8), cluster(4), work, space=local, top=1000)
        if batch == 12:
            assert {one.strategy.vpp for one in result.best} == vpp
        else:
            assert {one.strategy.vpp for one in result.best} == ({1, 2} if group == 6 else {1})
        assert {one.strategy.microbatch_group for one in result.best} == {group}
        for one in result.best:
            alone = project(dense(8), cluster(4), one.strategy, work)
            assert (alone.step_time_s, alone.memory.peak_bytes) == (one.step_time_s, one.memory.peak_bytes)


def test_groups_leave_named_schedules_of_several_chunks_out():
    named = ("interleaved-1f1b", "1f1b")
    space = Space(pp=(4,), vpp=(1, 2), schedule=(None, *named), base=Layout(microbatch_group=6))
    best = search(dense(8), cluster(4), replace(workload(), global_batch_size=12), space=space, top=1000).best
    assert {one.strategy.schedule for one in best if one.strategy.vpp == 2} == {None}
    assert "1f1b" in {one.strategy.schedule for one in best if one.strategy.vpp == 1}


def test_no_layout_found_has_neighbours_under_summa():
    kept = {
        "tp": (2,),
        "cp": (1,),
        "pp": (1,),
        "micro_batch_size": (1,),
        "sp": (True,),
        "placement": ("orders",),
    }
    space = Space(
        **kept, tp_kind=("1d", "summa"), zero=(2, 3), recompute=(Recompute(),), base=Layout(reshard=2)
    )
    best = search(dense(), cluster(16), workload(), top=1000, space=space, all_variants=True).best
    kinds = {(one.strategy.tp_kind, one.strategy.zero) for one in best}
    assert kinds == {("1d", 2), ("1d", 3), ("summa", 2)}
