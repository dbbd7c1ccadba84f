"""Pieces of sequences: their durations, and a whole step against a loop over its actions."""

import numpy as np
import pytest

from forescale.schedule import LinkTimes, Request, StageTimes, compile_schedule, family
from forescale.schedule.actions import Kind


def test_later_pieces_of_a_causal_sequence_take_longer():
    # forward 4 of which attention 2: 1 + 2/4 and 1 + 2*3/4; backward 6 of which 4: 1 + 1, then 1 + 3
    one = compile_schedule(family("seq1f1b").build(Request(pp=1, num_microbatches=1, num_splits=2)))
    laid = one.durations(
        StageTimes(forward=4.0, input_grad=6.0, weight_grad=2.0, causal_forward=2.0, causal_backward=4.0)
    )
    classes = laid.nodes[:-1][: 2 * 6].reshape(2, 6)
    np.testing.assert_allclose(classes[:, Kind.F], [1.5, 2.5])
    np.testing.assert_allclose(classes[:, Kind.I], [2.0, 4.0])
    np.testing.assert_allclose(classes[:, Kind.B], [3.0, 5.0])
    np.testing.assert_allclose(classes[:, Kind.W], [1.0, 1.0])


def by_hand(schedule, forward, backward, growing, hop):
    """Return the makespan, pass after pass; `growing` is the part of both that goes by squares."""
    pieces, ranks = schedule.num_splits, range(schedule.num_ranks)
    end, clock, at = {}, [0.0 for _ in ranks], [0 for _ in ranks]
    while any(at[rank] < len(schedule.actions[rank]) for rank in ranks):
        for rank in ranks:
            while at[rank] < len(schedule.actions[rank]):
                action = schedule.actions[rank][at[rank]]
                down = action.kind is Kind.F
                source = (action.kind, rank - 1) if down else (Kind.B, rank + 1)
                begin = clock[rank]
                if 0 <= source[1] < schedule.num_ranks:
                    if (*source, action.microbatch) not in end:
                        break
                    begin = max(begin, end[*source, action.microbatch] + hop / pieces)
                piece = action.microbatch % pieces
                total = (forward if down else backward)[rank]
                squares = ((piece + 1) ** 2 - piece**2) / pieces**2
                clock[rank] = begin + total * ((1 - growing) / pieces + growing * squares)
                end[action.kind, rank, action.microbatch] = clock[rank]
                at[rank] += 1
    return max(clock)


@pytest.mark.parametrize("pieces", [1, 2, 4])
def test_a_step_of_pieces_by_hand(pieces):
    random = np.random.default_rng(pieces)
    forward, backward = random.uniform(1.0, 2.0, 4), random.uniform(2.0, 4.0, 4)
    schedule = family("seq1f1b").build(Request(pp=4, num_microbatches=6, num_splits=pieces))
    times = StageTimes(
        forward=forward,
        input_grad=backward,
        weight_grad=0.0,
        causal_forward=0.3 * forward,
        causal_backward=0.3 * backward,
    )
    compiled = compile_schedule(schedule)
    timing = compiled.time(times, LinkTimes(transfer=0.2))
    assert timing.makespan == pytest.approx(by_hand(schedule, forward, backward, 0.3, 0.2))
    assert timing.makespan == compiled.time(times, LinkTimes(transfer=0.2)).makespan
    candidates = StageTimes(
        forward=np.stack([forward, 2 * forward], axis=1),
        input_grad=np.stack([backward, 2 * backward], axis=1),
        weight_grad=0.0,
        causal_forward=np.stack([0.3 * forward, 0.6 * forward], axis=1),
        causal_backward=np.stack([0.3 * backward, 0.6 * backward], axis=1),
    )
    both = compiled.time(candidates, LinkTimes(transfer=0.2)).makespan
    assert both[0] == timing.makespan
    assert both[1] > both[0]
