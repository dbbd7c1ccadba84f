"""Schedules built for durations: never slower than those built for equal ones, within memory, and copied rounds exact."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.conformance.schedules import check_schedule

from forescale.schedule import LinkTimes, Request, compile_schedule, family, from_share, peak_activations
from forescale.schedule.library import zb_auto
from forescale.schedule.library.timed import WeightsByTime, at_equal_times, fastest
from forescale.schedule.model import Schedule, loop


def timing(schedule, request):
    times = from_share(
        forward=request.forward,
        input_grad=request.input_grad,
        weight_grad=request.weight_grad,
        vpp=schedule.placement.vpp,
    )
    return compile_schedule(schedule).time(times, LinkTimes(latency=request.comm))


@pytest.mark.parametrize(
    ("name", "at_equal", "at_most"),
    [("v-half", 0.132, 0.049), ("v-zb", 0.132, 0.0202), ("v-min", 0.269, 0.27)],
)
def test_idle_share_of_v_schedules_at_unequal_durations(name, at_equal, at_most):
    request = Request(pp=4, num_microbatches=32, vpp=2, forward=1.0, input_grad=1.4, weight_grad=0.8)
    built, equal = (family(name).build(item) for item in (request, at_equal_times(request)))
    assert timing(equal, request).bubble_rate_makespan == pytest.approx(at_equal, abs=1e-3)
    assert timing(built, request).bubble_rate_makespan <= at_most
    assert peak_activations(built).max() <= peak_activations(equal).max()


durations = st.one_of(st.integers(1, 4).map(float), st.floats(0.2, 3.0))
requests = st.builds(
    Request,
    pp=st.integers(1, 4),
    num_microbatches=st.integers(1, 14),
    vpp=st.just(2),
    forward=durations,
    input_grad=durations,
    weight_grad=durations,
    comm=st.floats(0.0, 0.5),
)


@pytest.mark.parametrize("name", ["v-half", "v-min", "v-zb", "zb-1p", "zb-2p", "hanayo"])
def test_no_slower_than_what_is_built_for_equal_durations(name):
    result = family(name)

    @settings(max_examples=6, deadline=None, derandomize=True)
    @given(request=requests)
    def run(request):
        question = request if result.fixed_vpp != 1 else Request(**{**_fields(request), "vpp": 1})
        built, equal = (result.build(item) for item in (question, at_equal_times(question)))
        assert timing(built, question).makespan <= timing(equal, question).makespan
        limit = peak_activations(equal).max() if name.startswith("v-") else None
        check_schedule(built, memory_limit=limit)

    run()


def _fields(request):
    return {name: getattr(request, name) for name in Request.__dataclass_fields__}


def test_the_first_of_equals_is_taken():
    plain = family("1f1b").build(Request(pp=3, num_microbatches=4))
    late = family("gpipe").build(Request(pp=3, num_microbatches=4))
    request = Request(pp=3, num_microbatches=4)
    assert fastest([late.orders, plain.orders], request, loop(3)) is late.orders
    zb = family("zb-h1").build(request)
    assert fastest([late.orders, plain.orders, zb.orders], request, loop(3)) is zb.orders


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    request=requests,
    more=st.integers(0, 60),
    factor=st.sampled_from([1.0, 1.5, 2.0]),
    part=st.floats(0.0, 1.0),
)
def test_copied_rounds_of_the_heuristic_are_those_it_would_run(request, more, factor, part):
    question = Request(
        **{
            **_fields(request),
            "vpp": 1,
            "num_microbatches": request.num_microbatches + more,
            "weight_part": part,
        }
    )
    best = None
    for setting in product((True, False), (True, False), (True, False)):
        quick, plain = (zb_auto._Builder(question, factor * question.pp, setting) for _ in range(2))
        plain._jump = lambda *_: 0
        quick.build()
        plain.build()
        assert quick.kinds == plain.kinds
        assert (quick.end, quick.first, quick.bubble) == (plain.end, plain.first, plain.bubble)
        best = plain if best is None or plain.span() < best.span() else best
    assert zb_auto.orders_within(question, factor * question.pp) == best.orders()


def test_large_pipelines_of_the_heuristic():
    built = family("zb-1p").build(Request(pp=64, num_microbatches=2048))
    # of 3 m passes each rank waits for p - 1 at unit times: (p - 1)/(3 m + p - 1)
    assert timing(built, Request(pp=64, num_microbatches=2048)).makespan == 3 * 2048 + 63
    assert peak_activations(built).max() == 64


APART = {"forward": 1.0, "input_grad": 1.25, "weight_grad": 0.75, "comm": 0.5}


@pytest.mark.parametrize("limit", [4, 8, 30])
@pytest.mark.parametrize("setting", list(product((True, False), repeat=3)))
def test_the_heuristic_s_own_clock_is_the_simulation_s(limit, setting):
    """Messages take half a forward; its ticks are those of the longest duration."""
    request = Request(pp=4, num_microbatches=30, **APART)
    builder = zb_auto._Builder(request, limit, setting)
    builder.build()
    built = Schedule(name="built", placement=loop(4), num_microbatches=30, orders=builder.orders())
    assert builder.span() * 1.25 / 2**40 == pytest.approx(timing(built, request).longest_span, rel=1e-10)


@pytest.mark.parametrize("slack", [0.0, 0.5, 1.0])
def test_weight_gradients_are_placed_by_the_simulation_s_clock(slack):
    request = Request(pp=4, num_microbatches=8, vpp=2, **APART)
    value = family("zbv").build(request)
    makespan, orders = WeightsByTime(request, 8, slack).run(value.orders)
    built = Schedule(
        name="built", placement=value.placement, num_microbatches=8, orders=tuple(map(tuple, orders))
    )
    assert timing(built, request).makespan == pytest.approx(makespan, rel=1e-12)


def test_messages_count_where_the_fastest_is_chosen():
    """Forwards ahead of a slow message: one behind the other takes longer, which free messages do not tell."""
    request = Request(pp=2, num_microbatches=4, comm=3.0)
    slow, quick = (family(name).build(replace(request, comm=0.0)).orders for name in ("1f1b", "eager-1f1b"))
    free, paid = (fastest((slow, quick), item, loop(2)) for item in (replace(request, comm=0.0), request))
    assert free == slow
    assert paid == quick
