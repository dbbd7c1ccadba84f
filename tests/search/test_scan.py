from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.errors import raises
from tests.small import cluster, dense, moe, workload

from forescale import ask_search
from forescale.cost.select import Costs
from forescale.errors import InfeasibleError, SpecError
from forescale.goodput.operations import load_failures
from forescale.projection.result import cost_per_token
from forescale.question import Question
from forescale.search import Target, Terms, fewest_devices, scan_batches, scan_devices, search
from forescale.search.scan import device_ladder, least_step, reached, with_between
from forescale.spec import DenseFfn, FullAttention, Layer, Layout
from forescale.spec.layout import Routing
from forescale.spec.operations import Operations
from forescale.spec.space import Space

SMALL = Space(zero=(1,), cp=(1,), vpp=(1,), micro_batch_size=(1, 2))


def small(model, devices, work, **parts):
    return Question(model=model, cluster=devices, workload=work, space=SMALL, **parts)


def powered(num_devices):
    value = cluster(num_devices)
    return replace(value, device=replace(value.device, power_w=700.0))


def test_the_ladder_has_divisors_of_a_node_and_powers_of_two_of_nodes():
    assert device_ladder(64, node=8) == (1, 2, 4, 8, 16, 32, 64)
    assert device_ladder(100, node=8) == (1, 2, 4, 8, 16, 32, 64, 100)
    assert device_ladder(3, node=8) == (1, 2, 3)
    assert device_ladder(144, node=72)[-3:] == (36, 72, 144)


def test_between_powers_of_two_are_whole_nodes():
    assert with_between((32, 64), node=8) == (32, 40, 48, 56, 64)
    assert with_between((64, 128), node=8) == (64, 80, 96, 112, 128)
    assert with_between((4, 8, 16, 32), node=8) == (4, 8, 16, 24, 32)
    assert with_between((8, 100), node=8) == (8, 24, 48, 72, 96, 100)


def test_each_point_is_the_best_of_its_own_search():
    result = scan_devices(small(dense(), cluster(64), workload()), [16, 4, 8, 8])
    assert [point.num_devices for point in result.points] == [4, 8, 16]
    for point in result.points:
        alone = search(dense(), cluster(point.num_devices), workload(), space=SMALL, top=1)
        assert point.best == alone.best[0]
        assert 0 < point.num_feasible <= alone.num_feasible
    rates = {point.num_devices: point.best.tokens_per_s_per_device for point in result.points}
    assert result.chosen.num_devices == max(rates, key=rates.get)


@pytest.mark.parametrize(
    ("varied", "smaller", "larger"), [("num_devices", 8, 16), ("global_batch_size", 16, 48)]
)
def test_the_best_layout_of_a_smaller_value_bounds_the_step_of_a_larger_one(varied, smaller, larger):
    def best(value):
        devices = cluster(value if varied == "num_devices" else 8)
        work = workload(global_batch_size=64 if varied == "num_devices" else value)
        one = search(small(moe(), devices, work), top=1).best[0]
        return one.step_time_s, replace(small(moe(), devices, work), strategy=one.strategy)

    step, _ = best(larger)
    bound = reached(varied, larger, {smaller: best(smaller)[1]})
    assert step <= bound < 2.0 * step
    assert reached(varied, smaller, {larger: best(larger)[1]}) == np.inf
    assert reached("num_devices", 3 * smaller + 1, {smaller: best(smaller)[1]}) == np.inf


def test_the_fewest_devices_meet_the_target_and_fewer_do_not():
    work = workload(global_batch_size=96)
    ladder = scan_devices(small(dense(), cluster(64), work), [24])
    target = Target(step_time_s=ladder.points[0].best.step_time_s)
    result = fewest_devices(small(dense(), cluster(64), work), target)
    assert result.chosen.num_devices == 24
    assert [point.num_devices for point in result.points] == [1, 2, 4, 8, 16, 24, 32, 64]
    assert not any(point.meets_target for point in result.points[:5])
    assert result.points[5].best.step_time_s == target.step_time_s
    assert result.points[6].best.step_time_s > target.step_time_s, "more devices are not always faster"


