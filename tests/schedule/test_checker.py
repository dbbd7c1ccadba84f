"""What the checker refuses, and what it says."""

from dataclasses import replace

import numpy as np
import pytest
from tests.errors import raises

from forescale.schedule import (
    ActivationSizes,
    Request,
    ScheduleError,
    check,
    compile_schedule,
    family,
    from_actions,
    lower,
)
from forescale.schedule.actions import encode, parse
from forescale.schedule.model import loop
from forescale.schedule.torch_csv import from_csv


def test_crossed_order_is_a_circle():
    schedule = from_actions([["0F0", "0B1", "0F1", "0B0"], ["1F1", "1F0", "1B0", "1B1"]])
    report = check(schedule)
    assert not report.valid
    assert report.violations[0].rule == "order"
    assert "0B1 (rank 0, position 1) comes before 0F1" in report.violations[0].message


def test_circle_across_ranks_is_named():
    schedule = from_actions([["0F0", "0F1", "0B1", "0B0"], ["1F0", "1B0", "1F1", "1B1"]])
    assert check(schedule).valid
    crossed = from_actions([["0F0", "0B0", "0F1", "0B1"], ["1F1", "1B1", "1F0", "1B0"]])
    report = check(crossed)
    assert [v.rule for v in report.violations] == ["cycle"]
    assert "wait for each other" in report.violations[0].message
    with pytest.raises(ScheduleError, match="deadlock"):
        compile_schedule(crossed)


def test_missing_producer_is_named():
    schedule = from_actions([["0F0", "0B0"], ["1F0"]], num_microbatches=1)
    with raises(ScheduleError, "deadlock custom"):
        compile_schedule(schedule)


def test_memory_limit_names_action_and_rank():
    schedule = family("gpipe").build(Request(pp=2, num_microbatches=4))
    report = check(schedule, memory_limit=3.0)
    assert [(v.rule, v.rank, v.position) for v in report.violations] == [("memory", 0, 3), ("memory", 1, 3)]
    sizes = ActivationSizes(saved=np.array([2.0, 1.0]))
    for limits, above in (((8.0, 3.0), [1]), ((7.0, 4.0), [0]), ((8.0, 4.0), [])):
        report = check(schedule, memory_limit=np.array(limits), sizes=sizes)
        assert [v.rank for v in report.violations] == above


def issue(rows):
    return tuple(tuple(code for cell in row for code in encode(parse(cell))) for row in rows)


def two_ranks():
    return from_actions([["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"]], placement=loop(2))


def test_own_lowering_runs_under_every_semantics():
    assert check(two_ranks()).deadlock_free == ("eager", "pair", "single")


def test_single_stream_deadlock_is_found():
    """Rank 0 receives a gradient before it sends the activation that the gradient needs."""
    schedule = two_ranks()
    rows = [
        ["0F0", "0RECV_B0", "0SEND_F0", "0F1", "0SEND_F1", "0B0", "0RECV_B1", "0B1"],
        ["1RECV_F0", "1F0", "1B0", "1SEND_B0", "1RECV_F1", "1F1", "1B1", "1SEND_B1"],
    ]
    report = check(schedule, lowered=replace(lower(schedule), orders=issue(rows)))
    assert report.deadlock_free == ("eager",)
    assert {v.rule for v in report.violations} == {"deadlock"}


def test_one_communicator_per_pair_is_looser_than_one_stream():
    """Three ranks: rank 1 posts its receive from 0 after its send to 2; fine per pair, and rank 2 waits for 1."""
    schedule = from_actions([["0F0", "0B0"], ["1F0", "1B0"], ["2F0", "2B0"]])
    rows = [
        ["0F0", "0RECV_B0", "0SEND_F0", "0B0"],
        ["1RECV_F0", "1F0", "1SEND_F0", "1RECV_B0", "1B0", "1SEND_B0"],
        ["2RECV_F0", "2F0", "2B0", "2SEND_B0"],
    ]
    report = check(schedule, lowered=replace(lower(schedule), orders=issue(rows)))
    assert "eager" in report.deadlock_free
    assert "single" not in report.deadlock_free


def test_message_to_nowhere_is_refused():
    schedule = two_ranks()
    rows = [["0F0", "0F1", "0B0", "0B1", "0SEND_B0"], ["1F0", "1B0", "1F1", "1B1"]]
    report = check(schedule, lowered=replace(lower(schedule), orders=issue(rows)))
    assert "beyond the stages" in report.violations[0].message


def test_unpaired_message_is_refused():
    schedule = two_ranks()
    orders = list(lower(schedule).orders)
    rows = [[*orders[0], *issue([["0SEND_F1"]])[0]], orders[1]]
    report = check(schedule, lowered=replace(lower(schedule), orders=tuple(tuple(r) for r in rows)))
    assert report.violations[0].rule == "fifo"
    assert "nothing" in report.violations[0].message


