import pytest
from tests.errors import raises

from forescale.schedule import Action, Kind, Overlapped, ScheduleError
from forescale.schedule.actions import decode, encode, pack, parse, unpack


@pytest.mark.parametrize(
    "text",
    [
        "0F3",
        "2I1",
        "1W0",
        "7B12",
        "0OFFLOAD3",
        "1RELOAD0",
        "1SEND_F0",
        "3RECV_B11",
        "1UNSHARD",
        "0REDUCE_GRAD",
    ],
)
def test_text_and_action_are_the_same(text):
    assert str(parse(text)) == text


def test_block_is_forward_first():
    block = parse("(3B0;1F2)OVERLAP_F_B")
    assert block == Overlapped(Action(Kind.F, 1, 2), Action(Kind.B, 3, 0))
    assert str(block) == "(1F2;3B0)OVERLAP_F_B"


@pytest.mark.parametrize(
    "text", ["F3", "0X3", "0F", "(0F1;1F0)OVERLAP_F_B", "(0W1;1B0)OVERLAP_F_B", "0F3x", "-1F0"]
)
def test_nonsense_is_refused(text):
    with raises(ScheduleError, "cannot_parse action"):
        parse(text)


def test_packing_keeps_every_field():
    assert unpack(pack(Kind.W, 1023, 4000)) == Action(Kind.W, 1023, 4000)


def test_cells_survive_packing():
    cells = (parse("0F0"), parse("(0F1;1B0)OVERLAP_F_B"), parse("1W0"))
    codes = tuple(code for cell in cells for code in encode(cell))
    assert len(codes) == 4
    assert decode(codes) == cells
