"""Every schedule of the library, for any shape and durations, is valid or clearly refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forescale.schedule import FAMILIES, Request, ScheduleError, StageTimes, compile_schedule, family
from forescale.schedule.extrapolate import makespan_of
from forescale.testing.schedules import check_schedule

SEARCHING = {"v-half", "v-min", "v-zb"}
SETTINGS = settings(
    max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)


@st.composite
def requests(draw, name):
    searching = name in SEARCHING
    pp = draw(st.integers(1, 16))
    few = searching and pp > 8
    group = draw(st.one_of(st.none(), st.integers(max(1, pp // 2), pp + 3)))
    if searching and pp > 3:  # a search by time takes a second; equal durations find it in less
        return Request(
            pp=pp, num_microbatches=draw(st.integers(1, 16 if few else 64)), vpp=draw(st.integers(1, 4))
        )
    return Request(
        pp=pp,
        num_microbatches=draw(st.integers(1, 16 if few else 64)),
        vpp=draw(st.integers(1, 4)),
        forward=draw(st.floats(0.2, 3.0)),
        input_grad=draw(st.floats(0.2, 3.0)),
        weight_grad=draw(st.floats(0.2, 3.0)),
        comm=draw(st.floats(0.0, 0.5)),
        group_size=group,
        num_splits=draw(st.integers(1, 4)),
    )


@pytest.mark.parametrize("name", [each.name for each in FAMILIES])
def test_every_request_is_valid_or_refused(name):
    found = family(name)

    @SETTINGS
    @given(request=requests(name), seed=st.integers(0, 2**16))
    def run(request, seed):
        reason = found.why_not(request)
        if reason:
            with pytest.raises(ScheduleError, match=name):
                found.build(request)
            return
        schedule = found.build(request)
        assert schedule.num_microbatches == request.num_microbatches
        check_schedule(schedule, seed=seed)

    run()


@pytest.mark.parametrize("name", [each.name for each in FAMILIES if each.name not in SEARCHING])
def test_extrapolation_in_microbatches_is_exact(name):
    found = family(name)

    @settings(max_examples=6, deadline=None, derandomize=True)
    @given(pp=st.integers(1, 6), m=st.integers(1, 200), seed=st.integers(0, 1000))
    def run(pp, m, seed):
        vpp = found.fixed_vpp or 2
        request = Request(pp=pp, num_microbatches=m, vpp=vpp)
        if found.why_not(request):
            return
        schedule = found.build(request)
        random = np.random.default_rng(seed)
        f, b, w = (random.uniform(0.5, 2.0, schedule.num_stages) for _ in range(3))
        times = StageTimes(forward=f, input_grad=b, weight_grad=w)
        direct = compile_schedule(schedule).time(times).makespan
        quick = makespan_of(found, request, times)
        assert quick.makespan == pytest.approx(direct, rel=1e-9)
        assert quick.simulated_microbatches <= m

    run()


def test_extrapolation_saves_work():
    times = StageTimes(forward=np.array([1.0, 1.2, 0.9, 1.1]), input_grad=1.0, weight_grad=1.0)
    quick = makespan_of(family("zb-h1"), Request(pp=4, num_microbatches=4000), times)
    assert quick.simulated_microbatches < 100