def test_the_cheapest_that_meets_a_target_spends_the_least_device_time():
    work = workload(global_batch_size=96)
    every = scan_devices(small(dense(), cluster(64), work), [8, 24, 32])
    slowest = max(point.best.step_time_s for point in every.points)
    result = scan_devices(
        small(dense(), cluster(64), work), [8, 24, 32], terms=Terms(target=Target(step_time_s=slowest))
    )
    spent = {point.num_devices: point.best.step_time_s * point.num_devices for point in result.points}
    assert all(point.meets_target for point in result.points)
    assert result.cheapest.num_devices == min(spent, key=spent.get)
    assert result.to_json()["cheapest"] == result.cheapest.num_devices
    assert every.cheapest is None


def test_a_target_in_days_is_one_of_step_time():
    run = replace(workload(), tokens=1e9)
    step = scan_devices(small(dense(), cluster(8), run), [8]).points[0].best.step_time_s
    days = step * 1e9 / (64 * 2048) / 86400
    assert Target(days=days).limit(run) == pytest.approx(step)
    met = scan_devices(
        small(dense(), cluster(8), run), [8], terms=Terms(target=Target(days=days * 1.001))
    ).points[0]
    assert met.meets_target
    assert met.best.training_days <= days * 1.001
    missed = scan_devices(
        small(dense(), cluster(8), run), [8], terms=Terms(target=Target(days=days * 0.999))
    ).points[0]
    assert not missed.meets_target


def test_days_on_the_calendar_judge_a_target_where_they_are_known():
    run = replace(workload(), tokens=1e12)
    question = replace(
        small(dense(), cluster(8), run), operations=Operations(failures=load_failures("llama-3"))
    )
    best = scan_devices(question, [8]).points[0].best
    assert best.calendar.days.expected > best.training_days
    between = (best.calendar.days.expected + best.training_days) / 2.0
    assert not Target(days=between).met_by(best)
    assert Target(days=best.calendar.days.expected).met_by(best)


def test_the_stricter_of_two_targets_counts():
    run = replace(workload(), tokens=64 * 2048 * 86400.0)
    assert Target(step_time_s=3.0, days=2.0).limit(run) == 2.0
    assert Target(step_time_s=1.0, days=2.0).limit(run) == 1.0


def test_what_the_peak_rate_forbids_is_not_searched():
    result = fewest_devices(small(dense(), cluster(8), workload()), Target(step_time_s=1e-4))
    assert result.chosen is None
    assert all("peak rate" in point.problem and point.best is None for point in result.points)
    document = result.to_json()
    assert document["chosen"] is None
    assert document["target"] == {"step_time_s": 1e-4, "days": None}


def test_batches_are_compared_by_throughput():
    result = scan_batches(small(dense(), cluster(16), workload()), [256, 16, 64])
    assert [point.global_batch_size for point in result.points] == [16, 64, 256]
    rates = [point.best.tokens_per_s_per_device for point in result.points]
    assert rates == sorted(rates)
    assert result.chosen.global_batch_size == 256
    for point in result.points:
        assert point.best.workload.global_batch_size == point.global_batch_size


def test_cost_needs_a_price_and_energy_a_power():
    run = replace(workload(), tokens=1e9)
    free = scan_devices(small(dense(), cluster(8), run), [8]).points[0]
    assert (free.cost, free.cost_per_million_tokens, free.energy_per_token_max_j) == (None, None, None)
    paid = scan_devices(small(dense(), powered(8), run), [8], terms=Terms(price_per_device_hour=2.0))
    point, step = paid.points[0], paid.points[0].best.step_time_s
    hours = point.best.training_days * 24
    assert point.cost == pytest.approx(2.0 * 8 * hours)
    assert point.cost / 1e9 == pytest.approx(
        cost_per_token(price_per_device_hour=2.0, num_devices=8, step_time=step, tokens=64 * 2048)
    )
    assert point.energy_per_token_max_j == pytest.approx(700.0 * 8 * step / (64 * 2048))


