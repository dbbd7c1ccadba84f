"""Hand-computed times, and agreement of all ways to time a schedule."""

import numpy as np
import pytest
from tests.errors import raises

from forescale.schedule import (
    LinkTimes,
    Request,
    ScheduleError,
    StageTimes,
    StepCosts,
    compile_schedule,
    families,
    family,
    from_actions,
    lower,
    simulate,
)
from forescale.schedule.actions import unpack
from forescale.schedule.model import loop

UNIT = StageTimes(forward=1.0, input_grad=1.0, weight_grad=1.0)


def two_ranks():
    return from_actions([["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"]], placement=loop(2))


def test_two_ranks_by_hand():
    # rank 1: F0 1-2, B0 2-4, F1 4-5, B1 5-7; rank 0: B0 4-6, B1 7-9
    timing = compile_schedule(two_ranks()).time(UNIT)
    assert (timing.makespan, timing.longest_span) == (9.0, 9.0)
    np.testing.assert_array_equal(timing.busy, [6.0, 6.0])
    assert timing.bubble_rate_makespan == pytest.approx(1 / 3)


def test_what_ranks_idle_is_a_mean_over_ranks_that_work_unequally():
    """One micro-batch of 3 on rank 0 and of 9 on rank 1: of 12 either way they work 6 on average.

    Rank 0 begins at 0 and ends at 12, rank 1 is there from 1 to 10.
    """
    item = np.array([1.0, 3.0])
    times = StageTimes(forward=item, input_grad=item, weight_grad=item)
    timing = compile_schedule(from_actions([["0F0", "0B0"], ["1F0", "1B0"]])).time(times)
    assert (timing.makespan, timing.longest_span) == (12.0, 12.0)
    assert timing.first_start.tolist() == [0, 1]
    assert timing.bubble_rate_makespan == timing.bubble_rate_span == 0.5


def test_the_longest_span_is_of_one_rank():
    """Rank 0 is there from 0 to 4, and rank 1, whose weight gradient follows, from 1 to 5."""
    schedule = from_actions([["0F0", "0I0", "0W0"], ["1F0", "1I0", "1W0"]])
    times = StageTimes(forward=1.0, input_grad=1.0, weight_grad=np.array([0.0, 2.0]))
    timing = compile_schedule(schedule).time(times)
    assert (timing.makespan, timing.longest_span) == (5.0, 4.0)
    assert timing.bubble_rate_span == 1 - (2 + 4) / 2 / 4
    assert timing.bubble_rate_makespan == pytest.approx(1 - (2 + 4) / 2 / 5)


def test_messages_by_hand():
    # one way 0.5: rank 1 F0 1.5-2.5, B0 -4.5, F1 -5.5, B1 -7.5; rank 0 B0 5-7, B1 8-10
    schedule = two_ranks()
    assert compile_schedule(schedule).time(UNIT, LinkTimes(latency=0.5)).makespan == 10.0
    assert compile_schedule(schedule).time(UNIT, LinkTimes(transfer=0.5)).makespan == 10.0


def test_slow_messages_queue_on_their_link():
    # transfers of 3: F0's ends at 4, F1's queues behind it until 7 although it was ready at 2
    schedule = two_ranks()
    links = LinkTimes(transfer=3.0, backward_transfer=0.0)
    # overlapped: rank 1 F0 4-5, B0 5-7, F1 7-8 (arrived at 5), B1 8-10, rank 0 B1 10-12
    assert compile_schedule(schedule).time(UNIT, links).makespan == 12.0
    serial = compile_schedule(schedule, comm="serial").time(
        UNIT, LinkTimes(transfer=4.0, backward_transfer=0.0)
    )
    # transfers 1-5 and 5-9: rank 1 F1 9-10, B1 10-12, rank 0 B1 12-14
    assert serial.makespan == 14.0


