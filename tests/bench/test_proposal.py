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
    result = propose(ASKED, devices=8, seconds=60.0)
    assert sorted(result, key=lambda item: -item.at_stake) == list(result)
    for item in result:
        half = (item.provenance.high - item.provenance.low) / 2.0
        assert item.at_stake == pytest.approx(item.share * half)
    assert 0.5 < sum(item.share for item in result) <= 1.0


def test_what_was_timed_is_not_proposed_again():
    first, *_ = (item for item in propose(ASKED, devices=8, seconds=60.0) if item.num_ranks == 1)
    timed = Measurements(source="timed", kernels=((first.primitive, 2.0 * first.seconds),))
    known = replace(ASKED, costs=replace(ASKED.costs, measurements=timed))
    again = propose(known, devices=8, seconds=60.0)
    assert first.primitive not in [item.primitive for item in again]
    assert len(again) == len(propose(ASKED, devices=8, seconds=60.0))


def test_no_more_is_proposed_than_there_is_time_for():
    subset, none = (propose(ASKED, devices=1, seconds=seconds) for seconds in (0.02, 0.0))
    here = [item for item in subset if item.num_ranks == 1]
    assert here
    assert sum(SAMPLES * item.seconds for item in here) <= 0.02
    assert all(item.num_ranks > 1 for item in none)


def test_messages_are_timed_by_the_ranks_that_they_take():
    result = propose(ASKED, devices=2, seconds=60.0)
    messages = messages_among(result, 2)
    assert {ranks for *_, ranks in messages} == {2}
    assert messages_among(result, 1) == []
    sent = [item for item in result if isinstance(item.primitive, Collective)]
    assert len(messages) == len(sent)
    assert len(kernels_among(result)) == len(result) - len(sent)