def test_the_price_of_the_device_counts_where_none_is_given():
    value = cluster(8)
    priced = replace(value, device=replace(value.device, price_per_hour=3.0))
    assert Terms().price(priced) == 3.0
    assert Terms(price_per_device_hour=2.0).price(priced) == 2.0
    assert Terms().price(value) is None


def test_points_without_a_layout_say_why():
    tight = cluster(8, hbm_gb=3.0)
    result = scan_devices(small(dense(), tight, workload()), [1, 8])
    assert result.points[0].best is None
    assert "fits" in result.points[0].problem
    assert result.points[1].best is not None
    with pytest.raises(InfeasibleError, match="at any number of devices of 1"):
        scan_devices(small(dense(), tight, workload()), [1])


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (Target, "out_of_range a target"),
        (lambda: Target(days=-1.0), "out_of_range a target"),
        (lambda: Target(days=1.0).limit(workload()), "required_with the tokens of the whole run (--tokens)"),
        (
            lambda: scan_devices(small(dense(), cluster(8), workload()), [0]),
            "out_of_range numbers of devices",
        ),
        (lambda: scan_batches(small(dense(), cluster(8), workload()), []), "out_of_range global batch sizes"),
        (
            lambda: Terms(price_per_device_hour=-1.0).price(cluster(8)),
            "out_of_range the price per device-hour",
        ),
    ],
)
def test_questions_that_cannot_be(call, sentence):
    with raises(SpecError, sentence):
        call()


def test_the_bound_is_the_step_at_full_utilisation():
    best = scan_devices(small(dense(), cluster(8), workload()), [8]).points[0].best
    bound = best.step_time_s * best.mfu
    for factor, searched in ((0.999, False), (1.001, True)):
        terms = Terms(target=Target(step_time_s=bound * factor))
        point = scan_devices(small(dense(), cluster(8), workload()), [8], terms=terms).points[0]
        assert (point.best is not None) is searched
        assert point.meets_target is False


def test_no_target_that_a_layout_meets_at_a_higher_clock_is_refused_beforehand():
    costs = Costs(clock_hz=20e9)
    layer = Layer(
        attention=FullAttention(num_heads=64, num_kv_heads=8, head_dim=128),
        ffn=DenseFfn(ffn_hidden_size=32768),
    )
    model = replace(dense(), hidden_size=8192, layers=(layer,) * 2)
    every = scan_devices(small(model, cluster(8), workload(), costs=costs), [8])
    target = Target(step_time_s=every.points[0].best.step_time_s)
    (point,) = scan_devices(
        small(model, cluster(8), workload(), costs=costs), [8], terms=Terms(target=target)
    ).points
    assert point.meets_target
    assert point.best == every.points[0].best


def test_what_peak_rates_allow_is_that_of_the_fastest_scenario():
    def least(**changes):
        space = replace(SMALL, **changes)
        return least_step(Question(model=moe(), cluster=cluster(8), workload=workload(), space=space))

    assert least(precision=(("fp8", "tensorwise"), None)) == pytest.approx(least() * 989 / 1979)
    assert 0.0 < least(base=Layout(routing=Routing(capacity_factor=0.5))) < least()


def test_the_fewest_devices_of_a_preset_are_judged_by_the_preset():
    question = ask_search(
        "gpt3-175b", cluster="a100-sxm-80gb", devices=112, seq_len=2048, global_batch_size=1536,
        preset="subramanian2024", preset_options={"tensor_parallel": "1d"},
    )  # fmt: skip
    step = scan_devices(question, [96]).points[0].best.step_time_s
    result = fewest_devices(question, Target(step_time_s=step))
    assert result.chosen.num_devices == 96, "between 64 and 112, the powers of two and the cluster"
    assert result.chosen.best.step_time_s == step
