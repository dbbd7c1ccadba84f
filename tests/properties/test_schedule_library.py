"""Every schedule of the library, for any shape and durations, is valid or clearly refused."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.conformance.schedules import check_schedule

from forescale.schedule import Request, ScheduleError, families, family

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


@pytest.mark.parametrize("name", [item.name for item in families()])
def test_every_request_is_valid_or_refused(name):
    result = family(name)

    @SETTINGS
    @given(request=requests(name), seed=st.integers(0, 2**16))
    def run(request, seed):
        reason = result.violation(request)
        if reason:
            with pytest.raises(ScheduleError, match=name):
                result.build(request)
            return
        schedule = result.build(request)
        assert schedule.num_microbatches == request.num_microbatches
        check_schedule(schedule, seed=seed)

    run()
