"""Names, refusals, and orders known from the papers' figures (p = 4)."""

from dataclasses import replace

import pytest
from tests.errors import raises

from forescale.errors import UnknownNameError
from forescale.schedule import (
    Request,
    ScheduleError,
    build_schedule,
    families,
    family,
    from_share,
    peak_activations,
    simulate,
)


def order(name, rank, m=8, pp=4, **more):
    schedule = build_schedule(name, Request(pp=pp, num_microbatches=m, **more), vpp=more.get("vpp"))
    return " ".join(str(cell) for cell in schedule.actions[rank])


def test_names_are_unique():
    names = [name for item in families() for name in (item.name, *item.aliases)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("1f1b-interleaved", "interleaved-1f1b"), ("zbv-formatted", "zbv"), ("zero-bubble", "zb-h1"),
        ("V_HALF", "v-half"), ("ScheduleZBVZeroBubble", "zbv"), ("ScheduleDualPipeV", "dualpipev"),
        ("ScheduleLoopedBFS", "looped-bfs"), ("ScheduleGPipe", "gpipe"), ("Schedule1F1B", "1f1b"),
        ("ScheduleInterleaved1F1B", "interleaved-1f1b"), ("ScheduleInterleavedZeroBubble", "interleaved-zb"),
        ("zero-bubble-heuristic", "zb-unlimited"),
    ],
)  # fmt: skip
def test_names_of_others_are_known(alias, name):
    assert family(alias).name == name


def test_unknown_names_suggest_the_nearest():
    with raises(UnknownNameError, "unknown_name schedule"):
        family("dualpip")


def test_first_rank_of_1f1b():
    assert order("1f1b", 0).startswith("0F0 0F1 0F2 0F3 0B0 0F4 0B1 0F5")


def test_last_rank_of_interleaved():
    assert order("interleaved", 3, vpp=2).startswith("3F0 3F1 3F2 3F3 7F0 7B0 7F1 7B1")


def test_first_rank_of_zb_h1():
    assert order("zb-h1", 0).startswith("0F0 0F1 0F2 0F3 0I0 0W0 0F4 0I1 0W1")


def test_first_rank_of_zbv():
    assert order("zbv", 0).startswith("0F0 0F1 0F2 0F3 0F4 0F5 0F6 7F0 7I0 7W0 7F1")


def test_first_rank_of_dualpipev():
    start = "0F0 0F1 0F2 0F3 0F4 0F5 0F6 7F0 7I0 7W0 7F1 7I1 7W1 7F2 7I2 7W2 7F3 (0F7;7B3)OVERLAP_F_B"
    assert order("dualpipev", 0, m=10).startswith(start)


def test_middle_ranks_of_dualpipe_do_not_overlap_their_first_block():
    assert "(4F1;" not in order("dualpipe", 2, m=8)


def test_megatron_remainder_group():
    """Seven micro-batches in groups of four at pp 3: the last group of three is run as it is."""
    text = order("interleaved", 0, m=7, pp=3, vpp=2, group_size=4)
    forwards = [cell for cell in text.split() if "F" in cell]
    assert forwards == [
        "0F0",
        "0F1",
        "0F2",
        "0F3",
        "3F0",
        "3F1",
        "3F2",
        "3F3",
        "0F4",
        "0F5",
        "0F6",
        "3F4",
        "3F5",
        "3F6",
    ]


@pytest.mark.parametrize(
    ("name", "request_", "reason"),
    [
        ("dualpipe", Request(pp=3, num_microbatches=8), "even"),
        ("dualpipev", Request(pp=4, num_microbatches=7, vpp=2), "at least 2 pp = 8"),
        ("chimera", Request(pp=4, num_microbatches=7), "even"),
        ("1f1b", Request(pp=4, num_microbatches=8, vpp=2), "vpp must be 1"),
        ("interleaved-1f1b", Request(pp=4, num_microbatches=8, vpp=1), "vpp must be 2 or more"),
        ("interleaved-1f1b", Request(pp=4, num_microbatches=8, vpp=2, group_size=2), "at least pp = 4"),
        ("gis", Request(pp=8, num_microbatches=8, vpp=2, group_size=3), "4 to 8"),
        ("gis", Request(pp=5, num_microbatches=8, vpp=2, group_size=2), "3 to 5"),
        ("hanayo", Request(pp=4, num_microbatches=8, vpp=3), "even"),
        ("v-zb", Request(pp=8, num_microbatches=8, vpp=2, memory_limit=2.0), "allow 4 or more"),
        ("zb-1p", Request(pp=8, num_microbatches=8, memory_limit=0.5), "at least one"),
        ("gpipe", Request(pp=4, num_microbatches=0), "at least 1"),
    ],
)
def test_refusals_say_why(name, request_, reason):
    with pytest.raises(ScheduleError, match=reason):
        family(name).build(request_)


def test_vpp_may_be_left_out_only_where_it_is_fixed():
    assert build_schedule("zbv", Request(pp=2, num_microbatches=4)).num_stages == 4
    with raises(ScheduleError, "missing vpp"):
        build_schedule("interleaved-1f1b", Request(pp=2, num_microbatches=4))


@pytest.mark.parametrize("limit", [4.0, 4.5, 5.0, 6.5, 8.0])
def test_v_zb_keeps_any_limit(limit):
    schedule = build_schedule("v-zb", Request(pp=8, num_microbatches=20, memory_limit=limit))
    assert peak_activations(schedule).max() <= limit


def test_waves_idle_less():
    """Hanayo, arXiv:2308.15762, figure 1: waves of smaller chunks fill part of what 1F1B leaves idle."""
    request = Request(pp=4, num_microbatches=16)
    built = [build_schedule("1f1b", request)]
    built += [build_schedule("hanayo", replace(request, vpp=vpp), vpp=vpp) for vpp in (2, 4, 8)]
    ends = [simulate(item, from_share(vpp=item.placement.vpp)).makespan for item in built]
    assert ends[0] == 3 * (16 + 3) > max(ends[1:])


def test_offload_lowers_the_peak():
    request = Request(pp=8, num_microbatches=16, vpp=2)
    plain, offloaded = (
        peak_activations(family(name).build(request)).max() for name in ("gis", "pipeoffload")
    )
    assert offloaded < 0.75 * plain


@pytest.mark.parametrize("each", families(), ids=lambda item: item.name)
def test_a_family_says_which_options_shape_it(each):
    vpp = max(2, each.vpp[0]) if each.fixed_vpp is None else each.fixed_vpp
    plain = Request(pp=2, num_microbatches=12, vpp=vpp)

    def orders(request):
        return [list(order) for order in each.build(request).orders]

    def other(**given):
        try:
            return orders(replace(plain, **given)) != orders(plain)
        except ScheduleError:  # it looks at what it is given
            return True

    assert any(other(group_size=size) for size in (1, 3, 4)) == each.groups_microbatches
    assert other(num_splits=3) == each.splits_sequences
