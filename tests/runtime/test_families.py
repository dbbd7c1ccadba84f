"""Every schedule of the library, of the optimiser and at random: gradients are those of one process."""

from __future__ import annotations

import random

import numpy as np
import pytest
from tests.runtime.worlds import run_all

from forescale.runtime import launch
from forescale.schedule import (
    Action,
    Kind,
    LoweredSchedule,
    Request,
    build_schedule,
    check,
    families,
    from_actions,
    peak_activations,
)
from forescale.schedule.model import Placement, loop, wave
from forescale.schedule.optimise import Problem, optimise
from forescale.schedule.torch_csv import from_csv

CLOSE = 1e-12


def library(pp):
    for family in families():
        count = 2 * pp if family.name in ("dualpipe", "dualpipev", "chimera", "zbv") else pp + 2 + pp % 2
        request = Request(pp=pp, num_microbatches=count, num_splits=2)
        if not family.request_violation(request):
            yield build_schedule(family.name, request, vpp=family.fixed_vpp or 2)


def optimised():
    """Twenty schedules of the optimiser, for stages that differ."""
    random_ = np.random.default_rng(7)
    for index in range(20):
        vpp = 1 + index % 2
        placement = wave(2, 2) if index % 4 == 1 else loop(2, vpp)
        stages = 2 * vpp
        forward, inputs, weights = (random_.uniform(0.5, 2.0, stages) for _ in range(3))
        problem = Problem(
            placement=placement,
            num_microbatches=3 + index % 3,
            forward=forward,
            input_grad=inputs,
            weight_grad=weights,
            comm=np.full(stages - 1, 0.1),
            saved=np.full(stages, 1.0 / vpp),
        )
        yield optimise(problem, time_limit_s=0.0).schedule


def at_random(count, seed=11):
    """Valid tables: actions in a random order that keeps every dependency, some with copies to the host.

    Stages lie anywhere, not as many on one rank as on the other.
    """
    random_ = random.Random(seed)
    while count:
        stages, batches, offloads = random_.randint(2, 5), random_.randint(1, 4), random_.random() < 0.3
        homes = tuple(random_.randrange(2) for _ in range(stages))
        if set(homes) != {0, 1}:
            continue
        placement = Placement(rank_of_stage=homes)
        rows, done, left = [[], []], set(), []
        for stage in range(stages):
            for unit in range(batches):
                apart = random_.random() < 0.5
                left += [("F", stage, unit), *((kind, stage, unit) for kind in ("IW" if apart else "B"))]
        while left:
            ready = [
                item
                for item in left
                if all(need in done or need[0] == "-" for need in needs(item, stages, done))
            ]
            kind, stage, unit = choice = random_.choice(ready)
            left.remove(choice)
            done.add(("B" if kind == "I" else kind, stage, unit) if kind != "W" else choice)
            done.add(choice)
            row = rows[homes[stage]]
            if kind in "BI" and Action(Kind.OFFLOAD, stage, unit) in row:
                row.append(Action(Kind.RELOAD, stage, unit))
            row.append(Action(Kind[kind], stage, unit))
            if kind == "F" and offloads and random_.random() < 0.5:
                row.append(Action(Kind.OFFLOAD, stage, unit))
        schedule = from_actions(rows, placement=placement, num_microbatches=batches, name=f"random {count}")
        if check(schedule).valid:
            count -= 1
            yield schedule


def odd():
    """Tables as nobody writes them, and right: where stages lie, which backward, what runs as a block."""
    tables = (
        ("0F0 1F0 1B0 0I0 0W0", "2F0 3F0 3I0 2I0 2W0 3W0"),  # neighbours on one rank
        ("0F0 3F0 3B0 0B0", "1F0 2F0 2I0 1I0 1W0 2W0"),
        ("0F1 0F0 0I0 0B1 0W0", "1F1 1B1 1F0 1B0"),  # micro-batches out of order, backwards of both kinds
        ("0F0 0F1 (0F2;0B0)OVERLAP_F_B 0I1 0I2 0W2 0W1", "1F0 1I0 1F1 1I1 1W0 1W1 1F2 1B2"),
        ("0F0 0SEND_F0 0RECV_B0 0B0", "1RECV_F0 1F0 1I0 1SEND_B0 1W0"),  # messages are given
    )
    for rows in tables:
        schedule, messages = from_csv("\n".join(row.replace(" ", ",") for row in rows))
        yield messages or schedule


def needs(item, stages, done):
    kind, stage, unit = item
    if kind == "F":
        return [("F", stage - 1, unit)] if stage else []
    if kind == "W":
        return [("I", stage, unit)]
    return [("F", stage, unit)] if stage == stages - 1 else [("B", stage + 1, unit), ("F", stage, unit)]


@pytest.mark.parametrize(
    ("pp", "make"),
    [(4, lambda: library(4)), (2, lambda: [*library(2), *optimised(), *at_random(50), *odd()])],
    ids=["library of 4 ranks", "library, optimiser, random and odd tables of 2 ranks"],
)
def test_gradients_are_those_of_one_process(pp, make):
    schedules = list(make())
    by_rank = launch(run_all, pp, schedules)
    for place, what in enumerate(schedules):
        schedule = what.schedule if isinstance(what, LoweredSchedule) else what
        worst = max(item[place][0] for item in by_rank)
        assert worst < CLOSE, schedule.name
        assert max(item[place][1] for item in by_rank) < 1e-6, schedule.name
        peaks = [item[place][2] for item in by_rank]
        assert np.allclose(peaks, peak_activations(schedule), rtol=0, atol=1e-9), schedule.name
    assert len(schedules) > 20