def test_blocking_messages_hold_both_ranks():
    schedule = from_actions([["0F0", "0F1", "0B0", "0B1"], ["1F0", "1F1", "1B0", "1B1"]], placement=loop(2))
    timing = compile_schedule(schedule, comm="blocking").time(
        UNIT, LinkTimes(transfer=0.5, backward_transfer=0.0)
    )
    # rank 0: F0 0-1, send 1-1.5, F1 1.5-2.5; the second send waits for rank 1's F0 (1.5-2.5): 2.5-3
    assert timing.makespan == pytest.approx(3.0 + 1.0 + 2.0 + 2.0 + 2.0)
    assert timing.busy.tolist() == [6, 6]  # who holds a message does not compute


@pytest.mark.parametrize("comm", ["overlapped", "serial", "blocking"])
def test_a_message_arrives_after_its_transfer_and_latency(comm):
    """One micro-batch: passes of 1 and 1, 2 and 2; two messages of 3 + 2."""
    schedule = from_actions([["0F0", "0B0"], ["1F0", "1B0"]], placement=loop(2))
    timing = compile_schedule(schedule, comm=comm).time(UNIT, LinkTimes(latency=2.0, transfer=3.0))
    assert timing.makespan == 1 + 5 + 1 + 2 + 5 + 2


@pytest.mark.parametrize("comm", ["overlapped", "serial"])
def test_a_block_waits_for_both_of_its_messages(comm):
    """Activations take 1, gradients 5: the middle rank's block waits for the gradient that rank 2 sent at 7."""
    orders = [
        ["0F0", "0F1", "0B0", "0B1"],
        ["1F0", "(1F1;1B0)OVERLAP_F_B", "1B1"],
        ["2F0", "2B0", "2F1", "2B1"],
    ]
    compiled = compile_schedule(from_actions(orders, placement=loop(3)), comm=comm)
    timing = compiled.time(UNIT, LinkTimes(transfer=1.0, backward_transfer=5.0))
    # Block 12-15, rank 2 F1 16-17 and B1 17-19, rank 1 B1 24-26, rank 0 B1 31-33.
    assert timing.makespan == 33.0


def test_copies_to_the_host_and_back_have_a_stream_each():
    """F0 F1 until 2; out 1-5 and 5-9, back 5-9 and 9-13; B0 9-11, B1 13-15."""
    orders = [["0F0", "0OFFLOAD0", "0F1", "0OFFLOAD1", "0RELOAD0", "0RELOAD1", "0B0", "0B1"]]
    times = StageTimes(forward=1.0, input_grad=1.0, weight_grad=1.0, offload=4.0, reload=4.0)
    assert compile_schedule(from_actions(orders, placement=loop(1))).time(times).makespan == 15.0


def test_gradients_are_reduced_behind_a_stage_s_last_weight_gradient():
    issued = lower(
        from_actions([["0F0", "0F1", "0I0", "0I1", "0W0", "0W1"]], placement=loop(1)), reduce_grad=True
    )
    (order,) = issued.orders
    assert [str(unpack(code)) for code in order][-2:] == ["0W1", "0REDUCE_GRAD"]


def test_latency_and_transfer_add_up_and_bandwidth_divides():
    links = LinkTimes(latency=1e-6, transfer=1e6 / 1e9)
    assert (links.latency, links.transfer) == (1e-6, 1e-3)


def test_recompute_lengthens_backward():
    times = StageTimes(forward=1.0, input_grad=1.0, weight_grad=1.0, recompute=1.0)
    schedule = family("gpipe").build(Request(pp=1, num_microbatches=3))
    assert compile_schedule(schedule).time(times).makespan == 12.0


def test_overlapped_blocks_hide_the_shorter_pass():
    schedule = family("dualpipev").build(Request(pp=4, num_microbatches=10, vpp=2))
    serial = compile_schedule(schedule).time(UNIT).makespan
    hidden = StageTimes(forward=1.0, input_grad=1.0, weight_grad=1.0, overlap_saving=0.5)
    assert serial == 66.0
    assert compile_schedule(schedule).time(hidden).makespan < 60.0


