"""What to time next is what a step depends on most and of which least is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.small import cluster, dense, workload

from forescale.bench.suite import SAMPLES, kernels_among, messages_among, propose
from forescale.cost.measured import Measurements
from forescale.graph.ops import Collective
from forescale.question import Question
from forescale.spec import Layout

ASKED = Question(
    model=dense(8),
    cluster=cluster(8),
    workload=workload(global_batch_size=32),
    strategy=Layout(tp=2, pp=2, dp_shard=2),
)


def test_what_is_at_stake_is_share_times_uncertainty():
    found = propose(ASKED, devices=8, seconds=60.0)
    assert sorted(found, key=lambda each: -each.at_stake) == list(found)
    for each in found:
        half = (each.provenance.high - each.provenance.low) / 2.0
        assert each.at_stake == pytest.approx(each.share * half)
    assert 0.5 < sum(each.share for each in found) <= 1.0


def test_what_was_timed_is_not_proposed_again():
    first, *_ = (each for each in propose(ASKED, devices=8, seconds=60.0) if each.num_ranks == 1)
    timed = Measurements(source="timed", kernels=((first.primitive, 2.0 * first.seconds),))
    known = replace(ASKED, costs=replace(ASKED.costs, measurements=timed))
    again = propose(known, devices=8, seconds=60.0)
    assert first.primitive not in [each.primitive for each in again]
    assert len(again) == len(propose(ASKED, devices=8, seconds=60.0))


def test_no_more_is_proposed_than_there_is_time_for():
    some, none = (propose(ASKED, devices=1, seconds=seconds) for seconds in (0.02, 0.0))
    here = [each for each in some if each.num_ranks == 1]
    assert here
    assert sum(SAMPLES * each.seconds for each in here) <= 0.02
    assert all(each.num_ranks > 1 for each in none)


def test_messages_are_timed_by_the_ranks_that_they_take():
    found = propose(ASKED, devices=2, seconds=60.0)
    messages = messages_among(found, 2)
    assert {ranks for *_, ranks in messages} == {2}
    assert messages_among(found, 1) == []
    sent = [each for each in found if isinstance(each.primitive, Collective)]
    assert len(messages) == len(sent)
    assert len(kernels_among(found)) == len(found) - len(sent)