def test_both_whole_and_split_backward_is_refused():
    schedule = from_actions([["0F0", "0B0", "0I0", "0W0"]], num_microbatches=1)
    assert any("needs one of B and I" in v.message for v in check(schedule).violations)


def test_offload_needs_its_reload():
    schedule = from_actions([["0F0", "0OFFLOAD0", "0B0"]], num_microbatches=1)
    assert "OFFLOAD and RELOAD" in check(schedule).violations[0].message
    late = from_actions([["0F0", "0OFFLOAD0", "0B0", "0RELOAD0"]], num_microbatches=1)
    assert check(late).violations[0].rule == "order"


def test_a_copy_goes_out_and_comes_back_once():
    twice = from_actions([["0F0", *("0OFFLOAD0", "0RELOAD0") * 2, "0B0"]], num_microbatches=1)
    (result,) = check(twice).violations
    assert result.rule == "complete"
    assert "0OFFLOAD0 2 times" in result.message


@pytest.mark.parametrize(
    ("row", "late", "early"),
    [
        ("0F0 0W0 0I0", "0W0 (rank 0, position 1)", "0I0 (rank 0, position 2)"),
        ("0OFFLOAD0 0F0 0RELOAD0 0B0", "0OFFLOAD0 (rank 0, position 0)", "0F0 (rank 0, position 1)"),
        ("0F0 0RELOAD0 0OFFLOAD0 0B0", "0RELOAD0 (rank 0, position 1)", "0OFFLOAD0 (rank 0, position 2)"),
    ],
)
def test_what_a_rank_runs_too_early_is_named_with_what_it_needs(row, late, early):
    (result,) = check(from_actions([row.split()])).violations
    assert (result.rule, result.message) == ("order", f"{late} comes before {early}, which it needs")


def test_a_block_is_of_two_micro_batches_or_stages():
    """Of one micro-batch on one stage the backward would wait for a forward that is not over."""
    (result,) = check(from_actions([["(0F0;0B0)OVERLAP_F_B"]])).violations
    assert result.rule == "order"
    assert "of another micro-batch or stage" in result.message


def test_two_ranks_that_both_send_first_need_buffers():
    """Both post a send before the receive that the other's send waits for."""
    rows = [
        ["0F0", "0SEND_F0", "0F1", "0SEND_F1", "0RECV_B0", "0B0", "0RECV_B1", "0B1"],
        ["1RECV_F0", "1F0", "1B0", "1SEND_B0", "1RECV_F1", "1F1", "1B1", "1SEND_B1"],
    ]
    report = check(two_ranks(), lowered=replace(lower(two_ranks()), orders=issue(rows)))
    assert report.deadlock_free == ("eager",)


def test_a_message_that_nothing_needs_is_found():
    rows = [
        ["0F0", "0SEND_F0", "0SEND_F0", "0F1", "0SEND_F1", "0RECV_B0", "0B0", "0RECV_B1", "0B1"],
        ["1RECV_F0", "1RECV_F0", "1F0", "1B0", "1SEND_B0", "1RECV_F1", "1F1", "1B1", "1SEND_B1"],
    ]
    (result,) = check(two_ranks(), lowered=replace(lower(two_ranks()), orders=issue(rows))).violations
    assert (result.rule, result.message) == ("fifo", "5 messages are sent; the schedule has 4")


def test_pieces_of_a_sequence_keep_their_order():
    schedule = family("seq1f1b").build(Request(pp=1, num_microbatches=1, num_splits=2))
    wrong = replace(
        schedule, orders=((schedule.orders[0][1], schedule.orders[0][0], *schedule.orders[0][2:]),)
    )
    assert "out of order among the pieces" in check(wrong).violations[0].message


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            ("0F0 0SEND_F0 0B0 0RECV_B0", "1RECV_F0 1F0 1B0 1SEND_B0"),
            "0B0 (rank 0, position 2) runs before its input",
        ),
        (
            ("0SEND_F0 0F0 0RECV_B0 0B0", "1RECV_F0 1F0 1B0 1SEND_B0"),
            "0SEND_F0 (rank 0, position 0) sends what is not",
        ),
        (
            ("0F0 0SEND_F0 0B0", "1RECV_F0 1F0 1B0"),
            "0B0 (rank 0, position 2) runs before its input is received",
        ),
    ],
)
def test_an_input_that_comes_late_or_never_is_found(rows, said):
    schedule, lowered = from_csv("\n".join(row.replace(" ", ",") for row in rows))
    assert lowered is not None
    report = check(schedule, lowered=lowered)
    assert not report.valid
    assert said in report.violations[0].message