def test_a_block_of_two_stages_hides_half_of_what_each_hides():
    """Forward of stage 1 beside backward of stage 0; passes that run alone last as long as without."""
    schedule = from_actions([["0F0", "1F0", "0F1", "1B0", "(1F1;0B0)OVERLAP_F_B", "1B1", "0B1"]])
    whole, hidden = (
        compile_schedule(schedule).time(
            StageTimes(forward=np.array([5.0, 7.0]), input_grad=4.0, weight_grad=4.0, hidden=item)
        )
        for item in (0.0, np.array([1.0, 3.0]))
    )
    assert whole.makespan - hidden.makespan == pytest.approx(0.5 * (1.0 + 3.0))


def test_unequal_stages_bound_the_makespan_by_the_slowest():
    forward = np.array([1.0, 1.0, 3.0, 1.0])
    times = StageTimes(forward=forward, input_grad=forward, weight_grad=forward)
    schedule = family("1f1b").build(Request(pp=4, num_microbatches=16))
    makespan = compile_schedule(schedule).time(times).makespan
    assert 16 * 9.0 < makespan <= 16 * 9.0 + 3 * 3.0


def test_sequence_pieces_share_a_pass():
    schedule = family("seq1f1b").build(Request(pp=2, num_microbatches=2, num_splits=2))
    even = compile_schedule(schedule).time(UNIT)
    np.testing.assert_allclose(even.busy, [6.0, 6.0])
    uneven = StageTimes(forward=1.0, input_grad=1.0, weight_grad=1.0, split_shares=(0.6, 0.4))
    np.testing.assert_allclose(compile_schedule(schedule).time(uneven).busy, [6.0, 6.0])
    with raises(ScheduleError, "wrong_count split_shares"):
        compile_schedule(schedule).time(
            StageTimes(forward=1.0, input_grad=1.0, weight_grad=1.0, split_shares=(1.0,))
        )


def test_offload_hides_until_copies_are_slow():
    schedule = family("pipeoffload").build(Request(pp=4, num_microbatches=8, vpp=2))
    compiled = compile_schedule(schedule)
    free = compiled.time(UNIT).makespan
    quick = compiled.time(StageTimes(forward=1.0, input_grad=1.0, weight_grad=1.0, offload=0.5, reload=0.5))
    slow = compiled.time(StageTimes(forward=1.0, input_grad=1.0, weight_grad=1.0, offload=6.0, reload=6.0))
    assert quick.makespan == free
    assert slow.makespan > free


@pytest.mark.parametrize("comm", ["overlapped", "serial", "blocking"])
@pytest.mark.parametrize("each", families(), ids=lambda f: f.name)
def test_one_candidate_alone_or_among_others_gives_the_same_bits(each, comm):
    schedule = each.build(Request(pp=4, num_microbatches=8, vpp=each.fixed_vpp or 2))
    random = np.random.default_rng(3)
    stages = schedule.num_stages
    f, b, w = (random.uniform(0.5, 2.0, (stages, 2)) for _ in range(3))
    sent = random.uniform(0.0, 0.2, (stages - 1, 2))
    compiled = compile_schedule(schedule, comm=comm)

    def timed(which):
        times = StageTimes(
            forward=f[:, which], input_grad=b[:, which], weight_grad=w[:, which], offload=0.3, reload=0.2
        )
        return compiled.time(times, LinkTimes(latency=0.1, transfer=sent[:, which]))

    both, one, alone = timed(slice(None)), timed(slice(1, 2)), timed(1)
    for name in ("first_start", "last_end", "busy"):
        np.testing.assert_array_equal(getattr(one, name)[:, 0], getattr(alone, name))
        np.testing.assert_array_equal(getattr(both, name)[:, 1], getattr(alone, name))


