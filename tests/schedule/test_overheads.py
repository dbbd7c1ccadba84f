"""What ranks spend beside computing, early messages of blocks, passes that vary, split backwards: by hand."""

import numpy as np
import pytest
from tests.errors import raises

from forescale.errors import UnknownNameError
from forescale.schedule import (
    LinkTimes,
    Request,
    StageTimes,
    build_schedule,
    compile_schedule,
    from_actions,
    simulate,
    time_step,
)
from forescale.schedule import simulation as simulations
from forescale.schedule.times import transport

TWO = build_schedule("1f1b", Request(pp=2, num_microbatches=2))
UNIT = StageTimes(forward=10.0, input_grad=10.0, weight_grad=0.0)


def test_host_time_comes_after_a_pass_and_messages_do_not_wait_for_it():
    """Rank 1: F0 from 10 to 20, then 1 of host; B0 from 21, F1 from 32, B1 from 43 to 53; rank 0 B1 from 53 to 63."""
    times = StageTimes(forward=10.0, input_grad=10.0, weight_grad=0.0, host=1.0)
    result = simulate(TWO, times)
    rows = {bar.name: (bar.start, bar.end) for bar in result.timeline.bars}
    assert (rows["1F0"], rows["1B0"]) == ((10.0, 20.0), (21.0, 31.0))
    assert (rows["1F1"], rows["1B1"], rows["0B1"]) == ((32.0, 42.0), (43.0, 53.0), (53.0, 63.0))
    assert result.timing.busy.tolist() == [40.0, 40.0]
    assert result.makespan == 64.0  # the last rank is free then


def test_posting_a_message_costs_both_ranks():
    links = LinkTimes(latency=3.0, host=2.0)
    rows = {bar.name: bar.start for bar in simulate(TWO, UNIT, links).timeline.bars}
    assert rows["0F1"] == 12.0  # 0F0, then 2 for its send
    assert rows["1F0"] == 13.0  # the message takes 3 from the end of 0F0, posting it included
    assert rows["1B0"] == 25.0


def test_weight_gradients_post_no_messages():
    """A forward of rank 0 to 1, its message to 4; rank 1's passes to 5 and from 7 to 8, both with 2 for their message.

    Its weight gradient runs from 10 to 11; rank 0's input gradient from 11 to 12, and its weight gradient to 15.
    """
    schedule = from_actions([["0F0", "0I0", "0W0"], ["1F0", "1I0", "1W0"]])
    times = StageTimes(forward=1.0, input_grad=1.0, weight_grad=1.0)
    result = simulate(schedule, times, LinkTimes(latency=3.0, host=2.0))
    assert result.start.tolist() == [0, 11, 14, 4, 7, 10]
    assert result.makespan == 15.0


def test_a_block_spends_the_hosts_time_of_both_its_passes():
    """A forward of 1 and 2 of the host, a block of 1 + 2 and twice 2 of the host, a backward of 2 and 2."""
    schedule = from_actions([["0F0", "(0F1;0B0)OVERLAP_F_B", "0B1"]])
    times = StageTimes(forward=1.0, input_grad=1.0, weight_grad=1.0, host=2.0)
    assert simulate(schedule, times).makespan == (1 + 2) + (3 + 2 * 2) + (2 + 2)


def test_host_time_is_alike_where_single_actions_are_not_kept(monkeypatch):
    schedule = build_schedule("zb-h1", Request(pp=4, num_microbatches=8))
    times = StageTimes(forward=1.0, input_grad=1.1, weight_grad=0.9, host=0.05)
    links = LinkTimes(transfer=0.2, host=0.03)
    kept = time_step(schedule, times, links)
    monkeypatch.setattr(simulations, "MANY_ACTIONS", 1)
    assert time_step(schedule, times, links).makespan == kept.makespan
    several = StageTimes(forward=np.full((4, 3), 1.0), input_grad=1.1, weight_grad=0.9, host=0.05)
    assert compile_schedule(schedule).time(several, links).makespan == pytest.approx([kept.makespan] * 3)


def test_early_messages_leave_before_the_blocks_backward():
    """Rank 0's block is 2 + 4 long: 1F1 begins after the forward alone, or after both."""
    schedule = from_actions(
        [["0F0", "(0F1;0B0)OVERLAP_F_B", "0B1"], ["1F0", "1B0", "1F1", "1B1"]], num_microbatches=2
    )
    times = StageTimes(forward=2.0, input_grad=4.0, weight_grad=0.0)

    def begins(sends):
        return {bar.name: bar.start for bar in simulate(schedule, times, sends=sends).timeline.bars}

    late, early = begins("late"), begins("early")
    assert (late["0F1"], late["1F1"]) == (8.0, 14.0)  # the block waits for 1B0, and 1F1 for the block
    assert (early["0F1"], early["0B0"], early["1F1"]) == (2.0, 8.0, 8.0)


def test_a_block_hides_the_same_share_early():
    schedule = build_schedule("dualpipev", Request(pp=2, num_microbatches=4))
    times = StageTimes(forward=1.0, input_grad=1.0, weight_grad=1.0, overlap_saving=0.5)
    assert np.array_equal(
        simulate(schedule, times).timing.busy, simulate(schedule, times, sends="early").timing.busy
    )


def test_a_whole_backward_is_shorter_than_its_parts():
    times = StageTimes(forward=1.0, input_grad=1.2, weight_grad=1.2, apart=1.2)
    rows = {bar.name: bar.end - bar.start for bar in simulate(TWO, times).timeline.bars}
    assert rows["0B0"] == pytest.approx(2.0)


def test_passes_that_vary_make_steps_longer():
    compiled = compile_schedule(build_schedule("1f1b", Request(pp=4, num_microbatches=8)))
    laid = compiled.durations(UNIT)
    plain = float(compiled.time(laid).makespan)
    assert compiled.makespans(laid, jitter=0.0, num_draws=3) == pytest.approx([plain] * 3)
    spread = compiled.makespans(laid, jitter=0.1, num_draws=200)
    assert spread.shape == (200,)
    assert plain < spread.mean() < 1.2 * plain
    assert np.array_equal(spread, compiled.makespans(laid, jitter=0.1, num_draws=200))


def test_passes_vary_about_their_mean_by_so_much_of_it():
    """One pass of 10, half of which is its standard deviation: its mean stays, whatever the spread."""
    compiled = compile_schedule(from_actions([["0F0", "0B0"]]))
    laid = compiled.durations(StageTimes(forward=10.0, input_grad=0.0, weight_grad=0.0))
    drawn = compiled.makespans(laid, jitter=0.5, num_draws=20_000)
    assert drawn.mean() == pytest.approx(10.0, rel=0.01)
    assert drawn.std() == pytest.approx(5.0, rel=0.03)


def test_a_transport_is_known_by_name():
    times, links = transport("gloo").applied(UNIT, LinkTimes())
    assert times.host > 0.0
    assert links.latency > links.host > 0.0
    assert transport("gloo").applied(UNIT, LinkTimes(transfer=5.0))[1].latency == 0.0
    assert transport("rccl").jitter > 0.0
    with raises(UnknownNameError, "unknown_name transport"):
        transport("glo")
