"""Durations of passes: what backward is made of, and what a chunk's part of it is."""

import pytest

from forescale.schedule import Request, StageTimes, compile_schedule, family
from forescale.schedule.times import from_share


def test_forward_is_repeated_before_the_input_gradient_and_costs_as_much_in_either_backward():
    """Gradients of 2 and 1 as passes of their own cost half as much again as one pass of both; the repeat of 4 does not."""
    times = StageTimes(forward=4.0, input_grad=2.0, weight_grad=1.0, recompute=4.0, apart=1.5)
    forward, whole, inputs, weights, *copies = times.table(1)[:, 0, 0].tolist()
    assert (forward, whole, inputs, weights) == (4, 3 / 1.5 + 4, 2 + 4, 1)
    assert copies == [0, 0]


@pytest.mark.parametrize(("name", "vpp"), [("1f1b", 1), ("interleaved-1f1b", 2), ("zbv", 2)])
def test_chunks_share_what_a_micro_batch_takes_on_a_device(name, vpp):
    """Three micro-batches of 1 + 2 + 4 and a repeat of 8, however many chunks a rank has."""
    schedule = family(name).build(Request(pp=2, num_microbatches=3, vpp=vpp))
    times = from_share(vpp=vpp, forward=1.0, input_grad=2.0, weight_grad=4.0, recompute=8.0)
    assert compile_schedule(schedule).time(times).busy.tolist() == [3 * (1 + 2 + 4 + 8)] * 2