def test_blocking_is_never_faster_than_queueing_than_overlap():
    schedule = family("interleaved-1f1b").build(Request(pp=4, num_microbatches=8, vpp=2))
    makespans = [
        compile_schedule(schedule, comm=comm).time(UNIT, LinkTimes(transfer=0.4)).makespan
        for comm in ("overlapped", "serial", "blocking")
    ]
    assert makespans == sorted(makespans)


def test_many_candidates_are_timed_in_chunks():
    schedule = family("zbv").build(Request(pp=3, num_microbatches=6, vpp=2))
    compiled = compile_schedule(schedule)
    many = np.random.default_rng(0).uniform(0.5, 2.0, (6, 600))
    times = StageTimes(forward=many, input_grad=many, weight_grad=1.0)
    alone = StageTimes(forward=many[:, 577], input_grad=many[:, 577], weight_grad=1.0)
    timing = compiled.time(times)
    assert timing.makespan.shape == (600,)
    assert timing.makespan[577] == compiled.time(alone).makespan
    assert timing.bubble_rate_span[577] == compiled.time(alone).bubble_rate_span


def test_wrong_shapes_are_refused():
    compiled = compile_schedule(two_ranks())
    with raises(ScheduleError, "wrong_count forward"):
        compiled.time(StageTimes(forward=np.ones(3), input_grad=1.0, weight_grad=1.0))
    with raises(ScheduleError, "wrong_count latency"):
        compiled.time(UNIT, LinkTimes(latency=np.ones(2)))


def test_step_costs_around_the_pipeline():
    schedule = two_ranks()
    # rank 0's last backward ends at 9, its reduction at 11, then the optimizer
    costs = StepCosts(grad_reduce=2.0, optimizer=1.0)
    assert simulate(schedule, UNIT, step=costs).step_time == 12.0
    gathered = simulate(schedule, UNIT, step=StepCosts(param_gather=np.array([1.0, 0.0])))
    assert gathered.makespan == 10.0
    hidden = simulate(schedule, UNIT, step=StepCosts(param_gather=np.array([0.0, 1.0])))
    assert hidden.makespan == 9.0
    shown = simulate(schedule, UNIT, step=StepCosts(param_gather=np.array([0.0, 3.0])))
    assert shown.makespan == 11.0


def test_a_second_chunk_waits_for_its_own_gather():
    schedule = family("interleaved-1f1b").build(Request(pp=2, num_microbatches=4, vpp=2))
    gathers = np.array([0.0, 0.0, 0.0, 100.0])
    result = simulate(schedule, UNIT, step=StepCosts(param_gather=gathers))
    assert result.makespan >= 100.0 + 4 * 3  # of the chunk's forwards and backwards none began before


def test_reductions_overlap_the_tail():
    schedule = family("interleaved-1f1b").build(Request(pp=2, num_microbatches=4, vpp=2))
    hidden = simulate(schedule, UNIT, step=StepCosts(grad_reduce=1.0)).step_time
    exposed = simulate(schedule, UNIT, step=StepCosts(grad_reduce=1.0, overlap=False)).step_time
    assert hidden == simulate(schedule, UNIT).makespan + 1.0
    assert exposed == hidden + 1.0


def test_no_time_has_no_bubble_and_negative_time_is_refused():
    compiled = compile_schedule(two_ranks())
    nothing = StageTimes(forward=0.0, input_grad=0.0, weight_grad=0.0)
    assert compiled.time(nothing).bubble_rate_makespan == 0.0
    with raises(ScheduleError, "out_of_range a duration"):
        compiled.time(StageTimes(forward=-1.0, input_grad=1.0, weight_grad=1.0))
    with raises(ScheduleError, "out_of_range a duration"):
        compiled.time(StageTimes(forward=np.array([1.0, np.nan]), input_grad=1.0, weight_grad=1.0))
