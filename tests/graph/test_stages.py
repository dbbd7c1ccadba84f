"""Numbers per stage: one column may stand for all candidates, wherever they are looked up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tests.small import dense, moe

from forescale.graph.per_block import PerBlock, RecomputeSplit
from forescale.graph.stages import (
    Picker,
    StagePlan,
    StageSums,
    greatest,
    least_chunks,
    over_stages,
    stack_plans,
    sum_over_stages,
    with_memory_events,
)
from forescale.spec import Recompute

PLAN = StagePlan(
    counts=np.array([[1.0], [2.0]]),
    replayed=np.array([[1.0], [2.0]]),
    heads=np.array([[1.0], [2.0]]),
    first=np.array([1.0, 0.0]),
    last=np.array([0.0, 1.0]),
    index=np.array([0.0, 1.0]),
    multiplicity=np.array([1.0, 1.0]),
)


def test_one_column_stands_for_all_candidates():
    stages = stack_plans([PLAN]).take(np.zeros(3, dtype=np.int64))
    one, many = np.array([[2.0], [5.0]]), np.array([[1.0, 9.0, 1.0], [3.0, 3.0, 3.0]])
    at = Picker.slowest(many, stages)
    assert at(one).tolist() == [5.0, 2.0, 5.0]
    assert at(many).tolist() == [3.0, 9.0, 3.0]
    assert np.broadcast_to(at.maximum(one, stages), 3).tolist() == [5.0, 5.0, 5.0]


def test_a_sum_over_stages_counts_each_as_often_as_it_stands():
    assert summed([3.0, 5.0, 7.0], [2.0, 1.0, 0.0]) == 11.0


def test_a_sum_over_stages_is_of_whole_parts_of_the_largest_that_stands():
    """Of 2^40 parts: a half is rounded away or up, a stage that does not stand is no scale for the others."""
    assert summed([1.0, 2.0**-40], [1.0, 1.0]) == 1.0 + 2.0**-40
    assert summed([1.0, 1.5 * 2.0**-41], [1.0, 1.0]) == 1.0 + 2.0**-40
    assert summed([1.0, 0.5 * 2.0**-41], [1.0, 2.0**10]) == 1.0
    assert summed([1.0, 2.0**-40, 1e30], [1.0, 1.0, 0.0]) == 1.0 + 2.0**-40


def test_the_parts_follow_the_largest():
    for scale in (2.0**-30, 2.0**30):
        assert summed([scale, 2.0**-40 * scale], [1.0, 1.0]) == (1.0 + 2.0**-40) * scale
        assert summed([scale, 0.5 * 2.0**-41 * scale], [1.0, 2.0**10]) == scale
        assert summed([scale, 2.0**-40 * scale, 0.0], [1.0, 1.0, 0.0]) == (1.0 + 2.0**-40) * scale


def summed(values, multiplicity):
    return float(sum_over_stages(values=np.array(values), multiplicity=np.array(multiplicity)))


PARTS = PerBlock(
    layers=(2.0, 3.0), embedding=10.0, head=20.0, mtp=7.0, vision=((1, 100.0), (5, 1000.0), (1, 10000.0))
)


def test_ends_stand_on_the_first_and_the_last_stage():
    """Layers of two kinds on two stages; the tower of 1 + 5 + 1 blocks before them, two tokens more behind them."""
    plan = replace(PLAN, counts=np.array([[1.0, 2.0], [3.0, 4.0]]))
    result = over_stages(plan, PARTS, lambda item: item, num_mtp=2)
    assert np.asarray(result).tolist() == [10 + (2 + 9) + (100 + 5000 + 10000), 20 + (4 + 12) + 2 * 7]
    ends = over_stages(plan, PARTS, lambda item: item, num_mtp=2, layers=False)
    assert np.asarray(ends).tolist() == [10 + 15100, 20 + 14]


def test_two_things_of_every_block_make_one():
    def added(one, other):
        return one + other

    assert PARTS.zipped(PARTS, added) == PARTS.map(lambda item: 2 * item)
    without = replace(PARTS, mtp=None)
    assert PARTS.zipped(without, added).mtp is without.zipped(PARTS, added).mtp is None


def test_a_tower_has_an_end_on_either_side_of_its_layers():
    map_vision = PARTS.map_vision(layer=lambda item: f"layer {item:g}", end=lambda item: f"end {item:g}")
    assert map_vision == ((1, "end 100"), (5, "layer 1000"), (1, "end 10000"))


def test_moments_that_no_other_exceeds():
    """Of equal moments the first; a rank with fewer than others repeats its first."""
    first = [[1.0, 2.0], [2.0, 1.0], [1.0, 1.0], [2.0, 1.0]]
    second = [[1.0, 1.0], [1.0, 2.0], [3.0, 3.0], [3.0, 2.0]]
    stack = np.stack([first, second], axis=1)
    assert greatest(stack).tolist() == [[0, 2], [1, 2]]


def with_moments_of(*sizes):
    """Return the plan of one rank with moments of so many layers, and as many that wait, a forward at work in all."""
    one = replace(PLAN.taken(np.array([0])), memory_events=(), pending_weight_gradients=(), active=())
    moments = tuple(replace(one, counts=np.array([[size]])) for size in sizes)
    return replace(
        one,
        memory_events=moments,
        pending_weight_gradients=moments,
        active=(np.array([[1.0, 0.0, 0.0]]),) * len(sizes),
    )


def test_plans_stand_side_by_side_as_high_as_the_highest():
    """One rank beside two: its second row stands for none."""
    stages = stack_plans([PLAN, PLAN.taken(np.array([1]))])
    assert stages.counts[0].tolist() == [[1.0, 2.0], [2.0, 0.0]]
    assert stages.multiplicity.tolist() == [[1.0, 1.0], [1.0, 0.0]]
    assert stages.index.tolist() == [[0.0, 1.0], [1.0, 0.0]]


def test_a_stage_that_stands_for_none_sets_no_pace():
    stages = stack_plans([PLAN, PLAN.taken(np.array([1]))])
    times = np.array([[1.0, 5.0], [2.0, 9.0]])
    assert Picker.slowest(times, stages)(times).tolist() == [2.0, 5.0]


def test_plans_with_fewer_moments_repeat_their_last():
    stages = stack_plans([with_moments_of(3.0, 5.0, 4.0), with_moments_of(7.0)])
    for moments in (stages.memory_events, stages.pending_weight_gradients):
        assert [moment.counts[0].tolist() for moment in moments] == [[[3.0, 7.0]], [[5.0, 7.0]], [[4.0, 7.0]]]
    assert [[item.tolist() for item in moment] for moment in stages.active] == [
        [[[1, 1]], [[0, 0]], [[0, 0]]]
    ] * 3


def test_plans_without_moments_hold_their_layers_and_nothing_waits():
    """Beside passes that wait, a plan of which none does has any pass at work."""
    stages = stack_plans([with_moments_of(3.0, 5.0), PLAN.taken(np.array([1]))])
    assert [moment.counts[0].tolist() for moment in stages.memory_events] == [[[3.0, 2.0]], [[5.0, 2.0]]]
    assert [item.counts[0].tolist() for item in stages.pending_weight_gradients] == [
        [[3.0, 0.0]],
        [[5.0, 0.0]],
    ]
    assert [[item.tolist() for item in moment] for moment in stages.active] == [
        [[[1, 1]], [[0, 1]], [[0, 1]]]
    ] * 2
    assert stack_plans([PLAN, PLAN]).memory_events == stack_plans([PLAN, PLAN]).pending_weight_gradients == ()


def chunks_of(*layers):
    """Return one virtual stage for each number of layers, of which one is replayed, without ends."""
    size = np.array([[layer] for layer in layers], dtype=float)
    none = np.zeros(len(layers))
    one = np.ones_like(size)
    return StagePlan(
        counts=size,
        replayed=one,
        heads=one,
        first=none,
        last=none,
        index=np.arange(len(layers)),
        multiplicity=none + 1,
    )


def test_ranks_are_told_apart_by_what_they_hold_when_passes_wait():
    """Two ranks of one stage each, of equal layers: told apart by their passes in flight, not by their moments."""
    chunks, stage_of = chunks_of(3.0, 3.0), np.array([[0], [1]])
    plan = replace(PLAN, counts=chunks.counts, replayed=chunks.replayed, first=chunks.first, last=chunks.last)
    work = np.ones((2, 2, 3))

    def rows(first, second):
        live = np.array([[[[one], [other]] for one, other in zip(first, second, strict=True)]] * 2)
        return len(with_memory_events(plan, chunks, stage_of, live, work).compressed().index)

    assert rows([2.0, 1.0], [2.0, 1.0]) == 1
    assert rows([2.0, 1.0], [1.0, 2.0]) == 2


def test_moments_of_layers_that_are_replayed_do_not_stand_for_others():
    """Two passes of a stage whose layer is replayed, then one of a stage that keeps all: either may hold most."""
    chunks = replace(chunks_of(1.0, 1.0), replayed=np.array([[1.0], [0.0]]), heads=np.array([[1.0], [0.0]]))
    live = np.array([[[[2.0, 0.0]], [[0.0, 1.0]]]])
    plan = with_memory_events(PLAN.taken(np.array([0])), chunks, np.array([[0, 1]]), live)
    assert [moment.counts.tolist() for moment in plan.memory_events] == [[[2.0]], [[1.0]]]
    assert [moment.replayed.tolist() for moment in plan.memory_events] == [[[2.0]], [[0.0]]]


def test_the_fewest_layers_of_any_chunk_are_in_every_chunk():
    """Of 5 layers and 3, two and one replayed: two chunks of at least 2 others and 1 replayed."""
    chunks = replace(chunks_of(5.0, 3.0), replayed=np.array([[2.0], [1.0]]))
    least = least_chunks(chunks, np.array([[0, 1]]))
    assert (least.counts.tolist(), least.replayed.tolist()) == ([[6.0]], [[2.0]])


def test_what_is_in_flight_in_a_chunk_is_in_flight_in_all_before_it():
    """Of 1, 5 and 0 layers the first alone keeps least, of 5, 1 and 0 all three; in any order the last does."""
    chunks, ranks = chunks_of(1.0, 5.0, 0.0), np.array([[0, 1, 2], [1, 0, 2]])
    chunks = replace(chunks, replayed=0.0 * chunks.replayed, heads=0.0 * chunks.heads)
    assert least_chunks(chunks, ranks, nested=True).counts.tolist() == [[3.0], [6.0]]
    assert least_chunks(chunks, ranks).counts.tolist() == [[0.0], [0.0]]


def test_of_several_copies_on_a_rank_a_micro_batch_meets_one():
    """Two copies of other stages (DualPipe): the mean over both."""
    blocks = PerBlock(layers=(RecomputeSplit(replayed=2.0, kept=2.0),), embedding=RecomputeSplit(replayed=4.0, kept=4.0),
                   head=RecomputeSplit(replayed=6.0, kept=6.0), mtp=None)  # fmt: skip
    one, two, four = (
        StageSums(model=dense(), recompute=Recompute(), stages=PLAN.alone, copies=copies).total(
            blocks, lambda item: item
        )
        for copies in (1, 2, 4)
    )
    assert one.tolist() == [[2 + 4], [4 + 6]]
    assert (two.tolist(), four.tolist()) == ([[3], [5]], [[1.5], [2.5]])


def test_prediction_that_is_not_replayed_stands_on_the_last_stage():
    """Of two predicting layers one is listed; none of them, nor the head, is before the last stage."""
    part = RecomputeSplit(replayed=100.0, kept=1.0)
    blocks = PerBlock(layers=(part, part), embedding=part, head=part, mtp=part)
    plan = replace(PLAN, counts=np.array([[1.0, 0.0], [0.0, 1.0]]))
    plan = replace(plan, replayed=0.0 * plan.counts, heads=0.0 * plan.counts)
    sums = StageSums(
        model=replace(moe(2), num_mtp_layers=2),
        recompute=Recompute(granularity="full", layer_ids=(2,)),
        stages=plan.alone,
    )
    assert sums.total(blocks, lambda item: item).tolist() == [[100.0 + 1], [100 + 1 + 100 + 1]]
