import pytest
from tests.errors import raises

from forescale.schedule import Request, ScheduleError, check, families, family
from forescale.schedule.torch_csv import from_csv, to_csv

EXPRESSIBLE = [
    f.name for f in families() if f.parameter_copies == 1 and f.name not in {"seq1f1b", "pipeoffload"}
]


def built(name):
    item = family(name)
    return item.build(Request(pp=4, num_microbatches=8, vpp=item.fixed_vpp or 2))


@pytest.mark.parametrize("name", EXPRESSIBLE)
def test_compute_only_comes_back_as_it_was(name):
    schedule = built(name)
    again, lowered = from_csv(to_csv(schedule), name=name)
    assert again == schedule
    assert lowered is None


@pytest.mark.parametrize("name", EXPRESSIBLE)
def test_communication_comes_back_and_is_checked(name):
    schedule = built(name)
    again, lowered = from_csv(to_csv(schedule, format="compute_comms"), name=name)
    assert again == schedule
    assert lowered is not None
    assert check(again, lowered=lowered).valid


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("chimera", "unsupported_by torch's schedule CSV"),
        ("seq1f1b", "unsupported_by torch's schedule CSV"),
        ("pipeoffload", "unsupported_by torch's schedule CSV"),
    ],
)
def test_what_torch_has_no_word_for_is_refused(name, what):
    with raises(ScheduleError, what):
        to_csv(built(name))


def test_errors_name_the_cell():
    with raises(ScheduleError, "cannot_parse action"):
        from_csv("0F0,0B0\nF1,1B0\n")
    with raises(ScheduleError, "empty the table"):
        from_csv("\n\n")


def test_empty_cells_are_waits():
    schedule, _ = from_csv("0F0,,,0B0\n,1F0,1B0,\n")
    assert check(schedule).valid
    assert schedule.orders[0] == from_csv("0F0,0B0\n1F0,1B0\n")[0].orders[0]
