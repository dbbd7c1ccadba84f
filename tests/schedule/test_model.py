import pytest

from forescale.schedule import Placement, ScheduleError
from forescale.schedule.model import bidirectional, loop, wave


def test_loop_goes_round():
    assert loop(3, 2).rank_of_stage == (0, 1, 2, 0, 1, 2)


def test_v_turns_at_the_last_rank():
    assert wave(3, 2).rank_of_stage == (0, 1, 2, 2, 1, 0)
    assert wave(3, 2).style == "V"
    assert wave(2, 4).rank_of_stage == (0, 1, 1, 0, 0, 1, 1, 0)


def test_bidirectional_holds_the_model_twice():
    both = bidirectional(4)
    assert both.rank_of_stage == (0, 1, 2, 3, 3, 2, 1, 0)
    assert (both.num_stages, both.vpp) == (4, 1.0)
    assert [both.replica(i, 6) for i in range(6)] == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("ranks", [(), (1,), (0, 2)])
def test_ranks_have_no_gap(ranks):
    with pytest.raises(ScheduleError):
        Placement(rank_of_stage=ranks)
