from dataclasses import replace

import numpy as np
import pytest
from tests.errors import raises

from forescale.errors import InfeasibleError, SpecError
from forescale.face import ask_search
from forescale.goodput.expected import expected
from forescale.goodput.operations import case_of, load_failures
from forescale.search.rank import score_all
from forescale.spec.operations import Failures, Operations
from forescale.whole_run.plans import INTERVALS, Limits, hourly_price, plan_run
from forescale.whole_run.prices import published_prices

DAY = 86400.0
COUNTS = (8, 16, 24, 32, 48, 64)
OPERATIONS = Operations(failures=Failures(name="", source="", per_device_day={"all": 0.02}))
PRICE = 2.5


def asked(**more):
    parts = {"seq_len": 4096, "global_batch_size": 96, "tokens": 2e11, "cp": 1, "vpp": 1, **more}
    question = ask_search("llama-3.1-8b", "h100-sxm", devices=64, micro_batch_size=(1, 2), **parts)
    return replace(question, operations=OPERATIONS)


def every_plan():
    """Days, and cost, of every layout x interval x spares on every number of devices."""
    result, costs = [], []
    for count in COUNTS:
        question = replace(asked(), cluster=asked().cluster.sized(count))
        question = replace(
            question, space=question.space.whole(question.model)
        )  # layers recomputed in part, too
        try:
            scored = score_all(question)
        except InfeasibleError:
            continue
        steps = np.where(scored.fits, scored.scores.step_time, np.inf).reshape(-1)
        steps = steps[np.isfinite(steps)] * question.workload.tokens / question.workload.tokens_per_step
        for spares in range(6):
            case, saved = case_of(
                replace(OPERATIONS, spares=spares), parameters=8030261248.0, precision=question.workload.precision,
                cluster=question.cluster, seconds=1.0,
            )  # fmt: skip
            for share in INTERVALS:
                interval = max(case.interval * share, saved.written)
                days = sum(expected(replace(case, interval=interval)).values()) * steps / DAY
                result.append(days)
                costs.append(days * 24 * PRICE * (count + 8 * spares))
    return np.concatenate(result), np.concatenate(costs)


@pytest.fixture(scope="module")
def every():
    return every_plan()


@pytest.mark.parametrize("deadline", [8.0, 14.0, 40.0])
def test_the_cheapest_within_a_deadline_is_that_of_everything(every, deadline):
    result = plan_run(asked(), COUNTS, Limits(deadline=deadline), price=PRICE)
    days, costs = every
    best = costs[days <= deadline].min()
    assert result.chosen.cost == pytest.approx(best, rel=1e-9)
    assert result.chosen.days <= deadline


@pytest.mark.parametrize("budget", [20_000.0, 26_000.0])
def test_the_soonest_within_a_budget_is_that_of_everything(every, budget):
    result = plan_run(asked(), COUNTS, Limits(budget=budget), price=PRICE)
    days, costs = every
    best = days[costs <= budget].min()
    assert result.chosen.days == pytest.approx(best, rel=2e-4)
    assert result.chosen.cost <= budget


def test_nothing_beats_the_front(every):
    result = plan_run(asked(), COUNTS, Limits(), price=PRICE)
    days, costs = every
    beaten = np.zeros(len(days), dtype=bool)
    for item in result.front:
        beaten |= (item.days <= days * 1.0002) & (item.cost <= costs * 1.0002)
    assert beaten.all()
    days = [item.days for item in result.front]
    costs = [item.cost for item in result.front]
    assert days == sorted(days)
    assert costs == sorted(costs, reverse=True)
    assert result.to_dict()["front"][0]["days"] == days[0]
    assert len(result.rows()) == len(days)


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        (Limits(deadline=0.5), "the soonest takes .* give a deadline of that or more"),
        (Limits(budget=10.0), "costs at most 10 in all: the cheapest costs .* give a budget of that or more"),
    ],
)
def test_what_nothing_keeps(limits, sentence):
    with pytest.raises(InfeasibleError, match=sentence):
        plan_run(asked(), COUNTS, limits, price=PRICE)


def test_a_plan_needs_tokens():
    with raises(SpecError, "required_with the number of training tokens (--tokens 15T)"):
        plan_run(asked(tokens=None), COUNTS, Limits(deadline=1.0))


def test_without_a_price_device_hours_are_the_cost():
    question = replace(asked(), operations=Operations(failures=load_failures("llama-3")))
    result = plan_run(question, (64,), Limits(deadline=30.0))
    assert result.chosen.cost == pytest.approx(result.chosen.num_devices * result.chosen.days * 24)
    assert [row["device_hours"] for row in result.rows()] == pytest.approx(
        [item.cost for item in result.front]
    )


@pytest.mark.parametrize(
    ("limits", "held"),
    [
        (Limits(), (True, True, True)),
        (Limits(deadline=2.0), (True, True, False)),
        (Limits(budget=20.0), (True, False, True)),
        (Limits(deadline=2.0, budget=20.0), (True, False, False)),
    ],
)
def test_both_limits_hold_and_may_be_reached(limits, held):
    assert tuple(limits.hold(*item) for item in ((2.0, 20.0), (2.0, 20.1), (2.1, 20.0))) == held


def test_an_hours_price_is_given_or_the_clusters_or_published():
    cluster = asked().cluster
    local = replace(cluster, device=replace(cluster.device, price_per_hour=3.0))
    nameless = replace(cluster, device=replace(cluster.device, name="no-such-device"))
    paid = [item.value for item in published_prices().device_hour["h100-sxm"]]
    assert hourly_price(cluster) == (min(paid) + max(paid)) / 2
    assert hourly_price(local) == 3.0
    assert hourly_price(local, 5.0) == hourly_price(nameless, 5.0) == 5.0
    assert hourly_price(local, 0.0) is None
    assert hourly_price(nameless) is None


def test_spares_are_paid_for_and_counted_by_hand():
    operations = Operations(failures=Failures(per_device_day={"all": 0.02}), spares=3)
    result = plan_run(replace(asked(), operations=operations), (64,), Limits(), price=PRICE).chosen
    assert (result.spares, result.num_devices, result.machines) == (
        3,
        64 + 24,
        "64 devices and 3 spare nodes",
    )
    assert result.cost == pytest.approx(result.days * 24 * 88 * 2.5, rel=1e-6)
    row = result.row()
    assert (row["num_devices"], row["device_hours"]) == (64, pytest.approx(result.days * 24 * 88))
